"""Who hears of commits: tails and summaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from voicemem.store.records import Appended

Listener = Callable[[Sequence[Appended]], None]
"""Called right after a commit, in the recorder's task: it must be quick, and not raise."""


class CommitFeed:
    """Passes every commit on to its subscribers."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        self.listeners.append(listener)

    def unsubscribe(self, listener: Listener) -> None:
        self.listeners.remove(listener)

    def publish(self, appended: Sequence[Appended]) -> None:
        for listener in self.listeners:
            listener(appended)
