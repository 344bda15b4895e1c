"""Working memory through agent-memory-server's own client, 0.14, as it comes from its makers."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from agent_memory_client import MemoryAPIClient, MemoryClientConfig
from agent_memory_client.exceptions import MemoryNotFoundError, MemoryServerError
from agent_memory_client.models import (
    ClientMemoryRecord,
    MemoryMessage,
    MemoryStrategyConfig,
    MemoryTypeEnum,
    WorkingMemory,
)

from tests.service.compat.agent_memory_server.conftest import Connect
from tests.support.callers.client_sessions import client_to
from tests.support.callers.rest import RestClient, make_key
from tests.support.events import delta, done, final, interrupt
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.compat.agent_memory_server.routes import AGENT_MEMORY
from voicemem.compat.agent_memory_server.sessions import Owner

pytestmark = pytest.mark.filterwarnings("ignore:get_working_memory is deprecated:DeprecationWarning")
WHEN = datetime(2026, 5, 3, 14, 30, 0, 123456, tzinfo=UTC)


def said(role: str, content: str, id: str, when: datetime = WHEN) -> MemoryMessage:
    return MemoryMessage(role=role, content=content, id=id, created_at=when)


def memory(*messages: MemoryMessage, session_id: str = "s", **more: object) -> WorkingMemory:
    """The time is none of a read: one that is made now may look like it, in one of some hundred runs."""
    fields = {"session_id": session_id, "messages": list(messages), "last_accessed": WHEN, **more}
    return WorkingMemory.model_validate(fields)


async def texts(client: MemoryAPIClient, session_id: str = "s", **owner: Any) -> list[str]:
    return [message.content for message in (await client.get_working_memory(session_id, **owner)).messages]


HELLO = [said("user", "Hello.", "m1"), said("assistant", "Hi, Ann.", "m2")]


async def test_the_service_is_healthy(client: MemoryAPIClient) -> None:
    """With the time in seconds."""
    assert abs((await client.health_check()).now - datetime.now(UTC).timestamp()) < 3600


async def test_what_is_put_is_read_again(client: MemoryAPIClient) -> None:
    """Every field of it; any role, and times to the microsecond."""
    given = memory(
        *HELLO,
        said("tool", "22 degrees", "m3"),
        said("system", "Be brief.", "m4", datetime(2020, 1, 1, tzinfo=UTC)),
        MemoryMessage(
            role="user", content="Thanks!", id="m5", created_at=WHEN, persisted_at=WHEN, discrete_memory_extracted="t"
        ),
        data={"theme": "dark", "deep": {"list": [1, 2.5, None, True]}},
        context="They have met before.",
        user_id="ann",
        namespace="shop",
        tokens=42,
        long_term_memory_strategy=MemoryStrategyConfig(strategy="summary", config={"max_summary_length": 500}),
        ttl_seconds=3600,
        memories=[
            ClientMemoryRecord(
                text="Ann likes tea.", memory_type=MemoryTypeEnum.SEMANTIC, topics=["tea"], entities=["Ann"]
            )
        ],
    )
    put = await client.put_working_memory("s", given)
    read = await client.get_working_memory("s", namespace="shop", user_id="ann")
    for answer in (put, read):
        for name in ("messages", "data", "context", "user_id", "namespace", "tokens", "ttl_seconds", "session_id"):
            assert getattr(given, name) == getattr(answer, name), name
        assert given.long_term_memory_strategy == answer.long_term_memory_strategy
        assert ["Ann likes tea."] == [one.text for one in answer.memories]
        assert (["tea"], ["Ann"]) == (answer.memories[0].topics, answer.memories[0].entities)


@pytest.mark.parametrize(
    ("strategy", "config", "extract"),
    [
        ("preferences", {}, {"strategy": "preferences"}),
        ("summary", {"max_summary_length": 90}, {"strategy": "summary", "instructions": "Write at most 90 words."}),
        ("custom", {"custom_prompt": "{current_datetime}"}, {"strategy": "custom", "prompt": "{now}\n\n{messages}"}),
        ("custom", {"custom_prompt": "Pets: {message}"}, {"strategy": "custom", "prompt": "Pets: {messages}"}),
        ("custom", {}, None),
    ],
)  # fmt: skip
async def test_a_strategy_is_the_sessions_way_to_extract(
    client: MemoryAPIClient, app: App, strategy: Any, config: dict[str, Any], extract: dict[str, str] | None
) -> None:
    """Set by a PUT, kept by the same PUT again without a change, and taken back by `discrete`."""
    given = memory(*HELLO, long_term_memory_strategy=MemoryStrategyConfig(strategy=strategy, config=config))
    await client.put_working_memory("s", given)
    first = (await RestClient(app).get("/v1/sessions/s")).json
    assert extract == (first["config"].get("memory") or {}).get("extract")
    await client.put_working_memory("s", given)
    assert first["position"] == (await RestClient(app).get("/v1/sessions/s")).json["position"]
    await client.put_working_memory("s", memory(*HELLO))
    last = (await RestClient(app).get("/v1/sessions/s")).json["config"]
    assert None is (last.get("memory") or {}).get("extract")


async def test_an_unknown_session_is_not_found(client: MemoryAPIClient) -> None:
    """The client makes it then, and knows that it did."""
    with pytest.raises(MemoryNotFoundError):
        await client.get_working_memory("s")
    assert [True, False] == [(await client.get_or_create_working_memory("s", user_id="ann"))[0] for _ in range(2)]


async def test_appending_journals_only_what_is_new(client: MemoryAPIClient, app: App) -> None:
    """Messages that stand are not written again, however often they are sent."""
    await client.put_working_memory("s", memory(*HELLO))
    before = (await RestClient(app).get("/v1/sessions/s")).json["position"]
    await client.put_working_memory("s", memory(*HELLO))
    assert before == (await RestClient(app).get("/v1/sessions/s")).json["position"]
    await client.append_messages_to_working_memory("s", [{"role": "user", "content": "Bye."}])
    assert before + 1 == (await RestClient(app).get("/v1/sessions/s")).json["position"]
    assert ["Hello.", "Hi, Ann.", "Bye."] == await texts(client)


async def test_another_list_takes_the_place_of_the_first(client: MemoryAPIClient, app: App) -> None:
    """What is left out is forgotten; what stood at the end of the old list is not written again."""
    await client.put_working_memory("s", memory(*HELLO, said("user", "And?", "m3")))
    await client.put_working_memory("s", memory(said("user", "And?", "m3"), said("assistant", "So.", "m4")))
    assert ["And?", "So."] == await texts(client)
    await client.put_working_memory("s", memory(said("user", "New.", "m9"), *HELLO))
    assert ["New.", "Hello.", "Hi, Ann."] == await texts(client)
    await client.put_working_memory("s", memory(said("user", "Edited.", "m9"), *HELLO))
    assert ["Edited.", "Hello.", "Hi, Ann."] == await texts(client)
    context = (await RestClient(app).get("/v1/sessions/s/context")).json
    assert ["Edited.", "Hello.", "Hi, Ann."] == [message["content"] for message in context["messages"]]


async def test_an_empty_list_takes_everything_away(client: MemoryAPIClient, app: App) -> None:
    """But what clients begin a session with, just after it began, is of one that had not found it."""
    await client.put_working_memory("s", memory(*HELLO))
    await client.put_working_memory("s", memory(data={}))
    body = {"session_id": "s", "messages": [], "memories": []}
    empty = await RestClient(app).call("PUT", "/v1/working-memory/s", json=body)
    assert ["Hello.", "Hi, Ann."] == [one["content"] for one in empty.json["messages"]] == await texts(client)
    await client.put_working_memory("s", memory())
    assert [] == await texts(client)
    await client.put_working_memory("s", memory(*HELLO))
    await client.put_working_memory("s", memory(data={"a": 1}))
    assert [] == await texts(client)


async def test_what_a_client_wrote_down_is_found_at_once(client: MemoryAPIClient, app: App) -> None:
    """Also the last answer of the assistant, which no one plays."""
    await client.put_working_memory("s", memory(*HELLO, user_id="ann"))
    found = await RestClient(app).post("/v1/memories/search", {"query": "hi", "user_id": "ann"})
    assert ["Hi, Ann."] == [one["text"] for one in found.json["memories"]]


async def test_a_session_begins_with_its_strategy(client: MemoryAPIClient, app: App) -> None:
    """Also when nothing else is known of it yet; no field is answered that the last server had dropped."""
    given = MemoryStrategyConfig(strategy="summary", config={"max_summary_length": 50})
    _, made = await client.get_or_create_working_memory("s", long_term_memory_strategy=given)
    _, read = await client.get_or_create_working_memory("s")
    assert given == made.long_term_memory_strategy == read.long_term_memory_strategy
    config = (await RestClient(app).get("/v1/sessions/s")).json["config"]
    assert {"strategy": "summary", "instructions": "Write at most 50 words."} == config["memory"]["extract"]
    answer = await RestClient(app).get("/v1/working-memory/s")
    assert not {"new_session", "unsaved"} & answer.json.keys()
    unknown = await RestClient(app).get("/v1/working-memory/unknown")
    assert 404 == unknown.status
    assert "not found" in unknown.json["detail"].lower()


async def test_data_context_and_memories_change_alone(client: MemoryAPIClient) -> None:
    """Each of the client's conveniences leaves the rest as it is."""
    await client.put_working_memory("s", memory(*HELLO, context="Before.", user_id="ann"))
    await client.set_working_memory_data("s", {"a": {"b": 1}})
    await client.update_working_memory_data("s", {"a": {"c": 2}}, merge_strategy="deep_merge")
    await client.add_memories_to_working_memory("s", [ClientMemoryRecord(text="Likes tea.")])
    await client.add_memories_to_working_memory("s", [ClientMemoryRecord(text="Likes cake.")])
    read = await client.get_working_memory("s")
    assert ({"a": {"b": 1, "c": 2}}, "Before.", "ann") == (read.data, read.context, read.user_id)
    assert ["Likes tea.", "Likes cake."] == [one.text for one in read.memories]
    assert HELLO == read.messages
    await client.put_working_memory("s", memory(*HELLO))
    read = await client.get_working_memory("s")
    assert ({}, None, []) == (read.data, read.context, read.memories)


async def test_racing_writers_lose_nothing(connect: Connect) -> None:
    """Ten clients append to a session that none of them has found; each message is there once."""
    clients = [connect() for _ in range(10)]
    await asyncio.gather(
        *(
            one.append_messages_to_working_memory("s", [{"role": "user", "content": f"{n}"}])
            for n, one in enumerate(clients)
        )
    )
    assert sorted(map(str, range(10))) == sorted(await texts(clients[0]))
    await asyncio.gather(
        *(
            one.append_messages_to_working_memory("s", [{"role": "assistant", "content": f"{n}"}])
            for n, one in enumerate(clients, 10)
        )
    )
    assert sorted(map(str, range(20))) == sorted(await texts(clients[0]))


async def test_a_deleted_id_can_be_used_again(client: MemoryAPIClient, app: App) -> None:
    """As often as one likes; nothing of the session before is in it."""
    for number in range(5):
        await client.put_working_memory("s", memory(said("user", f"{number}", "m1"), user_id="ann"))
        assert [f"{number}"] == await texts(client)
        assert "ok" == (await client.delete_working_memory("s")).status
        with pytest.raises(MemoryNotFoundError):
            await client.get_working_memory("s")
    assert "ok" == (await client.delete_working_memory("s")).status
    assert [] == (await RestClient(app).get("/v1/sessions")).json["sessions"]


async def test_the_same_id_in_other_hands_is_another_session(client: MemoryAPIClient) -> None:
    """Namespaces and users have ids of their own; what is not said must be clear without."""
    owners = [{}, {"namespace": "a"}, {"namespace": "b"}, {"namespace": "a", "user_id": "ann"}]
    for number, owner in enumerate(owners):
        await client.put_working_memory("s", memory(said("user", f"{number}", "m"), **owner))
    assert [["0"], ["1"], ["2"], ["3"]] == [await texts(client, **owner) for owner in owners]
    assert ["3"] == await texts(client, user_id="ann")
    with pytest.raises(MemoryNotFoundError):
        await client.get_working_memory("s", user_id="bob")
    await client.delete_working_memory("s", namespace="b")
    assert [["0"], ["1"], ["3"]] == [await texts(client, **owner) for owner in (owners[0], owners[1], owners[3])]
    await client.delete_working_memory("s")
    with pytest.raises(MemoryNotFoundError):
        await client.get_working_memory("s")


async def test_a_client_that_says_less_finds_its_session(client: MemoryAPIClient) -> None:
    """Begun with user and namespace, read and written without."""
    await client.put_working_memory("s", memory(*HELLO, namespace="shop", user_id="ann"))
    await client.append_messages_to_working_memory("s", [{"role": "user", "content": "Bye."}])
    assert ["Hello.", "Hi, Ann.", "Bye."] == await texts(client, namespace="shop", user_id="ann")
    assert 1 == (await client.list_sessions()).total


@pytest.mark.parametrize("session_id", ["a b", "käse", "x" * 300, "a@b.c", "100%", "日本"])
async def test_any_id_will_do(client: MemoryAPIClient, session_id: str) -> None:
    """Ids that sessions cannot have stand in a label, and come back as they were."""
    await client.put_working_memory(session_id, memory(*HELLO, session_id=session_id))
    read = await client.get_working_memory(session_id)
    assert (session_id, HELLO) == (read.session_id, read.messages)
    assert [session_id] == (await client.list_sessions()).sessions


async def test_sessions_are_listed_by_namespace_and_user(client: MemoryAPIClient) -> None:
    """In pages, with how many there are."""
    for number in range(7):
        owner = {"namespace": "a" if number % 2 else "b", "user_id": "ann" if number < 5 else "bob"}
        await client.put_working_memory(f"s{number}", memory(session_id=f"s{number}", **owner))
    first, second = await client.list_sessions(limit=4), await client.list_sessions(limit=4, offset=4)
    assert {f"s{number}" for number in range(7)} == {*first.sessions, *second.sessions}
    assert (7, 7, 4, 3) == (first.total, second.total, len(first.sessions), len(second.sessions))
    assert {"s1", "s3", "s5"} == set((await client.list_sessions(namespace="a")).sessions)
    assert {"s1", "s3"} == set((await client.list_sessions(namespace="a", user_id="ann")).sessions)
    assert [] == (await client.list_sessions(offset=50)).sessions


async def test_a_session_whose_time_is_over_is_gone(client: MemoryAPIClient, app: App) -> None:
    """It counts from the last change; the id begins again then."""
    clock = app.rest[AGENT_MEMORY].working.clock
    ahead = [0]
    app.rest[AGENT_MEMORY].working.owned.clock = lambda: clock() + ahead[0]
    await client.put_working_memory("s", memory(*HELLO, ttl_seconds=600))
    assert 600 == (await client.get_working_memory("s")).ttl_seconds
    ahead[0] = 500_000
    assert ["Hello.", "Hi, Ann."] == await texts(client)
    ahead[0] = 700_000
    with pytest.raises(MemoryNotFoundError):
        await client.get_working_memory("s")
    assert [] == (await client.list_sessions()).sessions
    await client.put_working_memory("s", memory(said("user", "New.", "m1")))
    assert ["New."] == await texts(client)


async def test_memories_outlive_working_memory(client: MemoryAPIClient, app: App) -> None:
    """Those of a user; where the session is deleted, they go with it."""
    clock = app.services.retention.clock
    facts = [ClientMemoryRecord(text="Likes tea.", id="tea")]
    await client.put_working_memory("s", memory(*HELLO, user_id="ann", ttl_seconds=600, memories=facts))
    stream = await app.rest[AGENT_MEMORY].working.owned.get("default", Owner("s"))
    await app.services.sessions.end(stream, None)
    app.services.retention.clock = lambda: clock() + 700_000
    await eventually(1, app.services.retention.expire)
    assert "Likes tea." == (await client.get_long_term_memory("tea")).text
    facts = [ClientMemoryRecord(text="Likes jam.", id="jam")]
    await client.put_working_memory("t", memory(*HELLO, user_id="ann", session_id="t", memories=facts))
    await client.delete_working_memory("t")
    with pytest.raises(MemoryNotFoundError):
        await client.get_long_term_memory("jam")


async def test_a_window_bounds_what_is_read(client: MemoryAPIClient) -> None:
    """The newest messages that fit, and how full the window is; nothing is summarised in the request."""
    many = [said("user", f"This is message number {number} of many.", f"m{number}") for number in range(50)]
    put = await client.put_working_memory("s", memory(*many), context_window_max=1000)
    assert len(many) == len(put.messages)
    used, until = put.context_percentage_total_used, put.context_percentage_until_summarization
    assert used is not None
    assert until is not None
    assert 0 < used < until <= 100
    read = await client.get_working_memory("s", context_window_max=100)
    assert many[-len(read.messages) :] == read.messages
    assert 1 < len(read.messages) < 20
    assert many[-1:] == (await client.get_working_memory("s", context_window_max=1)).messages
    assert ((await client.get_working_memory("s", model_name="gpt-4o")).context_percentage_total_used or 100) < 1
    assert None is (await client.get_working_memory("s")).context_percentage_total_used


async def test_a_call_is_read_as_it_was_heard(client: MemoryAPIClient, app: App) -> None:
    """What was cut off stays unheard; messages may be added to it once no one is connected."""
    api = RestClient(app)
    await api.create("s", user_id="ann")
    await api.send(
        final(1, "I am allergic to walnuts.", 1_000),
        delta(1, "Noted. By the way, we have marzipan.", 2_000),
        done(1, 2_100),
        interrupt(1, 2_500, heard_text="Noted."),
    )
    assert ["I am allergic to walnuts.", "Noted."] == await texts(client)
    await client.append_messages_to_working_memory("s", [{"role": "user", "content": "By the way …"}])
    assert ["I am allergic to walnuts.", "Noted.", "By the way …"] == await texts(client, user_id="ann")


async def test_bad_messages_are_refused_with_a_reason(client: MemoryAPIClient, app: App) -> None:
    """None of the memory is stored then."""
    api = RestClient(app)
    bad = {
        "empty": {"role": "user", "content": " "},
        "without role": {"content": "Hi."},
        "no date": {"role": "user", "content": "Hi.", "created_at": "2026-02-30T10:00:00Z"},
        "future": {"role": "user", "content": "Hi.", "created_at": "2999-01-01T00:00:00Z"},
        "number": {"role": "user", "content": 5},
        "long id": {"role": "user", "content": "Hi.", "id": "x" * 300},
    }
    for what, message in bad.items():
        answer = await api.call(
            "PUT", "/v1/working-memory/s", json={"messages": [{"role": "user", "content": "Hello."}, message]}
        )
        assert (400, "invalid_field") == answer.problem, what
    with pytest.raises(MemoryServerError, match="Message content cannot be empty"):
        await client.put_working_memory("s", memory(said("user", " ", "m1")))
    assert 404 == (await api.get("/v1/working-memory/s")).status


async def test_a_message_without_a_time_is_taken_with_a_warning(app: App) -> None:
    """As agent-memory-server says it: in a header."""
    answer = await RestClient(app).call(
        "PUT", "/v1/working-memory/s", json={"messages": [{"role": "user", "content": "Hello."}]}
    )
    assert 200 == answer.status, answer.body
    assert "created_at" in answer.headers["X-Deprecation-Warning"]
    [message] = answer.json["messages"]
    assert message["id"]
    assert message["created_at"].endswith("Z")


async def test_a_call_that_is_going_on_is_not_replaced(client: MemoryAPIClient, app: App) -> None:
    """While a producer is connected it is read, and only read."""
    async with client_to(app) as producers:
        call = await producers.open("s")
        await call.add({"role": "user", "content": "Hello."})
        assert ["Hello."] == await texts(client)
        with pytest.raises(MemoryServerError, match="connected") as refused:
            await client.append_messages_to_working_memory("s", [{"role": "user", "content": "Hi."}])
        assert 409 == refused.value.status_code


async def test_a_call_that_has_ended_is_not_replaced(client: MemoryAPIClient, app: App) -> None:
    """It is over; it can still be read, and its data can still be changed."""
    api = RestClient(app)
    await api.create("s")
    await api.send(final(1, "Hello.", 1_000))
    await api.end("s")
    read = await client.get_working_memory("s")
    with pytest.raises(MemoryServerError, match="ended"):
        await client.append_messages_to_working_memory("s", [{"role": "user", "content": "Hi."}])
    assert {"a": 1} == (await client.set_working_memory_data("s", {"a": 1})).data
    assert read.messages == (await client.get_working_memory("s")).messages


async def test_projects_do_not_see_each_other(connect: Connect, app: App) -> None:
    """Each key has the working memories of its project, whatever their ids; and its scopes."""
    ours = connect(await make_key(app, "read", "ingest", "admin", project="ours"))
    theirs = connect(await make_key(app, "read", "ingest", "admin", project="theirs"))
    reader = connect(await make_key(app, "read", project="ours"))
    await ours.put_working_memory("s", memory(*HELLO))
    with pytest.raises(MemoryNotFoundError):
        await theirs.get_working_memory("s")
    await theirs.delete_working_memory("s")
    await theirs.put_working_memory("s", memory(said("user", "Theirs.", "m1")))
    assert (["Hello.", "Hi, Ann."], ["Theirs."]) == (await texts(ours), await texts(theirs))
    assert ["Hello.", "Hi, Ann."] == await texts(reader)
    for refused in (reader.put_working_memory("s", memory()), reader.delete_working_memory("s")):
        with pytest.raises(MemoryServerError, match="scope"):
            await refused
    with pytest.raises(MemoryServerError, match="No key was sent"):
        await connect().get_working_memory("s")


async def test_a_put_without_messages_leaves_them(client: MemoryAPIClient, app: App) -> None:
    """Of calls, and of what clients have put."""
    api = RestClient(app)
    await api.create("call", reopen_window=0)
    await api.send(final(1, "Hello.", 1_000), session_id="call")
    await api.end("call")
    await client.put_working_memory("s", memory(*HELLO))
    for session_id, expected in (("call", ["Hello."]), ("s", ["Hello.", "Hi, Ann."])):
        answer = await api.call("PUT", f"/v1/working-memory/{session_id}", json={"data": {"z": 1}})
        assert 200 == answer.status, answer.body
        assert expected == [message["content"] for message in answer.json["messages"]]
        assert {"z": 1} == answer.json["data"]


async def test_what_was_heard_is_never_taken_away(client: MemoryAPIClient, app: App) -> None:
    """Neither while the call is open, nor after its end, nor in the time in which it could be opened again."""
    api = RestClient(app)
    await api.create("s")
    await api.send(final(1, "Hello.", 1_000))
    lists: tuple[list[Any], ...] = ([], [{"role": "user", "content": "Something else."}])
    for messages in lists:
        answer = await api.call("PUT", "/v1/working-memory/s", json={"messages": messages, "data": {"a": 1}})
        assert (409, "session_in_use") == answer.problem
    await api.end("s")
    for messages in lists:
        answer = await api.call("PUT", "/v1/working-memory/s", json={"messages": messages, "data": {"a": 1}})
        assert (410, "session_ended") == answer.problem
    assert ["Hello."] == await texts(client)
    assert {} == (await client.get_working_memory("s")).data


async def test_a_user_without_a_name_is_not_everybody(client: MemoryAPIClient, app: App) -> None:
    """Nor is such a namespace."""
    await client.put_working_memory("s", memory(*HELLO, user_id="ann"))
    api = RestClient(app)
    for path in ("/v1/working-memory/", "/v1/working-memory/s"):
        for name in ("user_id", "namespace"):
            assert (400, "invalid_query") == (await api.get(f"{path}?{name}=")).problem
    answer = await api.call("DELETE", "/v1/working-memory/s?user_id=")
    assert (400, "invalid_query") == answer.problem
    assert ["Hello.", "Hi, Ann."] == await texts(client)


async def test_a_key_that_may_only_write_reads_nothing(connect: Connect, app: App) -> None:
    """Not by writing either."""
    keeper = connect(await make_key(app, "read", "ingest"))
    writer = connect(await make_key(app, "ingest"))
    record = ClientMemoryRecord(id="m", text="Ann likes tea.", topics=["tea"], user_id="ann")
    await keeper.create_long_term_memory([record])
    changed = await writer.edit_long_term_memory("m", {"pinned": True})
    assert ("m", "", None, None) == (changed.id, changed.text, changed.topics, changed.user_id)
    changed = await writer.edit_long_term_memory("m", {"text": "Ann likes coffee."})
    assert ("Ann likes coffee.", None) == (changed.text, changed.topics)
    found = await keeper.get_long_term_memory("m")
    assert ("Ann likes coffee.", ["tea"]) == (found.text, found.topics)
    await keeper.put_working_memory("s", memory(*HELLO, data={"a": 1}, context="They have met.", user_id="ann"))
    answer = await writer.put_working_memory("s", memory(*HELLO, said("user", "Bye.", "m3"), context="They have met."))
    assert ([], {}, None, None) == (answer.messages, answer.data, answer.context, answer.user_id)
    assert ["Hello.", "Hi, Ann.", "Bye."] == await texts(keeper)


async def test_numbers_are_redacted_wherever_clients_put_them(serve: Serve, tmp_path: Path) -> None:
    """No file has them; what stands is known again when it is sent again, and times can be read."""
    number = "4929123456789012"
    folder = tmp_path / "kept"
    folder.mkdir()
    app = await serve(store=f"sqlite:{folder}/calls.db", redact=("cards",))
    client = MemoryAPIClient(MemoryClientConfig(base_url=f"http://{app.rest_address}"))
    try:
        record = ClientMemoryRecord(id="r", text=f"Card {number}.", topics=[f"card {number}"])
        given = memory(
            said("user", f"My card is {number}.", "message-12345678"),
            context=f"The card is {number}.",
            data={"card": number, "cards": [int(number)]},
            memories=[record],
            long_term_memory_strategy=MemoryStrategyConfig(strategy="custom", config={"note": [number]}),
        )
        for _ in range(2):
            await client.put_working_memory("s", given)
        read = await client.get_working_memory("s")
        assert ["My card is 492912██████████."] == [message.content for message in read.messages]
        assert "The card is 492912██████████." == read.context
        assert ["r"] == [one.id for one in read.memories]
        await client.put_working_memory("new", memory(session_id="new", context=f"Before: {number}."))
        raw = {"id": "raw", "text": "Ann paid.", "extracted_from": [number, "m2"], "created_at": WHEN.isoformat()}
        answer = await RestClient(app).call("POST", "/v1/long-term-memory/", json={"memories": [raw]})
        assert 200 == answer.status, answer.body
        found = await client.get_long_term_memory("raw")
        assert ["492912██████████", "m2"] == found.extracted_from
        assert WHEN.replace(microsecond=123000) == found.created_at
        stream = await app.services.store.journal.find_session("default", "s")
        assert stream is not None
        assert read.messages == (await client.put_working_memory("s", given)).messages
        after = await app.services.store.journal.find_session("default", "s")
        assert after is not None
        assert stream.position == after.position
    finally:
        await client.close()
    await app.stop()
    kept = b"\0".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
    assert number[6:].encode() not in kept
    assert b"492912" in kept
