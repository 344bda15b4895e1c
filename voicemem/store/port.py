"""The store: everything that voicemem needs of one (docs/storage.md), as one object that is the same on each engine.

For every method of every engine:

- A method that writes is one transaction. It returns after its commit is on disk (or on as many replicas as the engine
  promises), and raises `StoreUnavailable` when the commit failed or its outcome is unknown. Callers may repeat it.
- A read sees everything that was acknowledged before it, on every node. It raises `StoreUnavailable` when the store
  cannot be read, and `DamagedEntry` when what it reads is damaged; damage of one session must not affect another.
- `Refused` is raised before anything is written. Its codes are at each method.
- Times are Unix ms, passed in by the caller; they come from one clock per service, which a node corrects by the store's
  (`Store.read_clock`).
- A `key` is the store's number of a stream, an endpoint or a delivery. It is never given twice. Streams that are made
  later have higher keys; of those made at about the same time, a lower key may become visible after a higher one.
- Rules of order are not the engine's: it applies `voicemem.store.append_rules` and `voicemem.store.streams` in its
  transaction, so that all engines decide alike.
- Several nodes may work on one store at a time, where the engine allows it, and nothing is known by one alone: who is
  connected, what is leased and claimed, and which names are taken are in the store. Claims and sweeps pick
  candidates, and then change each row only if it is still as it was read.
- A repetition changes nothing more: the `leave` of an older epoch, a second close, retiring a node that is gone.

One contract suite runs on all engines: `tests/contract`.
"""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable

from voicemem.store.database import DELETE_META, SAVE_META, Connection, Database, Port, reads
from voicemem.store.deliveries import Deliveries
from voicemem.store.directory import Directory
from voicemem.store.endpoints import Endpoints
from voicemem.store.extractions import Extractions
from voicemem.store.journal import Journal
from voicemem.store.memories import Memories, MemoryFullText
from voicemem.store.nodes import Claims, Nodes
from voicemem.store.observations import Observations
from voicemem.store.outbox import Outbox
from voicemem.store.overviews import Overviews
from voicemem.store.quarantine import Quarantine
from voicemem.store.records import Figures, Quotas
from voicemem.store.retention import Compaction, Residue, Retention
from voicemem.store.transcript_index import IndexDatabase, MessageFullText, TranscriptIndex
from voicemem.store.users import Users
from voicemem.store.vectors import MemoryVectors, TranscriptVectors, VectorMath

COUNT_RUNNING = "select count(*) from streams where due_ms is not null"
"""Every running session has a time at which it is due, if only for its greatest length; other streams have none."""
COUNT_PENDING = "select count(*) from deliveries where due_ms is not null"
COUNT_DUE = "select count(*) from deliveries where due_ms <= :now_ms"
"""A lease moves the due time of a delivery. Both are counted in an index: millions may wait for a receiver."""
SELECT_OLDEST_PENDING = """
    select made_ms from deliveries where state >= 'pending' and state != 'delivered' order by state, key limit 1
"""
"""Nothing sorts after `pending`. So both engines use the index of undelivered rows: SQLite needs its whole condition,
and PostgreSQL would scan all keys for an equal state."""
PROBE_BYTES = 64 * 1024
"""The size of a usual commit."""


class Store(Port, ABC):
    """A store: its parts by use. An engine passes in its database, and its search for texts and vectors."""

    def __init__(
        self,
        database: Database,
        memories: MemoryFullText,
        index: IndexDatabase,
        words: MessageFullText,
        math: VectorMath,
        residue: Residue,
    ) -> None:
        super().__init__(database)
        self.journal = Journal(database)
        self.users = Users(database)
        self.compaction = Compaction(database)
        self.overviews = Overviews(database)
        self.nodes = Nodes(database)
        self.outbox = Outbox(database)
        self.endpoints = Endpoints(database)
        self.deliveries = Deliveries(database)
        self.directory = Directory(database)
        self.quarantine = Quarantine(database)
        self.claims = Claims(database)
        self.observations = Observations(database)
        self.memories = Memories(database, memories)
        self.memory_vectors = MemoryVectors(database, math, database.scan, database.write)
        self.extractions = Extractions(database)
        self.transcript_index = TranscriptIndex(database, index, words, self.claims)
        self.transcript_vectors = TranscriptVectors(database, math, index.read, index.write)
        self.retention = Retention(database, self.memories, self.transcript_index, residue)

    @property
    def is_exclusive(self) -> bool:
        """True if this process has the store to itself: every other node is gone, without waiting for its lease."""
        return self.database.is_exclusive

    @property
    @abstractmethod
    def healthy(self) -> bool:
        """True if the last commit on each connection for commits succeeded, and no connection is missing."""

    @property
    def trouble(self) -> str | None:
        """The reason why the store is not healthy, in one sentence; None if there is nothing to add."""
        return None

    @reads
    def read_figures(self, connection: Connection, now_ms: int) -> Figures:
        (running,) = connection.one(COUNT_RUNNING)
        (pending,) = connection.one(COUNT_PENDING)
        (due,) = connection.one(COUNT_DUE, now_ms=now_ms)
        (oldest,) = connection.row(SELECT_OLDEST_PENDING) or (None,)
        return Figures(running, pending, due, oldest, *self.measure(connection))

    @abstractmethod
    def measure(self, connection: Connection) -> tuple[int, int]:
        """The bytes of the store, and of its log; 0 where there is no file."""

    @abstractmethod
    def set_quotas(self, quotas: Quotas, count_refusal: Callable[[str], None] | None = None) -> None:
        """Bound the sessions and bytes of each project; to be called before anything else.

        Beginning a session too many, or one in a project whose bytes are used up, raises `QuotaExceeded`. Events of
        such a project, except ends, are refused, and leave one gap; nothing else is stored for its clients
        (`store.quotas`). `count_refusal` is called with the name of the quota for each refusal, on any thread.
        Raises `CannotStart`. The limits of the key that begins a session (`key_id`) always apply as well.
        """

    async def read_clock(self) -> int | None:
        """Return the store's own time, Unix ms; None if that is the caller's clock.

        A node corrects its clock by that of the store, so that all nodes pass in the same times.
        """
        return None

    async def probe(self) -> None:
        """Commit something of a usual size that leaves nothing behind, to see whether the store works again.

        Failing connections are tried, so that one without work recovers too.
        Raises `StoreUnavailable`, and `StoreRuined` when this process cannot use the store any more.
        """
        name = f"probe {secrets.token_hex(8)}"

        def job(connection: Connection) -> None:
            connection.execute(SAVE_META, name=name, value=bytes(PROBE_BYTES))
            connection.execute(DELETE_META, name=name)

        await self.database.try_again(job)
        await self.database.write(job)

    @abstractmethod
    async def close_store(self) -> None:
        """Finish the work under way, and release the store."""
