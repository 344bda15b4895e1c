"""The dialect `retell`: the websocket of a custom LLM, and the webhooks of calls.

| frame | events |
|---|---|
| `update_only`, `response_required`, `reminder_required` | an item `~tINDEX` for each utterance: `asr`, `llm.delta` |
| `response`, `agent_interrupt` (app) | notes: how a reply would go on |
| `tool_call_invocation`, `tool_call_result` (app, and in transcripts) | `tool.call`, `tool.result` |
| webhook `transcript_updated`, `call_ended`, `call_analyzed` | a frame each element: onto the live one of its index |
| webhook `call_ended`, `call_analyzed` | `session.end` |

Notes: `at`, the turn that the transcript has reached; `responses`, the newest that the app has sent: their names,
texts, whether they are complete, when they came, and the item that says them; `last`, the agent's newest element: its
item and how many characters of the reply were spoken; `final`, that the call is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from voicemem.dialects.dialect import Dialect, Hook, Known, KnownReply, Made, MadeEvent, Translate
from voicemem.dialects.retell.frames import ELEMENT, ENDED, OVER, UPDATED, reduce, split, texts, verify
from voicemem.dialects.translating import Flow, begins, bounded, completed, newest_noted, tool_call, tool_result
from voicemem.protocol.events import (
    Asr,
    Interrupt,
    LlmCancel,
    LlmDelta,
    LlmDone,
    MessageEvent,
    Resume,
    SessionEnd,
    Tts,
)
from voicemem.protocol.types import JsonObject

MAX_RESPONSES = 4
MAX_TEXT = 3_500
"""Bytes of a response that are looked at: notes are small."""
Response = dict[str, Any]
MAX_LIVE = 30
"""Items beyond the transcript after the call that are withdrawn."""


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    """The events of one frame."""
    name = frame.get("interaction_type") or frame.get("response_type") or frame["event"]
    return RULES[name](frame, ts, known)


def closed(ts: int, known: Known) -> Made:
    """Return what of the last reply was spoken when the caller hung up; of one that has no element yet no one knows."""
    last = known.notes.get("last") or {}
    reply = known.reply(last.get("item", ""))
    if reply is not None and reply.cut == "no" and last["spoken"] < len(reply.text):
        yield Interrupt(item=last["item"], heard_text=reply.text[: last["spoken"]], estimated=True, ts=ts)
    responses = known.notes.get("responses") or [{"item": ""}]
    if "item" not in responses[-1] and responses[-1]["text"].strip() and not known.notes.get("final"):
        newest = responses[-1]
        text = newest["text"].strip()
        yield LlmDelta(item=f"~{newest['name']}", text=text, whole=True, turn_id=known.here, ts=newest.get("ts"))


def read_transcript(frame: JsonObject, ts: int, known: Known) -> Made:
    """Return what is said now; with `update_only` the caller may still speak."""
    return tell(frame.get("elements", []), frame["interaction_type"] == "update_only", False, known)


def read_element(frame: JsonObject, ts: int, known: Known) -> Made:
    reported = frame.get("reported", False)
    if reported:
        known.note("final", True)
    return tell([frame["element"]], False, reported, known)


def read_update(frame: JsonObject, ts: int, known: Known) -> Made:
    return tell(frame.get("elements", []), False, False, known)


def end_call(frame: JsonObject, ts: int, known: Known) -> Made:
    """The transcript after the call is all of it; what only live messages had is not part of the call."""
    call, elements = frame["call"], frame.get("elements", [])
    yield from tell(elements, False, True, known)
    if call.get("spoken"):
        known.note("final", True)
        for index in range(call["spoken"], call["spoken"] + MAX_LIVE):
            item = item_of(index)
            if known.segment(item) is not None:
                yield Asr(item=item, text="", final=True)
            if known.reply(item) is not None:
                yield LlmCancel(item=item)
    yield SessionEnd(reason=call.get("disconnection_reason", ENDED), ts=call.get("end_timestamp"))


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


def call_tool(frame: JsonObject, ts: int, known: Known) -> Made:
    return (tool_call(frame["tool_call_id"], frame["name"] or "tool", frame.get("arguments"), known.here),)


def end_tool(frame: JsonObject, ts: int, known: Known) -> Made:
    return (tool_result(frame["tool_call_id"], frame.get("content"), known.here),)


def nothing_said(frame: JsonObject, ts: int, known: Known) -> Made:
    return ()


# The transcript: an utterance is the item `~tINDEX`, whatever message it comes in


def item_of(index: int) -> str:
    return f"~t{index}"


def tell(elements: list[JsonObject], partial: bool, reported: bool, known: Known) -> Iterator[MadeEvent]:
    """What elements say that is new, up to one that this frame may not begin; the last utterance may be `partial`."""
    flow = Flow(known)
    for place, element in enumerate(elements):
        match element["role"]:
            case "agent":
                events = agent_element(element, reported, flow)
            case "user" | "transfer_target":
                is_last = partial and place == len(elements) - 1
                events = user_element(element, not is_last, reported, flow)
            case _:
                events = [other_element(element, flow)]
        if events is None:
            return
        yield from events


# The caller


def user_element(element: JsonObject, final: bool, reported: bool, flow: Flow) -> list[MadeEvent] | None:
    known, item, text = flow.known, item_of(element["index"]), element.get("content", "").strip()
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


# The agent


def responses_of(known: Known) -> list[Response]:
    """Return what the app has sent, the oldest first; a copy."""
    return [dict(one) for one in known.notes.get("responses", ())]


def keep_responses(responses: list[Response], known: Known) -> None:
    known.note("responses", newest_noted(responses, MAX_RESPONSES) or None)


def agent_element(element: JsonObject, reported: bool, flow: Flow) -> list[MadeEvent] | None:
    """Return what of a reply was spoken; where the app has sent more of it, and the caller spoke then, it was cut."""
    known, item, text = flow.known, item_of(element["index"]), element.get("content", "").strip()
    responses, reply = responses_of(known), known.reply(item)
    response = response_for(element, item, text, responses)
    if not text and (response is None or not element.get("followed")) and reply is None:
        return []
    last = known.notes.get("last") or {}
    spoken_before = last.get("spoken", 0) if last.get("item") == item else 0
    followed = element.get("followed", False)
    if reply is not None and not (followed or reported) and len(text) < spoken_before:
        return []
    turn = flow.reply(item)
    if turn is None:
        return None
    events = [*goes_on(item, text, responses, known)] if response is None and reply is None else []
    full = text if response is None else completed(text, response["text"])
    if reply is not None and len(reply.text) > len(full) and begins(reply.text, text):
        full = completed(text, reply.text)
    if response is not None:
        response |= {"item": item, "spoken": len(text)}
        keep_responses(responses, known)
    if reply is None or reply.text != full:
        events.append(generated(item, full, response, turn, element.get("ts")))
    if element["index"] >= last.get("index", 0):
        known.note("last", {"item": item, "index": element["index"], "spoken": len(text)})
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


def goes_on(item: str, text: str, responses: list[Response], known: Known) -> Iterator[MadeEvent]:
    """A reply that continues after something that the caller said was not cut there: what it had said is whole."""
    for response in responses:
        before = response.get("item")
        rest = response["text"].strip()[response.get("spoken", 0) :].strip()
        reply = None if before is None else known.reply(before)
        if text and rest and reply is not None and before != item and begins(rest, text):
            yield Resume(item=before)
            yield LlmDone(item=before, text=reply.text[: response["spoken"]])
            response |= {"item": item, "text": rest, "spoken": len(text)}
            keep_responses(responses, known)
            return


def generated(item: str, full: str, response: Response | None, turn: int, ts: int | None) -> MadeEvent:
    if response is None or response.get("complete"):
        return LlmDone(item=item, text=full, turn_id=turn, ts=ts)
    return LlmDelta(item=item, text=full, whole=True, turn_id=turn, ts=ts)


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


# Tools and keys


def other_element(element: JsonObject, flow: Flow) -> MadeEvent:
    if element["role"] == "dtmf":
        number = element["index"]
        text, turn = element.get("content", ""), flow.next_turn()
        flow.reach(turn)
        made = {"role": "user", "text": text, "source": "message", "turn_id": turn, "metadata": {"dtmf": True}}
        return MessageEvent(id=f"dtmf:{number}", ts=element.get("ts"), **made)
    if element["role"] == "tool_call_result":
        return tool_result(element["tool_call_id"], element.get("content"), flow.here)
    return tool_call(element["tool_call_id"], element.get("name") or "tool", element.get("arguments"), flow.here)


RULES: dict[str, Translate] = {
    **dict.fromkeys(("update_only", "response_required", "reminder_required"), read_transcript),
    "call_details": nothing_said,
    "response": hear_response,
    "agent_interrupt": hear_response,
    "tool_call_invocation": call_tool,
    "tool_call_result": end_tool,
    ELEMENT: read_element,
    UPDATED: read_update,
    **dict.fromkeys(OVER, end_call),
}


RETELL = Dialect(
    name="retell",
    version=1,
    reduce=reduce,
    translate=translate,
    closed=closed,
    texts=texts,
    hook=Hook(verify=verify, frames=split),
    split=split,
)
