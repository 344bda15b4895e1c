"""The APIs of vendors that have calls of the past, as far as an import asks them, with what their SDKs' types require.

Calls are made of the webhooks in `fixtures/`, each with another id and begin.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.paths import ROOT
from voicemem.protocol.types import JsonObject

KEY = "vendor-key-1"
NUMBERS = ("+4915112345678", "+15551230000")
"""The caller's and the agent's, which stand in every call."""
BEGIN_MS = 1_763_800_000_000
"""When the webhooks' calls began."""
DAY_MS = 86_400_000
WEBHOOKS: dict[str, JsonObject] = {
    name: json.loads((ROOT / "fixtures" / name / "webhook.json").read_text("utf-8"))
    for name in ("retell", "vapi", "elevenlabs-agents")
}
Answer = Callable[[web.Request], web.Response]


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moved(value: Any, by_ms: int) -> Any:
    """The same with all times in Unix ms later."""
    if isinstance(value, dict):
        return {name: moved(one, by_ms) for name, one in value.items()}
    if isinstance(value, list):
        return [moved(one, by_ms) for one in value]
    is_time = isinstance(value, int | float) and not isinstance(value, bool) and value > 10**12
    return value + by_ms if is_time else value


def retell_call(id: str, by_ms: int = 0, **more: Any) -> JsonObject:
    call: JsonObject = moved(WEBHOOKS["retell"]["call"], by_ms)
    return call | {"call_id": id, "from_number": NUMBERS[0], "to_number": NUMBERS[1], **more}


def vapi_call(id: str, by_ms: int = 0, **more: Any) -> JsonObject:
    report = moved(WEBHOOKS["vapi"]["message"], by_ms)
    times = {"startedAt": iso(BEGIN_MS + by_ms), "endedAt": iso(BEGIN_MS + 11_650 + by_ms)}
    people = {"customer": {"number": NUMBERS[0]}, "phoneNumber": {"number": NUMBERS[1]}}
    fixed = {"orgId": "org_1", "type": "inboundPhoneCall", "status": "ended", "endedReason": report["endedReason"]}
    made = {"createdAt": iso(BEGIN_MS - 2_000 + by_ms), "updatedAt": iso(BEGIN_MS + 30_000 + by_ms)}
    content = {"artifact": report["artifact"], "messages": report["artifact"]["messages"]}
    return {"id": id, **fixed, **made, **times, **people, **content, **more}


def elevenlabs_call(id: str, by_ms: int = 0, **more: Any) -> JsonObject:
    data: JsonObject = json.loads(json.dumps(WEBHOOKS["elevenlabs-agents"]["data"]))
    data["metadata"]["start_time_unix_secs"] = (BEGIN_MS + by_ms) // 1000
    audio = dict.fromkeys(("has_audio", "has_user_audio", "has_response_audio", "has_auxiliary_audio"), False)
    return data | audio | {"conversation_id": id, "user_id": NUMBERS[0], "status": "done", **more}


class VendorServer:
    """The API of one vendor. `faults` are answers that come first, in this order, one for each request."""

    def __init__(self, vendor: str, calls: list[JsonObject]) -> None:
        self.vendor = vendor
        self.calls = calls
        self.faults: list[Answer] = []
        self.requests: list[str] = []
        """Method and path of each, with the query."""
        self.times: list[float] = []
        self.page = 100
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(f"{request.method} {request.path_qs}")
        self.times.append(asyncio.get_running_loop().time())
        header = request.headers.get("xi-api-key" if self.vendor == "elevenlabs" else "Authorization", "")
        if self.faults:
            return self.faults.pop(0)(request)
        if header != (KEY if self.vendor == "elevenlabs" else f"Bearer {KEY}"):
            return web.json_response({"error": NUMBERS[0]}, status=401)
        body = await request.json() if request.body_exists else {}
        answered = getattr(self, self.vendor)(request, body)
        return web.json_response({"detail": "no"}, status=404) if answered is None else web.json_response(answered)

    def slice(self, calls: list[JsonObject], cursor: str | None, limit: int) -> tuple[list[JsonObject], str | None]:
        first, size = int(cursor or 0), min(self.page, limit)
        return calls[first : first + size], str(first + size) if first + size < len(calls) else None

    def retell(self, request: web.Request, body: JsonObject) -> Any:
        if request.path.startswith("/v2/get-call/"):
            return next((one for one in self.calls if one["call_id"] == request.path.split("/")[-1]), None)
        assert (request.method, request.path, body["sort_order"]) == ("POST", "/v3/list-calls", "ascending")
        since = body["filter_criteria"]["start_timestamp"]
        assert (since["type"], since["op"]) == ("number", "ge")
        found = [one for one in self.calls if one["start_timestamp"] >= since["value"]]
        page, cursor = self.slice(found, body.get("pagination_key"), body["limit"])
        left_out = ("transcript", "transcript_object", "transcript_with_tool_calls")
        items = [{name: one[name] for name in one if name not in left_out} for one in page]
        return {"items": items, "has_more": cursor is not None} | ({} if cursor is None else {"pagination_key": cursor})

    def elevenlabs(self, request: web.Request, body: JsonObject) -> Any:
        if request.path != "/v1/convai/conversations":
            return next((one for one in self.calls if one["conversation_id"] == request.path.split("/")[-1]), None)
        assert int(request.query["page_size"]) <= 100
        since = int(request.query["call_start_after_unix"])
        found = [one for one in self.calls if one["metadata"]["start_time_unix_secs"] > since]
        page, cursor = self.slice(found, request.query.get("cursor"), int(request.query["page_size"]))
        summaries = [
            {
                **{name: one[name] for name in ("agent_id", "conversation_id", "status")},
                "start_time_unix_secs": one["metadata"]["start_time_unix_secs"],
                "call_duration_secs": 12,
                "message_count": 5,
                "call_successful": "success",
            }
            for one in page
        ]
        return {"conversations": summaries, "next_cursor": cursor, "has_more": cursor is not None}

    def vapi(self, request: web.Request, body: JsonObject) -> Any:
        query = request.query
        found = [
            one
            for one in self.calls
            if query["createdAtGe"] <= one["createdAt"] <= query.get("createdAtLe", one["createdAt"])
        ]
        newest = sorted(found, key=lambda one: str(one["createdAt"]), reverse=True)
        return newest[: int(query["limit"])]


@asynccontextmanager
async def vendor_server(vendor: str, *calls: JsonObject) -> AsyncIterator[VendorServer]:
    """A running API of a vendor."""
    server = VendorServer(vendor, list(calls))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    async with TestServer(app) as running:
        server.url = f"http://127.0.0.1:{running.port}"
        yield server
