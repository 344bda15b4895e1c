"""Elements of Retell's transcripts in one form: numbered, with Unix times, and whether the caller spoke after them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from voicemem.dialects.dialect import MalformedFrame
from voicemem.protocol.types import MAX_INTEGER, JsonObject

SPOKEN = ("agent", "user", "transfer_target")
KEPT = (*SPOKEN, "tool_call_invocation", "tool_call_result", "dtmf")
"""Roles of elements that say something; text messages, injected context and nodes of a flow do not."""
TRANSCRIPTS = "transcript_with_tool_calls", "transcript_object", "transcript"


def whole(value: Any) -> int | None:
    """A time or number, which may be written with a fraction."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MAX_INTEGER
    return round(value) if fits else None


def elements_of(frame: JsonObject, started: int | None = None) -> list[JsonObject]:
    """The elements of a transcript; `started` is when the call began. Raises `MalformedFrame`."""
    if isinstance(frame.get("elements"), list):
        return list(frame["elements"])
    lists = (frame[name] for name in TRANSCRIPTS if isinstance(frame.get(name), list))
    counts: Counter[str] = Counter()
    found: list[JsonObject] = []
    for one in next((one for one in lists if one), []):
        if not isinstance(one, dict) or not isinstance(one.get("role"), str):
            raise MalformedFrame("A transcript is a list of objects, each with a role.")
        if one["role"] in KEPT:
            kind = "spoken" if one["role"] in SPOKEN else one["role"]
            element = in_one_form(one, counts[kind], started)
            if one["role"] not in SPOKEN and found:  # they have no time of their own
                element["ts"] = found[-1]["ts"]
            found.append(element)
            counts[kind] += 1
    note_callers(found)
    return [one for one in found if one["role"] in SPOKEN or one.get("content") or one.get("tool_call_id")]


def in_one_form(given: JsonObject, index: int, started: int | None) -> JsonObject:
    element = {"role": given["role"], "index": index, "ts": time_of(given, started)}
    content = given.get("digit") if given["role"] == "dtmf" else given.get("content")
    if content is not None:
        element["content"] = content if isinstance(content, str) else str(content)
    for name in ("tool_call_id", "name", "arguments"):
        if given.get(name) is not None:
            element[name] = given[name]
    metadata = given.get("metadata")
    if isinstance(metadata, dict):
        element["response"] = response_of(metadata)
    return element


def response_of(given: JsonObject) -> str | None:
    """The name of a response, or of what the agent says to interrupt the caller."""
    for field, letter in (("response_id", "r"), ("interrupt_id", "i")):
        number = whole(given.get(field))
        if number is not None:
            return f"{letter}{number}"
    return None


def time_of(given: JsonObject, started: int | None) -> int | None:
    """When an element began: by its first word, which counts from the begin of the call."""
    words = given.get("words")
    first = words[0] if isinstance(words, list) and words else None
    start = first.get("start") if isinstance(first, dict) else None
    if started is None or not isinstance(start, int | float) or isinstance(start, bool):
        return None
    return whole(started + start * 1000)


def note_callers(elements: list[JsonObject]) -> None:
    """Note of the agent's elements that the caller spoke after them, and when."""
    after: JsonObject | None = None
    for element in reversed(elements):
        if element["role"] == "agent":
            if after is not None:
                element |= {"followed": True, "until": after["ts"]}
            after = None
        elif element["role"] in SPOKEN:
            after = element
