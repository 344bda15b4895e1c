"""Nodes: the processes that work on one store, what they hold, and how it is freed. See `voicemem.store.port`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from voicemem.store.records import Node


class Nodes(Protocol):
    """The running processes that serve a store, each under a token that is never used again.

    What a node holds names its token: connected producers, leases of deliveries, claims, replies under way. A node that
    stops gives all of it back (`retire_node`); another node does that for one that stopped without a word
    (`retire_lost_nodes`). A process that is no node, such as the library, uses the empty token.
    """

    @property
    def is_exclusive(self) -> bool:
        """Whether this process has the store to itself: every other node is gone, and needs no lease to run out."""

    async def start_node(self, node: Node, now_ms: int) -> None:
        """Register a node; its lease runs until `node.expires_ms`.

        Where no other node lives (of an exclusive store, none does), what all others held is freed first, and time
        without a server does not count as silence: every running session is silent from now on. Deliveries that were
        never attempted are due now then, except those that wait for something: a due time in the future may be of a
        clock that was ahead. Where another node lives, nothing else changes.
        """

    @property
    def is_displaced(self) -> bool:
        """Whether another server than before answers, or one that lacks what this process has seen committed.

        That is so after a failover, or where a backup was restored. Until `settle` nothing is read or written. An
        exclusive store never is.
        """

    async def settle(self, now_ms: int) -> None:
        """Go on with the server that answers now, as a node; nothing that was known of the store before is known then.

        Where events may be missing that were acknowledged, it becomes another incarnation, as by `renew_incarnation`.
        Raises `StoreUnavailable`.
        """

    async def renew_incarnation(self, now_ms: int) -> None:
        """Make the store another incarnation, in which the positions and seqs that callers know do not hold.

        Every node is retired, so it starts again under another token; what all of them held is freed, as at a first
        start (`start_node`).
        """

    async def renew_node(self, token: str, expires_ms: int) -> bool:
        """Prolong a node's lease; False when it was retired, and must start again under another token.

        An exclusive store writes nothing.
        """

    async def retire_node(self, token: str, now_ms: int) -> bool:
        """Forget a node and free what it holds, in one transaction; False when it is unknown.

        - Its producers are not connected any more, and expected back for `streams.AWAITED_MS`. A session falls silent
          if none of its producers is connected to another node.
        - Of those sessions that have a committed `session.end`, one whose expected producers have all ended is due now;
          for the others the grace (`streams.END_GRACE_MS`) starts again.
        - Deliveries that it leased are due now. Its claims and its replies under way are gone, and what
          it observes is free.
        """

    async def retire_lost_nodes(self, now_ms: int) -> list[str]:
        """Do the same for every node whose lease is over; their tokens. Of several callers at once only one gets each.

        Asked once a second: it writes only when there is one.
        """

    async def list_nodes(self) -> list[Node]:
        """The nodes that are registered, the oldest first, those with an old lease included."""

    # What changed elsewhere

    async def read_positions(self, keys: Sequence[int]) -> dict[int, int]:
        """Where the journals of these streams end, without erased and unknown ones.

        Asked many times a second on a store that is not exclusive, for the streams that are followed.
        """

    async def find_superseded(self, leases: Sequence[tuple[int, str, int]]) -> list[tuple[int, str, int]]:
        """Which of these leases (key, producer, epoch) are no longer the newest of their producer."""
