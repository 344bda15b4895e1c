"""The store: what voicemem needs of one (docs/storage.md), as one object that is the same on each engine.

It is split by use:

- `Journal`: streams (sessions and users), their producers, and their append-only lists of events;
- `Overviews`: slim rows of sessions;
- `Outbox`: deliveries, which are webhook events on their way to endpoints;
- `Endpoints`: the receivers that projects registered, and their deliveries;
- `Deliveries`: the deliveries of a project's sessions, and how its endpoints do;
- `Quarantine`: sessions whose memory cannot be made;
- `Retention`: expiry and erasure, in small steps;
- `Compaction`: journals of ended sessions that become archives;
- `Directory`: API keys, apps of Agora's, secrets of hooks, the operator's endpoint, and the store's own identity;
- `Nodes`: the processes that serve the store, what they hold, and what changed on others;
- `Claims`: work that only one node should do at a time;
- `TranscriptIndex`: the messages of all sessions, by their words;
- `TranscriptVectors`: the vectors of these messages;
- `Memories`: what was found worth remembering, or given as that;
- `Extractions`: up to where sessions were looked at for memories;
- `MemoryVectors`: their vectors;
- `Observations`: calls at other stacks that the service fetches events of;
- `Operations`: figures and health.

What holds for every method of every engine:

- A method that writes is one transaction. It returns after its commit is on disk (or on as many replicas as the engine
  promises), and raises `StoreUnavailable` when the commit failed or its outcome is unknown. Callers may repeat it.
- A read sees everything that was acknowledged before it, on every node. It raises `StoreUnavailable` when the store
  cannot be read, and `DamagedEntry` when what it reads is damaged; damage of one session must not affect another.
- `Refused` is raised before anything is written. Its codes stand at each method.
- Times are Unix ms, passed in by the caller; they come from one clock per service, which a node corrects by the store's
  (`Operations.read_clock`).
- A `key` is the store's number of a stream, an endpoint or a delivery. It is never given twice. Streams that are made
  later have higher keys; of those made at about the same time, a lower key may become visible after a higher one.
- Rules of order are not the engine's: it asks `voicemem.store.admission` and `voicemem.store.streams` in its
  transaction, so that all engines decide alike.
- Several nodes may work on one store at a time, where the engine allows it, and nothing is known by one alone: who is
  connected, what is leased and claimed, and which names are taken stand in the store. Claims and sweeps pick
  candidates, and then change each row only where it is as it was seen.
- What is repeated changes nothing more: the `leave` of an older epoch, a second close, retiring a node that is gone.

One contract suite runs on all engines: `tests/contract`.
"""

from __future__ import annotations

from voicemem.store.claims import Claims
from voicemem.store.compaction import Compaction
from voicemem.store.database import Database
from voicemem.store.deliveries import Deliveries
from voicemem.store.directory import Directory
from voicemem.store.endpoints import Endpoints
from voicemem.store.extractions import Extractions
from voicemem.store.journal import Journal
from voicemem.store.memories import Memories, MemoryFullText
from voicemem.store.memory_vectors import MemoryVectors
from voicemem.store.observations import Observations
from voicemem.store.outbox import Outbox
from voicemem.store.ports.journal import Overviews
from voicemem.store.ports.nodes import Nodes
from voicemem.store.ports.upkeep import Operations, Retention
from voicemem.store.quarantine import Quarantine
from voicemem.store.transcript_index import IndexDatabase, MessageFullText, TranscriptIndex
from voicemem.store.transcript_vectors import TranscriptVectors
from voicemem.store.vectors import VectorMath


class Store(Overviews, Retention, Nodes, Operations):
    """A store: its parts by use. An engine hands in its database, and what finds texts and vectors there."""

    def __init__(
        self,
        seam: Database,
        memories: MemoryFullText,
        index: IndexDatabase,
        words: MessageFullText,
        math: VectorMath,
    ) -> None:
        self.seam = seam
        self.journal = Journal(seam)
        self.compaction = Compaction(seam)
        self.outbox = Outbox(seam)
        self.endpoints = Endpoints(seam)
        self.deliveries = Deliveries(seam)
        self.directory = Directory(seam)
        self.quarantine = Quarantine(seam)
        self.claims = Claims(seam)
        self.observations = Observations(seam)
        self.memories = Memories(seam, memories)
        self.memory_vectors = MemoryVectors(seam, math)
        self.extractions = Extractions(seam)
        self.transcript_index = TranscriptIndex(seam, index, words, self.claims)
        self.transcript_vectors = TranscriptVectors(seam, index, math)
