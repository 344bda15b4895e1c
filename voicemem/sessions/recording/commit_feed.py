"""Publishes every commit to its subscribers, such as live tails and summaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from voicemem.store.records import AppendResult

CommitListener = Callable[[Sequence[AppendResult]], None]
"""Runs right after each commit, in the recorder's task, so it must be quick and must not raise."""


class CommitFeed:
    """The subscribers to commits."""

    def __init__(self) -> None:
        self.listeners: list[CommitListener] = []

    def subscribe(self, listener: CommitListener) -> None:
        self.listeners.append(listener)

    def unsubscribe(self, listener: CommitListener) -> None:
        self.listeners.remove(listener)

    def publish(self, appended: Sequence[AppendResult]) -> None:
        for listener in self.listeners:
            listener(appended)
