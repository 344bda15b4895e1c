"""The dialect `retell`: the websocket of a custom LLM, and the webhooks of calls.

Notes: `at`, the turn that the transcript has reached; `responses`, the app's newest: their ids, texts, whether they are
complete, when they came, and the items that speak them; `last`, the agent's newest element: its item and how many
characters of the reply were spoken; `newest`, likewise for a webhook, with its index; `parted`, the indexes of webhook
elements that continue a reply; `marks`, of the websocket's newest elements; `rest`, elements that its last frame could
not begin; `final`, the call is over.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from voicemem.dialects.caller_fields import CallerFields
from voicemem.dialects.dialect import Dialect, Frame, Hook, RawFrame, Side
from voicemem.dialects.kinds import ANYTHING, Kind, ignored, keep, record, require_object
from voicemem.dialects.known import MAX_NOTED, Known, KnownReply, Made, MadeEvent, bounded
from voicemem.dialects.reading import checksum, digest
from voicemem.dialects.retell import frames
from voicemem.dialects.translating import (
    TurnTracker,
    begin_voice,
    begins,
    completed,
    latencies,
    newest_noted,
    pressed,
    said_until,
    tool_call,
    tool_result,
)
from voicemem.protocol.events import Asr, Interrupt, LlmCancel, LlmDelta, LlmDone, Resume, SessionEnd, Tts
from voicemem.protocol.types import JsonObject

MAX_RESPONSES = 4
MAX_TEXT = 3_500
"""How many bytes of a response are kept, because notes are small."""
Response = dict[str, Any]
MAX_REST = 4
"""The most elements that wait for the next frame or the close."""
MAX_LIVE = 30
"""The most items missing from the transcript after the call that are withdrawn."""


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    raw = require_object(frame)
    field = next((one for one in FIELDS if isinstance(raw.get(one), str)), "interaction_type")
    if "response_id" in raw and "content" in raw and field not in raw:
        field, raw = "response_type", raw | {"response_type": "response"}  # as in older apps
    name, kind, content = keep(raw, FIELDS[field], side, field)
    if content is None:
        return None
    call = content.get("call") or {}
    over = field == "event" and name in frames.OVER
    return Frame(
        content,
        id=kind.id(content),
        ts=content.get("timestamp"),
        side=kind.side,
        session_id=call.get("call_id"),
        end=call.get("disconnection_reason", frames.ENDED) if over else None,
        began=call.get("start_timestamp") if over else None,
        ended=call.get("end_timestamp") if over else None,
    )


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    for field, kinds in FIELDS.items():
        if field in frame:
            return kinds[frame[field]].rule(frame, ts, known)
    return ()


def closed(ts: int, known: Known) -> Made:
    """Return how much of the last reply was spoken when the caller hung up, if it has an element."""
    last = known.notes.get("last") or {}
    reply = known.reply(last.get("item", ""))
    if reply is not None and reply.cut == "no" and last["spoken"] < len(reply.text):
        yield Interrupt(item=last["item"], heard_text=reply.text[: last["spoken"]], estimated=True, ts=ts)
    if not known.notes.get("final"):
        yield from report_elements(known.notes.get("rest", []), False, False, known)
    responses = known.notes.get("responses") or [{"item": ""}]
    if "item" not in responses[-1] and responses[-1]["text"].strip() and not known.notes.get("final"):
        newest = responses[-1]
        text = newest["text"].strip()
        yield LlmDelta(item=f"~{newest['name']}", text=text, whole=True, turn_id=known.here, ts=newest.get("ts"))


def read_transcript(frame: JsonObject, ts: int, known: Known) -> Made:
    """Return the news in a transcript; with `update_only` the caller may still speak."""
    reported, by_hook = frame.get("reported", False), "event" in frame
    if reported:
        known.note("final", True)
    elif known.notes.get("final") and not by_hook:  # the transcript after the call already has it
        return ()
    elements = [frame["element"]] if "element" in frame else frame.get("elements", [])
    return report_elements(elements, frame.get("interaction_type") == "update_only", reported, known, by_hook)


def end_call(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the transcript after the call, which is complete; items only in live messages are withdrawn."""
    call, elements = frame["call"], frame.get("elements", [])
    yield from report_elements(elements, False, True, known, by_hook=True)
    if call.get("spoken"):
        known.note("final", True)
        for index in range(call["spoken"], call["spoken"] + MAX_LIVE):
            item = item_of(index, known.notes.get("parted", ()))
            if known.segment(item) is not None:
                yield Asr(item=item, text="", final=True)
            if known.reply(item) is not None:
                yield LlmCancel(item=item)
    yield SessionEnd(reason=call.get("disconnection_reason", frames.ENDED), ts=call.get("end_timestamp"))


def measure(frame: JsonObject, ts: int, known: Known) -> Made:
    for one in frame["values"]:
        reply = known.reply(item_of(one["index"], known.notes.get("parted", ())))
        if reply is not None:
            yield from latencies({frame["name"]: one["ms"]}, frames.LATENCIES, reply.turn, reply.begun)


def hear_response(frame: JsonObject, ts: int, known: Known) -> Made:
    """Note more of a response of the app; it becomes a reply once the transcript has some of it."""
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
    if kind == "tool_call_result":
        return tool_result(raw["tool_call_id"], raw.get("content"), turn)
    return tool_call(raw["tool_call_id"], raw.get("name") or "tool", raw.get("arguments"), turn)


# The transcript: an utterance is the item `~tINDEX` in any message


def item_of(index: int, parted: Sequence[int] = ()) -> str:
    """Return the item of an utterance; one that continues a reply (`parted`) has the reply's item with a number."""
    if not parted:
        return f"~t{index}"
    base = index - sum(one <= index for one in parted)
    number = sum(one <= index and one - rank == base for rank, one in enumerate(parted, 1))
    return f"~t{base}/{number + 1}" if number and index in parted else f"~t{base}"


def report_elements(
    elements: list[JsonObject], partial: bool, reported: bool, known: Known, by_hook: bool = False
) -> Iterator[MadeEvent]:
    """Yield the news in elements, up to one that this frame may not begin; the last utterance may be `partial`.

    Each websocket message repeats earlier ones: unchanged elements are skipped. A webhook may split by a tool a reply
    that the websocket's transcript had as one.
    """
    tracker, seen, marks = TurnTracker(known), known.notes.get("marks", {}), {}
    rest: list[JsonObject] = []
    for place, element in enumerate(elements):
        parted: list[int] = known.notes.get("parted", []) if by_hook else []
        index, is_last = str(element["index"]), partial and place == len(elements) - 1
        if not by_hook:
            reply = known.reply(f"~t{index}") if element["role"] == "agent" else None
            marks[index] = mark_of(element, is_last, -1 if reply is None else reply.length)
            if seen.get(index) == marks[index]:
                continue
        if by_hook and element["role"] == "agent" and (spoken := spoken_before(element, parted, known)) is not None:
            yield from heard_whole(*spoken)
            parted = sorted([*parted, element["index"]])
            known.note("parted", parted)
        item = item_of(element["index"], parted)
        match element["role"]:
            case "agent":
                newest = [item, element["index"], len(element.get("content", "").strip())] if by_hook else None
                known.note("newest", newest)
                events = agent_element(element, item, reported, tracker)
                said = () if by_hook else (one for one in events or () if isinstance(one, LlmDone | LlmDelta))
                text = next((one.text for one in said if one.item == item), None)
                if text is not None:  # read again only once it has grown
                    marks[index] = mark_of(element, False, len(text))
            case "user" | "transfer_target":
                events = user_element(element, item, not is_last, reported, tracker)
            case _:
                events = other_element(element, tracker)
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
    """Return a mark of a websocket element's content, and of the length of its reply."""
    return checksum((is_partial and element["role"] != "agent", length, element))


def spoken_before(element: JsonObject, parted: list[int], known: Known) -> tuple[KnownReply, int] | None:
    """Return the reply that an element continues, and how much was spoken before; None for a new reply."""
    item, index, spoken = known.notes.get("newest") or (None, None, 0)
    reply = known.reply(item)
    is_next = index == element["index"] - 1 and element["index"] not in parted
    if reply is None or not is_next or known.segment(item_of(element["index"], parted)) is None:
        return None
    rest, text = reply.text[spoken:].strip(), element.get("content", "").strip()
    return (reply, spoken) if rest and text and begins(rest, text) else None


def user_element(
    element: JsonObject, item: str, final: bool, reported: bool, tracker: TurnTracker
) -> list[MadeEvent] | None:
    known, text = tracker.known, element.get("content", "").strip()
    segment = known.segment(item)
    if not text and segment is None:
        return []
    turn = tracker.utterance(item)
    if turn is None:
        return None
    if segment is not None and not reported:
        is_older = len(text) < len(segment.text) and begins(segment.text, text)
        if is_older or (segment.text == text and (segment.final or not final)):
            return []
    user = "transfer_target" if element["role"] == "transfer_target" else None
    final = final or (segment is not None and segment.final)
    said = Asr(item=item, text=text, final=final, user=user, turn_id=turn, ts=element.get("ts"))
    return [*said_until(said, element.get("until"))]


def responses_of(known: Known) -> list[Response]:
    """Return a copy of the app's responses, the oldest first."""
    return [dict(one) for one in known.notes.get("responses", ())]


def keep_responses(responses: list[Response], known: Known) -> None:
    known.note("responses", newest_noted(responses, MAX_RESPONSES) or None)


def agent_element(element: JsonObject, item: str, reported: bool, tracker: TurnTracker) -> list[MadeEvent] | None:
    """Return the spoken part of a reply; if the app has sent more, and the caller spoke after it, it was cut."""
    known, text = tracker.known, element.get("content", "").strip()
    responses, reply = responses_of(known), known.reply(item)
    response = response_for(element, item, text, responses)
    if not text and (response is None or not element.get("followed")) and reply is None:
        return []
    last = known.notes.get("last") or {}
    spoken_before = last.get("spoken", 0) if last.get("item") == item else 0
    followed = element.get("followed", False)
    if reply is not None and not (followed or reported) and len(text) < spoken_before:
        return []
    turn, first = tracker.reply(item), known.reply(item.split("/")[0]) if "/" in item else None
    if turn is None:
        return None
    turn = turn if first is None else first.turn
    events = [*continue_reply(item, text, response, responses, last, known)] if reply is None and text else []
    full = text if response is None else completed(text, response["text"])
    if reply is not None and len(reply.text) > len(full) and begins(reply.text, text):
        full = completed(text, reply.text)
    if response is not None and (response.get("item"), response.get("spoken")) != (item, len(text)):
        response |= {"item": item, "spoken": len(text)}
        keep_responses(responses, known)
    if reply is None or reply.text != full:
        events.append(generated(item, full, response, turn, element.get("ts"), element.get("agent")))
    if reply is None or reported:
        events += begin_voice(item, element.get("ts"))
    now = {"item": item, "index": element["index"], "spoken": len(text)}
    if element["index"] >= last.get("index", 0) and now != last:
        known.note("last", now)
    return [*events, *heard(element, item, text, full, reply)]


def response_for(element: JsonObject, item: str, text: str, responses: list[Response]) -> Response | None:
    """Return the app's response that an element speaks: by its id, or the newest with this beginning."""
    for response in responses:
        if response.get("item") == item or (element.get("response") == response["name"] and "item" not in response):
            return response
    for response in reversed(responses):
        said = response["text"].strip()
        is_said = bool(text) or element.get("followed", False)
        if "item" not in response and said and is_said and (begins(said, text) or begins(text, said)):
            return response
    return None


def continue_reply(
    item: str, text: str, response: Response | None, responses: list[Response], last: JsonObject, known: Known
) -> Iterator[MadeEvent]:
    """Handle a reply that continues after the caller's words: it was not cut, so its first part counts as whole."""
    for one in responses if response is None else ():
        before, rest = one.get("item"), one["text"].strip()[one.get("spoken", 0) :].strip()
        reply = None if before is None else known.reply(before)
        if rest and reply is not None and before != item and begins(rest, text):
            yield from heard_whole(reply, one["spoken"])
            one |= {"item": item, "text": rest, "spoken": len(text)}
            keep_responses(responses, known)
            return
    reply = known.reply(last.get("item", ""))  # its transcript already had this, before the caller's words came
    rest = "" if reply is None else reply.text[last["spoken"] :].strip()
    if reply is not None and rest and begins(rest, text):
        yield from heard_whole(reply, last["spoken"])


def heard_whole(reply: KnownReply, spoken: int) -> Iterator[MadeEvent]:
    """Report that the spoken part of a reply is all of it."""
    yield Resume(item=reply.item)
    yield LlmDone(item=reply.item, text=reply.text[:spoken])


def generated(
    item: str, full: str, response: Response | None, turn: int, ts: int | None, agent: str | None = None
) -> MadeEvent:
    if response is None or response.get("complete"):
        return LlmDone(item=item, text=full, turn_id=turn, ts=ts, agent=agent)
    return LlmDelta(item=item, text=full, whole=True, turn_id=turn, ts=ts, agent=agent)


def heard(element: JsonObject, item: str, text: str, full: str, reply: KnownReply | None) -> Iterator[MadeEvent]:
    """Report the heard text. Retell does not say if an element ends at an interruption, so a cut is an estimate."""
    if reply is not None and reply.cut != "no" and (len(text) == len(full) or not element.get("followed")):
        yield Resume(item=item, ts=reply.ended)
    if len(text) < len(full):
        if element.get("followed"):
            yield Interrupt(item=item, heard_text=text, estimated=True, more=True, ts=element.get("until"))
        else:
            yield Tts(item=item, heard_text=text, estimated=True)
    elif reply is not None and (reply.has_playback or not begins(reply.text, text)):  # a scrubbed text differs
        yield Tts(item=item, heard_text=full, estimated=True)


def other_element(element: JsonObject, tracker: TurnTracker) -> list[MadeEvent]:
    """Return a key, a text message from the caller, or a tool call or result."""
    ts, said = element.get("ts"), element.get("content", "")
    if element["role"] == "dtmf":
        turn = tracker.next_turn()
        tracker.reach(turn)
        return [pressed(said, turn, id=f"dtmf:{element['index']}", ts=ts)]
    if element["role"] == "sms":
        id = f"sms{element['index']}"
        return [tool_call(id, "sms", {}, tracker.here, ts), tool_result(id, said, tracker.here, ts=ts)]
    return [tool_event(element, element["role"], tracker.here)] if "tool_call_id" in element else []


VENDOR: dict[str, Kind] = {
    **dict.fromkeys(
        ("update_only", "response_required", "reminder_required"),
        Kind("vendor", frames.TranscriptFrame, read_transcript, prepare=frames.transcript),
    ),
    "call_details": Kind("vendor", record("interaction_type", call=frames.Call)),
    **ignored("vendor", "ping_pong"),
}
APP: dict[str, Kind] = {
    **dict.fromkeys(
        ("response", "agent_interrupt"), Kind("app", frames.ResponseFrame, hear_response, prepare=frames.response)
    ),
    "tool_call_invocation": Kind(
        "app", record("response_type tool_call_id name", arguments=ANYTHING), use_tool, frames.tool_id
    ),
    "tool_call_result": Kind("app", record("response_type tool_call_id", content=ANYTHING), use_tool, frames.tool_id),
    **ignored("app", "config metadata ping_pong update_agent"),
}
WEBHOOKS: dict[str, Kind] = {
    frames.ELEMENT: Kind(
        "vendor",
        record("event", call=frames.Call, element=frames.Element, reported=(bool, False)),
        read_transcript,
        frames.element_id,
    ),
    frames.LATENCY: Kind(
        "vendor", frames.LatencyFrame, measure, lambda one: f"{frames.LATENCY}/{digest([one['name'], one['values']])}"
    ),
    frames.UPDATED: Kind("vendor", frames.CallFrame, read_transcript, prepare=frames.called),
    **dict.fromkeys(frames.OVER, Kind("vendor", frames.CallFrame, end_call, prepare=frames.called)),
    **ignored(
        "vendor",
        """
        call_started transfer_started transfer_bridged transfer_cancelled transfer_ended chat_started chat_ended
        chat_analyzed call_inbound chat_inbound alert_triggered alert_resolved
        """,
    ),
}


def of_call(fields: str) -> str:
    """Return paths of a call's fields, in webhooks and in older ones."""
    return " ".join(f"call/{name} data/{name}" for name in fields.split())


FIELDS = {"interaction_type": VENDOR, "response_type": APP, "event": WEBHOOKS}
"""The field with a frame's type, and its table."""
RETELL = Dialect(
    name="retell",
    version=8,
    reduce=reduce,
    translate=translate,
    closed=closed,
    texts=frames.texts,
    hook=Hook(verify=frames.verify, frames=frames.split, webhook_of=frames.webhook_of),
    caller=CallerFields(
        user=of_call("metadata/user_id contact_id"),
        number=of_call("from_number"),
        called=of_call("to_number"),
        direction=of_call("direction"),
        parties=of_call(
            "from_number to_number metadata retell_llm_dynamic_variables collected_dynamic_variables custom_sip_headers"
            " transfer_destination contact"
        ),
    ),
    split=frames.split,
    ids_say_texts=True,
)
