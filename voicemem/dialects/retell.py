"""The dialect `retell`: the websocket of a custom LLM, and the webhooks of calls.

| frame | events |
|---|---|
| `update_only`, `response_required`, `reminder_required` | an item `~tINDEX` for each utterance: `asr`, `llm.delta` |
| `response`, `agent_interrupt` (app) | notes: how a reply would go on |
| `tool_call_invocation`, `tool_call_result` (app, and in transcripts) | `tool.call`, `tool.result` |
| webhook `transcript_updated`, `call_ended`, `call_analyzed` | a frame each element: onto the live one of its index |
| webhook `call_ended`, `call_analyzed` | a `metric` for each latency of a turn, and `session.end` |

A frame is a message of a custom LLM's websocket, of either side, or the body of a webhook. Each transcript repeats
those before it: of one in a message the newest elements are kept. Times of words become those of elements. What one
says while the other speaks (`is_backchannel`) is left out and divides nothing; a text message is the result of a tool
`sms`; a node of a flow is the `agent` of the replies after it. Prompts, variables, numbers, recordings, costs and
analyses are not kept.

Notes: `at`, the turn that the transcript has reached; `responses`, the newest that the app has sent: their names,
texts, whether they are complete, when they came, and the item that says them; `last`, the agent's newest element: its
item and how many characters of the reply were spoken; `newest`, likewise of a webhook, with its index; `parted`, the
indexes of webhooks' elements that continue a reply; `marks`, of the newest elements of the websocket; `rest`, those
that its last frame could not begin; `final`, that the call is over.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from voicemem.dialects.callers import CallerFields
from voicemem.dialects.dialect import Dialect, Frame, Hook, MalformedFrame, RawFrame, Side, Speaker, Text, Texts
from voicemem.dialects.kinds import ANYTHING, Kind, keep, many, optional, record, require_object, silent
from voicemem.dialects.known import Known, KnownReply, Made, MadeEvent
from voicemem.dialects.reading import checksum, digest, is_signed, values, whole
from voicemem.dialects.translating import (
    MAX_NOTED,
    Flow,
    begins,
    bounded,
    completed,
    latencies,
    newest_noted,
    pressed,
    space_between,
    tool_call,
    tool_result,
)
from voicemem.protocol.events import Asr, Interrupt, LlmCancel, LlmDelta, LlmDone, Resume, SessionEnd, Tts
from voicemem.protocol.types import JsonObject

SPOKEN = ("agent", "user", "transfer_target")
KEPT = (*SPOKEN, "tool_call_invocation", "tool_call_result", "dtmf", "sms")
"""Roles of elements that say something; injected context does not."""
TRANSCRIPTS = "transcript_with_tool_calls", "transcript_object", "transcript", "scrubbed_transcript_with_tool_calls"
ELEMENT = "transcript.element"
"""One element of a webhook's transcript, as `split` makes it."""
LATENCY = "transcript.latency"
"""Latencies of one kind, as `split` makes them of a webhook."""
LATENCIES = {
    "e2e": "e2e",
    "asr": "asr_ttlw",
    "llm": "llm_ttft",
    "tts": "tts_ttfb",
    "knowledge_base": "knowledge_base",
    "llm_websocket_network_rtt": "llm_websocket_network_rtt",
    "s2s": "s2s",
}
"""Retell's names of them, and ours."""
MAX_LATENCIES = 60
"""In one frame."""
OVER = "call_ended", "call_analyzed"
"""Webhooks after the call."""
RUNNING = "registered", "ongoing"
"""The `call_status` of calls that are not over."""
UPDATED = "transcript_updated"
CALL_FIELDS = "call_id", "start_timestamp", "end_timestamp", "disconnection_reason", "spoken"
MAX_ELEMENTS = 12
"""Of a transcript that is not the last."""
ENDED = "ended"
"""The reason of an end that gives none."""
SIGNATURE = "x-retell-signature"
FORM = re.compile(r"v=([0-9]{1,15}),d=([0-9a-f]{64})")
TOLERANCE_MS = 5 * 60 * 1000
"""How old or new a signature may be, as in Retell's own SDK."""
Call = record(
    "call_id",
    start_timestamp=optional(int),
    end_timestamp=optional(int),
    disconnection_reason=optional(str),
    spoken=optional(int),
)
"""`spoken` is how many utterances its transcript has."""
Element = record(
    "role",
    index=int,
    content=optional(str),
    ts=optional(int),
    until=optional(int),
    followed=(bool, False),
    response=optional(str),
    tool_call_id=optional(str),
    name=optional(str),
    arguments=ANYTHING,
    agent=optional(str),
)
"""One element of a transcript. `index` counts utterances of people, else what is of its own role."""
TranscriptFrame = record("interaction_type", elements=(many(Element), []), timestamp=optional(int))
"""The transcript so far, or the newest part of it."""
CallFrame = record("event", call=Call, elements=(many(Element), []))
"""A webhook; the transcript stands in it unless it was taken apart."""
LatencyFrame = record("event name", call=Call, values=many(record(index=int, ms=float)))
"""Each of the reply with this index."""
ResponseFrame = record("response_type response", content=(str, ""), content_complete=(bool, False))
"""A piece of text that the app has the agent say."""


# Elements of transcripts in one form: numbered, with Unix times, and whether the caller spoke after them.


def elements_of(frame: JsonObject, started: int | None = None) -> list[JsonObject]:
    """The elements of a transcript; `started` is when the call began."""
    if isinstance(frame.get("elements"), list):
        return list(frame["elements"])
    lists = (frame[name] for name in TRANSCRIPTS if isinstance(frame.get(name), list))
    said = ([one for one in raw if isinstance(one, dict) and isinstance(one.get("role"), str)] for raw in lists)
    found = numbered(next(filter(None, said), []), started)
    note_callers(found)
    return [one for one in found if one["role"] in SPOKEN or one.get("content") or one.get("tool_call_id")]


def numbered(raw: list[JsonObject], started: int | None) -> list[JsonObject]:
    """The elements that say something. What is said around a backchannel is one."""
    counts: Counter[str] = Counter()
    found: list[JsonObject] = []
    node, is_divided = None, False
    for one in raw:
        role = one["role"]
        if role == "node_transition" and isinstance(one.get("new_node_name"), str):
            node = one["new_node_name"]
        is_backchannel = role in SPOKEN and truth_of(one.get("metadata"), "is_backchannel")
        if role not in KEPT or is_backchannel:
            is_divided = is_divided or is_backchannel
            continue
        kind = "spoken" if role in SPOKEN else role
        element = in_one_form(one, counts[kind], started)
        if element["ts"] is None:
            element["ts"] = found[-1]["ts"] if found else started
        if role == "agent" and node is not None:
            element["agent"] = node
        if is_divided and role in SPOKEN and found and found[-1]["role"] == role:
            before, rest = found[-1].get("content", ""), element.get("content", "")
            found[-1]["content"] = before + space_between(before, rest) + rest
        else:
            found.append(element)
            counts[kind] += 1
        is_divided = False
    return found


def in_one_form(raw: JsonObject, index: int, started: int | None) -> JsonObject:
    element = {"role": raw["role"], "index": index, "ts": time_of(raw, started)}
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


def truth_of(holder: Any, field: str) -> bool:
    return isinstance(holder, dict) and holder.get(field) is True


def response_of(raw: JsonObject) -> str | None:
    """The name of a response, or of what the agent says to interrupt the caller."""
    for name, letter in (("response_id", "r"), ("interrupt_id", "i")):
        number = whole(raw.get(name))
        if number is not None:
            return f"{letter}{number}"
    return None


def time_of(raw: JsonObject, started: int | None) -> int | None:
    """Return when an element began: by its first word or itself, in seconds from the begin of the call."""
    words = raw.get("words")
    first = words[0] if isinstance(words, list) and words else None
    start = first.get("start") if isinstance(first, dict) else raw.get("time_sec")
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


def transcript(frame: JsonObject) -> JsonObject:
    return frame | {"elements": elements_of(frame)[-MAX_ELEMENTS:], "timestamp": whole(frame.get("timestamp"))}


def response(frame: JsonObject) -> JsonObject:
    return frame | {"response": frame.get("response") or response_of(frame), "content": frame.get("content") or ""}


def called(frame: JsonObject) -> JsonObject:
    """A webhook with its transcript, and of the call what is kept. Raises `MalformedFrame`."""
    call = frame.get("call") if isinstance(frame.get("call"), dict) else frame.get("data")
    if not isinstance(call, dict):
        raise MalformedFrame("A webhook of Retell has a call.")
    beside = frame.get("transcript_with_tool_calls")  # beside the call, or in it
    holder = call | ({"transcript_with_tool_calls": beside} if isinstance(beside, list) and beside else {})
    holder = frame if "elements" in frame else holder
    elements = elements_of(holder, whole(call.get("start_timestamp")))
    spoken = [one["index"] for one in elements if one["role"] in SPOKEN]
    times = {name: whole(call.get(name)) for name in ("start_timestamp", "end_timestamp", "spoken")}
    if spoken:
        times["spoken"] = spoken[-1] + 1
    return frame | {"elements": elements, "call": call | times}


def element_id(content: JsonObject) -> str:
    """Return what a repeat of an element has too. Whole transcripts need no id: each says all again."""
    element = content["element"]
    return f"{element['role']}/{element['index']}/{digest([element, content.get('reported')])}"


def tool_id(content: JsonObject) -> str:
    return f"{content['response_type']}/{content['tool_call_id']}"


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    raw = require_object(frame)
    field = next((one for one in FIELDS if isinstance(raw.get(one), str)), "interaction_type")
    if "response_id" in raw and "content" in raw and field not in raw:
        field, raw = "response_type", raw | {"response_type": "response"}  # as older apps say it
    name, kind, content = keep(raw, FIELDS[field], side, field)
    if content is None:
        return None
    call = content.get("call") or {}
    over = field == "event" and name in OVER
    return Frame(
        content,
        id=kind.id(content),
        ts=content.get("timestamp"),
        side=kind.side,
        session_id=call.get("call_id"),
        end=call.get("disconnection_reason", ENDED) if over else None,
        began=call.get("start_timestamp") if over else None,
        ended=call.get("end_timestamp") if over else None,
    )


def webhook_of(saved: JsonObject) -> JsonObject | None:
    """The webhook after a call as the API shows it."""
    if "event" in saved or "call_id" not in saved:
        return saved
    transcripts = (saved.get(name) for name in TRANSCRIPTS)
    has_words = any(isinstance(one, list) and one for one in transcripts)
    return {"event": OVER[0], "call": saved} if has_words and saved.get("call_status") not in RUNNING else None


def split(body: JsonObject) -> Iterator[JsonObject]:
    """The frames of a webhook: one for each element of its transcript, then it. Raises `MalformedFrame`."""
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
    """The latencies of a call, each with its reply: all of those to the caller, or of all if there are so many."""
    measured, call = webhook["call"].get("latency"), {"call_id": webhook["call"].get("call_id")}
    kinds = measured if isinstance(measured, dict) else {}
    spoken = [one for one in webhook["elements"] if one["role"] in SPOKEN]
    replies = [one["index"] for one in spoken if one["role"] == "agent"]
    answers = [one["index"] for before, one in pairwise(spoken) if before["role"] != "agent" and one["role"] == "agent"]
    for name in LATENCIES:
        stated = kinds[name].get("values") if isinstance(kinds.get(name), dict) else None
        values = [one for one in stated if whole(one) is not None] if isinstance(stated, list) else []
        places = replies if len(values) == len(replies) else answers
        found = [{"index": index, "ms": ms} for index, ms in zip(places, values, strict=False)]
        for place in range(0, len(found), MAX_LATENCIES):
            yield {"event": LATENCY, "call": call, "name": name, "values": found[place : place + MAX_LATENCIES]}


def texts(frame: JsonObject) -> Texts:
    if "response" in frame:
        return (Text(frame, "content", "piece", item=frame["response"]),) if frame.get("content") else ()
    return values(frame, "arguments", "content") if "response_type" in frame else element_texts(frame)


def element_texts(frame: JsonObject) -> Iterator[Text]:
    for element in [*frame.get("elements", ()), *([frame["element"]] if "element" in frame else [])]:
        if element["role"] not in SPOKEN:
            yield from values(element, "arguments", "content")
        elif element.get("content"):
            side: Speaker = "agent" if element["role"] == "agent" else "user"  # also whom a call is transferred to
            yield Text(element, "content", "whole", side, f"element {element['index']}")


def verify(body: bytes, headers: Mapping[str, str], secret: str, now: int) -> bool:
    """Return whether a body was signed with this API key within the last five minutes: `v=UNIX_MS,d=HEX`."""
    found = FORM.fullmatch(headers.get(SIGNATURE, ""))
    if found is None or not secret or abs(now - int(found[1])) > TOLERANCE_MS:
        return False
    return is_signed(body + found[1].encode(), secret, [found[2]])


MAX_RESPONSES = 4
MAX_TEXT = 3_500
"""Bytes of a response that are looked at: notes are small."""
Response = dict[str, Any]
MAX_REST = 4
"""Elements that wait for the next frame, or the close."""
MAX_LIVE = 30
"""Items beyond the transcript after the call that are withdrawn."""


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    for field, kinds in FIELDS.items():
        if field in frame:
            return kinds[frame[field]].rule(frame, ts, known)
    return ()


def closed(ts: int, known: Known) -> Made:
    """Return what of the last reply was spoken when the caller hung up; of one that has no element yet no one knows."""
    last = known.notes.get("last") or {}
    reply = known.reply(last.get("item", ""))
    if reply is not None and reply.cut == "no" and last["spoken"] < len(reply.text):
        yield Interrupt(item=last["item"], heard_text=reply.text[: last["spoken"]], estimated=True, ts=ts)
    if not known.notes.get("final"):
        yield from tell(known.notes.get("rest", []), False, False, known)
    responses = known.notes.get("responses") or [{"item": ""}]
    if "item" not in responses[-1] and responses[-1]["text"].strip() and not known.notes.get("final"):
        newest = responses[-1]
        text = newest["text"].strip()
        yield LlmDelta(item=f"~{newest['name']}", text=text, whole=True, turn_id=known.here, ts=newest.get("ts"))


def read_transcript(frame: JsonObject, ts: int, known: Known) -> Made:
    """Return what is said now; with `update_only` the caller may still speak."""
    reported = frame.get("reported", False)
    if reported:
        known.note("final", True)
    elements = [frame["element"]] if "element" in frame else frame.get("elements", [])
    return tell(elements, frame.get("interaction_type") == "update_only", reported, known, by_hook="event" in frame)


def end_call(frame: JsonObject, ts: int, known: Known) -> Made:
    """The transcript after the call is all of it; what only live messages had is not part of the call."""
    call, elements = frame["call"], frame.get("elements", [])
    yield from tell(elements, False, True, known, by_hook=True)
    if call.get("spoken"):
        known.note("final", True)
        for index in range(call["spoken"], call["spoken"] + MAX_LIVE):
            item = item_of(index, known.notes.get("parted", ()))
            if known.segment(item) is not None:
                yield Asr(item=item, text="", final=True)
            if known.reply(item) is not None:
                yield LlmCancel(item=item)
    yield SessionEnd(reason=call.get("disconnection_reason", ENDED), ts=call.get("end_timestamp"))


def measure(frame: JsonObject, ts: int, known: Known) -> Made:
    for one in frame["values"]:
        reply = known.reply(item_of(one["index"], known.notes.get("parted", ())))
        if reply is not None:
            yield from latencies({frame["name"]: one["ms"]}, LATENCIES, reply.turn, reply.begun)


def hear_response(frame: JsonObject, ts: int, known: Known) -> Made:
    """More of what the app has the agent say; it becomes a reply once the transcript has some of it."""
    responses, name = responses_of(known), frame["response"]
    response = next((one for one in responses if one["name"] == name), None)
    if response is None:
        response = {"name": name, "text": ""} | ({"ts": ts} if known.has_clock else {})
        responses.append(response)
    if response.get("complete"):
        return
    response["text"] = bounded(response["text"] + frame.get("content", ""), MAX_TEXT)
    response["complete"] = frame.get("content_complete", False)
    keep_responses(responses, known)
    reply = known.reply(response.get("item", ""))
    if reply is not None:
        full = completed(reply.text[: response["spoken"]], response["text"])
        yield generated(response["item"], full, response, reply.turn, None)


def use_tool(frame: JsonObject, ts: int, known: Known) -> Made:
    return (tool_event(frame, frame["response_type"], known.here),)


def tool_event(raw: JsonObject, kind: str, turn: int) -> MadeEvent:
    """A call of a tool, or its result."""
    if kind == "tool_call_result":
        return tool_result(raw["tool_call_id"], raw.get("content"), turn)
    return tool_call(raw["tool_call_id"], raw.get("name") or "tool", raw.get("arguments"), turn)


# The transcript: an utterance is the item `~tINDEX`, whatever message it comes in


def item_of(index: int, parted: Sequence[int] = ()) -> str:
    """The item of an utterance; of one that continues a reply (`parted`), that of the reply with another number."""
    if not parted:
        return f"~t{index}"
    base = index - sum(one <= index for one in parted)
    number = sum(one <= index and one - rank == base for rank, one in enumerate(parted, 1))
    return f"~t{base}/{number + 1}" if number and index in parted else f"~t{base}"


def tell(
    elements: list[JsonObject], partial: bool, reported: bool, known: Known, by_hook: bool = False
) -> Iterator[MadeEvent]:
    """Yield the news in elements, up to one that this frame may not begin; the last utterance may be `partial`.

    Each message of the websocket repeats those before it: an element that is as it was is not looked at again. A
    webhook may divide a reply by a tool that the transcript of the websocket had as one.
    """
    flow, seen, marks = Flow(known), known.notes.get("marks", {}), {}
    rest: list[JsonObject] = []
    for place, element in enumerate(elements):
        parted: list[int] = known.notes.get("parted", []) if by_hook else []
        index, is_last = str(element["index"]), partial and place == len(elements) - 1
        if not by_hook:
            reply = known.reply(item_of(element["index"])) if element["role"] == "agent" else None
            marks[index] = mark_of(element, is_last, -1 if reply is None else len(reply.text))
            if seen.get(index) == marks[index]:
                continue
        if by_hook and element["role"] == "agent" and (spoken := spoken_before(element, parted, known)) is not None:
            yield from heard_whole(*spoken)
            parted = sorted([*parted, element["index"]])
            known.note("parted", parted)
        item = item_of(element["index"], parted)
        match element["role"]:
            case "agent":
                length = len(element.get("content", "").strip())
                known.note("newest", [item, element["index"], length] if by_hook else None)
                events = agent_element(element, item, reported, flow)
                said = [one for one in events or () if isinstance(one, LlmDone | LlmDelta) and one.item == item]
                if said and not by_hook:  # looked at again only if there is more of it by then
                    marks[index] = mark_of(element, False, len(said[0].text or ""))
            case "user" | "transfer_target":
                events = user_element(element, item, not is_last, reported, flow)
            case _:
                events = other_element(element, flow)
        if events is None:
            marks.pop(index, None)
            rest = elements[place : place + MAX_REST]
            break
        yield from events
    if not by_hook:
        known.note("rest", rest if rest and len(msgspec.json.encode(rest)) <= MAX_NOTED else None)
    if marks != known.notes.get("marks", marks if by_hook else None):
        known.note("marks", marks)


def mark_of(element: JsonObject, is_partial: bool, length: int) -> int:
    """A mark of what an element of the websocket says, and the length of the reply that it is."""
    return checksum((is_partial and element["role"] != "agent", length, element))


def spoken_before(element: JsonObject, parted: list[int], known: Known) -> tuple[KnownReply, int] | None:
    """Return the reply that an element continues, and how much of it was said before; None for one of its own."""
    item, index, spoken = known.notes.get("newest") or (None, None, 0)
    reply = known.reply(item)
    is_next = index == element["index"] - 1 and element["index"] not in parted
    if reply is None or not is_next or known.segment(item_of(element["index"], parted)) is None:
        return None
    rest, text = reply.text[spoken:].strip(), element.get("content", "").strip()
    return (reply, spoken) if rest and text and begins(rest, text) else None


def user_element(element: JsonObject, item: str, final: bool, reported: bool, flow: Flow) -> list[MadeEvent] | None:
    known, text = flow.known, element.get("content", "").strip()
    segment = known.segment(item)
    if not text and segment is None:
        return []
    turn = flow.utterance(item)
    if turn is None:
        return None
    if segment is not None and not reported:
        is_older = len(text) < len(segment.text) and begins(segment.text, text)
        if is_older or (segment.text == text and (segment.final or not final)):
            return []
    user = "transfer_target" if element["role"] == "transfer_target" else None
    final = final or (segment is not None and segment.final)
    return [Asr(item=item, text=text, final=final, user=user, turn_id=turn, ts=element.get("ts"))]


def responses_of(known: Known) -> list[Response]:
    """Return what the app has sent, the oldest first; a copy."""
    return [dict(one) for one in known.notes.get("responses", ())]


def keep_responses(responses: list[Response], known: Known) -> None:
    known.note("responses", newest_noted(responses, MAX_RESPONSES) or None)


def agent_element(element: JsonObject, item: str, reported: bool, flow: Flow) -> list[MadeEvent] | None:
    """Return what of a reply was spoken; where the app has sent more of it, and the caller spoke then, it was cut."""
    known, text = flow.known, element.get("content", "").strip()
    responses, reply = responses_of(known), known.reply(item)
    response = response_for(element, item, text, responses)
    if not text and (response is None or not element.get("followed")) and reply is None:
        return []
    last = known.notes.get("last") or {}
    spoken_before = last.get("spoken", 0) if last.get("item") == item else 0
    followed = element.get("followed", False)
    if reply is not None and not (followed or reported) and len(text) < spoken_before:
        return []
    turn, first = flow.reply(item), known.reply(item.split("/")[0]) if "/" in item else None
    if turn is None:
        return None
    turn = turn if first is None else first.turn
    events = [*goes_on(item, text, response, responses, last, known)] if reply is None and text else []
    full = text if response is None else completed(text, response["text"])
    if reply is not None and len(reply.text) > len(full) and begins(reply.text, text):
        full = completed(text, reply.text)
    if response is not None and (response.get("item"), response.get("spoken")) != (item, len(text)):
        response |= {"item": item, "spoken": len(text)}
        keep_responses(responses, known)
    if reply is None or reply.text != full:
        events.append(generated(item, full, response, turn, element.get("ts"), element.get("agent")))
    now = {"item": item, "index": element["index"], "spoken": len(text)}
    if element["index"] >= last.get("index", 0) and now != last:
        known.note("last", now)
    return [*events, *heard(element, item, text, full, reply)]


def response_for(element: JsonObject, item: str, text: str, responses: list[Response]) -> Response | None:
    """The response of the app that an element says: by its name, or the newest that begins so."""
    for response in responses:
        if response.get("item") == item or (element.get("response") == response["name"] and "item" not in response):
            return response
    for response in reversed(responses):
        said = response["text"].strip()
        is_said = bool(text) or element.get("followed", False)
        if "item" not in response and said and is_said and (begins(said, text) or begins(text, said)):
            return response
    return None


def goes_on(
    item: str, text: str, response: Response | None, responses: list[Response], last: JsonObject, known: Known
) -> Iterator[MadeEvent]:
    """A reply that continues after something that the caller said was not cut there: what it had said is whole."""
    for one in responses if response is None else ():
        before, rest = one.get("item"), one["text"].strip()[one.get("spoken", 0) :].strip()
        reply = None if before is None else known.reply(before)
        if rest and reply is not None and before != item and begins(rest, text):
            yield from heard_whole(reply, one["spoken"])
            one |= {"item": item, "text": rest, "spoken": len(text)}
            keep_responses(responses, known)
            return
    reply = known.reply(last.get("item", ""))  # its transcript said this too, before the caller's words had come
    rest = "" if reply is None else reply.text[last["spoken"] :].strip()
    if reply is not None and rest and begins(rest, text):
        yield from heard_whole(reply, last["spoken"])


def heard_whole(reply: KnownReply, spoken: int) -> Iterator[MadeEvent]:
    """All of a reply is what was spoken of it."""
    yield Resume(item=reply.item)
    yield LlmDone(item=reply.item, text=reply.text[:spoken])


def generated(
    item: str, full: str, response: Response | None, turn: int, ts: int | None, agent: str | None = None
) -> MadeEvent:
    metadata = None if agent is None else {"agent": agent}
    if response is None or response.get("complete"):
        return LlmDone(item=item, text=full, turn_id=turn, ts=ts, metadata=metadata)
    return LlmDelta(item=item, text=full, whole=True, turn_id=turn, ts=ts, metadata=metadata)


def heard(element: JsonObject, item: str, text: str, full: str, reply: KnownReply | None) -> Iterator[MadeEvent]:
    """Retell does not say whether an element ends where the caller broke in: it is taken so, as an estimate."""
    if reply is not None and reply.cut != "no" and (len(text) == len(full) or not element.get("followed")):
        yield Resume(item=item, ts=reply.ended)
    if len(text) < len(full):
        if element.get("followed"):
            yield Interrupt(item=item, heard_text=text, estimated=True, more=True, ts=element.get("until"))
        else:
            yield Tts(item=item, heard_text=text, estimated=True)
    elif reply is not None and reply.has_playback:
        yield Tts(item=item, heard_text=full, estimated=True)


def other_element(element: JsonObject, flow: Flow) -> list[MadeEvent]:
    """A key, a text message that the caller sent, or a call of a tool or its result."""
    ts, said = element.get("ts"), element.get("content", "")
    if element["role"] == "dtmf":
        turn = flow.next_turn()
        flow.reach(turn)
        return [pressed(said, id=f"dtmf:{element['index']}", turn_id=turn, ts=ts)]
    if element["role"] == "sms":
        id = f"sms{element['index']}"
        return [tool_call(id, "sms", {}, flow.here, ts), tool_result(id, said, flow.here, ts=ts)]
    return [tool_event(element, element["role"], flow.here)] if "tool_call_id" in element else []


VENDOR: dict[str, Kind] = {
    **dict.fromkeys(
        ("update_only", "response_required", "reminder_required"),
        Kind("vendor", TranscriptFrame, read_transcript, prepare=transcript),
    ),
    "call_details": Kind("vendor", record("interaction_type", call=Call)),
    **silent("vendor", "ping_pong"),
}
APP: dict[str, Kind] = {
    **dict.fromkeys(("response", "agent_interrupt"), Kind("app", ResponseFrame, hear_response, prepare=response)),
    "tool_call_invocation": Kind(
        "app", record("response_type tool_call_id name", arguments=ANYTHING), use_tool, tool_id
    ),
    "tool_call_result": Kind("app", record("response_type tool_call_id", content=ANYTHING), use_tool, tool_id),
    **silent("app", "config metadata ping_pong update_agent"),
}
WEBHOOKS: dict[str, Kind] = {
    ELEMENT: Kind(
        "vendor", record("event", call=Call, element=Element, reported=(bool, False)), read_transcript, element_id
    ),
    LATENCY: Kind("vendor", LatencyFrame, measure, lambda one: f"{LATENCY}/{digest([one['name'], one['values']])}"),
    UPDATED: Kind("vendor", CallFrame, read_transcript, prepare=called),
    **dict.fromkeys(OVER, Kind("vendor", CallFrame, end_call, prepare=called)),
    **silent(
        "vendor",
        """
        call_started transfer_started transfer_bridged transfer_cancelled transfer_ended chat_started chat_ended
        chat_analyzed call_inbound chat_inbound alert_triggered alert_resolved
        """,
    ),
}


def of_call(fields: str) -> str:
    """Fields of a call, as webhooks have it, and older ones."""
    return " ".join(f"call/{name} data/{name}" for name in fields.split())


FIELDS = {"interaction_type": VENDOR, "response_type": APP, "event": WEBHOOKS}
"""The field with the type of a frame, by table."""
RETELL = Dialect(
    name="retell",
    version=4,
    reduce=reduce,
    translate=translate,
    closed=closed,
    texts=texts,
    hook=Hook(verify=verify, frames=split, webhook_of=webhook_of),
    caller=CallerFields(
        user=of_call("metadata/user_id contact_id contact/id contact/contact_id"),
        number=of_call("from_number"),
        called=of_call("to_number"),
        direction=of_call("direction"),
        parties=of_call(
            "from_number to_number metadata retell_llm_dynamic_variables collected_dynamic_variables custom_sip_headers"
            " transfer_destination contact"
        ),
    ),
    split=split,
    ids_say_texts=True,
)
