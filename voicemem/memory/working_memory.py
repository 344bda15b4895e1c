"""Working memory: documents of sessions and of users, and the data of a session, as events in their streams.

An update is read at a position, merged and checked, and appended right behind it; when something else came first, all
of that is done again. So writers on any number of nodes lose nothing, and every version can be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

from voicemem.config.session import parse_config
from voicemem.documents import document as documents
from voicemem.documents.document import (
    MAX_DOCUMENT_BYTES,
    Document,
    Form,
    Operation,
    Scope,
    WorkingMemoryConfig,
    form_of,
)
from voicemem.documents.json_schema import check_document
from voicemem.documents.tools import (
    CLEAR_TOOL,
    GET_TOOL,
    UPDATE_TOOL,
    ChatToolCall,
    parse_update,
    tool_definitions,
    tool_message,
)
from voicemem.errors import InvalidFrame, Refused, StoreUnavailable
from voicemem.protocol import codec
from voicemem.protocol.events import MemoryData, MemoryDocument
from voicemem.protocol.strict_json import JSON_DECODER, MALFORMED, check_frame, check_integers, merge_patch
from voicemem.protocol.types import JsonObject
from voicemem.sessions.cache import MAX_APPEND_ATTEMPTS, Memories, append_made
from voicemem.sessions.read_model import Memory
from voicemem.store.port import Journal
from voicemem.store.streams import Stream

DEFAULT_CONFIG = WorkingMemoryConfig()


class DocumentOwner(NamedTuple):
    """Whose document is meant, and the configuration of the session that asks."""

    scope: Scope
    project: str
    id: str
    config: WorkingMemoryConfig = DEFAULT_CONFIG


class DocumentView(Struct, frozen=True):
    """A document at a version; version 0 is before the first event."""

    owner: DocumentOwner
    form: Form
    content: Any = None
    version: int = 0
    updated_ms: int | None = None
    stored_form: Form | None = None


class VersionRecord(NamedTuple):
    """What made a version of a document."""

    version: int
    operation: Operation
    updated_ms: int


class DocumentChange(NamedTuple):
    """What is to be done to a document; with `form`, it has this one from here on."""

    operation: Operation
    content: Any = None
    form: Form | None = None


def owner_of_session(stream: Stream) -> DocumentOwner:
    """The owner of the document that a session works on. Raises `Refused` (`no_user`)."""
    session_config = parse_config(stream.config)
    section = session_config.working_memory or DEFAULT_CONFIG
    if section.scope == "session":
        return DocumentOwner("session", stream.project, stream.id, section)
    if session_config.user_id is None:
        raise Refused("no_user")
    return DocumentOwner("user", stream.project, session_config.user_id, section)


def view_of(owner: DocumentOwner, document: Document | None) -> DocumentView:
    found = document or Document()
    form = documents.resolve_form(found.content, found.form, form_of(owner.config))
    updated_ms = found.updated_ms if found.version else None
    return DocumentView(owner, form, found.content, found.version, updated_ms, found.form)


class WorkingMemory:
    """Reads and updates documents and data. `clock` gives Unix ms."""

    def __init__(self, journal: Journal, memories: Memories, clock: Callable[[], int]) -> None:
        self.journal = journal
        self.memories = memories
        self.clock = clock
        self.locks: WeakValueDictionary[tuple[str, str, str], asyncio.Lock] = WeakValueDictionary()
        """Writers of one document in this process wait for each other, instead of being in each other's way."""

    # Documents

    async def read_document(self, owner: DocumentOwner, version: int | None = None) -> DocumentView:
        """A document as it is, or as it was. Raises `Refused` (`unknown_version`, `unknown_session`)."""
        stream = await self.find_stream(owner)
        memory = None if stream is None else await self.memories.at(stream)
        document = None if memory is None else memory.state.document
        if version is None or (document is not None and version == document.version):
            return view_of(owner, document)
        if stream is None or document is None or version > document.version:
            raise Refused("unknown_version")
        position = document.positions[version - 1]
        return await self.memories.made_as_of(stream.key, position, lambda at: view_of(owner, at.state.document))

    async def versions(self, owner: DocumentOwner, before: int | None, limit: int) -> list[VersionRecord]:
        """What made the versions before one, the newest first. Raises `Refused`."""
        stream = await self.find_stream(owner)
        document = None if stream is None else (await self.memories.at(stream)).state.document
        if stream is None or document is None:
            return []
        last = document.version if before is None else min(before - 1, document.version)
        positions = document.positions[max(0, last - limit) : last]
        found = []
        for number, position in zip(range(last, 0, -1), reversed(positions), strict=False):
            for row in await self.journal.rows(stream.key, position - 1, 1):
                event = codec.decode_journaled(row.payload)
                assert isinstance(event, MemoryDocument)
                found.append(VersionRecord(number, event.operation, row.received_ms))
        return found

    async def change(
        self, owner: DocumentOwner, change: DocumentChange, expected: Collection[int] | None = None
    ) -> DocumentView:
        """The document after a change; with `expected`, only of one of these versions.

        Raises `Refused`: `precondition_failed`, `too_big`, `invalid_field` for a content that breaks the form.
        """
        async with self.lock_for(owner):
            for _ in range(MAX_APPEND_ATTEMPTS):
                stream = await self.find_stream(owner)
                memory = None if stream is None else await self.memories.at(stream)
                position = 0 if memory is None else memory.stands_at
                before = view_of(owner, None if memory is None else memory.state.document)
                if expected is not None and before.version not in expected:
                    raise Refused("precondition_failed")
                if before.content is None and leaves_empty(change):
                    return before
                now_ms = self.clock()
                after, event = await self.apply_change(before, change, now_ms)
                if await self.append_event(owner, stream, event, position, now_ms):
                    return after
        raise StoreUnavailable("The document changes faster than an update of it can be stored.")

    async def apply_change(
        self, before: DocumentView, change: DocumentChange, now_ms: int
    ) -> tuple[DocumentView, MemoryDocument]:
        """The document after a change, and the event that makes it so. Raises `Refused`."""
        form, change = prepare_change(before, change)
        own, configured = change.form, form_of(before.owner.config)
        if own is None and before.stored_form is None and before.owner.scope == "user" and form == configured:
            own = configured  # so that all of the user's sessions find the same form
        content = documents.apply_operation(before.content, change.operation, change.content)
        if content is not None:
            documents.check_content(content, form)
            if form.schema is not None:
                check_document(content, form.schema)
        event = MemoryDocument(
            operation=change.operation,
            content=change.content,
            format=own.format if own else None,
            template=own.template if own else None,
            schema=own.schema if own else None,
        )
        return DocumentView(before.owner, form, content, before.version + 1, now_ms, own or before.stored_form), event

    async def append_event(
        self, owner: DocumentOwner, stream: Stream | None, event: MemoryDocument, position: int, now_ms: int
    ) -> bool:
        """Journal an event right behind a position; False when something else came first."""
        if stream is None:
            stream = await self.journal.add_user(owner.project, owner.id, now_ms)
        payload = msgspec.json.encode(event)
        try:
            return await self.journal.append_own(stream.key, payload, position, now_ms) is not None
        except Refused:
            if owner.scope == "session":
                raise
            return False  # the user was erased meanwhile, and comes back

    async def find_stream(self, owner: DocumentOwner) -> Stream | None:
        """The stream of an owner; None for a user of whom nothing was written. Raises `Refused`."""
        if owner.scope == "user":
            return await self.journal.user(owner.project, owner.id)
        stream = await self.journal.stream(owner.project, owner.id)
        if stream is None:
            raise Refused("unknown_session")
        return stream

    def lock_for(self, owner: DocumentOwner) -> asyncio.Lock:
        return self.locks.setdefault(owner[:3], asyncio.Lock())

    # Tools

    async def tool_definitions(self, owner: DocumentOwner | Stream) -> list[JsonObject]:
        """The definitions of the tools for a session's document, or for that of an owner. Raises `Refused`."""
        view = await self.read_document(owner if isinstance(owner, DocumentOwner) else owner_of_session(owner))
        return tool_definitions(view.form)

    async def execute_tool(self, owner: DocumentOwner | Stream, call: ChatToolCall) -> JsonObject:
        """Do what a tool call says; the tool message. What is wrong with the call is told in that.

        Raises `Refused` for a session that has no document, and `StoreUnavailable`.
        """
        owner = owner if isinstance(owner, DocumentOwner) else owner_of_session(owner)
        try:
            return tool_message(call, await self.run_tool(owner, call))
        except (Refused, InvalidFrame) as refused:
            if refused.code == "unknown_session":
                raise
            return tool_message(call, f"Error: {refused.detail}")

    async def run_tool(self, owner: DocumentOwner, call: ChatToolCall) -> str:
        match call.function.name:
            case "get_working_memory":
                view = await self.read_document(owner)
                return documents.render_content(view.content, view.form)
            case "update_working_memory":
                if isinstance(call.function.arguments, str):
                    check_frame(call.function.arguments.encode())
                update = parse_update(call)
                check_integers(update.content)
                await self.change(owner, DocumentChange(update.mode, update.content))
                return "The working memory is updated."
            case "clear_working_memory":
                await self.change(owner, DocumentChange("clear"))
                return "The working memory is empty."
        raise Refused("invalid_field", f"There is no such tool; there are {GET_TOOL}, {UPDATE_TOOL} and {CLEAR_TOOL}.")

    # Data

    async def data(self, stream: Stream) -> JsonObject:
        """The data of a session."""
        return (await self.memories.at(stream)).state.data

    async def change_data(self, stream: Stream, event: MemoryData) -> JsonObject:
        """The data after an event. Raises `Refused` (`too_big`, `unknown_session`)."""
        async with self.lock_for(DocumentOwner("session", stream.project, stream.id)):
            _, memory = await append_made(self.memories, stream, lambda memory: check_data(memory, event), self.clock)
            return memory.state.data


def leaves_empty(change: DocumentChange) -> bool:
    """Whether nothing comes of it in an empty document."""
    return change.operation == "clear" or (change.content == "" and change.form is None)


def prepare_change(before: DocumentView, change: DocumentChange) -> tuple[Form, DocumentChange]:
    """The form in which a change is done, and the change as it is journaled. Raises `Refused` (`invalid_field`).

    A text that is a JSON object, for a document of that format, is this object: LLMs give such.
    """
    appends = change.operation == "append"
    kept = before.content if appends and before.content != "" else None
    given = change.content
    if isinstance(given, str) and (change.form or before.form).format == "json":
        given = parse_object(given)
    if change.form is not None:
        form = change.form
    elif kept is not None:
        form = documents.resolve_form(kept, before.stored_form, form_of(before.owner.config))
    else:
        form = documents.resolve_form(
            None, before.stored_form, form_of(before.owner.config), documents.resolve_form(given)
        )
    if given is None:
        return form, change
    if kept is not None:
        documents.check_same_kind(kept, given)
    documents.check_content(given, form)
    if given == "" and not appends:
        return form, change._replace(operation="clear", content=None)
    if appends and kept is None:
        given = documents.first_content(given, form.template)
    return form, change._replace(content=given)


def parse_object(text: str) -> str | JsonObject:
    """The JSON object that a text is, else the text."""
    try:
        check_frame(text.encode())
        value = JSON_DECODER.decode(text)
        check_integers(value)
    except (InvalidFrame, Refused, UnicodeError, *MALFORMED):
        return text
    return value if isinstance(value, dict) else text


def check_data(memory: Memory, event: MemoryData) -> MemoryData:
    """The event, if the data it leads to are not too large. Raises `Refused`."""
    after = event.content if event.operation == "replace" else merge_patch(memory.state.data, event.content)
    if len(msgspec.json.encode(after)) > MAX_DOCUMENT_BYTES:
        raise Refused("too_big", "The data of a session have at most 64 KiB.")
    return event
