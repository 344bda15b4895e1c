"""Elements of Retell's transcript: an utterance is the item `~tINDEX`, whatever message it comes in.

Notes: `at`, the turn that the transcript has reached; `responses`, the newest that the app has sent: their names,
texts, whether they are complete, when they came, and the item that says them; `last`, the agent's newest element: its
item and how many characters of the reply were spoken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from voicemem.dialects.dialect import Known, KnownReply, MadeEvent
from voicemem.dialects.flow import Flow
from voicemem.dialects.wording import begins, completed, newest_noted
from voicemem.protocol.events import (
    Asr,
    Interrupt,
    LlmDelta,
    LlmDone,
    MessageEvent,
    Resume,
    ToolCall,
    ToolResult,
    Tts,
)
from voicemem.protocol.types import JsonObject

MAX_RESPONSES = 4
MAX_TEXT = 3_500
"""Bytes of a response that are looked at: notes are small."""
Response = dict[str, Any]


def item_of(index: int) -> str:
    return f"~t{index}"


class TranscriptFlow(Flow):
    """Where elements stand; `reported` are those of a webhook."""

    def __init__(self, known: Known, reported: bool) -> None:
        super().__init__(known)
        self.reported = reported

    def utterance(self, item: str) -> int | None:
        """The turn of an utterance; None if the frame may begin no other."""
        return self.begin_utterance(item, self.next_turn)


def tell(elements: list[JsonObject], partial: bool, reported: bool, known: Known) -> Iterator[MadeEvent]:
    """What elements say that is new, up to one that this frame may not begin; the last utterance may be `partial`."""
    flow = TranscriptFlow(known, reported)
    for place, element in enumerate(elements):
        match element["role"]:
            case "agent":
                events = agent_element(element, flow)
            case "user" | "transfer_target":
                is_last = partial and place == len(elements) - 1
                events = user_element(element, not is_last, flow)
            case _:
                events = [other_element(element, flow)]
        if events is None:
            return
        yield from events


# The caller


def user_element(element: JsonObject, final: bool, flow: TranscriptFlow) -> list[MadeEvent] | None:
    known, item, text = flow.known, item_of(element["index"]), element.get("content", "").strip()
    segment = known.segment(item)
    if not text and segment is None:
        return []
    turn = flow.utterance(item)
    if turn is None:
        return None
    if segment is not None and not flow.reported:
        is_older = len(text) < len(segment.text) and begins(segment.text, text)
        if is_older or (segment.text == text and (segment.final or not final)):
            return []
    user = "transfer_target" if element["role"] == "transfer_target" else None
    final = final or (segment is not None and segment.final)
    return [Asr(item=item, text=text, final=final, user=user, turn_id=turn, ts=element.get("ts"))]


# The agent


def responses_of(known: Known) -> list[Response]:
    """What the app has sent, the oldest first; a copy."""
    return [dict(one) for one in known.notes.get("responses", ())]


def keep_responses(responses: list[Response], known: Known) -> None:
    known.note("responses", newest_noted(responses, MAX_RESPONSES) or None)


def agent_element(element: JsonObject, flow: TranscriptFlow) -> list[MadeEvent] | None:
    """What of a reply was spoken; where the app has sent more of it, and the caller spoke then, it was cut."""
    known, item, text = flow.known, item_of(element["index"]), element.get("content", "").strip()
    responses, reply = responses_of(known), known.reply(item)
    response = response_for(element, item, text, responses)
    if not text and (response is None or not element.get("followed")) and reply is None:
        return []
    last = known.notes.get("last") or {}
    spoken_before = last.get("spoken", 0) if last.get("item") == item else 0
    followed = element.get("followed", False)
    if reply is not None and not (followed or flow.reported) and len(text) < spoken_before:
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
        told = response["text"].strip()
        is_said = bool(text) or element.get("followed", False)
        if "item" not in response and told and is_said and (begins(told, text) or begins(text, told)):
            return response
    return None


def goes_on(item: str, text: str, responses: list[Response], known: Known) -> Iterator[MadeEvent]:
    """A reply that goes on after something that the caller said was not cut there: what it said before stands alone."""
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


def other_element(element: JsonObject, flow: TranscriptFlow) -> MadeEvent:
    if element["role"] == "dtmf":
        number = element["index"]
        text, turn = element.get("content", ""), flow.next_turn()
        flow.reach(turn)
        made = {"role": "user", "text": text, "source": "message", "turn_id": turn, "metadata": {"dtmf": True}}
        return MessageEvent(id=f"dtmf:{number}", ts=element.get("ts"), **made)
    if element["role"] == "tool_call_result":
        return tool_result(element, flow.here)
    return tool_call(element, flow.here)


def tool_call(call: JsonObject, turn: int) -> MadeEvent:
    id, name = call["tool_call_id"], call.get("name") or "tool"
    return ToolCall(id=f"call:{id}", call_id=id, name=name, arguments=call.get("arguments"), turn_id=turn)


def tool_result(answer: JsonObject, turn: int) -> MadeEvent:
    id = answer["tool_call_id"]
    return ToolResult(id=f"result:{id}", call_id=id, result=answer.get("content"), turn_id=turn)
