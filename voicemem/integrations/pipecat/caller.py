"""The caller of one pipeline: transcripts on their way through it, and the messages that they become in a context."""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from voicemem.integrations.background_session import NewestEntries
from voicemem.integrations.ledger import Ledger, now_ms
from voicemem.integrations.runs import MOST, UserMessage, followed_by, typed

INSTRUCTIONS = ("system", "developer")


class Remembered(dict[str, Any]):
    """A message from the memory in a context."""


class Instruction(dict[str, Any]):
    """A program's instruction in a context, followed by the memory's; the program may still edit either."""

    def __init__(self, own: dict[str, Any], texts: Sequence[str]) -> None:
        super().__init__({**own, "content": followed_by(own.get("content"), texts)})
        self.own = own
        self.made = dict(self)

    @property
    def of_program(self) -> dict[str, Any]:
        return self.own if self == self.made else dict(self)


class Transcript(NamedTuple):
    """A final that a processor has pushed to the next one, which may edit it."""

    place: tuple[str, int]
    text: str
    destination: Any


class Caller:
    """The caller's side: transcripts, and the user messages of requests to the LLM."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.is_muted = False
        self.transcripts: NewestEntries[int, Transcript] = NewestEntries(16)
        """The newest finals, by frame."""
        self.began = self.heard_at = now_ms()
        self.user_messages: deque[UserMessage] = deque(maxlen=MOST)
        """Messages of contexts, the newest last."""
        self.complete: dict[Any, float] = {}
        """By aggregator: when its newest message had all its words."""
        self.newest_passed: UserMessage | None = None
        """The newest message at the last request to an LLM."""

    # Transcripts

    def said(self, frame: Any, at: float, final: bool = False) -> None:
        if frame.text and not self.is_muted:
            language = None if frame.language is None else str(frame.language)
            self.ledger.user_said(frame.text, at, final=final, user=frame.user_id or None, language=language)

    def stopped(self, frame: Any, at: float) -> None:
        """Report that the caller stopped speaking, and has been silent for a while."""
        self.ledger.user_spoke(at - 1000.0 * getattr(frame, "stop_secs", 0.0))

    def transcribed(self, pushed: Any, at: float) -> None:
        """Report a final that is new, or that a program has edited, in place or in a new frame for several."""
        frame = pushed.frame
        known = self.transcripts.pop(frame.id, None)
        if known is None:
            if not pushed.first_push or not frame.text or self.is_muted:
                return
            known = self.edited(pushed.source, at)
        if known is None:
            place, self.heard_at = self.ledger.place, at
            self.said(frame, at, final=True)
        else:
            place = known.place
            if known.text != frame.text:
                self.ledger.user_corrected(place, frame.text, at)
        self.transcripts[frame.id] = Transcript(place, frame.text, pushed.destination)

    def edited(self, processor: Any, at: float) -> Transcript | None:
        """Take back the finals of the newest utterance that a processor has not passed on, except the first."""
        names = [name for name, one in self.transcripts.items() if one.destination is processor]
        received = [self.transcripts.pop(name) for name in names]
        made_of = [one for one in received if one.place[0] == received[-1].place[0]]
        for other in made_of[1:]:
            self.ledger.user_corrected(other.place, "", at)
        return made_of[0] if made_of else None

    # Messages of contexts

    def typed(self, message: Any, at: float) -> None:
        self.ledger.user_typed(message["content"], at)
        self.user_messages.append(typed(message, at))

    def turn_ended(self, aggregator: Any, context: Any, at: float) -> None:
        """Note that the newest message of a context has the words heard since an aggregator's last message."""
        self.ledger.user_turn_ended()
        messages = () if context is None else context.messages
        message = next((one for one in reversed(messages) if role_of(one) == "user"), None)
        message = None if any(one.message is message for one in self.user_messages) else message
        self.user_messages.append(UserMessage(message, self.complete.get(aggregator, self.began), round(at)))
        self.complete[aggregator] = round(at)

    def user_messages_in(self, messages: Sequence[Any]) -> list[UserMessage]:
        """Return the caller's messages in a context. The newest may be a copy, or come before all its words."""
        known = {id(one.message): one for one in self.user_messages}
        present = [known[id(one)] for one in messages if id(one) in known]
        newest = self.user_messages[-1] if self.user_messages else None
        last = next((one for one in reversed(messages) if role_of(one) not in INSTRUCTIONS), None)
        if role_of(last) == "user" and id(last) not in known and not isinstance(last, Remembered):
            until = max(self.complete.values(), default=self.began)
            if newest is not None and newest is not self.newest_passed:
                newest = self.user_messages[-1] = newest._replace(message=last)
                present.append(newest)
            elif self.heard_at > until:
                present.append(UserMessage(last, until, float("inf")))
        self.newest_passed = newest
        return present


def role_of(message: Any) -> str | None:
    """Return the role of a message; None for one in a vendor's own form."""
    return message.get("role") if isinstance(message, dict) else None
