"""voicemem without a server: sessions, their memory and what can be done to it, from Python.

The same use cases as those of the service, on the same kind of store; one process has a file at a time. Nothing happens
by itself here: sessions fall silent without being closed, and no webhook is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from voicemem.access import DEFAULT_PROJECT
from voicemem.adding import PRODUCER, Added, AddedAt, add
from voicemem.admission import Stream
from voicemem.app import new_id, now_ms, open_store
from voicemem.batches import Line
from voicemem.checkpoints import read, restore, written
from voicemem.config import Settled, plain
from voicemem.context import Wishes, body_of, choose
from voicemem.errors import Refused
from voicemem.events import Fields, MemoryData, Name, SessionId
from voicemem.forgetting import Forget, Forgot, forget
from voicemem.forks import fork
from voicemem.library_documents import Documents
from voicemem.memories import Memories
from voicemem.messages import Message
from voicemem.plugins import default_memory
from voicemem.policies import MemoryConfig, Policies, Policy
from voicemem.policies.parameters import check_memory
from voicemem.recorder import Recorder
from voicemem.sessions import Sessions
from voicemem.statistics import Statistics, statistics_of
from voicemem.store.base import Store, StreamFilter
from voicemem.turns import turns
from voicemem.usage import Usage, usage_of
from voicemem.wire import Rejected, decode_event
from voicemem.working_memory import Owner, WorkingMemory, of_session

T = TypeVar("T")


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
    default = default_memory(None if memory is None else msgspec.json.encode(memory).decode())
    known = Policies(default, dict(policies or {}), dict(model_windows or {}))
    known.policy(known.default)
    opened = open_store(store)
    try:
        library = Library(opened, known, project)
        yield library
        await library.memories.save_all(timeout_s=2.0)
    finally:
        await opened.close_store()


class HasId(msgspec.Struct):
    """For the check of an id."""

    id: SessionId


class HasName(msgspec.Struct):
    """For the check of a name."""

    name: Name


class Library:
    """The sessions of a project. Whatever is asked of it or of them raises `Refused` where it cannot be."""

    def __init__(self, store: Store, policies: Policies, project: str) -> None:
        def check(settled: Settled) -> None:
            policies.check(settled.public.get("memory"))

        self.store = store
        self.project = project
        self.policies = policies
        self.memories = Memories(store)
        self.sessions = Sessions(store, now_ms, new_id, check)
        self.recorder = Recorder(store, self.memories, now_ms, check)
        self.documents = WorkingMemory(store, self.memories, now_ms)

    async def create(self, session_id: str | None = None, **configuration: Any) -> Session:
        """A session with this configuration, new or the one that is there with the same (else `session_exists`)."""
        stream, _ = await self.sessions.create(self.project, checked_id(session_id), plain_json(configuration))
        return Session(self, stream.id)

    async def get(self, session_id: str) -> Session:
        """A session that is there, else `unknown_session`."""
        return Session(self, (await self.sessions.get(self.project, session_id)).id)

    async def list(self, *, user_id: str | None = None, state: str | None = None, limit: int = 100) -> list[Session]:
        """Sessions, the newest first."""
        wanted = StreamFilter(project=self.project, user_id=user_id, state=state, limit=limit)
        return [Session(self, stream.id) for stream in await self.store.streams(wanted)]

    def user_memory(self, user_id: str) -> Documents:
        """The working memory of a user, shared by all of their sessions."""
        owner = Owner("user", self.project, converted({"name": user_id}, HasName).name)

        async def of_user() -> Owner:
            return owner

        return Documents(self.documents, of_user)

    async def restore(self, checkpoint: bytes, session_id: str | None = None) -> Session:
        """A new session of a checkpoint, which may come from any store, and may be of any size."""
        stream = await restore(self.sessions, self.project, checked_id(session_id), await read(checkpoint))
        return Session(self, stream.id)


class Session:
    """One call. Every method looks at the store, so several of these for one session do no harm."""

    def __init__(self, library: Library, session_id: str) -> None:
        self.library = library
        self.id = session_id

    def __repr__(self) -> str:
        return f"<Session {self.id!r}>"

    async def info(self) -> Stream:
        """State, configuration, times, position."""
        return await self.library.sessions.get(self.library.project, self.id)

    # What is said

    async def add(self, *given: Mapping[str, Any]) -> AddedAt:
        """Add messages and tool traces, as `POST …/messages` takes them; they are on disk when it returns."""
        stream = await self.info()
        added = [converted(plain_json(one), Added) for one in given]
        library = self.library
        return await add(library.recorder, library.memories, self.line(stream, PRODUCER), added, new_id)

    async def record(self, *events: Mapping[str, Any], producer: str = "main") -> int:
        """Take events of the protocol `voicemem.v1`, all or none; the position up to which they are on disk."""
        arrivals = [decode_event(msgspec.json.encode(event)) for event in events]
        for arrival in arrivals:
            if isinstance(arrival, Rejected):
                raise Refused(arrival.code, arrival.detail)
        stream = await self.info()
        line = self.line(stream, producer)
        await self.library.recorder.check_producer(stream, producer)
        recorded = await self.library.recorder.record(line, arrivals)
        for problem in recorded.problems:
            raise Refused(problem.code, problem.detail)
        if recorded.ended:
            await self.library.sessions.close_when_ended(line)
        return recorded.stream.position

    def line(self, stream: Stream, producer: str) -> Line:
        return Line(stream, msgspec.convert(producer, Name), None, may_call_out=True)

    async def messages(self) -> list[Message]:
        """The history."""
        return (await self.library.memories.at(await self.info())).messages()

    async def turns(self) -> list[Fields]:
        """Each turn's start, end, cause and latencies."""
        return turns((await self.library.memories.at(await self.info())).state)

    # What the next LLM call gets

    async def context(self, **wishes: Any) -> Fields:
        """The whole body of the next LLM call.

        `enrich` (a list), `style`, `alternate`, `tools`, `max_history` as in `GET …/context`; `memory` for this call.
        """
        wanted = wishes_of(wishes)
        library = self.library
        return body_of(await choose(library.memories, library.policies, await self.info(), wanted), wanted)

    async def usage(self, **wishes: Any) -> Usage:
        """What such a context takes of the model's window, and what it leaves out."""
        library = self.library
        return usage_of(await choose(library.memories, library.policies, await self.info(), wishes_of(wishes)), None)

    async def statistics(self) -> Statistics:
        library = self.library
        chosen = await choose(library.memories, library.policies, await self.info(), Wishes())
        stream = await self.info()
        return statistics_of(stream, await library.memories.at(stream), chosen, None, now_ms())

    @property
    def working_memory(self) -> Documents:
        """The document that it works on, as `working_memory` in its configuration says."""

        async def owner() -> Owner:
            return of_session(await self.info())

        return Documents(self.library.documents, owner)

    async def data(self) -> Fields:
        """Its data, which no LLM is shown unless asked."""
        return await self.library.documents.data(await self.info())

    async def update_data(self, **patch: Any) -> Fields:
        """Merge a patch into its data; None takes a value away."""
        event = MemoryData(operation="patch", content=plain_json(patch))
        return await self.library.documents.change_data(await self.info(), event)

    # What is done to it

    async def forget(
        self, *, through_turn: int | None = None, keep_last: int | None = None, everything: bool | None = None
    ) -> Forgot:
        """Forget a part, or everything when nothing is said; it stays in the history."""
        given = {"through_turn": through_turn, "keep_last": keep_last, "everything": everything}
        return await forget(self.library.memories, await self.info(), converted(given, Forget), now_ms)

    async def checkpoint(self) -> bytes:
        """The session in one portable document."""
        return b"".join([piece async for piece in written(self.library.store, await self.info())])

    async def fork(self, at_turn: int, session_id: str | None = None, **configuration: Any) -> Session:
        """A new session that remembers this one up to a turn."""
        library = self.library
        stream = await self.info()
        made = await fork(
            library.sessions, library.memories, stream, at_turn, checked_id(session_id), plain_json(configuration)
        )
        return Session(library, made.id)

    async def update(self, **patch: Any) -> Stream:
        """Merge a patch into the configuration; None takes a setting away."""
        return await self.library.sessions.change(await self.info(), plain_json(patch))

    async def end(self, reason: str | None = None) -> Stream:
        """End and close it at once."""
        return await self.library.sessions.end(await self.info(), reason)

    async def erase(self) -> None:
        """Nothing of it can be read any more, and its id cannot be used again."""
        stream = await self.info()
        await self.library.sessions.erase(stream)
        self.library.memories.forget(stream.key)


def checked_id(session_id: str | None) -> str | None:
    return None if session_id is None else converted({"id": session_id}, HasId).id


def plain_json(given: Mapping[str, Any]) -> Fields:
    """What was given as it comes out of JSON. Raises `TypeError` for what cannot be written as JSON."""
    return msgspec.json.decode(msgspec.json.encode(given), type=Fields)


def converted(value: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Refused("invalid_field", plain(error)) from None


def wishes_of(given: Mapping[str, Any]) -> Wishes:
    """What a context is asked for. Raises `Refused`."""
    memory = given.get("memory")
    check_memory(memory)
    wishes = converted({name: value for name, value in given.items() if name != "memory"}, Wishes)
    return msgspec.structs.replace(wishes, memory=None if memory is None else converted(memory, MemoryConfig))
