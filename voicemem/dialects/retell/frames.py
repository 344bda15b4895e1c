"""The kept messages of Retell, their fields, and their normal form.

A frame is a message of a custom LLM's websocket, from either side, or the body of a webhook. Each transcript repeats
the one before it, so only the newest elements of a websocket's are kept. Word times become element times.
Backchannel words (`is_backchannel`) are left out and split nothing; a text message is the result of a tool `sms`; a
flow node is the `agent` of the replies after it. Prompts, variables, numbers, recordings, costs and analyses are not
kept.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from voicemem.dialects.dialect import MalformedFrame, Speaker, Text, Texts
from voicemem.dialects.kinds import ANYTHING, many, optional, record
from voicemem.dialects.reading import digest, is_signed, values, whole
from voicemem.dialects.translating import space_between
from voicemem.protocol.types import JsonObject

SPOKEN = ("agent", "user", "transfer_target")
KEPT = (*SPOKEN, "tool_call_invocation", "tool_call_result", "dtmf", "sms")
"""Roles of kept elements; injected context is not kept."""
TRANSCRIPTS = "scrubbed_transcript_with_tool_calls", "transcript_with_tool_calls", "transcript_object", "transcript"
"""The fields with a transcript, the best first: a scrubbed one was requested to hide the rest."""
ELEMENT = "transcript.element"
"""One element of a webhook's transcript, made by `split`."""
LATENCY = "transcript.latency"
"""A webhook's latencies of one kind, made by `split`."""
LATENCIES = {
    "e2e": "e2e",
    "asr": "asr_ttlw",
    "llm": "llm_ttft",
    "tts": "tts_ttfb",
    "knowledge_base": "knowledge_base",
    "llm_websocket_network_rtt": "llm_websocket_network_rtt",
    "s2s": "s2s",
}
"""Retell's names of latencies, and ours."""
MAX_LATENCIES = 60
"""The most latencies in one frame."""
OVER = "call_ended", "call_analyzed"
"""Webhooks after the call."""
RUNNING = "registered", "ongoing"
"""The `call_status` of running calls."""
UPDATED = "transcript_updated"
CALL_FIELDS = "call_id", "start_timestamp", "end_timestamp", "disconnection_reason", "spoken"
MAX_ELEMENTS = 12
"""How many of the newest elements are read from a transcript of a running call."""
ENDED = "ended"
"""The reason of an end without one."""
SIGNATURE = "x-retell-signature"
FORM = re.compile(r"v=([0-9]{1,15}),d=([0-9a-f]{64})")
TOLERANCE_MS = 5 * 60 * 1000
"""How far from now a signature's time may be, as in Retell's own SDK."""
Call = record(
    "call_id disconnection_reason?",
    start_timestamp=optional(int),
    end_timestamp=optional(int),
    spoken=optional(int),
)
"""`spoken` is the number of utterances in its transcript."""
Element = record(
    "role content? response? tool_call_id? name? agent?",
    index=int,
    ts=optional(int),
    until=optional(int),
    followed=(bool, False),
    arguments=ANYTHING,
)
"""One element of a transcript. `index` counts people's utterances, or else elements of the same role."""
TranscriptFrame = record("interaction_type", elements=(many(Element), []), timestamp=optional(int))
"""The transcript so far, or its newest part."""
CallFrame = record("event", call=Call, elements=(many(Element), []))
"""A webhook; its transcript is included unless `split` took it out."""
LatencyFrame = record("event name", call=Call, values=many(record(index=int, ms=float)))
"""The latencies of replies, by their index."""
ResponseFrame = record("response_type response", content=(str, ""), content_complete=(bool, False))
"""A piece of text that the app has the agent say."""


# Transcript elements in normal form: numbered, with Unix times, and with a mark if the caller spoke after them.


def elements_of(frame: JsonObject, started: int | None = None) -> list[JsonObject]:
    """Return the elements of a transcript; `started` is when the call began."""
    if isinstance(frame.get("elements"), list):
        return list(frame["elements"])
    lists = (frame[name] for name in TRANSCRIPTS if isinstance(frame.get(name), list))
    said = ([one for one in raw if isinstance(one, dict) and isinstance(one.get("role"), str)] for raw in lists)
    elements = numbered(next(filter(None, said), []), started)
    note_callers(elements)
    return [one for one in elements if one["role"] in SPOKEN or one.get("content") or one.get("tool_call_id")]


def numbered(raw: list[JsonObject], started: int | None) -> list[JsonObject]:
    """Return the kept elements, numbered. The words around a backchannel are one element."""
    counts: Counter[str] = Counter()
    elements: list[JsonObject] = []
    node, is_divided = None, False
    for one in raw:
        role = one["role"]
        if role == "node_transition" and isinstance(one.get("new_node_name"), str):
            node = one["new_node_name"]
        metadata = one.get("metadata")
        is_backchannel = role in SPOKEN and isinstance(metadata, dict) and metadata.get("is_backchannel") is True
        if role not in KEPT or is_backchannel:
            is_divided = is_divided or is_backchannel
            continue
        kind = "spoken" if role in SPOKEN else role
        element = in_one_form(one, counts[kind], started)
        if element["ts"] is None:
            element["ts"] = elements[-1]["ts"] if elements else started
        if role == "agent" and node is not None:
            element["agent"] = node
        if is_divided and role in SPOKEN and elements and elements[-1]["role"] == role:
            before, rest = elements[-1].get("content", ""), element.get("content", "")
            elements[-1]["content"] = before + space_between(before, rest) + rest
            if element.get("until") is not None:
                elements[-1]["until"] = element["until"]
        else:
            elements.append(element)
            counts[kind] += 1
        is_divided = False
    return elements


def in_one_form(raw: JsonObject, index: int, started: int | None) -> JsonObject:
    element = {"role": raw["role"], "index": index, "ts": time_of(raw, started)}
    last = word_at(-1, raw)
    until = None if last is None else ms_of(last.get("end"), started)
    if until is not None and element["role"] != "agent":
        element["until"] = until
    content = raw.get("digit") if raw["role"] == "dtmf" else raw.get("content")
    if isinstance(content, str | int | float):
        element["content"] = str(content)
    for name in ("tool_call_id", "name", "arguments"):
        if raw.get(name) is not None:
            element[name] = raw[name]
    metadata = raw.get("metadata")
    if isinstance(metadata, dict):
        element["response"] = response_of(metadata)
    return element


def response_of(raw: JsonObject) -> str | None:
    """Return the id of a response, or of the agent's words to interrupt the caller."""
    for name, letter in (("response_id", "r"), ("interrupt_id", "i")):
        number = whole(raw.get(name))
        if number is not None:
            return f"{letter}{number}"
    return None


def time_of(raw: JsonObject, started: int | None) -> int | None:
    """Return when an element began, by its first word or its own time, both in seconds from the start of the call."""
    first = word_at(0, raw)
    return ms_of(raw.get("time_sec") if first is None else first.get("start"), started)


def word_at(place: int, raw: JsonObject) -> JsonObject | None:
    """Return a word of an element, with its times in seconds; None if there is none, or it is malformed."""
    words = raw.get("words")
    word = words[place] if isinstance(words, list) and words else None
    return word if isinstance(word, dict) else None


def ms_of(seconds: Any, started: int | None) -> int | None:
    """Return the Unix ms of a number of seconds from the start of a call; None for anything else."""
    if started is None or not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return None
    return whole(started + seconds * 1000)


def note_callers(elements: list[JsonObject]) -> None:
    """Mark the agent's elements after which the caller spoke, and when."""
    after: JsonObject | None = None
    for element in reversed(elements):
        if element["role"] == "agent":
            if after is not None:
                element |= {"followed": True, "until": after["ts"]}
            after = None
        elif element["role"] in SPOKEN:
            after = element


def transcript(frame: JsonObject) -> JsonObject:
    return frame | {"elements": elements_of(frame)[-MAX_ELEMENTS:], "timestamp": whole(frame.get("timestamp"))}


def response(frame: JsonObject) -> JsonObject:
    return frame | {"response": frame.get("response") or response_of(frame), "content": frame.get("content") or ""}


def called(frame: JsonObject) -> JsonObject:
    """Return a webhook with its transcript and the kept fields of its call. Raises `MalformedFrame`."""
    call = frame.get("call") if isinstance(frame.get("call"), dict) else frame.get("data")
    if not isinstance(call, dict):
        raise MalformedFrame("A webhook of Retell has a call.")
    beside = frame.get("transcript_with_tool_calls")  # next to the call, or in it
    holder = call | ({"transcript_with_tool_calls": beside} if isinstance(beside, list) and beside else {})
    holder = frame if "elements" in frame else holder
    elements = elements_of(holder, whole(call.get("start_timestamp")))
    spoken = [one["index"] for one in elements if one["role"] in SPOKEN]
    times = {name: whole(call.get(name)) for name in ("start_timestamp", "end_timestamp", "spoken")}
    if spoken:
        times["spoken"] = spoken[-1] + 1
    return frame | {"elements": elements, "call": call | times}


def element_id(content: JsonObject) -> str:
    """Return an id that a repeat of an element has too. Whole transcripts need no id: each repeats everything."""
    element = content["element"]
    return f"{element['role']}/{element['index']}/{digest([element, content.get('reported')])}"


def tool_id(content: JsonObject) -> str:
    return f"{content['response_type']}/{content['tool_call_id']}"


def webhook_of(saved: JsonObject) -> JsonObject | None:
    """Return the webhook of a finished call from the API's form of it."""
    if "event" in saved or "call_id" not in saved:
        return saved
    transcripts = (saved.get(name) for name in TRANSCRIPTS)
    has_words = any(isinstance(one, list) and one for one in transcripts)
    return {"event": OVER[0], "call": saved} if has_words and saved.get("call_status") not in RUNNING else None


def split(body: JsonObject) -> Iterator[JsonObject]:
    """Yield the frames of a webhook: one for each element of its transcript, then the rest. Raises `MalformedFrame`."""
    name = body.get("event")
    if name not in (UPDATED, *OVER):
        yield body
        return
    prepared = called(body)
    over = name in OVER
    call = {field: prepared["call"].get(field) for field in CALL_FIELDS}
    for element in prepared["elements"]:
        yield {"event": ELEMENT, "call": {"call_id": call["call_id"]}, "element": element, "reported": over}
    if over:
        yield from latency_frames(prepared)
        yield {"event": name, "call": call}


def latency_frames(webhook: JsonObject) -> Iterator[JsonObject]:
    """Yield the latencies of a call with their replies: those that answer the caller if the numbers match, else all."""
    measured, call = webhook["call"].get("latency"), {"call_id": webhook["call"].get("call_id")}
    kinds = measured if isinstance(measured, dict) else {}
    spoken = [one for one in webhook["elements"] if one["role"] in SPOKEN]
    replies = [one["index"] for one in spoken if one["role"] == "agent"]
    answers = [one["index"] for before, one in pairwise(spoken) if before["role"] != "agent" and one["role"] == "agent"]
    for name in LATENCIES:
        stated = kinds[name].get("values") if isinstance(kinds.get(name), dict) else None
        values = [one for one in stated if whole(one) is not None] if isinstance(stated, list) else []
        places = replies if len(values) == len(replies) else answers
        measurements = [{"index": index, "ms": ms} for index, ms in zip(places, values, strict=False)]
        for place in range(0, len(measurements), MAX_LATENCIES):
            yield {"event": LATENCY, "call": call, "name": name, "values": measurements[place : place + MAX_LATENCIES]}


def texts(frame: JsonObject) -> Texts:
    if "response" in frame:
        return (Text(frame, "content", "piece", item=frame["response"]),) if frame.get("content") else ()
    return values(frame, "arguments", "content") if "response_type" in frame else element_texts(frame)


def element_texts(frame: JsonObject) -> Iterator[Text]:
    for element in [*frame.get("elements", ()), *([frame["element"]] if "element" in frame else [])]:
        if element["role"] not in SPOKEN:
            yield from values(element, "arguments", "content")
        elif element.get("content"):
            side: Speaker = "agent" if element["role"] == "agent" else "user"  # or the person a call is transferred to
            yield Text(element, "content", "whole", side, f"element {element['index']}")


def verify(body: bytes, headers: Mapping[str, str], secret: str, now: int) -> bool:
    """Return whether a body was signed with this API key within the last five minutes: `v=UNIX_MS,d=HEX`."""
    match = FORM.fullmatch(headers.get(SIGNATURE, ""))
    if match is None or not secret or abs(now - int(match[1])) > TOLERANCE_MS:
        return False
    return is_signed(body + match[1].encode(), secret, [match[2]])
