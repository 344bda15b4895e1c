"""voicemem without a server: sessions, their memory and what can be done to it, from Python.

The same use cases as those of the service, on the same kind of store; one process has a file at a time. Nothing happens
by itself here: sessions fall silent without being closed, and no webhook is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from voicemem.config.service import Settings, check_store
from voicemem.context.builder import ContextOptions, ContextSelection, render_body, select_context
from voicemem.context.policies import Policies, Policy
from voicemem.context.usage import Usage, usage_of
from voicemem.errors import Refused
from voicemem.library.arguments import (
    check_arguments,
    check_project,
    context_options,
    converted,
    json_bytes,
    plain_json,
    policies_from_options,
    with_policy_reason,
)
from voicemem.library.documents import Documents
from voicemem.memory.add import API_PRODUCER, Added, AddedAt, record_messages
from voicemem.memory.checkpoint import parse_checkpoint, restore_checkpoint, write_checkpoint
from voicemem.memory.forget import ForgetRequest, Forgot, forget
from voicemem.memory.fork import fork
from voicemem.memory.statistics import Statistics, statistics_of
from voicemem.memory.working_memory import DocumentOwner, owner_of_session
from voicemem.protocol.codec import RejectedEvent, decode_event
from voicemem.protocol.events import MemoryData
from voicemem.protocol.types import JsonObject
from voicemem.runtime import Runtime
from voicemem.security.access import DEFAULT_PROJECT
from voicemem.services import Services
from voicemem.sessions.batches import ProducerLease
from voicemem.sessions.retention import erase_user
from voicemem.store.engines import open_store
from voicemem.store.port import Store
from voicemem.store.records import StreamFilter
from voicemem.store.streams import Stream
from voicemem.telemetry import Telemetry
from voicemem.transcript.messages import Message
from voicemem.transcript.turns import turns

SETTINGS = Settings(allow_addresses=("0.0.0.0/0", "::/0"))
"""The library sends no request, so any address may stand in a configuration."""


@asynccontextmanager
async def open_library(
    store: str = "memory:",
    *,
    policies: Mapping[str, Callable[..., Policy]] | None = None,
    memory: Mapping[str, Any] | None = None,
    model_windows: Mapping[str, int] | None = None,
    project: str = DEFAULT_PROJECT,
) -> AsyncIterator[Library]:
    """The sessions of a store, `sqlite:PATH` or `memory:`, until the end of the block.

    `policies` are memory policies of your own, by name; `memory` is the section `memory` of sessions that have none.
    Raises `CannotStart`.
    """
    check_store(store)
    check_project(project)
    known = policies_from_options(policies, memory, model_windows)
    opened = open_store(store)
    try:
        library = Library(opened, known, project)
        yield library
        await library.memories.save_all(timeout_s=2.0)
    finally:
        await opened.close_store()


class Library:
    """The sessions of a project. Whatever is asked of it or of them raises `Refused` where it cannot be."""

    def __init__(self, store: Store, policies: Policies, project: str) -> None:
        def check_memory(memory: Any) -> None:
            with with_policy_reason():
                policies.check(memory)

        services = Services(store, SETTINGS, policies, Runtime(), Telemetry.untraced(), check_memory)
        self.services = services
        self.project = project
        self.store = store
        self.policies = policies
        self.memories = services.memories
        self.sessions = services.sessions
        self.recorder = services.recorder
        self.documents = services.working_memory

    async def create(self, session_id: str | None = None, **configuration: Any) -> LibrarySession:
        """A session with this configuration, new or the one that is there with the same (else `session_exists`)."""
        wanted = check_arguments(session_id=session_id).session_id
        stream, _ = await self.sessions.create(self.project, wanted, plain_json(configuration))
        return LibrarySession(self, stream.id)

    async def get(self, session_id: str) -> LibrarySession:
        """A session that is there, else `unknown_session`."""
        wanted = check_arguments(session_id=session_id).session_id or ""
        return LibrarySession(self, (await self.sessions.get(self.project, wanted)).id)

    async def list(
        self, *, user_id: str | None = None, state: str | None = None, limit: int = 100
    ) -> list[LibrarySession]:
        """Sessions, the newest first."""
        given = check_arguments(user_id=user_id, state=state, limit=limit)
        wanted = StreamFilter(project=self.project, user_id=user_id, state=state, limit=given.limit or 100)
        return [LibrarySession(self, stream.id) for stream in await self.store.streams(wanted)]

    def user_memory(self, user_id: str) -> Documents:
        """The working memory of a user, shared by all of their sessions."""
        owner = DocumentOwner("user", self.project, check_user_id(user_id))

        async def of_user() -> DocumentOwner:
            return owner

        return Documents(self.documents, of_user)

    async def restore(self, checkpoint: bytes, session_id: str | None = None) -> LibrarySession:
        """A new session of a checkpoint, which may come from any store, and may be of any size."""
        if not isinstance(checkpoint, bytes):
            raise Refused("invalid_field", "A checkpoint is bytes.")
        wanted = check_arguments(session_id=session_id).session_id
        stream = await restore_checkpoint(self.sessions, self.project, wanted, await parse_checkpoint(checkpoint))
        return LibrarySession(self, stream.id)

    async def erase_user(self, user_id: str) -> int:
        """Erase a user's document and all of their sessions in the project; how many these were."""
        return await erase_user(
            self.store, self.memories, self.project, check_user_id(user_id), self.services.runtime.clock
        )


class LibrarySession:
    """One call. Every method looks at the store, so several of these for one session do no harm."""

    def __init__(self, library: Library, session_id: str) -> None:
        self.library = library
        self.session_id = session_id

    def __repr__(self) -> str:
        return f"<LibrarySession {self.session_id!r}>"

    async def info(self) -> Stream:
        """State, configuration, times, position."""
        return await self.library.sessions.get(self.library.project, self.session_id)

    # What is said

    async def add(self, *given: Mapping[str, Any]) -> AddedAt:
        """Add messages and tool traces, as `POST …/messages` takes them; they are on disk when it returns."""
        stream = await self.info()
        added = [converted(plain_json(one), Added) for one in given]
        library, new_id = self.library, self.library.services.runtime.new_id
        return await record_messages(
            library.recorder, library.memories, self.lease(stream, API_PRODUCER), added, new_id
        )

    async def record(self, *events: Mapping[str, Any], producer: str = "main") -> int:
        """Take events of the protocol `voicemem.v1`, all or none; the position up to which they are on disk."""
        if not all(isinstance(event, Mapping) for event in events):
            raise Refused("invalid_field", "An event must be a dict.")
        stream = await self.info()
        lease = self.lease(stream, producer)
        arrivals = []
        for event in events:
            arrival = self.library.recorder.vet(lease, decode_event(json_bytes(event)))
            if isinstance(arrival, RejectedEvent):
                raise Refused(arrival.code, arrival.detail)
            arrivals.append(arrival)
        await self.library.recorder.check_producer(stream, producer)
        recorded = await self.library.recorder.record(lease, arrivals)
        for problem in recorded.problems:
            raise Refused(problem.code, problem.detail)
        if recorded.ended:
            await self.library.services.presence.close_when_ended(lease)
        return recorded.stream.position

    def lease(self, stream: Stream, producer: str) -> ProducerLease:
        return ProducerLease(stream, check_arguments(producer=producer).producer or "main", None, may_call_out=True)

    async def history(self, open: bool = False) -> list[Message]:
        """The history; with `open`, replies and partials in progress as well."""
        wanted = check_arguments(open=open).open
        return (await self.library.memories.at(await self.info())).messages(wanted)

    async def turns(self) -> list[JsonObject]:
        """Each turn's start, end, cause and latencies."""
        return turns((await self.library.memories.at(await self.info())).state)

    # What the next LLM call gets

    async def context(self, **options: Any) -> JsonObject:
        """The whole body of the next LLM call.

        `enrich` (a list), `style`, `alternate`, `tools`, `max_history`, `data` as in `GET …/context`; `memory` is a
        section of the configuration for this call.
        """
        wanted = context_options(options)
        return render_body(await self.select(wanted), wanted)

    async def usage(self, **options: Any) -> Usage:
        """What such a context takes of the model's window, and what it leaves out."""
        return usage_of(await self.select(context_options(options)), None)

    async def select(self, options: ContextOptions) -> ContextSelection:
        with with_policy_reason():
            return await select_context(self.library.memories, self.library.policies, await self.info(), options)

    async def statistics(self) -> Statistics:
        library = self.library
        selection = await self.select(ContextOptions())
        stream = await self.info()
        return statistics_of(
            stream, await library.memories.at(stream), selection, None, library.services.runtime.clock()
        )

    @property
    def working_memory(self) -> Documents:
        """The document that it works on, as `working_memory` in its configuration says."""

        async def owner() -> DocumentOwner:
            return owner_of_session(await self.info())

        return Documents(self.library.documents, owner)

    async def data(self) -> JsonObject:
        """Its data, which no LLM is shown unless asked."""
        return await self.library.documents.data(await self.info())

    async def update_data(self, **patch: Any) -> JsonObject:
        """Merge a patch into its data; None takes a value away."""
        event = MemoryData(operation="patch", content=plain_json(patch))
        return await self.library.documents.change_data(await self.info(), event)

    # What is done to it

    async def forget(
        self, *, through_turn: int | None = None, keep_last: int | None = None, everything: bool | None = None
    ) -> Forgot:
        """Forget a part, or `everything`; it stays in the history. One of these must be given: there is no way back."""
        given = {"through_turn": through_turn, "keep_last": keep_last, "everything": everything}
        given = {name: value for name, value in given.items() if value is not None}
        if not given:
            raise Refused("missing_field", "Say through_turn, keep_last or everything=True.")
        library, wanted = self.library, converted(given, ForgetRequest)
        return await forget(library.memories, await self.info(), wanted, library.services.runtime.clock)

    async def checkpoint(self) -> bytes:
        """The session in one portable document."""
        return b"".join([piece async for piece in write_checkpoint(self.library.store, await self.info())])

    async def fork(self, at_turn: int, session_id: str | None = None, **configuration: Any) -> LibrarySession:
        """A new session that remembers this one up to a turn."""
        library = self.library
        stream = await self.info()
        given, patch = check_arguments(at_turn=at_turn, session_id=session_id), plain_json(configuration)
        if given.at_turn is None:
            raise Refused("missing_field", "The field at_turn is missing.")
        made = await fork(library.sessions, library.memories, stream, given.at_turn, given.session_id, patch)
        return LibrarySession(library, made.id)

    async def update(self, **patch: Any) -> Stream:
        """Merge a patch into the configuration; None takes a setting away."""
        return await self.library.sessions.change(await self.info(), plain_json(patch))

    async def end(self, reason: str | None = None) -> Stream:
        """End and close it at once."""
        return await self.library.sessions.end(await self.info(), check_arguments(reason=reason).reason)

    async def erase(self) -> None:
        """Nothing of it can be read any more, and its id cannot be used again."""
        stream = await self.info()
        await self.library.sessions.erase(stream)
        self.library.memories.forget(stream.key)


def check_user_id(user_id: str) -> str:
    """The id of a user. Raises `Refused`."""
    wanted = check_arguments(user_id=user_id).user_id
    if wanted is None:
        raise Refused("missing_field", "The field user_id is missing.")
    return wanted
