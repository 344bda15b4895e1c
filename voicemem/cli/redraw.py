"""The messages of a tail on a terminal: drawn again where they stand, instead of one line more for each change."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

Key = tuple[str, int]
"""A session, and the key of a message in it."""
Upsert = tuple[int, int | None, Text]
"""The key of a message, the key of the one before it, and how it looks."""
MANY = 100
"""After so many messages of one event, those that do not fit are let go."""


class LastLines:
    """The last lines of what is drawn; of a text longer than the screen its end is what changes."""

    def __init__(self, texts: Iterable[Text], rows: int) -> None:
        self.texts = list(texts)
        self.rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(Group(*self.texts), options.update(height=None), pad=False)
        for line in lines[-self.rows :]:
            yield from line
            yield Segment.line()


class Redrawn:
    """The newest messages of calls, as many as fit; older ones scroll up and stay there as they were last."""

    def __init__(self) -> None:
        self.console = console = Console(highlight=False)
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self.texts: dict[Key, Text] = {}
        self.order: list[Key] = []
        self.above: set[Key] = set()

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Leave everything in full in the terminal's own memory."""
        self.live.stop()
        for key in self.order:
            self.console.print(self.texts[key], soft_wrap=True)

    @property
    def rows(self) -> int:
        return max(1, self.console.height - 1)

    def change(self, session: str, removed: list[int], upserts: list[Upsert]) -> None:
        """Take messages away, and add or change others: each after another one of its call, or first."""
        for number in removed:
            self.texts.pop((session, number), None)
        self.order = [key for key in self.order if key in self.texts]
        for count, (number, after, text) in enumerate(upserts, 1):
            key = (session, number)
            if key in self.above:
                self.console.print(text, soft_wrap=True)
                continue
            self.place(key, None if after is None else (session, after))
            self.texts[key] = text
            if count % MANY == 0:
                self.let_go()
        self.draw()

    def place(self, key: Key, after: Key | None) -> None:
        """Put a message where it belongs: what is new at the end, unless it stands after one that is shown."""
        if key in self.texts:
            self.order.remove(key)
        first = next((index for index, other in enumerate(self.order) if other[0] == key[0]), len(self.order))
        self.order.insert(self.order.index(after) + 1 if after in self.texts else first, key)

    def draw(self) -> None:
        self.let_go()
        self.live.update(LastLines((self.texts[key] for key in self.order), self.rows), refresh=True)

    def let_go(self) -> None:
        """Let the oldest messages scroll up, as many as do not fit."""
        heights = [len(self.texts[key].wrap(self.console, self.console.width)) for key in self.order]
        height, gone = sum(heights), 0
        while gone < len(heights) - 1 and height > self.rows:
            height -= heights[gone]
            gone += 1
        if gone:
            keys, self.order = self.order[:gone], self.order[gone:]
            self.above.update(keys)
            self.console.print(Group(*map(self.texts.pop, keys)), soft_wrap=True)

    def end(self, session: str, line: Text) -> None:
        """Leave a call as it is, and say how it ended."""
        for key in [key for key in self.order if key[0] == session]:
            self.console.print(self.texts.pop(key), soft_wrap=True)
            self.order.remove(key)
        self.above = {key for key in self.above if key[0] != session}
        self.console.print(line)
        self.draw()
