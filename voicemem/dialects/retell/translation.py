"""What Retell's frames say, in events of `voicemem.v1`.

Notes: those of `transcript`, and `final` (the call is over).
"""

from __future__ import annotations

from voicemem.dialects.dialect import Known, Made, Translate
from voicemem.dialects.retell.frames import ELEMENT, ENDED, OVER, UPDATED
from voicemem.dialects.retell.transcript import (
    MAX_TEXT,
    generated,
    item_of,
    keep_responses,
    responses_of,
    tell,
    tool_call,
    tool_result,
)
from voicemem.dialects.wording import completed
from voicemem.protocol.events import Asr, Interrupt, LlmCancel, LlmDelta, SessionEnd
from voicemem.protocol.types import JsonObject

MAX_LIVE = 30
"""Items beyond the transcript after the call that are withdrawn."""


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    """The events of one frame."""
    name = frame.get("interaction_type") or frame.get("response_type") or frame["event"]
    return RULES[name](frame, ts, known)


def closed(ts: int, known: Known) -> Made:
    """What of the last reply was spoken when the caller hung up; of one that has no element yet nobody knows."""
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
    """What is said now; with `update_only` the caller may still speak."""
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
    response["text"] = (response["text"] + frame.get("content", "")).encode()[:MAX_TEXT].decode(errors="ignore")
    response["complete"] = frame.get("content_complete", False)
    keep_responses(responses, known)
    reply = known.reply(response.get("item", ""))
    if reply is not None:
        full = completed(reply.text[: response["spoken"]], response["text"])
        yield generated(response["item"], full, response, reply.turn, None)


def call_tool(frame: JsonObject, ts: int, known: Known) -> Made:
    return (tool_call(frame, known.here),)


def end_tool(frame: JsonObject, ts: int, known: Known) -> Made:
    return (tool_result(frame, known.here),)


def nothing_said(frame: JsonObject, ts: int, known: Known) -> Made:
    return ()


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
