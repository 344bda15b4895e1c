"""LangGraph's store over long-term memories: each item is a memory of a user, and each memory of theirs an item.

A namespace begins with the store's own, in which the user is. The memory of an item has its text, which is found by its
words and shown to calls; key, namespace and the rest of the value are its metadata. A memory made elsewhere is an item
of the user's own namespace, with the memory's id as its key.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from voicemem.client import Client, RequestRefused, SyncClient
from voicemem.integrations.conversation import ClientCalls
from voicemem.protocol.types import JsonObject

USER = "{user_id}"
"""The place of the user in the namespace of a store."""
KINDS = ("fact", "preference", "episode", "summary")
LISTED, FOUND = 1000, 100
"""The most memories of one answer."""
MAX_QUERY = 4_000
MADE_ID = re.compile(r"mem_[a-z2-7]{26}")
"""An id that the service made for a memory."""
METADATA = "langgraph"
Path = tuple[str, ...]


class ItemKey(msgspec.Struct, frozen=True):
    """The item of a memory, from its metadata: namespace, key, and the rest of its value."""

    namespace: Path
    key: str
    value: JsonObject
    """The value without the `field` that is the memory's text."""
    field: str | None = None


class Kept(NamedTuple):
    """A memory as an item."""

    path: Path
    key: str
    value: JsonObject
    memory: JsonObject

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of LangGraph's items."""
        made = {name: datetime.fromtimestamp(self.memory[name] / 1000, UTC) for name in ("created_at", "updated_at")}
        return {"namespace": self.path, "key": self.key, "value": self.value, **made}


class UserStore:
    """The items of users, joined with `BaseStore`."""

    def __init__(self, client: Client | SyncClient, namespace: Path, field: str) -> None:
        from langgraph.store import base

        self.types: Any = base
        if list(namespace).count(USER) != 1:
            raise ValueError(f"The namespace of a store has {USER} in one place, such as ('memories', '{USER}').")
        self.calls = ClientCalls(client)
        self.client = self.calls.client
        self.namespace = namespace
        self.field = field

    def batch(self, ops: Iterable[Any]) -> list[Any]:
        return self.calls.wait(self.run(list(ops)))

    async def abatch(self, ops: Iterable[Any]) -> list[Any]:
        return await self.calls.run(self.run(list(ops)))

    async def run(self, ops: list[Any]) -> list[Any]:
        """Answer all reads from the state before the batch, then apply the writes; for one item the last write wins.

        If any write is invalid, nothing is written.
        """
        puts = [op for op in ops if isinstance(op, self.types.PutOp)]
        changes = {(op.namespace, op.key): self.change(op) for op in puts}
        results = await asyncio.gather(*(self.read(op) for op in ops))
        for (path, key), memory in changes.items():
            if memory is not None:
                await self.client.memories.add(**memory)
            elif await self.find_item(path, key) is not None:
                await self.client.memories.remove(self.memory_id(path, key))
        return list(results)

    async def read(self, op: Any) -> Any:
        if isinstance(op, self.types.GetOp):
            kept = await self.find_item(op.namespace, op.key)
            return None if kept is None else self.types.Item(**kept.fields)
        if isinstance(op, self.types.SearchOp):
            return await self.find(op)
        return await self.list_paths(op) if isinstance(op, self.types.ListNamespacesOp) else None

    # Namespaces and items

    def user_of(self, path: Path) -> str:
        """Return the user of a namespace. Raises `InvalidNamespaceError` if it has none."""
        own = self.namespace
        if len(path) < len(own) or any(one not in (USER, part) for one, part in zip(own, path, strict=False)):
            shown = tuple(one.replace(USER, "USER") for one in own)
            raise self.types.InvalidNamespaceError(
                f"This store keeps memories of users: a namespace begins like {shown}, not {path}."
                f" Another place for the user is set by langgraph.store(client, namespace=…)."
            )
        user = path[own.index(USER)]
        if user == "*":
            raise self.types.InvalidNamespaceError("This store looks at one user at a time: name one in place of '*'.")
        return user

    def base(self, user: str) -> Path:
        return tuple(user if one == USER else one for one in self.namespace)

    def memory_id(self, path: Path, key: str) -> str:
        """Return the id of an item's memory, which is derived from its namespace and key."""
        if len(path) == len(self.namespace) and MADE_ID.fullmatch(key):
            return key
        return f"item_{blake2b(json.dumps([path, key]).encode(), digest_size=20).hexdigest()}"

    def kept(self, memory: JsonObject) -> Kept:
        text = memory["text"]
        try:
            place = msgspec.convert((memory.get("metadata") or {}).get(METADATA), ItemKey)
        except msgspec.ValidationError:
            value = {self.field: text, "kind": memory["kind"], "topics": memory["topics"]}
            return Kept(self.base(memory["user_id"]), memory["id"], value, memory)
        said = {} if place.field is None else {place.field: text}
        return Kept(place.namespace, place.key, place.value | said, memory)

    # Changes

    def change(self, op: Any) -> JsonObject | None:
        """Return the memory of an item; None for one to remove. Raises `ValueError`, `NotImplementedError`."""
        user = self.user_of(op.namespace)
        if op.value is None:
            return None
        if op.ttl is not None:
            raise NotImplementedError("This store has no TTL: give a memory expires_at, or use --memory-retention.")
        if op.index is False:
            raise NotImplementedError("Whatever this store keeps is found by its words: index=False cannot be.")
        value = plain(op.value)
        field = self.field if op.index is None and isinstance(value.get(self.field), str) else None
        text = value.pop(field) if field is not None else self.text_of(value, op.index)
        place = msgspec.to_builtins(ItemKey(op.namespace, op.key, value, field))
        id = self.memory_id(op.namespace, op.key)
        return {"id": id, "text": text, "user_id": user, "metadata": {METADATA: place}}

    def text_of(self, value: JsonObject, index: list[str] | None) -> str:
        """Return the text of a value: at an index's paths, else all its texts with their names. Raises `ValueError`."""
        if index:
            paths = map(self.types.tokenize_path, index)
            texts = [text for path in paths for text in self.types.get_text_at_path(value, path)]
        else:
            leaves = [*named_leaves(value)]
            texts = [text for _, text in leaves] if len(leaves) == 1 else [f"{name}: {text}" for name, text in leaves]
        text = ", ".join(texts)
        if not text.strip():
            raise ValueError("A memory says something: the value, or the index, names no text.")
        return text

    # Reads

    async def find_item(self, path: Path, key: str) -> Kept | None:
        user = self.user_of(path)
        try:
            memory = await self.client.memories.read(self.memory_id(path, key))
        except RequestRefused as refused:
            if refused.code == "unknown_memory":
                return None
            raise
        kept = self.kept(memory) if memory["user_id"] == user else None
        return kept if kept is not None and (kept.path, kept.key) == (path, key) else None

    async def memories(self, user: str, query: str | None) -> AsyncIterator[JsonObject]:
        """Yield the memories of a user, the newest first, or those with words of a query, the best first."""
        words, cursor = (query or "").strip()[:MAX_QUERY], None
        while True:
            more: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
            if words:
                page = await self.client.search(words, user_id=user, kinds=KINDS, limit=FOUND, **more)
            else:
                page = await self.client.memories.of_user(user, limit=LISTED, **more)
            for memory in page["memories"]:
                yield memory
            cursor = page["next_cursor"]
            if cursor is None:
                return

    async def find(self, op: Any) -> list[Any]:
        prefix, items, skipped = op.namespace_prefix, list[Any](), 0
        user = self.user_of(prefix)
        async for memory in self.memories(user, op.query):
            if len(items) >= op.limit:
                break
            kept = self.kept(memory)
            if kept.path[: len(prefix)] != prefix or not holds(op.filter, kept.value):
                continue
            skipped += 1
            if skipped > op.offset:
                items.append(self.types.SearchItem(**kept.fields, score=memory.get("score")))
        return items

    async def list_paths(self, op: Any) -> list[Path]:
        conditions = op.match_conditions or ()
        begin = next((one.path for one in conditions if one.match_type == "prefix"), ())
        paths = {self.kept(memory).path async for memory in self.memories(self.user_of(tuple(begin)), None)}
        matching = {path[: op.max_depth] for path in paths if all(matches(one, path) for one in conditions)}
        return sorted(matching)[op.offset : op.offset + op.limit]


def plain(value: Mapping[str, Any]) -> JsonObject:
    """Return a value as JSON. Raises `ValueError` if it is not."""
    try:
        made: JsonObject = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"The value of an item is JSON: {error}.") from None
    return made


def named_leaves(value: Any, name: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from named_leaves(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from named_leaves(one, name)
    elif value is not None and value != "":
        yield name, value if isinstance(value, str) else json.dumps(value)


def matches(condition: Any, path: Path) -> bool:
    """Return whether a namespace has a condition's prefix or suffix; `*` is any part."""
    own = tuple(condition.path)
    part = path[: len(own)] if condition.match_type == "prefix" else path[max(0, len(path) - len(own)) :]
    return len(part) == len(own) and all(one in ("*", other) for one, other in zip(own, part, strict=True))


def holds(filter: Mapping[str, Any] | None, value: Mapping[str, Any]) -> bool:
    return all(fits(value.get(name), condition) for name, condition in (filter or {}).items())


def fits(value: Any, condition: Any) -> bool:
    """Return whether a value matches LangGraph's filter. Raises `ValueError` for an unknown operator."""
    if not isinstance(condition, dict):
        return bool(value == (list(condition) if isinstance(condition, tuple) else condition))
    if not any(name.startswith("$") for name in condition):
        return isinstance(value, dict) and holds(condition, value)
    return all(compares(value, operator, other) for operator, other in condition.items())


def compares(value: Any, operator: str, other: Any) -> bool:
    match operator:
        case "$eq":
            return bool(value == other)
        case "$ne":
            return bool(value != other)
        case "$gt" | "$gte" | "$lt" | "$lte":
            try:
                one, two = float(value), float(other)
            except (TypeError, ValueError):
                return False
            return {"$gt": one > two, "$gte": one >= two, "$lt": one < two, "$lte": one <= two}[operator]
    raise ValueError(f"A filter knows $eq, $ne, $gt, $gte, $lt and $lte, not {operator}.")
