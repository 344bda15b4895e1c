"""A client of the REST API; every answer must be as documented."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import io
import json
from itertools import count
from typing import Any, NamedTuple

import aiohttp
from multidict import CIMultiDictProxy
from yarl import URL

from tests.support.checks import openapi
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.protocol.types import JsonObject

FRESH = count()
PROBLEM = "application/problem+json"
REFUSED = {(422, "events_refused"), (410, "session_ended"), (410, "session_erased"), (409, "superseded")}
"""How a request may end whose events were not all stored."""
LOOPBACK = ("127.0.0.0/8", "::1/128")
"""The allow-list under which a session's own webhook may be a receiver on this machine."""


def fresh_id() -> str:
    """An id of a session or user that no other row of a table has."""
    return f"fresh-{next(FRESH)}"


class RestResponse(NamedTuple):
    """What came back for one request."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def lines(self) -> list[JsonObject]:
        """The body as JSON lines."""
        return [json.loads(line) for line in self.body.split(b"\n") if line]

    @property
    def problem(self) -> tuple[int, str]:
        """Status and code of a problem document, whose other fields are checked on the way."""
        assert PROBLEM == self.headers["Content-Type"]
        problem = self.json
        more = {"error", "next_seq", "errors"}  # the gateway's, and those of refused events
        assert {"type", "title", "status", "detail", "reason"} == set(problem) - more
        assert problem["type"].endswith(problem["reason"])
        assert self.status == problem["status"]
        assert problem["title"]
        assert problem["detail"]
        assert b"Traceback" not in self.body
        return self.status, problem["reason"]

    @property
    def appended(self) -> JsonObject:
        """`next_seq` and `errors` of an answer to events; without errors it is a 200, with errors a problem."""
        told = {"next_seq": self.json["next_seq"], "errors": self.json["errors"]}
        if told["errors"]:
            assert self.problem in REFUSED, self.body
        else:
            assert (200, told) == (self.status, self.json), self.body
        return told


class RestClient:
    """Calls the REST API of a service, each time on a connection of its own; every answer must be as documented."""

    def __init__(self, app: App | str, key: str | None = None) -> None:
        """`app` may be the base URL of a service in another process."""
        self.base = app if isinstance(app, str) else f"http://{app.rest_address}"
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    async def call(self, method: str, path: str, headers: JsonObject | None = None, **more: Any) -> RestResponse:
        """One request; the path is sent as it is written."""
        url = URL(self.base + path, encoded=True)
        async with (
            aiohttp.ClientSession(headers=self.headers) as session,
            session.request(method, url, headers=headers, allow_redirects=False, **more) as answer,
        ):
            answered = RestResponse(answer.status, answer.headers, await answer.read())
        openapi.check_response(method, path, *answered)
        return answered

    async def get(self, path: str, headers: JsonObject | None = None) -> RestResponse:
        return await self.call("GET", path, headers)

    async def post(self, path: str, body: Any = None) -> RestResponse:
        """Post bytes as they are, anything else as JSON."""
        if isinstance(body, bytes):
            return await self.call("POST", path, data=io.BytesIO(body))
        return await self.call("POST", path, json=body) if body is not None else await self.call("POST", path)

    async def patch(self, path: str, body: Any) -> RestResponse:
        return await self.call("PATCH", path, json=body)

    async def delete(self, path: str) -> RestResponse:
        return await self.call("DELETE", path)

    # What most tests begin with

    async def create(self, session_id: str = "s", **config: Any) -> JsonObject:
        """A new session, as it is shown."""
        answered = await self.post("/v1/sessions", {"session_id": session_id, **config})
        assert 201 == answered.status, answered.body
        return dict(answered.json)

    async def send(self, *events: JsonObject, session_id: str = "s", query: str = "") -> JsonObject:
        """What the service says of these events: `next_seq` and `errors`, which fit the status."""
        answered = await self.post(f"/v1/sessions/{session_id}/events{query}", list(events))
        return answered.appended

    async def end(self, session_id: str = "s", **body: Any) -> JsonObject:
        """The session after its end."""
        answered = await self.post(f"/v1/sessions/{session_id}/end", body)
        assert 200 == answered.status, answered.body
        return dict(answered.json)

    async def session(self, session_id: str = "s") -> JsonObject:
        return dict((await self.get(f"/v1/sessions/{session_id}")).json)

    async def state(self, session_id: str = "s") -> str:
        """Whether a session runs."""
        return str((await self.session(session_id))["state"])

    async def contents(self, session_id: str = "s", query: str = "") -> list[JsonObject]:
        """The messages of a session."""
        answered = await self.get(f"/v1/sessions/{session_id}/history{query}")
        assert 200 == answered.status, answered.body
        return list(answered.json["contents"])

    async def context(self, query: str = "", session_id: str = "s") -> JsonObject:
        """The body for the next LLM call."""
        answered = await self.get(f"/v1/sessions/{session_id}/context{query}")
        assert 200 == answered.status, answered.body
        return dict(answered.json)

    async def journal(self, session_id: str = "s", query: str = "") -> list[JsonObject]:
        """The rows of a session's journal."""
        return (await self.get(f"/v1/sessions/{session_id}/events{query}")).lines


def context_texts(body: JsonObject) -> list[str]:
    """What stands in the messages of a context."""
    return [message["content"] for message in body["messages"]]


def bearer_header(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def make_key(app: App, *scopes: str, project: str = "default") -> str:
    """The text of a new key."""
    _, text = await app.services.access.create_key(project, "test", scopes)
    return text


async def client_with_key(app: App, *scopes: str, project: str = "default") -> RestClient:
    """A caller with a key of its own."""
    return RestClient(app, await make_key(app, *scopes, project=project))


async def wait_until_closed(app: App, session_id: str = "s") -> None:
    """Wait for the close of a session; its end is acknowledged before."""

    async def state() -> str | None:
        stream = await app.services.store.journal.find_session("default", session_id)
        return None if stream is None else stream.state

    await eventually("ended", state)
