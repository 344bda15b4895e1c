"""Retell's webhooks, signed by Retell's own SDK, at their door."""

from __future__ import annotations

import hmac
import io
import json
import time
from typing import Any

import pytest

from tests.support.callers.rest import RestClient, RestResponse, make_key
from tests.support.dialects import RECORDINGS
from tests.support.paths import ROOT
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App

CALLS = {one.name: one for one in RECORDINGS if one.dialect == "retell"}
BODY = json.loads((ROOT / "fixtures" / "retell" / "webhook.json").read_text("utf-8"))
KEY = "key_1"
SESSION = BODY["call"]["call_id"]


async def post(app: App, body: Any, key: str = KEY, age_ms: int = 0, signature: str | None = None) -> RestResponse:
    """The answer to a webhook, signed as the SDK signs with a key so long ago, unless there is a signature."""
    text, now = json.dumps(body, ensure_ascii=False), int(time.time() * 1000) - age_ms
    digest = hmac.digest(key.encode(), f"{text}{now}".encode(), "sha256").hex()
    signed = f"v={now},d={digest}" if signature is None else signature
    headers = {"Content-Type": "application/json", "X-Retell-Signature": signed}
    data = io.BytesIO(text.encode())
    return await RestClient(app).call("POST", "/v1/hooks/retell", headers=headers, data=data)


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service that has the webhooks' key."""
    return await serve(hook_secrets=(f"retell={KEY}",))


@pytest.fixture
async def admin(app: App) -> RestClient:
    """Whoever looks at the memory."""
    return RestClient(app, await make_key(app, "admin"))


async def test_the_webhook_gives_the_whole_call(app: App, admin: RestClient) -> None:
    """`call_ended` makes the memory and ends the session; again, or as `call_analyzed`, it changes nothing."""
    assert (await post(app, BODY)).json["stored"] > 0
    await eventually("ended", lambda: admin.state(SESSION))
    expected = CALLS["webhook_alone"].document("contents")["contents"]
    for body in (BODY, BODY | {"event": "call_analyzed"}):
        answered = await post(app, body)
        assert (answered.status, answered.json) == (200, {"session_id": SESSION, "stored": 0})
        assert said(expected) == said(await admin.contents(SESSION))


async def test_what_comes_only_after_the_end_is_said_to_be_refused(app: App) -> None:
    """Such as latencies that `call_ended` did not have."""
    await post(app, BODY)
    late = BODY["call"] | {"latency": {"s2s": {"values": [1, 2, 3, 4, 5, 6, 7, 8]}}}
    answered = await post(app, {"event": "call_analyzed", "call": late})
    assert answered.json == {"session_id": SESSION, "stored": 0, "refused": "session_ended"}


def said(contents: list[Any]) -> list[tuple[str, int, str, Any]]:
    return [(one["role"], one["turn_id"], one["content"], one["metadata"].get("original")) for one in contents]


@pytest.mark.parametrize("name", ["updates_in_any_order_and_twice", "live_and_webhook"])
async def test_live_frames_and_webhooks_give_one_memory(app: App, admin: RestClient, name: str) -> None:
    """What came over the websocket, and each webhook twice; the webhook after the call ends the session."""
    await admin.create(SESSION)
    for envelope in CALLS[name].envelopes():
        if "event" in envelope["frame"]:
            assert [(await post(app, envelope["frame"])).status for _ in range(2)] == [200, 200]
        else:
            await admin.send(envelope, query="?dialect=retell", session_id=SESSION)
    await eventually("ended", lambda: admin.state(SESSION))
    assert said(CALLS[name].document("contents")["contents"]) == said(await admin.contents(SESSION))


async def test_only_what_is_new_is_stored(app: App) -> None:
    """Of a transcript that comes again, what it adds is stored, and after which reply the caller spoke."""
    updates = [one["frame"] for one in CALLS["updates_in_any_order_and_twice"].envelopes()]
    stored = [(await post(app, one)).json["stored"] for one in updates if one["event"] == "transcript_updated"]
    assert stored == [1, 0, 2, 1, 1, 2, 0, 0]


async def test_forged_and_old_webhooks_are_refused(app: App, admin: RestClient) -> None:
    """Signed with another key, more than five minutes ago, or not at all: nothing is stored."""
    for answered in (
        await post(app, BODY, "another key"),
        await post(app, BODY, age_ms=301_000),
        await post(app, BODY, signature=""),
        await post(app, BODY, signature=f"v={int(time.time() * 1000)},d={'0' * 64}"),
    ):
        assert (answered.status, answered.json["reason"]) == (401, "unauthorized")
    assert (await admin.get("/v1/sessions")).json["sessions"] == []


async def test_webhooks_that_say_nothing_are_counted(app: App, admin: RestClient) -> None:
    """The begin of a call, transfers, and events that no one knows are answered 200 and make no session."""
    for event in ("call_started", "transfer_started", "brand_new"):
        answered = await post(app, {"event": event, "call": {"call_id": "c"}})
        assert (answered.status, answered.json) == (200, {"session_id": None, "stored": 0})
    metrics = (await admin.get("/metrics")).body.decode()
    assert 'voicemem_frames_total{dialect="retell",result="ignored"} 2.0' in metrics
    assert 'voicemem_frames_total{dialect="retell",result="unknown"} 1.0' in metrics


async def test_the_webhook_of_a_long_call_is_taken(app: App, admin: RestClient) -> None:
    """Hours of words with their times, in both transcripts, are more than other bodies may have."""
    words = [{"word": f"word{place}", "start": place / 3, "end": place / 3 + 0.3} for place in range(300)]
    text = " ".join(str(one["word"]) for one in words)
    spoken = [{"role": role, "content": text, "words": words} for _ in range(40) for role in ("agent", "user")]
    lists = dict.fromkeys(("transcript_object", "transcript_with_tool_calls"), spoken)
    answer = await post(app, BODY | {"call": BODY["call"] | lists})
    assert (answer.status, answer.json["stored"]) == (200, len(spoken) + 1)
    await eventually("ended", lambda: admin.state(SESSION))
    assert len(await admin.contents(SESSION)) == len(spoken)


async def test_what_is_larger_is_refused(app: App) -> None:
    """The answer says how much a webhook may have; nothing is stored."""
    answer = await post(app, BODY | {"filler": "x" * 8 * 1024 * 1024})
    assert (answer.status, "8 MiB" in answer.json["detail"]) == (413, True)
