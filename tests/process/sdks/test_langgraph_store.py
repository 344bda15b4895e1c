"""LangGraph's store over long-term memories, in real graphs and agents, beside LangGraph's own store in memory."""

from __future__ import annotations

import asyncio
import random
import warnings
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.callers.client_sessions import client_to, options
from tests.support.callers.rest import RestClient
from voicemem.app import App
from voicemem.client import RequestRefused, SyncClient

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework imports is not ours
    pytest.importorskip("langchain", reason="LangChain is not installed")
    from langchain.agents import create_agent
    from langchain.tools import ToolRuntime
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_core.tools import tool
    from langgraph.config import get_store
    from langgraph.graph import MessagesState, StateGraph
    from langgraph.store.base import BaseStore, GetOp, InvalidNamespaceError, PutOp
    from langgraph.store.memory import InMemoryStore

    from tests.support.callers.scripted_chat_model import scripted, tool_call
    from voicemem.integrations import langgraph

pytestmark = pytest.mark.filterwarnings("default")  # the framework's own are not ours
ANN = ("memories", "ann")


def asking(text: str) -> Any:
    return {"messages": [HumanMessage(text)]}


async def test_an_item_is_a_memory_of_its_user(app: App) -> None:
    """Its text is found by searches of the service, and shown to calls; put again, it is replaced and keeps its age."""
    api = RestClient(app)
    async with client_to(app) as client:
        store = langgraph.store(client)
        await store.aput(ANN, "nuts", {"data": "Ann is allergic to walnuts.", "sure": True, "n": 3})
        item = await store.aget(ANN, "nuts")
        assert item is not None
        assert item.value == {"data": "Ann is allergic to walnuts.", "sure": True, "n": 3}
        assert (item.namespace, item.key) == (ANN, "nuts")
        assert abs((datetime.now(UTC) - item.created_at).total_seconds()) < 60
        found = (await api.post("/v1/memories/search", {"query": "walnut", "user_id": "ann"})).json["memories"]
        assert [one["text"] for one in found] == ["Ann is allergic to walnuts."]
        await store.aput(ANN, "nuts", {"data": "Ann is allergic to all nuts."})
        again = await store.aget(ANN, "nuts")
        assert again is not None
        assert (again.value, again.created_at) == ({"data": "Ann is allergic to all nuts."}, item.created_at)
        assert again.updated_at >= item.updated_at
        await store.adelete(ANN, "nuts")
        await store.adelete(ANN, "nuts")
        assert await store.aget(ANN, "nuts") is None
        assert (await api.get("/v1/users/ann/memories")).json["memories"] == []


async def test_memories_made_elsewhere_are_items(app: App) -> None:
    """Those that an application or extraction has kept are found, read and removed by their ids."""
    api = RestClient(app)
    made = (await api.post("/v1/memories", {"text": "Ann lives in Bonn.", "user_id": "ann", "topics": ["home"]})).json
    id = made["memories"][0]["id"]
    await api.post("/v1/memories", {"text": "Bob lives in Bonn.", "user_id": "bob"})
    async with client_to(app) as client:
        store = langgraph.store(client)
        await store.aput((*ANN, "food"), "likes", {"data": "Ann likes soup in Bonn."})
        found = await store.asearch(ANN, query="Bonn")
        assert {(one.namespace, one.key) for one in found} == {(ANN, id), ((*ANN, "food"), "likes")}
        assert all(one.score for one in found)
        own = await store.aget(ANN, id)
        assert own is not None
        assert own.value == {"data": "Ann lives in Bonn.", "kind": "fact", "topics": ["home"]}
        assert await store.aget(("memories", "bob"), id) is None
        await store.adelete(("memories", "bob"), id)
        assert await store.aget(ANN, id) is not None
        await store.adelete(ANN, id)
        assert [one.key for one in await store.asearch(ANN)] == ["likes"]


async def test_equal_texts_are_items_of_their_own(app: App) -> None:
    """Two keys with the same words are two items; removing one leaves the other."""
    async with client_to(app) as client:
        store = langgraph.store(client)
        for path, key in ((ANN, "a"), (ANN, "b"), ((*ANN, "x"), "a"), (("memories", "bob"), "a")):
            await store.aput(path, key, {"data": "The same."})
        assert len(await store.asearch(ANN)) == 3
        await store.adelete(ANN, "a")
        assert {(one.namespace, one.key) for one in await store.asearch(ANN)} == {(ANN, "b"), ((*ANN, "x"), "a")}


async def test_what_cannot_be_kept_is_refused(app: App) -> None:
    """With a sentence, and without a change, also of what stands beside it in a batch."""
    async with client_to(app) as client:
        store = langgraph.store(client)
        fine = PutOp(ANN, "fine", {"data": "Fine."})
        cases: tuple[tuple[PutOp, type[Exception], str], ...] = (
            (PutOp(("other", "ann"), "k", {"data": "x"}), InvalidNamespaceError, "keeps memories of users"),
            (PutOp(("memories",), "k", {"data": "x"}), InvalidNamespaceError, "keeps memories of users"),
            (PutOp(ANN, "k", {"data": "x"}, ttl=5.0), NotImplementedError, "TTL"),
            (PutOp(ANN, "k", {"data": "x"}, index=False), NotImplementedError, "index=False"),
            (PutOp(ANN, "k", {}), ValueError, "says something"),
            (PutOp(ANN, "k", {"data": "x", "more": {1, 2}}), ValueError, "is JSON"),
            (PutOp(ANN, "k", {"data": "x", "n": float("nan")}), ValueError, "is JSON"),
        )
        for op, error, why in cases:
            with pytest.raises(error, match=why):
                await store.abatch([fine, op])
        with pytest.raises(RequestRefused, match="1,000 bytes"):
            await store.aput(ANN, "k", {"data": "long " * 400})
        for ask in (
            store.asearch(("memories",)),
            store.alist_namespaces(),
            store.alist_namespaces(prefix=("memories", "*")),
        ):
            with pytest.raises(InvalidNamespaceError, match="user"):
                await ask
        with pytest.raises(RuntimeError, match="SyncClient"):
            store.get(ANN, "fine")
        await store.aput(ANN, "fine", {"data": "Fine."})
        with pytest.raises(ValueError, match="A filter knows"):
            await store.asearch(ANN, filter={"data": {"$regex": "x"}})
        assert [one.key for one in await store.asearch(ANN)] == ["fine"]


async def test_the_place_of_the_user_and_the_text_may_be_others(app: App) -> None:
    """A namespace and a field of the program's own; an index names what is said."""
    async with client_to(app) as client:
        store = langgraph.store(client, namespace=("{user_id}", "facts"), field="content")
        await store.aput(("ann", "facts"), "a", {"content": "Ann has a dog."})
        await store.aput(("ann", "facts", "x"), "b", {"who": "Ann", "age": 41, "none": None})
        await store.aput(("ann", "facts"), "c", {"a": {"b": ["tea", "soup"]}, "z": "not this"}, index=["a.b[*]"])
        texts = {one["text"] for one in (await client.memories.of_user("ann"))["memories"]}
        assert texts == {"Ann has a dog.", "who: Ann, age: 41", "tea, soup"}
        assert [one.key for one in await store.asearch(("ann", "facts"), query="soup")] == ["c"]
        assert [one.value for one in await store.asearch(("ann", "facts", "x"))] == [
            {"who": "Ann", "age": 41, "none": None}
        ]
        with pytest.raises(ValueError, match="user_id"):
            langgraph.store(client, namespace=("memories",))


@pytest.mark.parametrize("seed", range(6))
async def test_it_does_what_langgraphs_own_store_does(app: App, seed: int) -> None:
    """Random puts, deletions, reads, filters, pages and lists, in batches."""
    draw, own = random.Random(seed), InMemoryStore()
    users = [("memories", f"u{seed}"), ("memories", f"v{seed}")]
    paths = [*users, *((*user, part) for user in users for part in ("a", "b")), (*users[0], "a", "deep")]

    def value() -> dict[str, Any]:
        return {"data": draw.choice(("red", "green", "blue")), "n": draw.randrange(4), "in": {"x": draw.randrange(2)}}

    async with client_to(app) as client:
        store = langgraph.store(client)
        for _ in range(12):
            ops: list[Any] = []
            for _ in range(draw.randrange(1, 5)):
                path, key = draw.choice(paths), draw.choice("abc")
                ops.append(draw.choice((GetOp(path, key), PutOp(path, key, value()), PutOp(path, key, None))))
            one: list[Any] = await store.abatch(ops)
            other: list[Any] = await own.abatch(ops)
            assert [got and (got.namespace, got.key, got.value) for got in one] == [
                got and (got.namespace, got.key, got.value) for got in other
            ]
        for path in [path for path, items in own._data.items() if not items]:
            del own._data[path]  # it lists those too
        for path in (*users, *paths):
            for condition in (None, {"n": 2}, {"n": {"$gte": 1, "$lt": 3}}, {"data": {"$ne": "red"}}, {"in": {"x": 1}}):
                found = [
                    sorted(
                        (got.namespace, got.key, got.value["data"])
                        for got in await each.asearch(path, filter=condition, limit=50)
                    )
                    for each in (store, own)
                ]
                assert found[0] == found[1], (path, condition)
        whole = [(one.namespace, one.key) for one in await store.asearch(users[0], limit=50)]
        pages = [await store.asearch(users[0], limit=2, offset=at) for at in range(0, len(whole) + 2, 2)]
        assert [(one.namespace, one.key) for page in pages for one in page] == whole
        for more in ({}, {"max_depth": 3}, {"suffix": ("a",)}, {"suffix": ("*", "deep")}, {"limit": 2, "offset": 1}):
            arguments: Any = {"prefix": users[0], **more}
            assert await store.alist_namespaces(**arguments) == sorted(await own.alist_namespaces(**arguments)), more


async def test_a_graph_with_this_store_remembers_across_threads(app: App) -> None:
    """A graph compiled with `store=…` keeps in one thread what another one reads."""

    async def remember(state: MessagesState, *, store: BaseStore) -> Any:
        (message,) = state["messages"][-1:]
        known = await store.asearch(ANN, query=str(message.content))
        await store.aput(ANN, "first", {"data": str(message.content)})
        return {"messages": [AIMessage("; ".join(one.value["data"] for one in known) or "nothing")]}

    async with client_to(app) as client:
        builder = StateGraph(MessagesState)
        builder.add_node("remember", remember)
        builder.set_entry_point("remember")
        graph = builder.compile(store=langgraph.store(client))
        said = [
            (await graph.ainvoke(asking(text)))["messages"][-1].content
            for text in ("I have a green bicycle.", "Where is my bicycle?")
        ]
    assert said == ["nothing", "I have a green bicycle."]


async def test_an_agents_tools_keep_and_find(app: App) -> None:
    """Tools of `create_agent(store=…)` reach the store, in a run without asyncio too."""

    @tool
    def keep(text: str, runtime: ToolRuntime) -> str:
        """Keep a memory."""
        assert runtime.store is not None
        runtime.store.put(ANN, "kept", {"data": text})
        return "kept"

    @tool
    def find(query: str) -> str:
        """Find a memory."""
        return ", ".join(one.value["data"] for one in get_store().search(ANN, query=query))

    model = scripted(
        tool_call("keep", {"text": "Ann likes tea."}, "c1"),
        "I will.",
        tool_call("find", {"query": "tea"}, "c2"),
        "Tea.",
    )

    def run() -> str:
        with SyncClient(f"ws://{app.ingest_address}", f"http://{app.rest_address}", options=options()) as client:
            agent = create_agent(model, [keep, find], store=langgraph.store(client))
            agent.invoke(asking("Remember that I like tea."))
            last = agent.invoke(asking("What do I like?"))["messages"]
            return str(last[-2].content)

    assert await asyncio.to_thread(run) == "Ann likes tea."


async def test_a_synchronous_client_serves_asynchronous_code(app: App) -> None:
    """On the event loop of its own thread."""
    with SyncClient(f"ws://{app.ingest_address}", f"http://{app.rest_address}", options=options()) as client:
        store = langgraph.store(client)
        await store.aput(ANN, "a", {"data": "Red."})
        assert [one.value for one in await store.asearch(ANN, query="red")] == [{"data": "Red."}]
