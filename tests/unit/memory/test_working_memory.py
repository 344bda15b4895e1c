"""Working memory without a server: several nodes on one store, tools for a session, erasure in between."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from voicemem.config.session import validate_config
from voicemem.documents.document import ChatToolCall, Form, tool_definitions
from voicemem.errors import Refused
from voicemem.memory.working_memory import DocumentChange, DocumentOwner, WorkingMemory, owner_of_session
from voicemem.protocol.events import MemoryData
from voicemem.protocol.types import JsonObject
from voicemem.sessions import journal_pages
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.retention import erase_user
from voicemem.store.records import JournalRow
from voicemem.store.sqlite.store import SqliteStore
from voicemem.store.streams import SessionEnding, Stream

NOW = 1_778_390_400_000
ANN = DocumentOwner("user", "p", "ann")


class Node:
    """One service's part on a file that others use too."""

    def __init__(self, path: Path) -> None:
        self.store = SqliteStore(str(path), exclusive=False)
        self.read_models = ReadModelCache(self.store)
        self.documents = WorkingMemory(self.store.journal, self.read_models, lambda: NOW)

    async def session(self, session_id: str = "s", **config: Any) -> Stream:
        return (await self.store.journal.create_session("p", session_id, validate_config(config), NOW))[0]


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    """Two nodes on one empty store."""
    found = [Node(tmp_path / "voicemem.db") for _ in range(2)]
    yield found
    for node in found:
        await node.store.close_store()


def call(name: str, arguments: str = "") -> ChatToolCall:
    function = {"name": name, "arguments": arguments}
    return msgspec.convert({"id": "c", "type": "function", "function": function, "index": 0}, ChatToolCall)


async def test_writers_on_two_nodes_lose_nothing(nodes: list[Node]) -> None:
    """Each append is merged into what is there by then, whoever wrote that, and each has a version of its own."""
    await nodes[0].session()
    for owner in (ANN, DocumentOwner("session", "p", "s")):
        writes = [nodes[n % 2].documents.change(owner, DocumentChange("append", {"n": [n]})) for n in range(40)]
        views = await asyncio.gather(*writes)
        for node in nodes:
            found = await node.documents.read_document(owner)
            assert {*range(40)} == set(found.content["n"])
            assert (40, 40) == (len(found.content["n"]), found.version)
        assert [*range(1, 41)] == sorted(view.version for view in views)
        for view in views:  # what was answered is what can be read
            assert view.content == (await nodes[0].documents.read_document(owner, view.version)).content


async def test_the_tools_of_a_session(nodes: list[Node]) -> None:
    """What a gateway calls takes the session's row and the call as the LLM made it."""
    documents = nodes[0].documents
    stream = await nodes[0].session(user_id="ann", working_memory={"scope": "user", "schema": {"required": ["a"]}})
    assert tool_definitions(Form("json", schema={"required": ["a"]})) == await documents.tool_definitions(stream)
    told = await documents.execute_tool(stream, call("update_working_memory", '{"content": {"b": 1}}'))
    assert "lacks `a`" in told["content"]
    await documents.execute_tool(stream, call("update_working_memory", '{"content": {"a": 1}}'))
    answer: JsonObject = {"role": "tool", "tool_call_id": "c", "content": '{"a":1}'}
    assert answer == await documents.execute_tool(stream, call("get_working_memory"))
    assert {"a": 1} == (await nodes[1].documents.read_document(ANN)).content
    await nodes[0].store.retention.erase(stream.key, NOW)
    with pytest.raises(Refused, match="no_user"):
        owner_of_session(await nodes[0].session("t", working_memory={"scope": "user"}))


async def test_the_tools_of_a_session_that_is_gone(nodes: list[Node]) -> None:
    """That is no fault of the LLM's, so it is not told to it."""
    stream = await nodes[0].session()
    await nodes[0].store.retention.erase(stream.key, NOW)
    for name, arguments in (("get_working_memory", ""), ("update_working_memory", '{"content": "x"}')):
        with pytest.raises(Refused, match="unknown_session"):
            await nodes[0].documents.execute_tool(stream, call(name, arguments))


async def test_versions_of_an_ended_call_are_read_from_its_archive(nodes: list[Node]) -> None:
    """Compaction changes nothing in what can be read, and later updates go on from there."""
    (node, other), owner = nodes, DocumentOwner("session", "p", "s")
    stream = await node.session(reopen_window=0)
    for text in ("one", "two"):
        await node.documents.change(owner, DocumentChange("append", text))
    await node.store.journal.close_session(stream.key, SessionEnding(NOW, "left"), "n", NOW)
    while await node.store.compaction.compact(stream.key):
        pass
    await node.documents.change(owner, DocumentChange("append", "three"))
    assert ["one", "one\n\ntwo", "one\n\ntwo\n\nthree"] == [
        (await other.documents.read_document(owner, version)).content for version in (1, 2, 3)
    ]
    assert [3, 2, 1] == [version.version for version in await other.documents.versions(owner, None, 10)]


@pytest.mark.parametrize(("page", "count"), [(1000, 1), (7, 3)])
async def test_versions_of_a_page_are_read_together(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch, page: int, count: int
) -> None:
    """Each read of an archive unpacks all of it, so there is one for each page of a journal."""
    (node, _), owner = nodes, DocumentOwner("session", "p", "s")
    await node.session()
    for number in range(30):
        await node.documents.change(owner, DocumentChange("append", {"n": [number]}))
    await node.documents.read_document(owner)  # brings the read model up to date
    reads, read_rows = [], node.store.journal.read_rows

    async def counted(key: int, after: int, limit: int) -> list[JournalRow]:
        reads.append(after)
        return await read_rows(key, after, limit)

    monkeypatch.setattr(node.store.journal, "read_rows", counted)
    monkeypatch.setattr(journal_pages, "PAGE", page)
    versions = await node.documents.versions(owner, None, 20)
    assert [*range(30, 10, -1)] == [one.version for one in versions]
    assert count == len(reads)


async def test_a_user_who_is_erased_while_somebody_writes(nodes: list[Node]) -> None:
    """What was written before is gone; a writer that comes after begins a new document, and none is lost between."""
    await nodes[0].documents.change(ANN, DocumentChange("append", {"old": [True]}))
    writes = [nodes[n % 2].documents.change(ANN, DocumentChange("append", {"n": [n]})) for n in range(12)]
    erasing = erase_user(nodes[0].store, nodes[0].read_models, "p", "ann", lambda: NOW)
    views, _ = await asyncio.gather(asyncio.gather(*writes), erasing)
    found = await nodes[1].documents.read_document(ANN)
    written = [] if found.content is None else found.content["n"]
    assert found.content is None or "old" not in found.content
    assert found.version == len(written)
    later = [view for view in views if not view.content.get("old")]
    assert len(later) == len(written)


async def test_data_on_two_nodes(nodes: list[Node]) -> None:
    """Patches of one session's data from several nodes are all there."""
    stream = await nodes[0].session()
    patches = [MemoryData(operation="patch", content={f"w{n}": n}) for n in range(20)]
    await asyncio.gather(*(nodes[n % 2].documents.change_data(stream, patch) for n, patch in enumerate(patches)))
    now = await nodes[1].store.journal.find_session("p", "s")
    assert now is not None
    assert {f"w{n}": n for n in range(20)} == await nodes[1].documents.data(now)
