"""Events that the service derives from a memory, journaled only right after what they were derived from."""

from collections.abc import Callable

from voicemem.documents.document import Document
from voicemem.errors import StoreUnavailable
from voicemem.protocol.events import ServerEvent
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.store.streams import Stream

MAX_APPEND_ATTEMPTS = 100
"""Each failed attempt means that another event was journaled first."""


async def find_documents(
    read_models: ReadModelCache, project: str, user_id: str
) -> list[tuple[Stream, Document | None]]:
    """Return the user's own stream with its document, and that of the other id of the same person, if there is one.

    The first is the one to read and to change: a user without a document shares the other id's.
    """
    streams = await read_models.store.journal.find_person(project, user_id)
    documents = [(stream, (await read_models.get_state(stream)).document) for stream in streams]
    return sorted(documents, key=lambda one: one[1] is None)


async def append_derived(
    read_models: ReadModelCache,
    stream: Stream,
    make: Callable[[ReadModel], ServerEvent | None],
    now_ms: Callable[[], int],
    for_caller: bool = False,
) -> tuple[Stream, ReadModel]:
    """Journal the event that `make` derives from the read model; return the session and the read model after it.

    `make` is pure; when it returns None nothing is journaled. The event may only come right after what it was derived
    from, so the append expects that position, and is tried again when another event came first.

    Raises `Refused` (`unknown_session`, and what `make` raises), `SessionQuarantined`, `StoreUnavailable`, and
    `QuotaExceeded` for an event with a client's content (`for_caller`).
    """
    for _ in range(MAX_APPEND_ATTEMPTS):
        current = await read_models.store.journal.get_session(stream.project, stream.id)
        read_model = await read_models.get(current)
        event = make(read_model)
        if event is None:
            return current, read_model
        appended = await read_models.append(stream.key, event, read_model.position, now_ms(), for_caller)
        if appended is not None:
            return appended, await read_models.get(appended)
    raise StoreUnavailable("The session changes faster than this change can be stored; try again.")
