"""Ended sessions, figures and health. See `voicemem.store.port`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from voicemem.store.records import Figures, Quotas


class Retention(Protocol):
    """What happens to sessions after their end. Every step is short, so that appends never wait for long.

    Several workers may call these methods at a time. What one of them claims for a node, no other node gets until it
    is done, the lease is over or the node is retired; the node itself may claim it again. A claim with nothing to do
    writes nothing.
    """

    async def erase(self, key: int, now_ms: int) -> None:
        """Make everything of a session unreadable, in one step.

        Its row stays without content, in the state `erased`, so that a producer that comes back late cannot create it
        again. The content itself is deleted later, by `delete_erased`. The row of a user's stream loses the id too,
        since it identifies a person; a later user of that id gets a new stream.
        """

    async def claim_expired(self, node: str, now_ms: int, lease_ms: int, limit: int) -> list[int]:
        """Claim sessions whose `ttl_seconds`, counted from their end, are over; the earliest expiry first."""

    async def expire(self, key: int, now_ms: int) -> bool:
        """Erase a session if its `ttl_seconds` are over; whether it was erased."""

    async def claim_erased(self, node: str, now_ms: int, lease_ms: int, limit: int) -> list[int]:
        """Claim erased sessions whose content is not deleted yet, the oldest erasure first."""

    async def delete_erased(self, keys: Sequence[int]) -> bool:
        """Delete a portion of their content: journal, deliveries, snapshots, secrets, endpoints, producers.

        Returns False when none is left.
        """

    async def finish_erased(self) -> bool:
        """Remove what deletion leaves behind outside of tables, such as free pages and logs.

        Returns False when that cannot be done now, and must be tried again.
        """


class Operations(Protocol):
    """What the service's operator sees of the store, and how the service notices that the store is back."""

    @property
    def healthy(self) -> bool:
        """Whether the last commit succeeded, on each connection that is kept for commits, and none lacks."""

    @property
    def trouble(self) -> str | None:
        """Why the store is not healthy, in one sentence for the operator; None where there is nothing more to say."""

    async def read_figures(self, now_ms: int) -> Figures:
        """Counts and sizes over all projects."""

    def set_quotas(self, quotas: Quotas, count_refusal: Callable[[str], None] | None = None) -> None:
        """Bound the sessions and bytes of each project; to be called before anything else.

        What begins a session too many, or one in a project whose bytes are used up, raises `QuotaExceeded`. Events of
        such a project, but for ends, are journaled as refused (`quota_exceeded`). `count_refusal` is
        called with the name of the quota for each of them, on any thread. Raises `CannotStart`.
        The limits of the key that begins one (`key_id`) hold as well, and always.
        """

    async def read_clock(self) -> int | None:
        """The store's own time, Unix ms; None when that is the caller's clock.

        A node whose store has a clock corrects its own by it, so that all nodes pass in the same times.
        """

    async def probe(self) -> None:
        """Commit something of a usual size that leaves nothing behind, to see whether the store works again.

        Connections that are in trouble are tried, so that one which has no work does not stay so.
        Raises `StoreUnavailable`, and `StoreRuined` when this process cannot use the store any more.
        """

    async def close_store(self) -> None:
        """Finish what was begun, and release the store."""
