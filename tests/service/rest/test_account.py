"""What a session's memory has besides its messages, over REST."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.callers.rest import RestClient
from tests.support.events import dialogue
from voicemem.app import App
from voicemem.protocol.types import JsonObject


async def account(api: RestClient, session_id: str = "s") -> JsonObject:
    answered = await api.get(f"/v1/sessions/{session_id}/memory")
    assert 200 == answered.status, answered.body
    return dict(answered.json)


async def summarise(app: App, through_turn: int, text: str) -> int:
    """Journal a summary; the position at which it stands."""
    store = app.services.store
    stream = await store.journal.find_session("default", "s")
    assert stream is not None
    event = (
        b'{"type":"memory.summary","through_turn":%d,"text":"%s","messages":%d,"model":"m","input_tokens":50,'
        b'"output_tokens":7}' % (through_turn, text.encode(), 2 * through_turn)
    )
    appended = await store.journal.append_server_event(stream.key, event, stream.position, 5000)
    assert appended is not None
    return appended.position


async def test_an_empty_memory(api: RestClient) -> None:
    """Before anything happened there is nothing, and reading it writes nothing."""
    await api.create()
    before = await account(api)
    empty: JsonObject = {
        "summaries": [],
        "forgotten": [],
        "carried": [],
        "working_memory": {"scope": "session", "version": 0},
    }
    assert {"session_id": "s", "position": before["position"], **empty} == before == await account(api)


async def test_summaries_and_what_was_forgotten(app: App, api: RestClient) -> None:
    """Each says where it was recorded, and when. The newest summary is current until something is forgotten."""
    await api.create()
    await api.send(*dialogue(3))
    first, second = await summarise(app, 1, "One."), await summarise(app, 2, "Two.")
    made = (await account(api))["summaries"]
    assert [([1, 1], "One.", first, False), ([1, 2], "Two.", second, True)] == [
        (one["range"], one["text"], one["position"], one["current"]) for one in made
    ]
    rest = {name: made[1][name] for name in ("messages", "model", "tokens", "ts")}
    assert {"messages": 4, "model": "m", "tokens": {"input": 50, "output": 7}, "ts": 5000} == rest
    forgot = (await api.post("/v1/sessions/s/forget", {"through_turn": 1})).json
    after = await account(api)
    assert [False, False] == [one["current"] for one in after["summaries"]]
    (only,) = after["forgotten"]
    assert only.pop("ts") > 5000
    expected: JsonObject = {"through_turn": 1, "turn": None, "kept": [], "carried": False}
    assert expected | {"position": forgot["position"]} == only
    assert forgot["position"] == after["position"]


async def test_what_was_carried_over_and_the_document(api: RestClient) -> None:
    """They are shown as a context shows them, once one has put them together; looking does not."""
    await api.create("one", user_id="ann")
    await api.post("/v1/sessions/one/messages", [{"role": "user", "content": "I like tea."}])
    await api.end("one")
    await api.create("s", user_id="ann", memory_from={"sessions": 5}, working_memory={"scope": "user"})
    await api.patch("/v1/users/ann/working-memory", {"content": "Tea."})
    before = await account(api)
    assert [] == before["carried"]
    assert {"scope": "user", "version": 1} == before["working_memory"]
    await api.context()
    (carried,) = (await account(api))["carried"]
    assert "one" == carried["session_id"]
    assert "I like tea." in carried["text"]


async def test_a_session_without_a_user_has_no_document(api: RestClient) -> None:
    """It was to share its user's."""
    await api.create("s", working_memory={"scope": "user"})
    assert None is (await account(api))["working_memory"]
    assert (404, "unknown_session") == (await api.get("/v1/sessions/nobody/memory")).problem
