"""Calls as documents over REST: one, or all for which conditions hold."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.service.sessions.test_quarantine import poisoned
from tests.support.callers.rest import RestClient, client_with_key
from tests.support.checks.vcon import check_vcon
from tests.support.samples.audit_lines import acts
from tests.support.samples.cut_call import CUT_CALL
from tests.support.services import node_on
from voicemem.app import App
from voicemem.exports.formats import FORMAT_NAMES, FORMATS, FormatName
from voicemem.memory.exports import export_calls
from voicemem.protocol.types import JsonObject
from voicemem.store.port import Store
from voicemem.store.session_filters import SessionFilter


async def lines_of(api: RestClient, query: str) -> list[JsonObject]:
    """The lines of an export of several calls, which is complete."""
    answered = await api.get(f"/v1/exports{query}")
    assert (200, "application/x-ndjson") == (answered.status, answered.headers["Content-Type"])
    assert ("calls", "end") == (answered.lines[0]["type"], answered.lines[-1]["type"])
    return answered.lines


def ids(lines: list[JsonObject]) -> list[str]:
    return [line["session_id"] for line in lines if line["type"] == "call"]


@pytest.mark.parametrize("name", FORMAT_NAMES)
async def test_a_call_is_a_document_while_it_runs_and_after(app: App, name: FormatName) -> None:
    """In its media type, to be saved under a name of its own; what was heard is in it."""
    api = RestClient(app)
    await api.create("call:1", user_id="ann")
    await api.send(*CUT_CALL, session_id="call:1")
    running = await api.get(f"/v1/sessions/call:1/export?format={name}")
    await api.end("call:1")
    ended = await api.get(f"/v1/sessions/call:1/export?format={name}")
    for answered in (running, ended):
        assert (200, FORMATS[name].media_type) == (answered.status, answered.headers["Content-Type"])
        file = f"call%3A1{FORMATS[name].suffix}"
        assert f'attachment; filename="{file}"' == answered.headers["Content-Disposition"]
        assert "I am allergic to walnuts." in answered.body.decode()


async def test_without_a_format_it_is_a_vcon(app: App) -> None:
    """What was not heard is an analysis."""
    api = RestClient(app)
    await api.create("s")
    await api.send(*CUT_CALL)
    one = (await api.get("/v1/sessions/s/export")).json
    check_vcon(one)
    assert "Noted." == one["dialog"][1]["body"]
    assert "interruption" == one["analysis"][0]["type"]


async def test_what_cannot_be_exported_is_refused(app: App) -> None:
    """An unknown session, and an unknown format."""
    api = RestClient(app)
    await api.create("s")
    assert (404, "unknown_session") == (await api.get("/v1/sessions/x/export")).problem
    assert (400, "invalid_query") == (await api.get("/v1/sessions/s/export?format=pdf")).problem
    assert (400, "invalid_query") == (await api.get("/v1/exports?format=pdf")).problem


async def test_a_call_whose_memory_cannot_be_made_is_named(app: App) -> None:
    """By itself it is 503; among others it has a line, and the others are there."""
    api = RestClient(app)
    await api.create("good")
    await api.send(*CUT_CALL, session_id="good")
    await poisoned(app, "bad")
    assert (503, "session_set_aside") == (await api.get("/v1/sessions/bad/export")).problem
    lines = await lines_of(api, "?format=markdown")
    assert [{"type": "unreadable", "session_id": "bad"}] == [one for one in lines if one["type"] == "unreadable"]
    assert ["good"] == ids(lines)
    assert {"type": "end", "calls": 1, "unreadable": 1} == lines[-1]


async def test_conditions_choose_the_calls(store: Store) -> None:
    """They are those of the list of sessions, on every engine; the newest call comes first."""
    async with node_on(store) as app:
        api = RestClient(app)
        for number in range(3):
            await api.create(f"ann-{number}", user_id="ann", labels={"line": "shop"})
        await api.create("ben", user_id="ben")
        await api.end("ann-1")
        assert ["ben", "ann-2", "ann-1", "ann-0"] == ids(await lines_of(api, ""))
        assert ["ann-2", "ann-1", "ann-0"] == ids(await lines_of(api, "?user_id=ann"))
        assert ["ann-1"] == ids(await lines_of(api, "?state=ended&label=line:shop"))
        assert [] == ids(await lines_of(api, "?started_before=1"))
        lines = await lines_of(api, "?user_id=ann&format=csv")
    assert {"type": "calls", "format": "csv", "sessions": 3} == lines[0]
    assert ["ann-2.csv", "ann-1.csv", "ann-0.csv"] == [one["file"] for one in lines[1:-1]]
    assert all(one["document"].startswith("session_id,turn_id") for one in lines[1:-1])


async def test_one_document_is_the_same_alone_and_among_others(app: App) -> None:
    """A vCon is an object there, and every other document a text."""
    api = RestClient(app)
    await api.create("s")
    await api.send(*CUT_CALL)
    await api.end("s")
    for name in FORMAT_NAMES:
        alone = await api.get(f"/v1/sessions/s/export?format={name}")
        (one,) = [line for line in await lines_of(api, f"?format={name}") if line["type"] == "call"]
        assert (alone.json if name == "vcon" else alone.body.decode()) == one["document"]


async def test_calls_come_one_at_a_time(store: Store) -> None:
    """So an export of any number of calls takes no more memory than the largest of them."""
    async with node_on(store) as app:
        api = RestClient(app)
        for number in range(45):
            await api.create(f"s{number}")
        wanted = SessionFilter(project="default")
        services = app.services
        pieces = [piece async for piece in export_calls(services.store, services.read_models, wanted, "jsonl")]
    assert [1] * 47 == [piece.count(b"\n") for piece in pieces]


async def test_who_exports_calls_is_written_down(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """It needs the scope `read`, and only calls of the key's project are there."""
    writer = await client_with_key(app, "ingest")
    await writer.create("s")
    assert (403, "forbidden") == (await writer.get("/v1/exports")).problem
    assert ["s"] == ids(await lines_of(await client_with_key(app, "read"), ""))
    assert [] == ids(await lines_of(await client_with_key(app, "read", project="other"), ""))
    assert ["default", "other"] == [one["project"] for one in acts(caplog) if one["act"] == "calls_exported"]
