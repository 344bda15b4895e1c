"""Calls at other stacks that are observed, and which node does it. See `voicemem.store.port`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from voicemem.store.records import Observation, ObservationState, ObservedSession


class Observations(Protocol):
    """What is observed: at most one call for a session. A node holds what it observes until it is retired."""

    async def begin_observation(self, observation: Observation, limit: int) -> Observation | None:
        """Keep a new observation, in place of one that is over; the one that goes on, if one does.

        None if as many as `limit` go on already, or the session is erased.
        """

    async def find_observation(self, key: int) -> Observation | None:
        """The observation of a session, also one that is over; None where there was none."""

    async def list_observations(self) -> list[ObservedSession]:
        """All observations that go on, on any node. Asked once a second."""

    async def claim_observations(self, keys: Sequence[int], node: str) -> list[int]:
        """Take observations that go on and that no node has; which of them this node has now."""

    async def change_observation(
        self, key: int, node: str | None, state: ObservationState, reason: str | None, status: int | None, now_ms: int
    ) -> bool:
        """Note how an observation stands; False if it does not go on, or the node does not have it.

        Without a node it is changed whoever has it. `observing` counts a connection; `ended`, `stopped` and `failed`
        end it.
        """
