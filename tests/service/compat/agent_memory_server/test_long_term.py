"""Long-term memory through agent-memory-server's own client, 0.14, as it comes from its makers."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from agent_memory_client import MemoryAPIClient
from agent_memory_client.exceptions import MemoryNotFoundError, MemoryServerError
from agent_memory_client.filters import CreatedAt, Entities, MemoryType, Namespace, SessionId, Topics, UserId
from agent_memory_client.models import (
    ClientMemoryRecord,
    ForgetPolicy,
    MemoryMessage,
    MemoryTypeEnum,
    RecencyConfig,
    WorkingMemory,
)

from tests.service.compat.agent_memory_server.conftest import Connect
from tests.support.callers.rest import RestClient, make_key
from voicemem.app import App

pytestmark = pytest.mark.filterwarnings("ignore:get_working_memory is deprecated:DeprecationWarning")
WHEN = datetime(2026, 5, 3, 14, 30, 0, 123456, tzinfo=UTC)


def record(text: str, id: str | None = None, **more: Any) -> ClientMemoryRecord:
    fields = {"text": text, "memory_type": MemoryTypeEnum.SEMANTIC, **more}
    return ClientMemoryRecord.model_validate(fields if id is None else fields | {"id": id})


async def ids(client: MemoryAPIClient, text: str = "", **wanted: Any) -> list[str]:
    """The ids of what is found, the best first."""
    return [one.id for one in (await client.search_long_term_memory(text, **wanted)).memories]


@pytest.fixture
async def known(client: MemoryAPIClient) -> MemoryAPIClient:
    """A client of a service that knows a few things."""
    await client.create_long_term_memory(
        [
            record("Ann likes green tea.", "tea", user_id="ann", namespace="a", topics=["drinks", "taste"]),
            record(
                "Ann flew to Rome.", "rome", user_id="ann", namespace="a", memory_type="episodic", entities=["Rome"]
            ),
            record("Ann's dog is called Rex.", "rex", user_id="ann", namespace="b", session_id="s1", entities=["Rex"]),
            record("Bob likes coffee.", "coffee", user_id="bob", namespace="b", session_id="s2", topics=["drinks"]),
            record("user: hello there", "hello", memory_type="message", session_id="t1", created_at=WHEN),
        ]
    )
    return client


async def test_a_memory_is_read_as_it_was_given(client: MemoryAPIClient) -> None:
    """Every field that is the client's to say."""
    given = record(
        "Ann flew to Rome.",
        "01HXE2B1234567890ABCDEF",
        memory_type="episodic",
        topics=["travel", "work trip"],
        entities=["Ann", "Rome"],
        user_id="ann",
        namespace="shop",
        session_id="s1",
        created_at=WHEN,
        event_date=WHEN - timedelta(days=3),
        extracted_from=["m1", "m2"],
    )
    assert "ok" == (await client.create_long_term_memory([given])).status
    read = await client.get_long_term_memory(given.id)
    names = ("text", "memory_type", "topics", "entities", "user_id", "namespace", "session_id", "created_at")
    for name in (*names, "event_date", "extracted_from"):
        assert getattr(given, name) == getattr(read, name), name
    assert read.memory_hash
    assert read.persisted_at
    assert "t" == read.discrete_memory_extracted


async def test_an_unknown_memory_is_not_found(client: MemoryAPIClient) -> None:
    """Neither read nor changed."""
    with pytest.raises(MemoryNotFoundError):
        await client.get_long_term_memory("nothing")
    with pytest.raises(MemoryNotFoundError):
        await client.edit_long_term_memory("nothing", {"text": "New."})


async def test_what_was_kept_is_found_at_once(known: MemoryAPIClient) -> None:
    """The best first, with its distance; the rest behind it, since no filter keeps it out."""
    found = await known.search_long_term_memory("Which tea does Ann like?", user_id=UserId(eq="ann"))
    assert ["tea", "rome", "rex"] == sorted((one.id for one in found.memories), key=["tea", "rome", "rex"].index)
    assert ("tea", 0.0) == (found.memories[0].id, found.memories[0].dist)
    assert sorted(one.dist for one in found.memories) == [one.dist for one in found.memories]
    assert 3 == found.total
    assert ["rex"] == await ids(known, "nothing of this is there", namespace=Namespace(eq="b"), user_id={"eq": "ann"})


FILTERS: list[tuple[dict[str, Any], str]] = [
    ({"user_id": {"eq": "ann"}}, "rex rome tea"),
    ({"user_id": {"ne": "ann"}}, "coffee hello"),
    ({"user_id": {"not_eq": "ann"}}, "coffee hello"),
    ({"user_id": {"any": ["ann", "bob"]}}, "coffee rex rome tea"),
    ({"user_id": {"in_": ["bob", "nobody"]}}, "coffee"),
    ({"user_id": {"not_in": ["bob", "ann"]}}, "hello"),
    ({"user_id": {"startswith": "b"}}, "coffee"),
    ({"user_id": {"all": ["ann"]}}, "rex rome tea"),
    ({"user_id": {"all": ["ann", "bob"]}}, ""),
    ({"namespace": {"eq": "nowhere"}}, ""),
    ({"namespace": {"eq": "a"}, "user_id": {"eq": "bob"}}, ""),
    ({"session_id": {"eq": "s1"}}, "rex"),
    ({"session_id": {"ne": "s1"}}, "coffee hello rome tea"),
    ({"session_id": {"startswith": "s"}}, "coffee rex"),
    ({"memory_type": {"eq": "episodic"}}, "rome"),
    ({"memory_type": {"eq": "message"}}, "hello"),
    ({"memory_type": {"any": ["episodic", "message"]}}, "hello rome"),
    ({"memory_type": {"ne": "semantic"}}, "hello rome"),
    ({"memory_type": {"not_in": ["message"]}}, "coffee rex rome tea"),
    ({"topics": {"any": ["taste", "x"]}}, "tea"),
    ({"topics": {"all": ["drinks", "taste"]}}, "tea"),
    ({"topics": {"none": ["drinks"]}}, "hello rex rome"),
    ({"topics": {"eq": "drinks"}}, "coffee tea"),
    ({"topics": {"ne": "taste"}}, "coffee hello rex rome"),
    ({"entities": {"any": ["Rex", "Rome"]}, "namespace": {"eq": "a"}}, "rome"),
    ({"created_at": {"lte": "2026-06-01T00:00:00Z"}}, "hello"),
    ({"created_at": {"gt": "2026-06-01T00:00:00Z"}}, "coffee rex rome tea"),
    ({"created_at": {"eq": WHEN.isoformat()}}, "hello"),
    ({"created_at": {"between": ["2026-05-03T00:00:00Z", "2026-05-04T00:00:00"]}}, "hello"),
    ({"event_date": {"gte": "2000-01-01T00:00:00Z"}}, ""),
    ({"extraction_strategy": {"eq": "discrete"}, "namespace": {"eq": "a"}}, "rome tea"),
    ({"extraction_strategy": {"eq": "summary"}}, ""),
]


@pytest.mark.parametrize("text", ["", "Ann likes hello coffee tea Rome dog", "xylophone"])
async def test_filters_hold_whatever_is_found(known: MemoryAPIClient, app: App, text: str) -> None:
    """None of them is dropped, with words in common or without; each in every mode."""
    api = RestClient(app)
    for filters, expected in FILTERS:
        for mode in ("semantic", "hybrid"):
            answer = await api.post("/v1/long-term-memory/search", {"text": text, "search_mode": mode, **filters})
            assert 200 == answer.status, answer.body
            assert expected.split() == sorted(one["id"] for one in answer.json["memories"]), (filters, mode)
        keyword = await api.post("/v1/long-term-memory/search", {"text": text, "search_mode": "keyword", **filters})
        assert {one["id"] for one in keyword.json["memories"]} <= {*expected.split()}


async def test_the_clients_filters(known: MemoryAPIClient) -> None:
    """Also those that the old server ignored."""
    assert ["coffee"] == await ids(known, "likes", namespace=Namespace(not_eq="a"), topics=Topics(any=["drinks"]))
    assert ["rome"] == await ids(known, "Ann", entities=Entities(all=["Rome"]), memory_type=MemoryType(eq="episodic"))
    assert {"rex", "coffee"} == {*await ids(known, "likes", session_id=SessionId(in_=["s1", "s2"]))}
    assert ["hello"] == await ids(known, "likes", created_at=CreatedAt(lte=WHEN))
    assert ["tea"] == await ids(known, "tea", distance_threshold=0.3, user_id={"eq": "ann"})
    recency = RecencyConfig(recency_boost=True, semantic_weight=0.0, recency_weight=1.0)
    assert "hello" == (await ids(known, "hello there", recency=recency))[-1]


async def test_pages_show_each_memory_once(client: MemoryAPIClient) -> None:
    """In the same order, with words in common or without."""
    for first in range(0, 60, 20):
        await client.create_long_term_memory(
            [record(f"Fact number {n} of many.", f"f{n}") for n in range(first, first + 20)]
        )
    for text in ("", "fact 17", "xylophone"):
        found = [one.id async for one in client.search_all_long_term_memories(text, batch_size=7)]
        assert sorted(f"f{n}" for n in range(60)) == sorted(found)
    page = await client.search_long_term_memory("fact", limit=50, offset=50)
    assert (10, 60, None) == (len(page.memories), page.total, page.next_offset)
    assert 50 == (await client.search_long_term_memory("fact", limit=50)).next_offset


async def test_memories_are_changed(known: MemoryAPIClient) -> None:
    """What is not named stays; what is new is found."""
    changed = await known.edit_long_term_memory(
        "tea", {"text": "Ann likes black tea.", "memory_type": "message", "session_id": "s9", "topics": ["kitchen"]}
    )
    assert changed == (read := await known.get_long_term_memory("tea"))
    assert ("Ann likes black tea.", ["kitchen"], "s9", "ann") == (read.text, read.topics, read.session_id, read.user_id)
    assert MemoryTypeEnum.MESSAGE == read.memory_type
    assert "tea" == (await ids(known, "black", memory_type=MemoryType(eq="message")))[0]
    with pytest.raises(MemoryServerError, match="No fields provided"):
        await known.edit_long_term_memory("tea", {})


async def test_the_same_id_again_replaces(client: MemoryAPIClient) -> None:
    """And the same text of the same owner is kept once, unless one asks for both."""
    await client.create_long_term_memory([record("Ann likes tea.", "1", user_id="ann")])
    await client.create_long_term_memory([record("Ann likes coffee.", "1", user_id="ann")])
    assert "Ann likes coffee." == (await client.get_long_term_memory("1")).text
    again = [record("ann likes coffee", "2", user_id="ann"), record("Ann likes coffee.", "3", user_id="bob")]
    await client.create_long_term_memory(again)
    assert ["1", "3"] == sorted(await ids(client))
    await client.create_long_term_memory(again, deduplicate=False)
    assert ["1", "2", "3"] == sorted(await ids(client))


async def test_double_memories_are_compacted(client: MemoryAPIClient, app: App) -> None:
    """Only those that say the same for the same owner."""
    several = [record("Ann likes tea.", f"{n}", user_id="ann") for n in range(3)]
    await client.create_long_term_memory([*several, record("Ann likes tea.", "9")], deduplicate=False)
    answer = await RestClient(app).post("/v1/long-term-memory/compact?user_id=ann")
    assert "ok, 1 memories remaining after compaction" == answer.json["status"]
    assert 2 == len(await ids(client))


async def test_memories_are_deleted(known: MemoryAPIClient) -> None:
    """By their ids, which can be used again."""
    assert "ok, deleted 2 memories" == (await known.delete_long_term_memories(["tea", "rome", "nothing"])).status
    with pytest.raises(MemoryNotFoundError):
        await known.get_long_term_memory("tea")
    assert ["coffee", "hello", "rex"] == sorted(await ids(known, "tea"))
    await known.create_long_term_memory([record("Ann likes milk.", "tea")])
    assert "Ann likes milk." == (await known.get_long_term_memory("tea")).text
    assert "ok, deleted 0 memories" == (await known.delete_long_term_memories([])).status


async def test_a_policy_forgets(known: MemoryAPIClient, app: App) -> None:
    """Nothing, unless `dry_run=false` is said, which this client cannot; pinned memories never."""
    old = ForgetPolicy(max_age_days=30)
    dry = await known.forget_long_term_memories(old, dry_run=True)
    assert (5, 1, ["hello"], True) == (dry.scanned, dry.deleted, dry.deleted_ids, dry.dry_run)
    assert (await known.forget_long_term_memories(old)).dry_run
    api, path = RestClient(app), "/v1/long-term-memory/forget"
    body = {"policy": {"max_age_days": 30}, "pinned_ids": ["hello"]}
    assert [] == (await api.post(f"{path}?dry_run=false", body)).json["deleted_ids"]
    types = {"policy": {"max_age_days": 30, "memory_type_allowlist": ["semantic"]}}
    assert [] == (await api.post(f"{path}?dry_run=false", types)).json["deleted_ids"]
    assert ["hello"] == (await api.post(f"{path}?dry_run=false", {"policy": {"max_age_days": 30}})).json["deleted_ids"]
    budget = (await api.post(f"{path}?dry_run=false&user_id=ann", {"policy": {"budget": 1}})).json
    assert (3, 2) == (budget["scanned"], budget["deleted"])
    assert 2 == len(await ids(known))


async def test_the_body_narrows_what_is_forgotten(known: MemoryAPIClient, app: App) -> None:
    """Whose memories, how many, and whether at all; what the query says goes first."""
    api, path = RestClient(app), "/v1/long-term-memory/forget"
    all_of_them = {"policy": {"budget": 0, "max_age_days": None}, "pinned_ids": None}
    dry = (await api.post(path, {**all_of_them, "user_id": "ann", "limit": 2})).json
    assert (2, True) == (dry["scanned"], dry["dry_run"])
    assert (await api.post(f"{path}?dry_run=true", {**all_of_them, "dry_run": False})).json["dry_run"]
    assert 0 == (await api.post(path, {**all_of_them, "namespace": "nowhere", "dry_run": False})).json["deleted"]
    forgotten = (await api.post(path, {**all_of_them, "user_id": "ann", "dry_run": False})).json
    assert (3, False) == (forgotten["deleted"], forgotten["dry_run"])
    assert 400 == (await api.post(path, {**all_of_them, "user_id": 5})).status


async def test_the_namespace_of_a_client_in_javascript_holds(client: MemoryAPIClient, app: App) -> None:
    """It stands in the query, for memories that name none; those of another are neither read nor deleted."""
    api, path = RestClient(app), "/v1/long-term-memory"
    memories = [{"id": "1", "text": "In mine."}, {"id": "2", "text": "In yours.", "namespace": "yours"}]
    assert 200 == (await api.post(f"{path}/?namespace=mine", {"memories": memories})).status
    await client.create_long_term_memory([record("In none.", "3")])
    assert ["mine", "yours", None] == [(await client.get_long_term_memory(id)).namespace for id in "123"]
    assert [200, 404, 200] == [(await api.get(f"{path}/{id}?namespace=mine")).status for id in "123"]
    deleted = await api.call("DELETE", f"{path}?memory_ids=1&memory_ids=2&memory_ids=3&namespace=mine")
    assert "ok, deleted 2 memories" == deleted.json["status"]
    assert ["2"] == await ids(client)
    assert 200 == (await api.call("PUT", "/v1/working-memory/s?background=true", json={"messages": []})).status


async def test_bad_memories_are_refused_with_a_reason(client: MemoryAPIClient, app: App) -> None:
    """None of the list is kept then."""
    api, good = RestClient(app), {"id": "1", "text": "Fine."}
    bad: list[dict[str, Any]] = [
        {"id": "", "text": "No id."},
        {"text": "No id."},
        {"id": "2", "text": "  "},
        {"id": "2", "text": "x" * 1001},
        {"id": "2", "text": "x" * 1_000_000},
        {"id": "2", "text": "Date.", "event_date": "2026-02-30T00:00:00Z"},
        {"id": "2", "text": "Comma.", "topics": ["a,b"]},
        {"id": "2", "text": "Control.", "entities": ["a\u0001b"]},
        {"id": "2", "text": "Type.", "memory_type": "strange"},
        {"id": "2\n", "text": "Control in the id."},
        {"id": "x" * 200, "text": "Long id."},
    ]
    for one in bad:
        answer = await api.post("/v1/long-term-memory/", {"memories": [good, one]})
        assert 400 == answer.problem[0], one
        assert answer.json["detail"]
    searches: list[dict[str, Any]] = [
        {"user_id": "ann"},
        {"user_id": {"equals": "ann"}},
        {"topics": {"any": "a"}},
        {"created_at": {"gte": "2026-13-01"}},
        {"namespaces": {"eq": "a"}},
        {"limit": 101},
        {"offset": 100_000},
        {"search_mode": "magic"},
        {"distance_threshold": 0.5, "search_mode": "keyword"},
    ]
    for wanted in searches:
        answer = await api.post("/v1/long-term-memory/search", {"text": "a", **wanted})
        assert (400, "invalid_field") == answer.problem, wanted
    assert [] == await ids(client)


async def test_projects_do_not_find_each_other(connect: Connect, app: App) -> None:
    """Whatever the filters; a key may only do what its scopes say."""
    ours = connect(await make_key(app, "admin", project="ours"))
    theirs = connect(await make_key(app, "admin", project="theirs"))
    reader = connect(await make_key(app, "read", project="ours"))
    await ours.create_long_term_memory([record("Our secret.", "1", user_id="ann")])
    await theirs.create_long_term_memory([record("Their secret.", "1", user_id="ann")])
    assert "Our secret." == (await reader.get_long_term_memory("1")).text
    for client, expected in ((ours, "Our secret."), (theirs, "Their secret.")):
        for filters in ({}, {"user_id": UserId(not_eq="bob")}, {"namespace": Namespace(not_in=["x"])}):
            found = await client.search_long_term_memory("secret", **filters)
            assert [expected] == [one.text for one in found.memories]
    await theirs.delete_long_term_memories(["1"])
    assert 1 == len(await ids(ours))
    refused = (
        reader.create_long_term_memory([record("No.", "2")]),
        reader.delete_long_term_memories(["1"]),
        reader.forget_long_term_memories(ForgetPolicy(budget=0)),
    )
    for call in refused:
        with pytest.raises(MemoryServerError, match="scope"):
            await call


async def test_a_prompt_has_what_is_known(known: MemoryAPIClient) -> None:
    """The summary, the messages, the memories, the query: in this order."""
    messages = [
        MemoryMessage(role="user", content="Hi.", id="1", created_at=WHEN),
        MemoryMessage(role="assistant", content="Hello!", id="2", created_at=WHEN),
        MemoryMessage(role="tool", content="{}", id="3", created_at=WHEN),
    ]
    memory = WorkingMemory(session_id="s", messages=messages, context="They have met.", user_id="ann")
    await known.put_working_memory("s", memory)
    prompt = await known.memory_prompt("Which tea?", session_id="s", user_id="ann", long_term_search={"limit": 1})
    assert [
        ("system", '## A summary of the conversation so far:\n"They have met."'),
        ("user", "Hi."),
        ("assistant", "Hello!"),
        ("assistant", "{}"),
        ("system", "## Long term memories related to the user's query\n - Ann likes green tea. (ID: tea)"),
        ("user", "Which tea?"),
    ] == [(one["role"], one["content"]["text"]) for one in prompt["messages"]]
    assert ["tea"] == [one["id"] for one in prompt["long_term_memories"]]
    hydrated = await known.hydrate_memory_prompt("coffee?", user_id={"eq": "nobody"})
    assert "No relevant long-term memories found." in hydrated["messages"][0]["content"]["text"]
    assert None is hydrated["long_term_memories"]
    window = await known.memory_prompt("Hm?", session_id="s", context_window_max=4)
    assert ["system", "assistant", "user"] == [one["role"] for one in window["messages"]]
    assert 1 == len((await known.memory_prompt("Hm?", session_id="unknown"))["messages"])
    with pytest.raises(MemoryServerError, match="Either session or long_term_search"):
        await known.memory_prompt("Hm?")


async def test_a_prompt_searches_all_but_its_session(known: MemoryAPIClient, app: App) -> None:
    """Where `long_term_search` is only true: memories of the user."""
    body = {"query": "Rex?", "session": {"session_id": "s1", "user_id": "ann"}, "long_term_search": True}
    prompt = (await RestClient(app).post("/v1/memory/prompt", body)).json
    assert {"tea", "rome"} == {one["id"] for one in prompt["long_term_memories"]}


async def test_the_clients_tools(known: MemoryAPIClient) -> None:
    """Each call of a tool that the client offers to an LLM ends well."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("search_memory", {"query": "tea", "max_results": 2, "user_id": "ann", "topics": ["drinks"]}),
        ("get_or_create_working_memory", {}),
        ("get_working_memory", {}),
        ("lazily_create_long_term_memory", {"text": "Likes cake.", "memory_type": "semantic", "topics": ["food"]}),
        ("update_working_memory_data", {"data": {"step": 2}}),
        ("eagerly_create_long_term_memory", {"memories": [{"text": "Likes jam.", "memory_type": "semantic"}]}),
        ("get_long_term_memory", {"memory_id": "tea"}),
        ("edit_long_term_memory", {"memory_id": "tea", "text": "Ann likes white tea."}),
        ("delete_long_term_memories", {"memory_ids": ["coffee"]}),
        ("get_current_datetime", {}),
    ]
    for name, arguments in calls:
        result = await known.resolve_function_call(name, arguments, session_id="s", namespace="a", user_id="ann")
        assert result["success"], (name, result["error"])
        assert "error" not in (result["result"] if isinstance(result["result"], dict) else {}), (name, result)
    found = await known.search_memory_tool("white tea", min_relevance=0.9)
    assert ["Ann likes white tea."] == [one["text"] for one in found["memories"]]
    assert {"Likes jam."} <= {one.text for one in (await known.search_long_term_memory("jam")).memories}


async def test_memories_of_working_memory_last(client: MemoryAPIClient) -> None:
    """What a PUT brings is found in long-term memory, and is promoted only once."""
    await client.add_memories_to_working_memory("s", [record("Ann likes tea.", "w1", user_id="ann")])
    assert ["w1"] == await ids(client, "tea", session_id=SessionId(eq="s"))
    await client.promote_working_memories_to_long_term("s")
    assert ["w1"] == await ids(client, "tea")
    await client.bulk_create_long_term_memories([[record("One.", "b1"), record("Two.", "b2")]], 1, 0)
    assert {"w1", "b1", "b2"} == {*await ids(client, "tea")}


async def test_a_filter_without_a_value_is_refused(known: MemoryAPIClient, app: App) -> None:
    """Whoever has a variable that is empty does not want everybody's memories; one of 5,000 values is refused too."""
    with pytest.raises(MemoryServerError, match="user_id"):
        await known.search_long_term_memory("tea", user_id=UserId(eq=None))
    with pytest.raises(MemoryServerError, match="user_id"):
        await known.memory_prompt("tea", long_term_search={"user_id": {"eq": None}})
    api = RestClient(app)
    searches: tuple[dict[str, Any], ...] = (
        {"user_id": {}}, {"user_id": {"eq": None}}, {"user_id": None}, {"namespace": {}}, {"session_id": None},
        {"topics": {"any": None}}, {"created_at": {}}, {"memory_type": {}}, {"topics": {"all": ["tea"] * 5_000}},
    )  # fmt: skip
    for search in searches:
        answer = await api.call("POST", "/v1/long-term-memory/search", json={"text": "tea", **search})
        assert (400, "invalid_field") == answer.problem, search
        answer = await api.call("POST", "/v1/memory/prompt", json={"query": "tea", "long_term_search": search})
        assert (400, "invalid_field") == answer.problem, search
    for user_id in ("", None):
        body = {"query": "tea", "session": {"session_id": "s", "user_id": user_id}, "long_term_search": True}
        assert (200 if user_id is None else 400) == (await api.call("POST", "/v1/memory/prompt", json=body)).status


async def test_the_same_again_under_new_ids_is_one(client: MemoryAPIClient) -> None:
    """Clients that do not keep the ids of a working memory's memories make new ones each time."""
    for n in range(3):
        several = [
            record("Ann likes tea.", f"t{n}"),
            record("Ann likes tea!", f"u{n}"),
            record("Ann has a dog.", f"d{n}"),
        ]
        await client.put_working_memory("s", WorkingMemory(session_id="s", user_id="ann", memories=[*several]))
        assert {"t0", "d0"} == {one.id for one in (await client.get_working_memory("s")).memories}
    assert {"t0", "d0"} == {*await ids(client, "Ann")}


async def test_what_only_fills_a_page_was_not_found(known: MemoryAPIClient, app: App) -> None:
    """So it can be forgotten for lack of use."""
    assert {"tea", "rome"} == {*await ids(known, "green tea", namespace=Namespace(eq="a"))}
    api = RestClient(app)
    counts = {id: (await api.get(f"/v1/long-term-memory/{id}")).json["access_count"] for id in ("tea", "rome")}
    assert {"tea": 1, "rome": 0} == counts


async def test_bad_policies_and_types_are_refused(known: MemoryAPIClient, app: App) -> None:
    """With what would be right."""
    with pytest.raises(MemoryServerError, match="semantic, episodic, message"):
        await known.search_long_term_memory("tea", memory_type=MemoryType(eq="bad"))
    api = RestClient(app)
    policies: tuple[tuple[dict[str, Any], str], ...] = (
        ({"max_age_dys": 1}, "max_age_days"),
        ({"memory_type_allowlist": ["bad"]}, "semantic"),
        ({"max_age_days": -1}, "max_age_days"),
        ({"budget": -1}, "budget"),
    )
    for policy, hint in policies:
        answer = await api.call("POST", "/v1/long-term-memory/forget", json={"policy": policy})
        assert 400 == answer.status, policy
        assert hint in answer.json["detail"], answer.body
