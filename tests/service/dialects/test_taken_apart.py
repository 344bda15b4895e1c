"""Messages that say a whole call at once: each becomes as many frames as it says things, at every door."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.support.callers.rest import RestClient
from tests.support.dialects import RECORDINGS
from tests.support.paths import ROOT
from tests.support.waiting import all_connections_handled, eventually
from voicemem.app import App

BODIES = {
    name: json.loads((ROOT / "fixtures" / name / "webhook.json").read_text("utf-8")) for name in ("vapi", "retell")
}
by_dialect = pytest.mark.parametrize("dialect", sorted(BODIES))


def said(contents: list[Any]) -> list[tuple[str, int, str]]:
    return [(one["role"], one["turn_id"], one["content"]) for one in contents]


def expected(dialect: str) -> list[tuple[str, int, str]]:
    (call,) = (one for one in RECORDINGS if (one.dialect, one.name) == (dialect, "webhook_alone"))
    return said(call.document("contents")["contents"])


@by_dialect
async def test_over_http(app: App, api: RestClient, dialect: str) -> None:
    """The report of a call in a batch, bare or in an envelope, is the whole call."""
    for session, message in (("s", BODIES[dialect]), ("t", {"frame": BODIES[dialect], "ts": 1763800030000})):
        await api.create(session)
        answered = await api.send(message, query=f"?dialect={dialect}", session_id=session)
        assert answered["errors"] == []
        await eventually("ended", partial(api.state, session))
        assert said(await api.contents(session)) == expected(dialect)


@by_dialect
async def test_on_the_path_of_a_dialect(app: App, api: RestClient, dialect: str) -> None:
    """So it is as a message of a connection, whose first part says which session it is."""
    async with connect(f"ws://{app.ingest_address}/v1/ingest/{dialect}") as socket:
        await socket.send(json.dumps(BODIES[dialect]))
        await socket.close()
    await all_connections_handled()
    session = BODIES[dialect].get("message", BODIES[dialect])["call"]
    id = session.get("id") or session["call_id"]
    await eventually("ended", lambda: api.state(id))
    assert said(await api.contents(id)) == expected(dialect)


@by_dialect
async def test_malformed_messages_are_refused_whole(app: App, api: RestClient, dialect: str) -> None:
    """One that cannot be taken apart is one malformed frame, and the batch goes on."""
    await api.create()
    bad = (
        {"message": {"type": "conversation-update", "messages": [1]}} if dialect == "vapi" else {"event": "call_ended"}
    )
    answered = await api.call("POST", f"/v1/sessions/s/events?dialect={dialect}", json=[bad, BODIES[dialect]])
    assert [one["code"] for one in answered.json["errors"]] == ["malformed_frame"]
    await eventually("ended", api.state)
    assert said(await api.contents()) == expected(dialect)
