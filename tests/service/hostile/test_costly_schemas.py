"""Bad input 133 to 136: schemas that would take long to look at."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import sys
import threading

import pytest

from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import RestClient, make_key
from tests.support.services import Serve
from voicemem.protocol.types import JsonObject
from voicemem.sessions.schema_worker import SCHEMA_WORKER

ADMIN_KEY = "the operator's own key"
NAME = "definition"
MANY: JsonObject = {f"p{number}": {} for number in range(600)}


def spelled(number: int) -> str:
    """The path to one definition, spelled in another way for each number."""
    letters = [f"%{ord(letter):02x}" if number >> at & 1 else letter for at, letter in enumerate(NAME)]
    return "#/$defs/" + "".join(letters)


COSTLY: dict[str, JsonObject] = {
    "133 many spellings of one path": {
        "$defs": {NAME: {"properties": MANY}},
        "allOf": [{"$ref": spelled(number)} for number in range(800)],
    },
    "134 a row that doubles below a property": {
        "properties": {"a": {"$ref": "#/$defs/n0"}},
        "$defs": {"n20": {}}
        | {
            f"n{level}": {"allOf": [{"$ref": f"#/$defs/n{level + 1}"}] * 2, "unevaluatedProperties": False}
            for level in range(20)
        },
    },
    "135 patterns of many classes": {"allOf": [{"pattern": r"\W" * 400} for _ in range(64)]},
    "135 a pattern with blanks in its repetition": {"pattern": "{" + " " * 990},
}


@pytest.mark.parametrize("name", COSTLY)
async def test_costly_schemas_are_refused(serve: Serve, name: str) -> None:
    """Wherever such a schema comes in, it is refused with a sentence, and nothing of it is stored."""
    api = RestClient(await serve())
    await api.create()
    working_memory = {"working_memory": {"schema": COSTLY[name]}}
    answers = [
        await api.post("/v1/sessions", {"session_id": "t"} | working_memory),
        await api.patch("/v1/sessions/s", working_memory),
        await api.call("PUT", "/v1/sessions/s/working-memory", json={"schema": COSTLY[name]}),
        await api.post("/v1/sessions/s/fork", {"at_turn": 0} | working_memory),
    ]
    assert [(400, "invalid_field")] * 4 == [answer.problem for answer in answers]
    sent = await api.post("/v1/sessions/s/events", {"type": "session.update"} | working_memory)
    assert ["invalid_field"] == [error["code"] for error in sent.appended["errors"]]
    assert {} == (await api.get("/v1/sessions/s")).json["config"]


async def test_a_schema_that_nothing_can_check_is_a_503(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the process for schemas cannot be started, they are not refused for good, and nothing is stored."""
    api = RestClient(await serve())
    await api.create()
    SCHEMA_WORKER.end()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    working_memory = {"working_memory": {"schema": {"title": "a"}}}
    answers = [
        await api.post("/v1/sessions", {"session_id": "t"} | working_memory),
        await api.patch("/v1/sessions/s", working_memory),
        await api.call("PUT", "/v1/sessions/s/working-memory", json={"schema": {"title": "a"}}),
        await api.post("/v1/sessions/s/events", {"type": "session.update"} | working_memory),
    ]
    assert [(503, "store_unavailable")] * 4 == [answer.problem for answer in answers]
    assert {} == (await api.get("/v1/sessions/s")).json["config"]


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[JsonObject, bool]]:
    """The schemas that go to the process that compiles them, and whether the event loop waited for it."""
    checked: list[tuple[JsonObject, bool]] = []

    def note(schema: JsonObject, document: JsonObject | None) -> str:
        checked.append((schema, threading.current_thread() is threading.main_thread()))
        return find_fault(schema, document)

    find_fault = SCHEMA_WORKER.find_fault
    monkeypatch.setattr(SCHEMA_WORKER, "find_fault", note)
    return checked


async def test_136_what_may_not_be_set_is_not_looked_at(serve: Serve, checked: list[tuple[JsonObject, bool]]) -> None:
    """A key that may not make the service call out is refused before the schema beside it is compiled."""
    app = await serve(admin_key=ADMIN_KEY)
    await RestClient(app, ADMIN_KEY).create()
    key = await make_key(app, "ingest")
    ingest = RestClient(app, key)
    given = {"webhook": {"url": "https://a.example"}, "working_memory": {"schema": {"title": "looked at by nobody"}}}
    update = {"type": "session.update"} | given
    sent = await ingest.post("/v1/sessions/s/events", [update] * 3)
    assert ["forbidden"] * 3 == [error["code"] for error in sent.appended["errors"]]
    assert (403, "forbidden") == (await ingest.post("/v1/sessions", given)).problem
    async with connected_producer(app, {"Authorization": f"Bearer {key}"}) as producer:
        await producer.send({"type": "session.open", "session_id": "new", "session": given})
        await producer.expect_error("forbidden")
        await producer.open("s")
        await producer.send(update)
        await producer.expect_error("forbidden")
    assert [] == checked


async def test_schemas_are_compiled_where_nobody_waits(serve: Serve, checked: list[tuple[JsonObject, bool]]) -> None:
    """A schema that comes in an event, by either way in, or opens a session, is no work of the event loop."""
    api = RestClient(app := await serve())
    await api.create()
    update = {"type": "session.update", "working_memory": {"schema": {"title": "posted"}}}
    assert (await api.post("/v1/sessions/s/events", update)).status == 200
    async with connected_producer(app) as producer:
        given = {"working_memory": {"schema": {"title": "opened"}}}
        await producer.send({"type": "session.open", "session_id": "new", "session": given})
        await producer.expect("session.ready")
        update = {"type": "session.update", "working_memory": {"schema": {"title": "sent"}}}
        await producer.send(update)
        await producer.rest()
    assert [({"title": title}, False) for title in ("posted", "opened", "sent")] == checked
