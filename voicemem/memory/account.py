"""The rest of a session's memory beside its messages, as data: summaries, what was forgotten, what was carried over.

All of it is in the journal; the fold knows where. Nothing is written.
"""

from msgspec import Struct, structs

from voicemem.errors import Refused
from voicemem.memory.working_memory import WorkingMemory, owner_of_session
from voicemem.protocol import codec
from voicemem.protocol.events import CarriedSession, MemoryForgotten, MemorySummary
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.store.journal import Journal
from voicemem.store.streams import Stream

MAX_LISTED = 100
"""Summaries and forgotten ranges that are listed, the newest."""


class SummaryTokens(Struct, frozen=True):
    """Tokens that an LLM used to write a summary; null where its vendor did not say."""

    input: int | None
    output: int | None


class SummaryRecord(Struct, frozen=True):
    """A summary of the turns from the first of `range` to the last; `current` if contexts show it."""

    range: tuple[int, int]
    messages: int
    text: str
    model: str | None
    tokens: SummaryTokens
    position: int
    ts: int
    current: bool


class ForgottenRecord(Struct, frozen=True):
    """A part that contexts leave out: turns up to `through_turn`; or all before `turn`, and what began in it."""

    through_turn: int | None
    turn: int | None
    kept: tuple[int, ...]
    """The journal positions of messages of `turn` that are not forgotten."""
    carried: bool
    """True if what was carried over is forgotten too."""
    position: int
    ts: int


class DocumentState(Struct, frozen=True):
    """Which document the session works on, and its version."""

    scope: str
    version: int


class MemoryAccount(Struct, frozen=True):
    """The rest of a session's memory beside its messages, the oldest first."""

    session_id: str
    position: int
    summaries: list[SummaryRecord]
    forgotten: list[ForgottenRecord]
    carried: tuple[CarriedSession, ...]
    """Earlier sessions as contexts show them; empty also before they were put together."""
    working_memory: DocumentState | None
    """Null for a session that is to share its user's document, and has no user."""


AccountVersion = tuple[int, int, DocumentState | None]
"""Changes with the account: how many changes of it the fold knows, how much is carried over, and the document."""


class Accounts:
    """Reads accounts. All methods raise `SessionQuarantined` and `StoreUnavailable`."""

    def __init__(self, journal: Journal, read_models: ReadModelCache, working_memory: WorkingMemory) -> None:
        self.journal = journal
        self.read_models = read_models
        self.working_memory = working_memory

    async def version(self, stream: Stream) -> AccountVersion:
        """Something that differs when the account does."""
        document = await self.document_state(stream)
        state = await self.read_models.get_state(stream)
        return len(state.memory_positions), len(state.carried or ()), document

    async def read(self, stream: Stream) -> MemoryAccount:
        """The account of a session, with the newest `MAX_LISTED` of its summaries and forgotten ranges together."""
        document = await self.document_state(stream)
        state = await self.read_models.get_state(stream)
        position, positions, carried = state.position, state.memory_positions[-MAX_LISTED:], state.carried or ()
        first_turn, has_summary = min(state.turn_numbers, default=0), state.summary is not None
        summaries: list[SummaryRecord] = []
        forgotten: list[ForgottenRecord] = []
        for at in positions:
            for row in await self.journal.read_rows(stream.key, at - 1, 1):
                event = codec.decode_stored(row.payload)
                ts = row.received_ms if event.ts is None else event.ts
                if isinstance(event, MemorySummary):
                    turns = (min(first_turn, event.through_turn), event.through_turn)
                    tokens = SummaryTokens(event.input_tokens, event.output_tokens)
                    summaries.append(
                        SummaryRecord(turns, event.messages, event.text, event.model, tokens, at, ts, current=False)
                    )
                elif isinstance(event, MemoryForgotten):
                    left = ForgottenRecord(event.through_turn, event.turn, event.kept, event.carried, at, ts)
                    forgotten.append(left)
        if summaries and has_summary:
            summaries[-1] = structs.replace(summaries[-1], current=True)
        return MemoryAccount(stream.id, position, summaries, forgotten, carried, document)

    async def document_state(self, stream: Stream) -> DocumentState | None:
        try:
            owner = owner_of_session(stream)
        except Refused:  # no user
            return None
        return DocumentState(owner.scope, (await self.working_memory.read_document(owner)).version)
