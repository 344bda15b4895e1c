"""voicemem without a server: sessions and their memories from Python.

The use cases and the store are those of the service; only one process can use a file at a time. There is no background
work: silent sessions stay open, and no webhook is sent. On a store that several processes share, the library is one of
its nodes: if it dies, others release what it held, and it does the same for them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, structs

from voicemem.config.service import Settings, check_redactions, check_store
from voicemem.context.builder import ContextOptions, ContextSelection, Usage, render_body, select_context, usage_of
from voicemem.context.policies import Policy
from voicemem.context.policy_registry import Policies
from voicemem.documents.document import ChatToolCall
from voicemem.errors import Refused
from voicemem.library.arguments import (
    check_arguments,
    check_project,
    check_user_id,
    context_options,
    json_bytes,
    json_value,
    plain_json,
    policies_from_options,
    with_policy_reason,
)
from voicemem.memory.add_and_forget import API_PRODUCER, Added, AddedAt, ForgetRequest, Forgot, forget, record_messages
from voicemem.memory.checkpoints import parse_checkpoint, restore_checkpoint, write_checkpoint
from voicemem.memory.exports import CallExportQuery, CallsExportQuery, export_calls, export_user, write_call
from voicemem.memory.fork import fork
from voicemem.memory.long_term.memories import LongTermMemory, MemoriesQuery, MemoryPage, list_filter, memory_page
from voicemem.memory.long_term.records import GivenMemory, KnownMemory, Memory, MemoryPatch, draft_of
from voicemem.memory.long_term.removal import ForgetMemories, erase_person, policy_of
from voicemem.memory.long_term.removal import forget as forget_memories
from voicemem.memory.search import FoundMemories, MemorySearch
from voicemem.memory.statistics import MemoryDetails, Statistics, statistics_of
from voicemem.memory.working_memory import (
    DocumentChange,
    DocumentOwner,
    DocumentVersion,
    DocumentView,
    WorkingMemory,
    owner_of_session,
)
from voicemem.protocol.arguments import converted
from voicemem.protocol.codec import decode_event
from voicemem.protocol.events import MemoryData
from voicemem.protocol.types import JsonObject
from voicemem.redaction.texts import Rules
from voicemem.runtime import MemoryBudget, Runtime
from voicemem.security.access import DEFAULT_PROJECT
from voicemem.services import Services
from voicemem.sessions.lifecycle import SessionInfo, info_of, session_filter
from voicemem.sessions.node_lease import registered
from voicemem.sessions.read_models.maintenance import save_all
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.sessions.recording.redaction import load_rules
from voicemem.store.engines import open_store
from voicemem.store.memory_filters import AnyOf
from voicemem.store.port import Store
from voicemem.store.quotas import check_producer
from voicemem.store.scopes import scope_of
from voicemem.store.session_filters import SessionFilter
from voicemem.store.streams import Stream
from voicemem.telemetry import Telemetry
from voicemem.transcript.messages import Message

T = TypeVar("T")
SETTINGS = Settings(allow_addresses=("0.0.0.0/0", "::/0"))
"""The library sends no requests, so a configuration may contain any address."""


@asynccontextmanager
async def open_library(
    store: str = "memory:",
    *,
    policies: Mapping[str, Callable[..., Policy]] | None = None,
    memory: Mapping[str, Any] | None = None,
    model_windows: Mapping[str, int] | None = None,
    redact: Sequence[str] = (),
    project: str = DEFAULT_PROJECT,
) -> AsyncIterator[Library]:
    """Open the sessions of a store, `sqlite:PATH`, `postgresql://…` or `memory:`, until the end of the block.

    `policies` are context policies of your own, by name; `memory` is the section `memory` for sessions without one;
    `model_windows` are context sizes in tokens, by the name of a model; `redact` names the redactions, as the setting
    of the service does. Raises `CannotStart`, `StoreUnavailable`.
    """
    check_store(store)
    check_project(project)
    check_redactions(redact)
    rules = load_rules(msgspec.structs.replace(SETTINGS, redact=tuple(redact)))
    known = policies_from_options(policies, memory, model_windows)
    budget = MemoryBudget()
    opened = open_store(store, budget=budget)
    try:
        library = Library(opened, known, project, budget, rules)
        async with registered(library.services.node):
            yield library
            await save_all(library.read_models, timeout_s=2.0)
    finally:
        await opened.close_store()


class Library:
    """The sessions of a project. Its methods and theirs raise `Refused` for anything invalid or impossible."""

    def __init__(
        self, store: Store, policies: Policies, project: str, budget: MemoryBudget, rules: Rules | None = None
    ) -> None:
        def check_context(memory: Any) -> None:
            with with_policy_reason():
                policies.check(memory)

        services = Services(store, SETTINGS, policies, Runtime(), Telemetry.untraced(), check_context, budget, rules)
        self.services = services
        self.project = project
        self.store = store
        self.policies = policies
        self.read_models = services.read_models
        self.sessions = services.sessions
        self.recorder = services.recorder
        self.documents = services.working_memory
        self.long_term = Memories(store, services.long_term, project)

    async def create(self, session_id: str | None = None, **configuration: Any) -> LibrarySession:
        """Create a session, or return the existing one if its configuration is the same (else `session_exists`)."""
        checked_id = check_arguments(session_id=session_id).session_id
        stream, _ = await self.sessions.create(self.project, checked_id, plain_json(configuration))
        return LibrarySession(self, stream.id)

    async def get(self, session_id: str) -> LibrarySession:
        """Return an existing session (else `unknown_session`)."""
        checked_id = check_arguments(session_id=session_id).session_id or ""
        return LibrarySession(self, (await self.store.journal.get_session(self.project, checked_id)).id)

    async def list(
        self, *, user_id: str | None = None, state: str | None = None, limit: int = 100
    ) -> list[LibrarySession]:
        """List sessions, the newest first; `state` is `running` or `ended`."""
        checked = check_arguments(user_id=user_id, state=state, limit=limit)
        matching = SessionFilter(project=self.project, user_id=user_id, state=state, limit=checked.limit or 100)
        return [LibrarySession(self, stream.id) for stream in await self.store.journal.list_sessions(matching)]

    def user_memory(self, user_id: str) -> Documents:
        """Return the working memory of a user, which all their sessions share."""
        owner = DocumentOwner("user", self.project, check_user_id(user_id))

        async def of_user() -> DocumentOwner:
            return owner

        return Documents(self.documents, of_user)

    async def restore(self, checkpoint: bytes, session_id: str | None = None) -> LibrarySession:
        """Create a session from a checkpoint of any store and any size."""
        if not isinstance(checkpoint, bytes):
            raise Refused("invalid_field", "A checkpoint must be bytes.")
        checked_id = check_arguments(session_id=session_id).session_id
        stream = await restore_checkpoint(self.sessions, self.project, checked_id, await parse_checkpoint(checkpoint))
        return LibrarySession(self, stream.id)

    async def search(self, query: str, **options: Any) -> FoundMemories:
        """Search heard messages and memories by words of the query, the best first.

        The options are those of `POST /v1/memories/search`. The first search indexes all sessions not indexed yet.
        """
        request = converted(plain_json({"query": query, **options}), MemorySearch)
        if not self.services.indexer.is_complete:
            await self.services.indexer.catch_up()
        return await self.services.finder.search(self.project, request)

    async def export_user(self, user_id: str, *, events: bool = False) -> AsyncGenerator[JsonObject, None]:
        """Yield all data of a user, line by line (docs/privacy.md); with `events`, journals too."""
        checked, clock = check_user_id(user_id), self.services.runtime.clock
        pieces = export_user(self.store, self.read_models, self.project, checked, clock, with_events=bool(events))
        async with aclosing(pieces):
            async for piece in pieces:
                for line in piece.splitlines():
                    yield msgspec.json.decode(line)

    async def export_calls(self, format: str = "vcon", **filters: Any) -> AsyncGenerator[JsonObject, None]:
        """Yield calls as documents, line by line (docs/exports.md); the filters are those of `GET /v1/exports`."""
        query = converted({"format": format, **filters}, CallsExportQuery)
        conditions = session_filter(self.project, query)
        async with aclosing(export_calls(self.store, self.read_models, conditions, query.format)) as lines:
            async for line in lines:
                yield msgspec.json.decode(line)

    async def erase_user(self, user_id: str, *, linked: bool = False) -> int:
        """Erase a user, and with `linked` the other id of the same person; returns the number of sessions."""
        checked = check_user_id(user_id)
        return (await erase_person(self.services.long_term, self.project, checked, bool(linked))).sessions

    async def link_users(self, user_id: str, same_as: str) -> None:
        """Link two ids of one person, so that reads of either are of both (else `user_conflict`)."""
        checked, other, runtime = check_user_id(user_id), check_user_id(same_as), self.services.runtime
        await self.store.users.link(self.project, checked, other, runtime.new_id(), runtime.clock())

    async def unlink_user(self, user_id: str) -> None:
        """Remove the link of an id, from either side; an id without one stays unchanged."""
        await self.store.users.unlink(self.project, check_user_id(user_id), self.services.runtime.clock())


class LibrarySession:
    """One session. Every method reads the store again, so a session may have several of these objects."""

    def __init__(self, library: Library, session_id: str) -> None:
        self.library = library
        self.session_id = session_id

    def __repr__(self) -> str:
        return f"<LibrarySession {self.session_id!r}>"

    async def info(self) -> SessionInfo:
        """Return state, configuration, times and position."""
        stream = await self._stream()
        return info_of(stream, await self.library.read_models.quarantined.find(stream.key))

    async def _stream(self) -> Stream:
        """Return the store's row, read anew each time."""
        return await self.library.store.journal.get_session(self.library.project, self.session_id)

    # Messages

    async def add(self, *messages: Mapping[str, Any]) -> AddedAt:
        """Add messages and tool traces in the form of `POST …/messages`; they are on disk when this returns."""
        stream = await self._stream()
        added = [converted(plain_json(message), Added) for message in messages]
        library, new_id = self.library, self.library.services.runtime.new_id
        return await record_messages(
            library.recorder, library.read_models, self._lease(stream, API_PRODUCER), added, new_id
        )

    async def record(self, *events: Mapping[str, Any], producer: str = "main") -> int:
        """Store events of the protocol `voicemem.v1`, all or none. Return the position of the last one."""
        if not all(isinstance(event, Mapping) for event in events):
            raise Refused("invalid_field", "An event must be a dict.")
        stream = await self._stream()
        lease, recorder = self._lease(stream, producer), self.library.recorder
        check_producer(producer)
        arrivals = [decode_event(json_bytes(event)) for event in events]
        recorded = await recorder.record(lease, arrivals, whole=True)
        if recorded.ended:
            await self.library.services.presence.close_when_ended(lease)
        return recorded.stream.position

    def _lease(self, stream: Stream, producer: str) -> ProducerLease:
        return ProducerLease(stream, check_arguments(producer=producer).producer or "main", None, may_call_out=True)

    async def history(self, open: bool = False) -> list[Message]:
        """Return the messages; with `open`, also replies and partials in progress."""
        unfinished = check_arguments(open=open).open
        messages = await self.library.read_models.read(
            await self._stream(), lambda read_model: read_model.messages(unfinished)
        )
        return [msgspec.structs.replace(message, metadata=message.metadata.copy()) for message in messages]

    async def export(self, format: str = "vcon") -> str:
        """Return the call as a document (docs/exports.md): `vcon`, `webvtt`, `srt`, `markdown`, `csv` or `jsonl`."""
        name, stream = converted({"format": format}, CallExportQuery).format, await self._stream()
        return await self.library.read_models.read(
            stream, lambda read_model: "".join(write_call(name, stream, read_model))
        )

    async def turns(self, marks: bool = False) -> list[JsonObject]:
        """Return each turn's start, end, cause, latencies and false alarms; with `marks`, the times of its parts."""
        with_marks = check_arguments(marks=marks).marks

        def read(read_model: ReadModel) -> list[JsonObject]:
            turns: list[JsonObject] = msgspec.to_builtins([*read_model.turns(with_marks)])
            return turns

        return await self.library.read_models.read(await self._stream(), read)

    # The next LLM request

    async def context(self, **options: Any) -> JsonObject:
        """Return the body of the next LLM request.

        `enrich` (a list), `style`, `system`, `alternate`, `tools`, `max_history`, `data`, `peek`, `at` and `at_turn`
        are as in `GET …/context`; `memory` replaces the section `memory` of the configuration for this request.
        """
        checked = context_options(options)
        return await self._select(checked, partial(render_body, options=checked))

    async def usage(self, **options: Any) -> Usage:
        """Return the usage of such a context: its share of the model's window, and the messages left out."""
        return await self._select(context_options(options), partial(usage_of, summary=None))

    async def _select(self, options: ContextOptions, make: Callable[[ContextSelection], T]) -> T:
        with with_policy_reason():
            library, stream = self.library, await self._stream()
            recall = library.services.recall
            return await select_context(library.read_models, library.policies, stream, options, make, recall)

    async def statistics(self) -> Statistics:
        """Return counts of messages, turns, interruptions, tokens, latencies and tools."""
        library = self.library
        counter = await self._select(ContextOptions(peek=True), attrgetter("counter"))
        stream, now_ms = await self._stream(), library.services.runtime.clock()
        return await library.read_models.read(
            stream, lambda read_model: statistics_of(stream, read_model, counter, None, now_ms)
        )

    async def memory(self) -> MemoryDetails:
        """Return the memory besides its messages: summaries, forgotten ranges, carried sessions."""
        return await self.library.services.memory_details.read(await self._stream())

    @property
    def working_memory(self) -> Documents:
        """The document that the session uses, by `working_memory` in its configuration."""

        async def owner() -> DocumentOwner:
            return owner_of_session(await self._stream())

        return Documents(self.library.documents, owner)

    async def data(self) -> JsonObject:
        """Return the session's data, which LLMs see only in contexts made with `data=True`."""
        return await self.library.documents.data(await self._stream())

    async def update_data(self, **patch: Any) -> JsonObject:
        """Merge a patch into the session's data; None removes a value."""
        event = MemoryData(operation="patch", content=plain_json(patch))
        return await self.library.documents.change_data(await self._stream(), event)

    # Changes to the session

    async def forget(
        self, *, through_turn: int | None = None, keep_last: int | None = None, everything: bool | None = None
    ) -> Forgot:
        """Leave messages out of all later contexts, not of the history. It needs one argument and cannot be undone."""
        arguments = {"through_turn": through_turn, "keep_last": keep_last, "everything": everything}
        fields = {name: value for name, value in arguments.items() if value is not None}
        if not fields:
            raise Refused("missing_field", "One of through_turn, keep_last and everything=True is required.")
        library, request = self.library, converted(fields, ForgetRequest)
        return await forget(library.sessions, library.read_models, await self._stream(), request)

    async def checkpoint(self) -> bytes:
        """Return the session as one portable document."""
        library = self.library
        pieces = write_checkpoint(library.store, library.read_models.off_loop, await self._stream())
        return b"".join([piece async for piece in pieces])

    async def fork(self, at_turn: int, session_id: str | None = None, **configuration: Any) -> LibrarySession:
        """Create a session that remembers this one up to a turn."""
        library = self.library
        stream = await self._stream()
        checked, patch = check_arguments(at_turn=at_turn, session_id=session_id), plain_json(configuration)
        if checked.at_turn is None:
            raise Refused("missing_field", "The field at_turn is missing.")
        forked = await fork(library.sessions, library.read_models, stream, checked.at_turn, checked.session_id, patch)
        return LibrarySession(library, forked.id)

    async def update(self, **patch: Any) -> SessionInfo:
        """Merge a patch into the configuration; None removes a setting."""
        return info_of(await self.library.sessions.change(await self._stream(), plain_json(patch)))

    async def end(self, reason: str | None = None) -> SessionInfo:
        """End and close the session at once."""
        checked = check_arguments(reason=reason)
        return info_of(await self.library.sessions.end(await self._stream(), checked.reason))

    async def refold(self) -> None:
        """Rebuild the memory from the whole journal. Raises `SessionQuarantined` if that fails."""
        stream = await self._stream()
        await self.library.read_models.refold(stream)
        self.library.sessions.on_changed(stream)

    async def erase(self) -> None:
        """Erase everything of the session; its id cannot be used again."""
        stream = await self._stream()
        await self.library.sessions.erase(stream)
        self.library.read_models.discard(stream.key)


class Documents:
    """The document of a session or a user; `owner` returns its current owner."""

    def __init__(self, working_memory: WorkingMemory, owner: Callable[[], Awaitable[DocumentOwner]]) -> None:
        self.working_memory = working_memory
        self.owner = owner

    async def read(self, version: int | None = None) -> DocumentView:
        """Return the document, or a version of it: `content`, `form`, `version`, `updated_ms`."""
        return await self.working_memory.read_document(await self.owner(), check_arguments(version=version).version)

    async def versions(self, before: int | None = None, limit: int = 100) -> list[DocumentVersion]:
        """Return the versions, the newest first: `version`, `operation`, `updated_ms`."""
        checked = check_arguments(before=before, limit=limit)
        return await self.working_memory.versions(await self.owner(), checked.before, checked.limit or 100)

    async def append(self, content: Any, expected: int | None = None) -> DocumentView:
        """Merge an object into the document, or append a text to it. Return the new document.

        With `expected`, the document must have this version (else `precondition_failed`).
        """
        return await self._change(DocumentChange("append", content_of(content)), expected)

    async def replace(self, content: Any, expected: int | None = None) -> DocumentView:
        """Replace the document; `expected` as in `append`."""
        return await self._change(DocumentChange("replace", content_of(content)), expected)

    async def clear(self, expected: int | None = None) -> DocumentView:
        """Empty the document; `expected` as in `append`."""
        return await self._change(DocumentChange("clear"), expected)

    async def _change(self, change: DocumentChange, expected: int | None) -> DocumentView:
        version = check_arguments(expected=expected).expected
        versions = None if version is None else (version,)
        return await self.working_memory.change(await self.owner(), change, versions)

    async def tools(self) -> list[JsonObject]:
        """Return the tools with which an LLM maintains the document, in OpenAI's form."""
        return await self.working_memory.tool_definitions(await self.owner())

    async def execute(self, tool_call: Mapping[str, Any]) -> JsonObject:
        """Execute an LLM's tool call. Return the tool message."""
        return await self.working_memory.execute_tool(
            await self.owner(), converted(plain_json(tool_call), ChatToolCall)
        )


def content_of(value: Any) -> str | JsonObject:
    """Return the content of a document, a text or an object. Raises `Refused`."""
    content: str | JsonObject = converted(json_value(value), str | JsonObject)  # type: ignore[arg-type]
    return content


class Memories:
    """The memories of a project. All methods raise `Refused` for anything invalid or unknown."""

    def __init__(self, store: Store, long_term: LongTermMemory, project: str) -> None:
        self.store = store
        self.long_term = long_term
        self.project = project

    async def add(self, text: str, **fields: Any) -> Memory:
        """Keep a memory, and return it. A memory of the same owner in the same words is not kept twice."""
        memory = converted(plain_json({"text": text, **fields}), GivenMemory)
        return (await self.long_term.add(self.project, [draft_of(memory)]))[0]

    async def read(self, memory_id: str, evidence: bool = False) -> KnownMemory:
        """Return a memory; with `evidence`, its `lines` are the messages that it comes from, as they were heard."""
        memory = await self.long_term.find(self.project, check_id(memory_id))
        lines = await self.long_term.evidence(self.project, memory) if evidence else UNSET
        return KnownMemory(**structs.asdict(memory), lines=lines)

    async def change(self, memory_id: str, **fields: Any) -> Memory:
        """Change the given fields; None removes a value. Return the memory."""
        patch = converted(plain_json(fields), MemoryPatch, nulls=True)
        return await self.long_term.edit(self.project, check_id(memory_id), patch)

    async def remove(self, memory_id: str) -> None:
        """Remove a memory with its text."""
        if not await self.long_term.remove(self.project, [check_id(memory_id)]):
            raise Refused("unknown_memory")

    async def of_user(self, user_id: str, **params: Any) -> MemoryPage:
        """Return a page of the memories of a user, the newest first: `memories`, `next_cursor`."""
        return await self._page(params, user_ids=AnyOf((check_user_id(user_id),)))

    async def of_session(self, session_id: str, **params: Any) -> MemoryPage:
        """Return a page of the memories of a session, the newest first: `memories`, `next_cursor`."""
        checked = check_arguments(session_id=session_id).session_id or ""
        stream = await self.store.journal.get_session(self.project, checked)
        users = AnyOf(tuple({scope_of(stream).user_id, None}))
        return await self._page(params, user_ids=users, session_ids=AnyOf((checked,)))

    async def forget(self, user_id: str, **params: Any) -> list[str]:
        """Forget memories of a user for good. Return their ids; with `dry_run`, do no more than that."""
        request = converted(plain_json(params), ForgetMemories)
        policy = policy_of(request, self.project, check_user_id(user_id))
        return await forget_memories(self.long_term, self.project, policy, request.dry_run)

    async def _page(self, params: dict[str, Any], **owner: AnyOf) -> MemoryPage:
        query = converted(plain_json(params), MemoriesQuery)
        return await memory_page(self.long_term, list_filter(self.project, query, **owner), query.cursor)


def check_id(memory_id: Any) -> str:
    if not isinstance(memory_id, str) or not 1 <= len(memory_id) <= 128:
        raise Refused("invalid_field", "The id of a memory is 1 to 128 characters.")
    return memory_id
