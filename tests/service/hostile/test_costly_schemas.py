"""Bad input 133 to 136: schemas that would take long to look at, counted in the schemas that are compiled."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import threading

import pytest

from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import RestClient, make_key
from tests.support.services import Serve
from tests.unit.documents.test_schema_cost import NAME, spelled
from voicemem.documents import json_schema
from voicemem.documents.json_schema import CompiledSchema, compile_schema, make_schema
from voicemem.protocol.types import JsonObject

ADMIN_KEY = "the operator's own key"
MANY: JsonObject = {f"p{number}": {} for number in range(600)}
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


async def test_136_what_may_not_be_set_is_not_looked_at(serve: Serve) -> None:
    """A key that may not make the service call out is refused before the schema beside it is compiled."""
    app = await serve(admin_key=ADMIN_KEY)
    await RestClient(app, ADMIN_KEY).create()
    key = await make_key(app, "ingest")
    ingest = RestClient(app, key)
    given = {"webhook": {"url": "https://a.example"}, "working_memory": {"schema": {"title": "looked at by nobody"}}}
    looked_at = compile_schema.cache_info()
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
    assert looked_at == compile_schema.cache_info()


async def test_schemas_are_compiled_where_nobody_waits(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema that comes in an event, by either way in, or opens a session, is no work of the event loop."""
    threads: list[bool] = []

    def noted(text: bytes) -> CompiledSchema:
        threads.append(threading.current_thread() is threading.main_thread())
        return make_schema(text)

    monkeypatch.setattr(json_schema, "make_schema", noted)
    app = await serve()
    api = RestClient(app)
    await api.create()
    update = {"type": "session.update", "working_memory": {"schema": {"title": "of an update that is posted"}}}
    assert (await api.post("/v1/sessions/s/events", update)).status == 200
    async with connected_producer(app) as producer:
        given = {"working_memory": {"schema": {"title": "of a session that a producer opens"}}}
        await producer.send({"type": "session.open", "session_id": "new", "session": given})
        await producer.expect("session.ready")
        update = {"type": "session.update", "working_memory": {"schema": {"title": "of an update in a frame"}}}
        await producer.send(update)
        await producer.rest()
    assert [False] * 3 == threads
