"""How a random call is reported, and what playback, interrupts and resumes say of one of its replies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.support.events import event
from voicemem.protocol.types import JsonObject

METADATA: st.SearchStrategy[JsonObject] = st.dictionaries(st.sampled_from("xyz"), st.integers(0, 3), min_size=1)


@dataclass
class Plan:
    """How one call is reported: who sends, how turns and replies are named, and how times come."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    naming: str
    times: str
    producers: list[str]
    users: list[str]
    now: int = 1000

    def chance(self, one_in: int) -> bool:
        """True now and then."""
        return bool(self.draw(st.integers(1, one_in)) == one_in)

    def happened(self, producer: str) -> int | None:
        """The `ts` of the next event: in order, out of order, colliding, or missing."""
        if self.times == "missing" or (self.times == "some missing" and self.chance(3)):
            return None
        if self.times == "one without" and producer == "media":
            return None
        self.now += self.draw(st.sampled_from([0, 0, 10, 60, 240, 260, 500, 900, 5_100]))
        if self.times == "out of order":
            return max(1, self.now + int(self.draw(st.integers(-15, 5))) * 100)
        return self.now

    def named(self, turn: int, item: str) -> JsonObject:
        """The turn, the item, both, or neither."""
        choices: dict[str, list[JsonObject]] = {
            "named by turn": [{"turn": turn}],
            "unnamed": [{}],
            "with items": [{"turn": turn, "item": item}, {"item": item}],
            "mixed": [{"turn": turn}, {"turn": turn, "item": item}, {"item": item}, {}],
        }
        return dict(self.draw(st.sampled_from(choices[self.naming])))

    def report(self, kind: str, about: JsonObject, **fields: Any) -> JsonObject:
        """An event of one of the producers, at the next time, now and then with metadata or an id."""
        more: JsonObject = {"metadata": self.draw(METADATA)} if self.chance(6) else {}
        if self.chance(20):
            more["id"] = self.draw(st.sampled_from("abc"))
        producer = self.draw(st.sampled_from(self.producers))
        ts = self.happened(producer)
        return event(kind, about.get("turn"), ts, item=about.get("item"), producer=producer, **fields, **more)


def playback_of(plan: Plan, turn: int, item: str, text: str) -> list[JsonObject]:
    """Playback, interrupts and resumes of a reply, mostly as its text has it."""
    makers = [played_text, position, position, timing, total, played_to_end, cut_off, cut_off, cut_off, false_alarm]
    if plan.chance(3):
        return [make(plan, plan.named(turn, item), text) for make in plan.draw(st.sampled_from(STORIES))]
    chosen = plan.draw(st.lists(st.sampled_from(makers), min_size=plan.draw(st.integers(0, 4)), max_size=6))
    return [make(plan, plan.named(turn, item), text) for make in chosen]


def some_of(plan: Plan, text: str) -> str:
    """A beginning of the text, now and then slightly wrong."""
    part = text[: plan.draw(st.integers(0, len(text)))]
    wrong = [part + "  ", part.replace(" ", "  "), part.lower(), "X" + part]
    return str(plan.draw(st.sampled_from(wrong))) if plan.chance(6) else part


def milliseconds(plan: Plan) -> int:
    """A position in an audio."""
    return int(plan.draw(st.sampled_from([0, 90, 100, 250, 400, 700, 1000, 1500, 2500])))


def guessed(plan: Plan) -> bool | None:
    """Whether something is marked `estimated`; mostly it does not say."""
    return True if plan.chance(4) else None


def played_text(plan: Plan, name: JsonObject, text: str) -> JsonObject:
    """What was heard so far."""
    return plan.report("tts", name, heard_text=some_of(plan, text), estimated=guessed(plan))


def position(plan: Plan, name: JsonObject, text: str) -> JsonObject:
    """How much of the audio was played so far."""
    return plan.report("tts", name, audio_ms=milliseconds(plan), estimated=guessed(plan))


def timing(plan: Plan, name: JsonObject, text: str) -> JsonObject:
    """When the words of the text sound, or its clauses; perhaps from 0 again; now and then one that is not in it."""
    each = plan.draw(st.sampled_from([60, 100, 180]))
    texts, size = text.split(), plan.draw(st.sampled_from([1, 1, 3]))
    texts = [" ".join(texts[at : at + size]) for at in range(0, len(texts), size)]
    stretch = plan.draw(st.integers(1, 4)) if plan.chance(3) else len(texts)
    words = [
        {"text": one.strip(plan.draw(st.sampled_from(["", ".,"]))), "start_ms": at * 100, "end_ms": at * 100 + each}
        for at, one in ((at % stretch, one) for at, one in enumerate(texts))
    ]
    if plan.chance(5):
        words += words[: plan.draw(st.integers(1, 3))]
    if plan.chance(5):
        words[0] = words[0] | {"text": "Nowhere"}
    return plan.report("tts", name, words=words[: plan.draw(st.integers(1, len(words)))], estimated=guessed(plan))


def total(plan: Plan, name: JsonObject, text: str) -> JsonObject:
    """How long the audio is, perhaps with the text that it speaks."""
    part = text[: plan.draw(st.integers(1, len(text)))] if plan.chance(3) else None
    length = plan.draw(st.sampled_from([400, 700, 1000, 1900]))
    return plan.report("tts", name, total_audio_ms=length, synthesised_text=part)


def played_to_end(plan: Plan, name: JsonObject, text: str) -> JsonObject:
    """The audio was played to its end."""
    return plan.report("tts", name, done=True)


def cut_off(plan: Plan, name: JsonObject, text: str) -> JsonObject:
    """An interrupt with any evidence, or none."""
    evidence: JsonObject = {}
    if plan.chance(2):
        evidence["heard_text"] = some_of(plan, text)
    if plan.chance(2):
        evidence["heard_chars"] = plan.draw(st.integers(0, len(text) + 1))
    if plan.chance(2):
        evidence["audio_end_ms"] = milliseconds(plan)
    return plan.report("interrupt", name, estimated=guessed(plan), more=True if plan.chance(8) else None, **evidence)


def false_alarm(plan: Plan, name: JsonObject, text: str) -> JsonObject:
    """A resume."""
    return plan.report("resume", name)


def guessed_further(plan: Plan, name: JsonObject, text: str) -> JsonObject:
    """A guess that all was heard."""
    return plan.report("tts", name, heard_text=text, estimated=True)


def bare_cut(plan: Plan, name: JsonObject, text: str) -> JsonObject:
    """An interrupt without any evidence."""
    return plan.report("interrupt", name)


STORIES = [
    [bare_cut, false_alarm, bare_cut],
    [position, bare_cut, false_alarm, bare_cut],
    [played_text, guessed_further, bare_cut],
    [timing, total, played_to_end, position, cut_off],
    [total, position, played_to_end, cut_off],
    [timing, position, bare_cut],
    [total, played_to_end, total, bare_cut],
    [position, bare_cut, cut_off, false_alarm],
]
"""Reports that mean more together than each by itself."""
