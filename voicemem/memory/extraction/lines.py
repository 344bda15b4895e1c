"""The lines of a prompt: what was heard in a call since the last time, and what of it comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from voicemem.search.passages import LOOK_BACK, heard_entries, is_heard, is_passage
from voicemem.transcript.history import MessageEntry, begun_positions, turn_entries
from voicemem.transcript.messages import Message
from voicemem.transcript.state import State, Turn

MAX_TOKENS = 6_000
"""Of the lines that are sent at a time."""
EARLIER_TURNS, MAX_EARLIER_TOKENS = 4, 1_000
"""What is shown of the lines before them, so that "yes" can be understood."""
MAX_LINE = 20_000
"""Characters of a line; a longer one is cut off."""
MAX_NAME = 40
"""Characters of a speaker's name."""
NOT_IN_NAMES = frozenset("[](){}<>:\"'`")
CUT_OFF = " (cut off by the caller)"
ESTIMATED_METHODS = frozenset({"estimated", "unmatched"})
CountTokens = Callable[[str], int]


class Line(NamedTuple):
    """One message as it was heard."""

    number: int
    """Its place in the history, from 1 on."""
    role: str
    speaker: str
    """`caller`, `caller (ann)` or `agent`."""
    text: str
    """On one line."""
    position: int
    """Of its first event in the journal."""
    turn_id: int
    said_ms: int
    is_cut: bool
    """Whether it was cut off by the caller."""
    is_certain: bool
    """Whether it is known that it was heard so: neither estimated, nor a text that the recogniser had not settled."""

    @property
    def is_callers(self) -> bool:
        return self.role == "user"

    def shown(self) -> str:
        """The line without its number."""
        return f"{self.speaker}{CUT_OFF if self.is_cut else ''}: {self.text}"

    def numbered(self) -> str:
        return f"[{self.number}] {self.shown()}"


class Section(NamedTuple):
    """A part of a call that is sent to an LLM at a time."""

    lines: tuple[Line, ...]
    """In the order of the history; memories are made of these."""
    earlier: tuple[Line, ...]
    """The lines before them, which were sent before."""
    through: int
    """The journal position up to which everything has been sent then: what begins behind it has not."""
    is_last: bool
    """Whether nothing else can be sent now."""


def next_section(state: State, after: int, count_tokens: CountTokens, max_tokens: int = MAX_TOKENS) -> Section | None:
    """The lines that began behind a position of the journal, as many as fit; None if there are none.

    A message is sent once it can no longer change by itself: a reply once it is known what was heard of it. So that no
    message is left out, none is sent that began behind one which must wait.
    """
    settled = settled_through(state)
    every = list(numbered_lines(state))
    new = sorted((line for line in every if after < line.position <= settled), key=by_position)
    if not new:
        return None
    end, through = len(new), settled
    left = max_tokens
    for place, line in enumerate(new):
        left -= count_tokens(line.text)
        if left < 0 and place and line.position > new[place - 1].position:
            end, through = place, line.position - 1
            break
    chosen = sorted(new[:end], key=by_number)
    earlier = [line for line in every[: chosen[0].number - 1] if line.position <= after]
    return Section(tuple(chosen), earlier_lines(earlier, count_tokens), through, end == len(new))


def count_new(state: State, after: int) -> int:
    """How many messages that were heard began behind a position of the journal."""
    settled = settled_through(state)
    turns = (state.turns[number] for number in state.turn_numbers)
    return sum(after < entry.order <= settled for turn in turns for entry in heard_entries(state, turn))


def said_between(state: State, after: int, through: int) -> list[Line]:
    """The lines that began between two positions of the journal."""
    return [line for line in numbered_lines(state) if after < line.position <= through]


def earlier_lines(before: Sequence[Line], count_tokens: CountTokens) -> tuple[Line, ...]:
    """The lines of the last turns among these, as far as they fit."""
    turns = sorted({line.turn_id for line in before})[-EARLIER_TURNS:]
    kept: list[Line] = []
    left = MAX_EARLIER_TOKENS
    for line in reversed(before):
        left -= count_tokens(line.text)
        if left < 0 or line.turn_id not in turns:
            break
        kept.append(line)
    return tuple(reversed(kept))


def numbered_lines(state: State) -> Iterator[Line]:
    """What was heard, and nobody asked to forget, in the order of the history and with its numbers."""
    number = 0
    for turn_number in state.turn_numbers:
        for entry in turn_entries(state, state.turns[turn_number]):
            number += 1
            if is_passage(state, entry):
                yield to_line(number, entry)


def settled_through(state: State) -> int:
    """Up to where nothing begins in a journal that may still become another message than it is now."""
    if state.closed_ts is not None:
        return state.position
    newest = (state.turns[number] for number in state.turn_numbers[-LOOK_BACK:])
    waiting = chain.from_iterable(waiting_positions(state, turn) for turn in newest)
    return min(waiting, default=state.position + 1) - 1


def waiting_positions(state: State, turn: Turn) -> set[int]:
    """Where parts of a turn began of which it is not known yet what was said or heard."""
    settled = {entry.order for entry in turn_entries(state, turn) if is_heard(state, entry)}
    cancelled = {id >> 1 for id in turn.replies if state.replies[id].cancelled}
    return begun_positions(state, turn) - settled - cancelled


def to_line(number: int, entry: MessageEntry) -> Line:
    message = entry.message
    metadata = message.metadata
    return Line(
        number,
        message.role,
        speaker(message),
        one_line(message.content)[:MAX_LINE],
        entry.order,
        message.turn_id,
        message.timestamp,
        bool(metadata.get("interrupted")),
        not metadata.get("partial") and metadata.get("heard") not in ESTIMATED_METHODS,
    )


def speaker(message: Message) -> str:
    """Who said it; a name that a producer gave cannot look like the beginning of another line."""
    if message.role != "user":
        return "agent"
    user = message.metadata.get("user")
    name = "".join(char for char in one_line(user) if char not in NOT_IN_NAMES)[:MAX_NAME] if type(user) is str else ""
    return f"caller ({name})" if name.strip() else "caller"


def one_line(text: str) -> str:
    """A text without line breaks and control characters: nothing that is said can look like another line."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def by_position(line: Line) -> tuple[int, int]:
    return line.position, line.number


def by_number(line: Line) -> int:
    return line.number
