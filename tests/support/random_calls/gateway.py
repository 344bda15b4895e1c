"""Calls whose agent has the gateway as its LLM: a memory, requests about it, and random agents with what they hold."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any, Literal

import msgspec

from voicemem.gateway.alignment import CERTAIN
from voicemem.gateway.chat_request import RequestMessage
from voicemem.gateway.request_events import InputReader, NewInput, beginning, disconnect_id
from voicemem.protocol.events import (
    Asr,
    Event,
    Interrupt,
    LlmCancel,
    LlmDelta,
    LlmDone,
    LlmError,
    MemoryForgotten,
    ToolCall,
    Tts,
)
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.transcript.fold import DecodedRow
from voicemem.transcript.gateway_matching import GATEWAY_PRODUCER
from voicemem.transcript.state import State

USER, ASSISTANT = "user", "assistant"
Way = Literal["whole", "since the last request", "new messages"]
FEW_WORDS = ("Yes.", "No.", "Okay.", "Hello?", "Yes, a table.")
REPLIES = ("Good.", "Okay.", "Yes.", "Would you like a table for two or for four?", "Good. And what is your name?")


class Call:
    """A memory, and requests about it."""

    def __init__(self) -> None:
        self.read_model = ReadModel(State())
        self.names = count(1)

    def fold(self, *events: Event, producer: str = GATEWAY_PRODUCER) -> None:
        for event in events:
            position = self.read_model.state.position + 1
            self.read_model.fold([DecodedRow(position, position * 1000, event, producer)])  # type: ignore[arg-type]

    def ask(self, *messages: dict[str, Any]) -> NewInput:
        """What a request adds, which is in the memory then."""
        asked = msgspec.convert(messages, list[RequestMessage])
        clock = (self.read_model.state.position + 1) * 1000
        new = InputReader(self.read_model, asked, lambda: clock, lambda: f"item-{next(self.names)}").read()
        self.fold(*new.events)
        return new

    def answer(self, new: NewInput, text: str) -> str:
        """The reply to a request; its item."""
        item = f"reply-{next(self.names)}"
        self.fold(
            LlmDelta(text=text, turn_id=new.turn_id, item=item, ts=self.now()),
            LlmDone(turn_id=new.turn_id, item=item, ts=self.now() + 1),
        )
        return item

    def now(self) -> int:
        return (self.read_model.state.position + 1) * 1000

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(message.role, message.content) for message in self.read_model.current_messages()]


def says(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def calls(id: str, text: str | None = None) -> dict[str, Any]:
    function = {"name": "book", "arguments": "{}"}
    return {"role": ASSISTANT, "content": text, "tool_calls": [{"id": id, "type": "function", "function": function}]}


def result(id: str, text: str = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


class RandomAgent:
    """An agent and its caller, who do what the chance says; it knows what the memory has to have after it.

    It sends its whole conversation with each request, or only a part of it. `few_words`: the caller and the LLM say the
    same again and again.
    """

    def __init__(self, chance: Random, way: Way, few_words: bool) -> None:
        self.chance, self.way, self.few_words = chance, way, few_words
        self.call = Call()
        self.numbers = count(1)
        self.instructions = [says("system", "Be brief.")] if self.happens(0.5) else []
        self.conversation: list[dict[str, Any]] = []
        self.sent = 0
        """How many of these messages the last answered request had, with its reply."""
        self.unsent: list[dict[str, Any]] = []
        """Those since then that did not come from the gateway."""
        self.final: str | None = None
        """The caller's words whose transcript is still to come."""
        self.is_last = False
        """True in the last turn: no request will show how far its reply was heard."""
        self.heard: list[tuple[str, str]] = []
        """What the memory has to have."""

    def happens(self, share: float) -> bool:
        return self.chance.random() < share

    def talk(self) -> None:
        """A conversation of some turns, all of which may be forgotten in between."""
        if self.happens(0.3):
            self.say("Welcome.")
        turns = self.chance.randrange(1, 8)
        for turn in range(turns):
            self.is_last = turn == turns - 1
            if turn and self.happens(0.1):
                self.call.fold(MemoryForgotten(through_turn=self.call.read_model.state.newest_turn))
            self.hear()
            if self.happens(0.15) and self.final is None:
                self.add(says(USER, f"And {next(self.numbers)} more."))
                self.heard.append((USER, self.conversation[-1]["content"]))
            self.answer()

    # The caller and the agent

    def add(self, message: dict[str, Any], from_gateway: bool = False) -> None:
        self.conversation.append(message)
        if not from_gateway:
            self.unsent.append(message)

    def say(self, text: str) -> None:
        """The agent says words of its own."""
        self.add(says(ASSISTANT, text))
        self.heard.append((ASSISTANT, text))

    def hear(self) -> None:
        """The caller says something, which a recogniser may report, in its words, whole or not yet."""
        number = next(self.numbers)
        words = self.chance.choice(FEW_WORDS) if self.few_words else f"Give{number} me{number} that{number}."
        reported = words
        kind = self.chance.choice(["none", "none", "same", "other", "partial"])
        if any(message["role"] == ASSISTANT for message in self.unsent):
            kind = "none"  # what the agent said before it could not be taken any more
        if kind == "other":
            reported = words.lower().replace(".", "") + " uh"
        if kind in ("same", "other"):
            self.call.fold(Asr(text=reported, final=True, ts=self.call.now()), producer="asr")
        if kind == "partial":
            self.call.fold(Asr(text=words[:2], final=False, ts=self.call.now()), producer="asr")
            self.final = words
        self.heard.append((USER, reported))
        self.add(says(USER, words))

    def finish_speech(self) -> None:
        if self.final is not None:
            self.call.fold(Asr(text=self.final, final=True, ts=self.call.now()), producer="asr")
            self.final = None

    # Requests and their answers

    def request(self, *more: dict[str, Any]) -> NewInput:
        parts = {"whole": self.conversation, "since the last request": self.conversation[self.sent :]}
        return self.call.ask(*self.instructions, *parts.get(self.way, self.unsent), *more)

    def answer(self, depth: int = 0) -> None:
        """Ask until an answer comes that the agent gets, and do what it says."""
        if self.happens(0.4):
            self.finish_speech()
        more = [says("developer", "Now hurry.")] if self.happens(0.15) else []
        new = self.request(*more)
        for _ in range(self.chance.choice([0, 0, 0, 1, 2])):
            self.lose_answer(new)
            again = self.request(*more)
            assert new.turn_id == again.turn_id
            new = again
        self.finish_speech()
        assert not new.ignored or len(self.conversation) > CERTAIN
        self.sent, self.unsent = len(self.conversation), []
        number = "" if self.few_words else f" {next(self.numbers)}"
        text = self.chance.choice(REPLIES) + number
        calls = self.chance.choice([0, 0, 0, 1, 2]) if depth < 2 else 0
        if calls and self.happens(0.6):
            text = ""
        item = f"reply-{next(self.call.names)}"
        if text:
            self.call.fold(LlmDelta(text=text, turn_id=new.turn_id, item=item, ts=self.call.now()))
        self.call.fold(LlmDone(turn_id=new.turn_id, item=item, ts=self.call.now()))
        if calls:
            self.run_tools(new, text, calls, depth)
        else:
            self.play(text, item)

    def lose_answer(self, new: NewInput) -> None:
        """The LLM fails, the agent leaves before the reply or in it, or throws a whole one away."""
        call, item = self.call, f"lost-{next(self.call.names)}"
        knows_replies = self.way == "whole" and any(one["role"] == ASSISTANT for one in self.conversation)
        kind = self.chance.choice(["failure", "before", "left", *(["thrown away"] if knows_replies else [])])
        if kind == "failure":
            call.fold(LlmError(turn_id=new.turn_id, item=item, code=500, ts=call.now()))
            return
        call.fold(LlmDelta(text=f"Lost {next(self.numbers)}.", turn_id=new.turn_id, item=item, ts=call.now()))
        if kind == "before":
            call.fold(LlmCancel(turn_id=new.turn_id, item=item, ts=call.now()))
        else:
            id = disconnect_id(item) if kind == "left" else None
            call.fold(LlmDone(turn_id=new.turn_id, item=item, id=id, ts=call.now()))

    def play(self, text: str, item: str) -> None:
        """A reply is heard to the end, in part, or not at all; it is reported how far, or the next request shows it."""
        call, held = self.call, text
        kinds = [
            "unknown",
            "unknown",
            "played",
            "cut",
            "cut",
            "nothing",
            *(["held"] if self.way == "whole" and not self.is_last else []),
        ]
        kind = self.chance.choice(kinds)
        heard = text
        if kind == "played":
            call.fold(Tts(item=item, audio_ms=60_000, ts=call.now()), producer="tts")
        if kind == "held":  # the agent alone knows how far
            held = heard = beginning(text, text[: self.chance.randrange(1, len(text))].rstrip()) or text
        if kind in ("cut", "nothing"):
            length = self.chance.randrange(1, len(text)) if kind == "cut" else 0
            heard = text[:length].rstrip()
            call.fold(Interrupt(item=item, heard_text=heard, ts=call.now()), producer="engine")
            held = self.chance.choice([heard, text] if heard or self.way == "whole" else [heard])
        if heard:
            self.heard.append((ASSISTANT, heard))
        if held:
            self.add(says(ASSISTANT, held), from_gateway=True)

    # Tools

    def run_tools(self, new: NewInput, text: str, count: int, depth: int) -> None:
        """Run tools, in whose time the agent or the caller may say something."""
        ids = [f"call-{next(self.numbers)}" for _ in range(count)]
        for id in ids:
            tool_call = ToolCall(call_id=id, name="book", arguments="{}", turn_id=new.turn_id, ts=self.call.now())
            self.call.fold(tool_call)
        if text:
            self.heard.append((ASSISTANT, text))
        messages = [calls(id) for id in ids]
        if self.happens(0.7):
            messages = [messages[0] | {"tool_calls": [one["tool_calls"][0] for one in messages]}]
        messages[0]["content"] = text or None
        results = [result(id, f"done {id}") for id in ids]
        self.chance.shuffle(results)
        getattr(self, self.chance.choice(["finish", "finish", "fill", "speak_after", "speak_meanwhile"]))(
            messages, results
        )
        self.answer(depth + 1)

    def finish(self, messages: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
        for message in messages:
            self.add(message, from_gateway=True)
        for message in results:
            self.add(message)

    def fill(self, messages: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
        """The agent says a filler while the tools run, or at their end."""
        filler = "One moment." if self.few_words and self.way == "whole" else f"Moment {next(self.numbers)}."
        if self.happens(0.5):
            self.finish(messages, [])
            self.say(filler)
            self.finish([], results)
        else:
            self.finish(messages, results)
            self.say(filler)

    def speak_after(self, messages: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
        """The caller speaks before the results are sent."""
        self.finish(messages, results)
        self.hear()

    def speak_meanwhile(self, messages: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
        """The caller speaks and is answered while the tools run, which then stand before that or after it."""
        if messages[0]["content"]:
            self.add(says(ASSISTANT, messages[0]["content"]), from_gateway=True)
            messages[0]["content"] = None
        at = len(self.conversation)
        self.hear()
        self.answer(depth=9)
        if self.way == "whole" and self.happens(0.5):
            self.conversation[at:at] = [*messages, *results]
        else:
            self.finish(messages, results)
