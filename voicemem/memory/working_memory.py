"""Working memory: documents of sessions and of users, and the data of a session, as events in their streams.

An update reads the document at a position, merges and checks the change, and appends it right after that position. If
something else was appended first, all of it is repeated. So writers on any number of nodes lose nothing, and every
version can be read.
"""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

from voicemem.config.session import parse_config
from voicemem.documents import document as documents
from voicemem.errors import InvalidFrame, Refused, StoreUnavailable
from voicemem.protocol.codec import JSON_DECODER, MALFORMED, check_frame, check_integers, merge_patch
from voicemem.protocol.events import MemoryData, MemoryDocument
from voicemem.protocol.types import JsonObject
from voicemem.redaction.texts import Rules, redact_value
from voicemem.sessions.derived import MAX_APPEND_ATTEMPTS, append_derived, find_documents
from voicemem.sessions.journal_pages import events_at
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.sessions.schema_worker import SCHEMA_WORKER
from voicemem.store.journal import Journal
from voicemem.store.streams import Stream
from voicemem.transcript.state import State

DEFAULT_CONFIG = documents.WorkingMemoryConfig()


class DocumentOwner(NamedTuple):
    """The owner of a document, and the working memory settings of the requesting session."""

    scope: documents.Scope
    project: str
    id: str
    config: documents.WorkingMemoryConfig = DEFAULT_CONFIG
    session_id: str | None = None
    """The requesting session; None for a request about a user."""
    stream: Stream | None = None
    """The row of the session that owns the document, if this request has read it already."""


class DocumentView(Struct, frozen=True):
    """A document at a version; version 0 is the state before the first change."""

    owner: DocumentOwner
    form: documents.Form
    content: Any = None
    version: int = 0
    updated_ms: int | None = None
    stored_form: documents.Form | None = None
    """The form stored with the document; None if the configuration decides."""


class VersionAuthor(Struct, frozen=True):
    """The session through which a version was made, and the producer, if known."""

    session_id: str
    producer: str | None


class DocumentVersion(Struct, frozen=True):
    """A version and its operation."""

    version: int
    operation: documents.Operation
    updated_ms: int = msgspec.field(name="updated_at")
    by: VersionAuthor | None
    """Null if a user's document was changed without a session."""


class DocumentChange(NamedTuple):
    """A change to a document; with `form`, the document has this form from now on."""

    operation: documents.Operation
    content: Any = None
    form: documents.Form | None = None
    is_padded: bool = False
    """True if null or empty values in it mean no change."""


def owner_of_session(stream: Stream) -> DocumentOwner:
    """The owner of the document that a session uses. Raises `Refused` (`no_user`)."""
    session_config = parse_config(stream.config)
    section = session_config.working_memory or DEFAULT_CONFIG
    if section.scope == "session":
        return DocumentOwner("session", stream.project, stream.id, section, stream.id, stream)
    if session_config.user_id is None:
        raise Refused("no_user")
    return DocumentOwner("user", stream.project, session_config.user_id, section, stream.id)


def view_of(owner: DocumentOwner, document: documents.Document | None) -> DocumentView:
    document = document or documents.Document()
    form = documents.resolve_form(document.content, document.form, documents.form_of(owner.config))
    updated_ms = document.updated_ms if document.version else None
    return DocumentView(owner, form, document.content, document.version, updated_ms, document.form)


class WorkingMemory:
    """Reads and updates documents and data. `clock` gives Unix ms."""

    def __init__(
        self, journal: Journal, read_models: ReadModelCache, clock: Callable[[], int], rules: Rules | None = None
    ) -> None:
        self.rules = rules
        self.journal = journal
        self.read_models = read_models
        self.clock = clock
        self.locks: WeakValueDictionary[tuple[str, str, str], asyncio.Lock] = WeakValueDictionary()
        """By owner: a lock for a document's writers in this process, so they do not repeat each other's attempts."""

    # Documents

    async def read_document(self, owner: DocumentOwner, version: int | None = None) -> DocumentView:
        """Return a document, at a version if one is named. Raises `Refused` (`unknown_version`, `unknown_session`)."""
        stream = await self.find_stream(owner)
        document = None if stream is None else (await self.read_models.get_state(stream)).document
        if version is None or (document is not None and version == document.version):
            return view_of(owner, document)
        if stream is None or document is None or version > document.version:
            raise Refused("unknown_version")
        position = document.positions[version - 1]
        return await self.read_models.compute_as_of(
            stream.key, position, lambda at: view_of(owner, at.state.document), owner=stream.project
        )

    async def versions(self, owner: DocumentOwner, before: int | None, limit: int) -> list[DocumentVersion]:
        """Return the versions before `before`, the newest first. Raises `Refused` (`unknown_session`)."""
        stream = await self.find_stream(owner)
        document = None if stream is None else (await self.read_models.get_state(stream)).document
        if stream is None or document is None:
            return []
        last = document.version if before is None else min(before - 1, document.version)
        positions = document.positions[max(0, last - limit) : last]
        number, records = last - len(positions), list[DocumentVersion]()
        async for row, event in events_at(self.journal, stream.key, positions):
            assert isinstance(event, MemoryDocument)
            author = event.session_id or (owner.id if owner.scope == "session" else None)
            by = None if author is None else VersionAuthor(author, event.producer or row.producer)
            number += 1
            records.append(DocumentVersion(number, event.operation, row.received_ms, by))
        return records[::-1]

    async def change(
        self, owner: DocumentOwner, change: DocumentChange, expected: Collection[int] | None = None
    ) -> DocumentView:
        """Change a document, and return it. With `expected`, it must have one of these versions.

        Raises `Refused`: `precondition_failed`, `too_big`, `invalid_field` for a content that breaks the form.
        """
        async with self.locks.setdefault(owner[:3], asyncio.Lock()):
            for _ in range(MAX_APPEND_ATTEMPTS):
                stream = await self.find_stream(owner)
                state = State() if stream is None else await self.read_models.get_state(stream)
                position = state.position
                before = view_of(owner, state.document)
                if expected is not None and before.version not in expected:
                    raise Refused("precondition_failed")
                is_no_content = change.content == "" and change.form is None
                if before.content is None and (change.operation == "clear" or is_no_content):
                    return before
                now_ms = self.clock()
                after, event = await self.apply_change(before, change, now_ms)
                if await self.append_event(owner, stream, event, position, now_ms):
                    return after
                owner = owner._replace(stream=None)
        raise StoreUnavailable("The document changes faster than this update can be stored.")

    async def apply_change(
        self, before: DocumentView, change: DocumentChange, now_ms: int
    ) -> tuple[DocumentView, MemoryDocument]:
        """Return the document after a change, and the event to journal. Raises `Refused`."""
        if self.rules is not None:
            change = change._replace(content=redact_value(change.content, self.rules))
        form, change = prepare_change(before, change)
        # The first document of a user stores the form from the session's configuration, so that all sessions of the
        # user find the same form; otherwise the configuration decides.
        adopts = (
            before.stored_form is None
            and before.owner.scope == "user"
            and form == documents.form_of(before.owner.config)
        )
        own = change.form or (form if adopts else None)
        content = documents.apply_operation(before.content, change.operation, change.content)
        if content is not None:
            documents.check_content(content, form)
            if form.schema is not None:
                await SCHEMA_WORKER.check(form.schema, content)
        event = MemoryDocument(
            operation=change.operation,
            content=change.content,
            format=own.format if own else None,
            template=own.template if own else None,
            schema=own.schema if own else None,
            session_id=before.owner.session_id if before.owner.scope == "user" else None,
        )
        return DocumentView(before.owner, form, content, before.version + 1, now_ms, own or before.stored_form), event

    async def append_event(
        self, owner: DocumentOwner, stream: Stream | None, event: MemoryDocument, position: int, now_ms: int
    ) -> bool:
        """Journal an event right after a position. Return False if something else was appended first."""
        if stream is None:
            stream = await self.journal.ensure_user(owner.project, owner.id, now_ms)
        try:
            adds = event.operation != "clear"
            return await self.read_models.append(stream.key, event, position, now_ms, adds) is not None
        except Refused as refused:
            if owner.scope == "session" or refused.code != "unknown_session":
                raise
            return False  # the user was erased meanwhile: the next attempt creates it again

    async def find_stream(self, owner: DocumentOwner) -> Stream | None:
        """Return the stream of an owner's document; None for a user without. Raises `Refused` (`unknown_session`)."""
        if owner.scope == "user":
            documents = await find_documents(self.read_models, owner.project, owner.id)
            return documents[0][0] if documents else None
        if owner.stream is not None:
            return owner.stream
        return await self.journal.get_session(owner.project, owner.id)

    # Tools

    async def tool_definitions(self, owner: DocumentOwner | Stream) -> list[JsonObject]:
        """Return the tool definitions for the document of an owner or a session. Raises `Refused`."""
        view = await self.read_document(owner if isinstance(owner, DocumentOwner) else owner_of_session(owner))
        return documents.tool_definitions(view.form)

    async def execute_tool(self, owner: DocumentOwner | Stream, call: documents.ChatToolCall) -> JsonObject:
        """Run a tool call. Return the tool message, which reports an error in the call to the LLM.

        Raises `Refused` for a session that has no document, and `StoreUnavailable`.
        """
        owner = owner if isinstance(owner, DocumentOwner) else owner_of_session(owner)
        owner = owner._replace(stream=None)  # its row is read for each call
        try:
            return documents.tool_message(call, await self.run_tool(owner, call))
        except (Refused, InvalidFrame) as refused:
            if refused.code == "unknown_session":
                raise
            return documents.tool_message(call, f"Error: {refused.detail}")

    async def run_tool(self, owner: DocumentOwner, call: documents.ChatToolCall) -> str:
        """Run a tool call. Return its result as text. Raises `Refused`, `InvalidFrame`."""
        match call.function.name:
            case "get_working_memory":
                view = await self.read_document(owner)
                return documents.render_content(view.content, view.form)
            case "update_working_memory":
                if isinstance(call.function.arguments, str):
                    check_frame(call.function.arguments.encode())
                update = documents.parse_update(call)
                check_integers(update.content)
                await self.change(owner, DocumentChange(update.mode, update.content, is_padded=True))
                return "The working memory is updated."
            case "clear_working_memory":
                await self.change(owner, DocumentChange("clear"))
                return "The working memory is empty."
        raise Refused(
            "invalid_field",
            f"The tool must be one of {documents.GET_TOOL}, {documents.UPDATE_TOOL} and {documents.CLEAR_TOOL}.",
        )

    # Data

    async def data(self, stream: Stream) -> JsonObject:
        return (await self.read_models.get_state(stream)).data

    async def change_data(self, stream: Stream, event: MemoryData) -> JsonObject:
        """Journal a change to the data, and return them. Raises `Refused` (`too_big`, `unknown_session`)."""
        async with self.locks.setdefault(("session", stream.project, stream.id), asyncio.Lock()):
            check_data = partial(checked_data, event=event)
            return (await append_derived(self.read_models, stream, check_data, self.clock, True))[1].state.data


def prepare_change(before: DocumentView, change: DocumentChange) -> tuple[documents.Form, DocumentChange]:
    """Return the form of the document after a change, and the change to journal. Raises `Refused` (`invalid_field`).

    For a document in JSON, a text that holds an object is taken as the object: LLMs send such texts.
    """
    appends = change.operation == "append"
    # An append to an empty document is a first content: the old content does not matter for the form.
    existing = before.content if appends and before.content != "" else None
    content = change.content
    if isinstance(content, str) and (change.form or before.form).format == "json":
        content = parse_object(content)
    if change.is_padded and appends and isinstance(content, dict):
        content = documents.without_empty_values(content)
    if change.form is not None:
        form = change.form
    elif existing is not None:
        form = documents.resolve_form(existing, before.stored_form, documents.form_of(before.owner.config))
    else:
        form = documents.resolve_form(
            None, before.stored_form, documents.form_of(before.owner.config), documents.resolve_form(content)
        )
    if content is None:
        return form, change
    if existing is not None:
        documents.check_same_kind(existing, content)
        documents.check_content(content, form)  # a merge may shrink it
    if content == "" and not appends:
        documents.check_content(content, form)
        return form, change._replace(operation="clear", content=None)
    if appends and existing is None:
        # A template stays above the first content.
        content = content if form.template is None else documents.append_content(form.template, content)
    return form, change._replace(content=content)


def parse_object(text: str) -> str | JsonObject:
    """Return the JSON object in a text; the text itself if it holds none."""
    try:
        check_frame(text.encode())
        value = JSON_DECODER.decode(text)
        check_integers(value)
    except (InvalidFrame, Refused, UnicodeError, *MALFORMED):
        return text
    return value if isinstance(value, dict) else text


def checked_data(read_model: ReadModel, event: MemoryData) -> MemoryData:
    """Return the event, if the data after it are not too large. Raises `Refused` (`too_big`)."""
    check_data_size(event.content)  # before any work, and so that a checkpoint of the session can be restored
    if event.operation == "patch":
        check_data_size(merge_patch(read_model.state.data, event.content))
    return event


def check_data_size(data: JsonObject) -> None:
    if documents.content_size(data) > documents.MAX_DOCUMENT_BYTES:
        raise Refused("too_big", "The data of a session may have at most 64 KiB, and so may a change of them.")
