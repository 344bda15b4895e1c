"""Managing a memory over REST: forget, add, count."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.callers.rest import RestClient, client_with_key, context_texts
from tests.support.events import delta, dialogue, done, interrupt
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.app import App
from voicemem.protocol.types import JsonObject


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    return RestClient(await serve())


# Forget


async def test_what_is_forgotten_is_in_the_history_only(api: RestClient) -> None:
    """The history stays as it is; the context and its account know what is gone; the journal says so."""
    await api.create()
    await api.send(*dialogue(4))
    before = await api.contents()
    answered = await api.post("/v1/sessions/s/forget", {"keep_last": 3})
    assert (200, {"position": 13, "forgotten": 5, "remembered": 3}) == (answered.status, answered.json)
    assert ["A3", "Q4", "A4"] == context_texts(await api.context())
    assert before == await api.contents()
    used = await api.context("?usage=true")
    assert ["forgotten"] * 5 == [one["reason"] for one in used["left_out"]]
    assert {"type": "memory.forgotten", "turn": 3, "kept": [8]} == (await api.journal())[-1]["event"]
    assert 6 == (await api.post("/v1/sessions/s/forget", {"through_turn": 3})).json["forgotten"]
    assert 8 == (await api.post("/v1/sessions/s/forget", {})).json["forgotten"]
    assert [] == context_texts(await api.context())


async def test_an_ended_session_can_forget(api: RestClient) -> None:
    """And it stays ended."""
    await api.create()
    await api.send(*dialogue(2))
    await api.end()
    assert 2 == (await api.post("/v1/sessions/s/forget", {"keep_last": 2})).json["remembered"]
    assert ("ended", 8) == ((session := await api.session())["state"], session["position"])


async def test_what_is_forgotten_stays_so_after_a_restart(serve: Serve, tmp_path: Any) -> None:
    """Another service on the same file shows the same context."""
    from tests.support.services import running_service

    async with running_service(store=f"sqlite:{tmp_path}/db") as app:
        first = RestClient(app)
        await first.create()
        await first.send(*dialogue(2))
        await first.post("/v1/sessions/s/forget", {"keep_last": 1})
    api = RestClient(await serve(store=f"sqlite:{tmp_path}/db"))
    assert ["A2"] == context_texts(await api.context())


BAD_FORGETS: list[tuple[Any, tuple[int, str]]] = [
    ({"through_turn": 3}, (404, "unknown_turn")),
    ({"through_turn": -1}, (400, "invalid_field")),
    ({"through_turn": 1.5}, (400, "invalid_field")),
    ({"keep_last": -1}, (400, "invalid_field")),
    ({"keep_last": "2"}, (400, "invalid_field")),
    ({"keep_last": 2**53 + 1}, (400, "invalid_field")),
    ({"keep_last": 1, "through_turn": 1}, (400, "invalid_field")),
    ({"everything": False}, (400, "invalid_field")),
    ({"everything": True, "keep_last": 1}, (400, "invalid_field")),
    ({"all": True}, (400, "invalid_field")),
    ({"keep_last": None}, (400, "invalid_field")),
    ({"through_turn": None}, (400, "invalid_field")),
    ({"everything": None}, (400, "invalid_field")),
    (b"", (400, "missing_field")),
    ([], (400, "not_events")),
    (b"{", (400, "invalid_json")),
]


@every_row(("body", "told"), BAD_FORGETS, ids=str)
async def test_a_bad_wish_forgets_nothing(in_dialogue: RestClient, body: Any, told: tuple[int, str]) -> None:
    """Each gets its code, and nothing is journaled."""
    assert told == (await in_dialogue.post("/v1/sessions/s/forget", body)).problem
    assert 6 == (await in_dialogue.session())["position"]


async def test_a_summary_under_way_is_not_made_of_what_is_forgotten(serve: Serve) -> None:
    """What an LLM wrote of messages that are forgotten meanwhile is thrown away."""
    from voicemem.config.context import ContextConfig
    from voicemem.context.builder import ContextOptions, select_context
    from voicemem.context.summary_policy import DueSummary
    from voicemem.llm.background import LlmText

    app = await serve()
    api = RestClient(app)
    await api.create(memory={"policy": "summary", "max_tokens": 1000})
    await api.send(*dialogue(3))
    stream = await app.services.store.journal.get_session("default", "s")
    services, options = app.services, ContextOptions(memory=ContextConfig())
    selection = await select_context(services.read_models, services.policies, stream, options, lambda one: one)
    due = DueSummary(None, selection.remembered.messages[:4], [], 2, 4)
    await api.post("/v1/sessions/s/forget", {"through_turn": 1})
    await app.services.summaries.append_summary(stream, due, LlmText("All of it."))
    assert ["Q2", "A2", "Q3", "A3"] == context_texts(await api.context())


# Add

CALL: JsonObject = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
CALL_MESSAGE: JsonObject = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT_MESSAGE: JsonObject = {"role": "tool", "tool_call_id": "c1", "content": "dry"}


async def test_messages_are_added_before_the_first_turn_and_later(api: RestClient) -> None:
    """With a turn of their own, or in the flow of the call; where they come from and when may be said."""
    await api.create()
    more = {"turn_id": 0, "timestamp": 7, "source": "greeting", "metadata": {"voice": "a"}}
    assert {"position": 1, "turn_id": 0} == (
        await api.post("/v1/sessions/s/messages", {"role": "assistant", "content": "Hi.", **more})
    ).json
    await api.send(*dialogue(2))
    listed = [{"role": "user", "content": "Typed", "user": "ann"}, {"role": "assistant", "content": "Read."}]
    assert {"position": 9, "turn_id": 3} == (await api.post("/v1/sessions/s/messages", listed)).json
    contents = await api.contents()
    assert ["Hi.", "Q1", "A1", "Q2", "A2", "Typed", "Read."] == [one["content"] for one in contents]
    assert {"role": "assistant", "content": "Hi.", "turn_id": 0, "timestamp": 7} == {
        name: value for name, value in contents[0].items() if name != "metadata"
    }
    assert {"source": "greeting", "voice": "a"} == contents[0]["metadata"]
    assert [{"source": "message", "user": "ann"}, {"source": "llm"}] == [one["metadata"] for one in contents[-2:]]
    assert {"api"} == {row["producer"] for row in (await api.journal())[7:]}


@pytest.mark.parametrize("openai", [True, False])
async def test_tool_traces_are_added(api: RestClient, openai: bool) -> None:
    """As events name them, or as OpenAI does; they stand between the question and the answer."""
    await api.create()
    weather: JsonObject = dict(CALL["function"])
    native = [
        {"type": "tool.call", "call_id": "c1", **weather},
        {"type": "tool.result", "call_id": "c1", "result": {"sky": "dry"}},
    ]
    likewise = [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "dry"},
    ]
    asked, answered = {"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "No."}
    added = await api.post("/v1/sessions/s/messages", [asked, *(likewise if openai else native), answered])
    assert {"position": 4, "turn_id": 1} == added.json
    user, call, result, reply = (await api.context("?tools=true"))["messages"]
    assert ("Rain?", [CALL], "No.") == (user["content"], call["tool_calls"], reply["content"])
    assert ("c1", "dry" if openai else '{"sky": "dry"}') == (result["tool_call_id"], result["content"])
    late = {"role": "tool", "tool_call_id": "c1", "content": "wet"}
    assert 1 == (await api.post("/v1/sessions/s/messages", late)).json["turn_id"]


async def test_content_may_be_parts_of_text(api: RestClient) -> None:
    """As OpenAI has them: they become one text, a line each; other parts are refused, and nothing is added."""
    await api.create()
    parts = [{"type": "text", "text": "Hello."}, {"type": "text", "text": "Is it raining?"}]
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": [], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": parts[:1]},
        {"role": "assistant", "content": parts[:1]},
    ]
    assert 200 == (await api.post("/v1/sessions/s/messages", messages)).status
    assert ["Hello.\nIs it raining?", "Hello."] == [one["content"] for one in await api.contents()]
    assert "Hello." == (await api.journal())[2]["event"]["result"]
    for part in ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}, {"type": "text"}, "Hello."):
        answered = await api.post("/v1/sessions/s/messages", {"role": "user", "content": [*parts, part]})
        assert 400 == answered.status
    assert 2 == len(await api.contents())


@pytest.mark.parametrize("more", [{}, {"turn_id": 1}, {"role": "user"}])
async def test_a_turn_is_read_in_the_order_of_adding(api: RestClient, more: JsonObject) -> None:
    """What is added right after a list stands behind it, though the list's times may run ahead of the clock."""
    await api.create()
    asked = [{"role": "user", "content": f"Q{number}", "turn_id": 1} for number in range(50)]
    replies = [{"role": "assistant", "content": f"A{number}"} for number in range(50)]
    await api.post("/v1/sessions/s/messages", [*asked, *replies])
    later = {"role": "assistant", "content": "LATER", "turn_id": 1} | more
    await api.post("/v1/sessions/s/messages", later)
    contents = [message["content"] for message in await api.contents()]
    assert "LATER" == contents[50 if later["role"] == "user" else -1]
    assert [f"Q{n}" for n in range(50)] + [f"A{n}" for n in range(50)] == [c for c in contents if c != "LATER"]


async def test_a_tool_trace_stands_behind_what_was_added_before_it(api: RestClient) -> None:
    """Of calls that come one by one, behind a list whose times run ahead of the clock."""
    await api.create()
    replies = [{"role": "assistant", "content": f"A{number}"} for number in range(50)]
    await api.post("/v1/sessions/s/messages", [{"role": "user", "content": "Q"}, *replies])
    for added in ([CALL_MESSAGE], [RESULT_MESSAGE], [{"role": "assistant", "content": "Done."}]):
        await api.post("/v1/sessions/s/messages", added)
    roles = [message["role"] for message in (await api.context("?tools=true"))["messages"]]
    assert ["assistant", "assistant", "tool", "assistant"] == roles[-4:]


async def test_a_message_that_is_sent_again_changes_nothing(api: RestClient) -> None:
    """With an id of the caller's own, a retry is safe, and hears of the same turn."""
    await api.create()
    message = {"role": "user", "content": "Once", "id": "m1"}
    turns = [(await api.post("/v1/sessions/s/messages", message)).json["turn_id"] for _ in range(3)]
    assert ([1, 1, 1], 1) == (turns, len(await api.contents()))


async def test_forty_writers_lose_nothing(api: RestClient) -> None:
    """Everybody's message is there, each in a turn of its own."""
    await api.create()
    texts = {f"From {number}" for number in range(40)}
    posts = [api.post("/v1/sessions/s/messages", {"role": "user", "content": text}) for text in texts]
    answers = await asyncio.gather(*posts)
    contents = await api.contents()
    assert texts == {message["content"] for message in contents}
    assert list(range(1, 41)) == sorted(answer.json["turn_id"] for answer in answers)


USER = {"role": "user", "content": "x"}
BAD_MESSAGES: list[tuple[Any, tuple[int, str]]] = [
    ([], (400, "missing_field")),
    ({}, (400, "invalid_field")),
    ({"role": "user"}, (400, "missing_field")),
    ({"role": "system", "content": "Be kind."}, (400, "invalid_field")),
    ({"role": "developer", "content": "Be kind."}, (400, "invalid_field")),
    ({"role": "robot", "content": "x"}, (400, "invalid_field")),
    ({"role": "tool", "content": "x"}, (400, "missing_field")),
    ({"role": "assistant"}, (400, "missing_field")),
    ({"role": "assistant", "tool_calls": [{"id": "c"}]}, (400, "invalid_field")),
    ({"type": "tool.call", "call_id": "c", "name": "f"}, (400, "missing_field")),
    ({"type": "tool.result", "result": 1}, (400, "missing_field")),
    ({"type": "llm.done"}, (400, "invalid_field")),
    (USER | {"source": "llm"}, (400, "invalid_field")),
    (USER | {"source": "magic"}, (400, "invalid_field")),
    (USER | {"turn_id": -1}, (400, "invalid_field")),
    (USER | {"timestamp": 2**53 + 1}, (400, "invalid_field")),
    (USER | {"magic": 1}, (400, "invalid_field")),
    (USER | {"metadata": {"original": "y"}}, (400, "invalid_field")),
    (USER | {"content": "x" * 300_000}, (400, "text_too_long")),
    ([USER, {"role": "system", "content": "Be kind."}], (400, "invalid_field")),
    ([USER, 1], (400, "not_events")),
    ("x", (400, "not_events")),
    (b"", (400, "invalid_json")),
    (b"[" * 100, (400, "too_deep")),
    (b'{"role":"user","content":"\\ud800"}', (400, "invalid_json")),
    (b'{"role":"user","content":"x","timestamp":1e400}', (400, "invalid_field")),
    (b" " * (1024 * 1024 + 1), (413, "too_big")),
]


@every_row(("body", "told"), BAD_MESSAGES, ids=range(len(BAD_MESSAGES)))
async def test_a_bad_message_adds_nothing(in_session: RestClient, body: Any, told: tuple[int, str]) -> None:
    """Each gets its code, and of a list nothing is taken."""
    assert told == (await in_session.post("/v1/sessions/s/messages", body)).problem
    assert 0 == (await in_session.session())["position"]


async def test_system_messages_are_pointed_to_the_configuration(api: RestClient) -> None:
    """The sentence says where they belong, and which of a list it was."""
    await api.create()
    answered = await api.post("/v1/sessions/s/messages", [USER, {"role": "system", "content": "Be kind."}])
    assert "In entry 2: System messages are configuration" in answered.json["detail"]
    assert "llm.system_messages" in answered.json["detail"]


async def test_a_session_that_has_ended_takes_no_messages(api: RestClient) -> None:
    """As it takes no events."""
    await api.create()
    await api.end()
    assert (410, "session_ended") == (await api.post("/v1/sessions/s/messages", USER)).problem


# Statistics


async def test_what_is_counted_is_what_happened(api: RestClient) -> None:
    """Messages, unheard text, tokens, latencies by nearest rank, tools."""
    await api.create(llm={"model": "gpt-4o"})
    await api.send(*dialogue(2), delta(3, "0123456789"), interrupt(3, heard_text="012"), done(3))
    greeting = {"role": "assistant", "content": "Nobody generated this.", "turn_id": 3, "source": "greeting"}
    await api.post("/v1/sessions/s/messages", greeting)
    await api.send(*({"type": "metric", "turn_id": 1, "name": "llm_ttft", "latency_ms": n} for n in range(1, 201)))
    await api.send({"type": "tool.call", "turn_id": 1, "call_id": "c", "name": "f", "arguments": {}})
    await api.post("/v1/sessions/s/forget", {"through_turn": 1})
    stats = dict((await api.get("/v1/sessions/s/stats")).json)
    assert ({"user": 2, "assistant": 4}, 3, 1, 2) == tuple(
        stats[name] for name in ("messages", "turns", "interruptions", "forgotten")
    )
    assert {"characters": 7, "share": 0.5} == stats["unheard"]
    assert {"llm_ttft": {"count": 200, "p50": 100, "p90": 180, "p99": 198, "max": 200}} == stats["latencies"]
    assert {"calls": 1, "answered": 0, "by_name": {"f": 1}} == stats["tools"]
    assert ("s", "running", None) == (stats["session_id"], stats["state"], stats["summary"])
    assert all(stats["tokens"].values())
    assert 0 <= stats["duration_ms"] < 600_000
    assert stats["memory_bytes"] > 0


async def test_statistics_change_nothing(api: RestClient, app: App) -> None:
    """Neither is anything carried over from earlier sessions, nor a summary looked for, because someone counts."""
    config: JsonObject = {"user_id": "u", "memory_from": {"sessions": 1}, "memory": {"policy": "summary"}}
    await api.create("earlier", user_id="u")
    await api.create(**config)
    app.services.summaries.changed.clear()
    stats = (await api.get("/v1/sessions/s/stats")).json
    assert (0, "none") == (stats["position"], stats["summary"]["state"])
    assert [] == await api.journal("s")
    assert {} == app.services.summaries.changed


async def test_many_tools_are_counted_in_one_pass(api: RestClient) -> None:
    """Each name is counted, however many there are."""
    await api.create()
    calls = [
        {"type": "tool.call", "turn_id": 1, "call_id": f"c{n}", "name": f"t{n % 700}", "arguments": 1}
        for n in range(900)
    ]
    await api.send(*calls)
    by_name = (await api.get("/v1/sessions/s/stats")).json["tools"]["by_name"]
    assert {f"t{n}": 2 if n < 200 else 1 for n in range(700)} == by_name


async def test_an_empty_session_is_counted_too(api: RestClient) -> None:
    """Nothing is divided by nothing."""
    await api.create(memory={"policy": "summary"})
    stats = (await api.get("/v1/sessions/s/stats")).json
    assert ({"characters": 0, "share": 0}, {}, 0) == (stats["unheard"], stats["latencies"], stats["turns"])
    assert "none" == stats["summary"]["state"]


# Access


async def test_each_call_needs_its_scope(serve: Serve) -> None:
    """Reading does not change, and a token of the session neither copies nor sets anything."""
    app = await serve()
    ingest, reader = await client_with_key(app, "ingest"), await client_with_key(app, "read")
    await ingest.create()
    await ingest.send(*dialogue(1))
    for path in ("forget", "messages", "fork"):
        assert (403, "forbidden") == (await reader.post(f"/v1/sessions/s/{path}", {})).problem
    for path in ("sessions/s/stats", "sessions/s/checkpoint", "users/u/sessions"):
        assert (403, "forbidden") == (await ingest.get(f"/v1/{path}")).problem
    admin = await client_with_key(app, "admin", "read", "ingest")
    token = (await admin.post("/v1/sessions/s/tokens", {})).json["token"]
    tokened = RestClient(app, token)
    assert 200 == (await tokened.post("/v1/sessions/s/messages", USER)).status
    assert (403, "forbidden") == (await tokened.post("/v1/sessions/s/fork", {"at_turn": 1})).problem
    assert (403, "forbidden") == (await tokened.post("/v1/restore", {"checkpoint": {}})).problem
    assert (403, "forbidden") == (await tokened.get("/v1/users/u/sessions")).problem


@pytest.mark.parametrize("path", ["forget", "messages", "fork"])
async def test_there_must_be_a_session(api: RestClient, path: str) -> None:
    """Its project's only, and not an erased one."""
    assert (404, "unknown_session") == (await api.post(f"/v1/sessions/none/{path}", {"at_turn": 1})).problem
    await api.create()
    await api.delete("/v1/sessions/s")
    assert (404, "unknown_session") == (await api.post(f"/v1/sessions/s/{path}", {"at_turn": 1})).problem
