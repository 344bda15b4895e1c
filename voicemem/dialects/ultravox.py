"""The dialect `ultravox`: the data messages of a call, which Ultravox sends over its data connection.

Each transcript has an ordinal, which names its item `~oORDINAL`.

A transcript of the user's may come after its reply: the ordinal gives its place.

A data connection may carry the mixed audio of caller and agent too, which is ignored. The end of a call, from a
webhook, is a frame of the same stream (made by `frames`).

Notes: `calls` (numbers by id), `agent` and `reply` (the ordinal and the item of the newest reply), `user` (the ordinal
of the newest utterance), `between` (a tool or a typed text came since that reply), `state`, `since` (when the agent
began to speak), `voice` (the same, until the reply is known), `silent` (when the user stopped), `stopped` (the reply
that was cut), `again` (the agent has spoken since), `typed` (a text of the app that Ultravox may repeat), `texts` (the
ordinals of typed texts).
"""

from collections.abc import Iterator, Mapping
from itertools import islice

from msgspec.structs import replace

from voicemem.dialects.caller_fields import CallerFields
from voicemem.dialects.dialect import Dialect, Frame, Hook, MalformedFrame, RawFrame, Side, Text
from voicemem.dialects.kinds import ANYTHING, Kind, ignored, keep, kept, named_by, optional, record, translation, typed
from voicemem.dialects.known import Known, KnownReply, Made, spoken_ms
from voicemem.dialects.reading import byte_count, is_signed, speaker, unix_ms, values
from voicemem.dialects.translating import begin_voice, end_with, tool_call, tool_result
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, LlmDone, MessageEvent, Resume, Tts
from voicemem.protocol.types import MAX_INTEGER, JsonObject

ENDED = "call.ended"
"""The end of the call, from a webhook."""
USUAL_REASON = "ended"
SIGNATURE = "x-ultravox-webhook-signature"
TIMESTAMP = "x-ultravox-webhook-timestamp"
TOLERANCE_MS = 60 * 1000
"""How far from now a signature's time may be, as Ultravox advises."""
ENDS = ("call.ended", "call.billed")
"""Events for the end of a call; either may be subscribed to."""
MAX_CALLS = 8
"""The most calls of one session whose ids are kept."""
MAX_TEXTS = 32
"""The most typed texts whose ordinals are kept."""
MAX_PLAYING = 8
"""The most replies that the agent may speak one after the other."""
Transcript = typed("role medium? text? delta?", ordinal=int, final=(bool, False))
Invocation = typed("toolName invocationId", parameters=ANYTHING)
Result = typed("invocationId errorType? errorMessage?", result=ANYTHING)
TypedText = typed("text")
Call = record("callId ended? endReason?")
Ended = typed("callId endReason?", ts=optional(int))
"""When the call ended, Unix ms."""


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    if byte_count(frame) is not None:
        return None
    _, kind, content = keep(frame, KINDS, side)
    if content is None or not has_content(content):
        return None
    return Frame(
        content,
        id=kind.id(content),
        ts=content.get("ts"),
        side=kind.side,
        session_id=content.get("callId"),
        end=content.get("endReason", USUAL_REASON) if content["type"] == ENDED else None,
        typed=kind.record is TypedText or is_typed(content),
    )


def has_content(content: JsonObject) -> bool:
    """Return whether a message has content worth a row. Raises `MalformedFrame`."""
    if not 0 <= content.get("ts", 0) <= MAX_INTEGER:
        raise MalformedFrame("There is no such time.")
    if "ordinal" not in content:
        return not content["type"].endswith("text_message") or bool(content["text"].strip())
    if content["role"] not in ("user", "agent"):
        raise MalformedFrame("A transcript is the user's or the agent's.")
    if not 0 <= content["ordinal"] <= MAX_INTEGER:
        raise MalformedFrame("There is no such ordinal.")
    return bool(content.get("text") or content.get("delta") or content.get("final"))


def is_typed(content: JsonObject) -> bool:
    return content.get("role") == "user" and content.get("medium") == "text"


def texts(frame: JsonObject) -> Iterator[Text]:
    if "ordinal" in frame:
        side, item = speaker(frame["role"]), str(frame["ordinal"])
        if frame.get("text"):
            yield Text(frame, "text", "whole", side, item, frame.get("final", False))
        elif frame.get("delta"):
            yield Text(frame, "delta", "piece", side, item)
    elif frame.get("text"):
        yield Text(frame, "text", "whole", "user")
    yield from values(frame, "parameters", "result", "errorMessage")


# Translation


def start_call(frame: JsonObject, ts: int, known: Known) -> Made:
    """Note the call; in a further call of the session, ordinals start again."""
    numbers: dict[str, int] = known.notes.get("calls", {})
    if frame["callId"] in numbers:
        return
    number = max(numbers.values(), default=0) + 1
    if number > 1:
        yield from complete_newest(known)
        known.forget(*(known.notes.keys() - {"calls"}))
    known.note("calls", dict([*numbers.items()][-MAX_CALLS + 1 :]) | {frame["callId"]: number})


def item_of(ordinal: int, known: Known, letter: str = "o") -> str:
    number = max(known.notes.get("calls", {}).values(), default=1)
    return f"~{letter}{ordinal}" if number == 1 else f"~{letter}{number}.{ordinal}"


def unique_item(ordinal: int, letter: str, known: Known) -> str:
    """Return the item of an utterance or a reply; a second one with the same ordinal gets an item of its own."""
    item = item_of(ordinal, known)
    is_taken = (known.reply(item) if letter == "u" else known.segment(item)) is not None
    return item_of(ordinal, known, letter) if is_taken else item


def is_own(reply: KnownReply) -> bool:
    return reply.item is not None and reply.item.startswith(("~o", "~a"))


def newest_reply(known: Known) -> KnownReply | None:
    return known.reply(known.notes.get("reply"))


def transcribe(frame: JsonObject, ts: int, known: Known) -> Made:
    if frame["role"] != "agent":
        yield from repeat_text(frame, known) if is_typed(frame) else hear(frame, known)
        return
    item, voice = known.notes.get("reply"), known.notes.get("voice")
    made = [*speak(frame, known)]
    if voice is None or known.notes.get("reply") == item:
        yield from made
        return
    known.note("voice", None)  # it plays since the agent began to speak, whenever its words come
    yield from (replace(one, ts=voice) if isinstance(one, LlmDelta | LlmDone) and one.text else one for one in made)
    yield from begin_voice(known.notes["reply"], voice)


def hear(frame: JsonObject, known: Known) -> Made:
    """Handle the user's words: all so far, or only the new ones."""
    item, ordinal = unique_item(frame["ordinal"], "u", known), frame["ordinal"]
    segment = known.segment(item)
    text = frame.get("text") or (segment.text if segment is not None else "") + frame.get("delta", "")
    final = frame.get("final", False)
    if segment is None and not text.strip():
        return
    turn, reply = known.turn_of_speech(item), newest_reply(known)
    if turn is not None and reply is not None and ordinal < known.notes["agent"]:  # it comes after its reply
        turn = reply.turn
    known.note_all(user=max(ordinal, known.notes.get("user", 0)), typed=None)
    yield Asr(item=item, text=text, final=final, turn_id=turn, ts=known.said_by() if final else None)
    if final:
        known.note("silent", None)


def type_text(frame: JsonObject, ts: int, known: Known) -> Made:
    known.note_all(typed=frame["text"].strip(), between=True)
    yield MessageEvent(role="user", text=frame["text"], source="message")


def repeat_text(frame: JsonObject, known: Known) -> Made:
    """Handle a typed text, unless the app has already sent it."""
    ordinal: int = frame["ordinal"]
    text: str = frame.get("text") or frame.get("delta") or ""
    seen = known.notes.get("texts", [])
    if not text.strip() or ordinal in seen or not frame.get("final"):
        return
    known.note_all(texts=[*seen, ordinal][-MAX_TEXTS:], user=max(ordinal, known.notes.get("user", 0)))
    if text.strip() == known.notes.get("typed"):
        known.note("typed", None)
    else:
        # Its reply may have reserved a place for its ordinal.
        turn = known.turn_of(item_of(ordinal, known))
        yield MessageEvent(role="user", text=text, source="message", turn_id=turn)


def speak(frame: JsonObject, known: Known) -> Made:
    """Handle the agent's words: all so far, or only the new ones."""
    item, text, delta = unique_item(frame["ordinal"], "a", known), frame.get("text"), frame.get("delta")
    reply, turn = known.reply(item), None
    if reply is None:
        if not text and not delta:
            return
        is_late = has_late_words(frame["ordinal"], known)
        turn = known.next_turn if is_late else known.here
        yield from complete_newest(known)
        if is_late:  # reserve a place for the user's words, which are still to come
            yield Asr(item=item_of(frame["ordinal"] - 1, known), text="", turn_id=known.next_turn)
        known.note_all(agent=max(frame["ordinal"], known.notes.get("agent", 0)), between=None, reply=item)
    if not frame.get("final"):
        if known.notes.get("stopped") == item and known.notes.get("again"):
            # The agent continues the reply that it had stopped: no one interrupted it.
            known.forget("stopped", "again")
            yield Resume(item=item)
        yield LlmDelta(item=item, text=text or delta or "", whole=bool(text), turn_id=turn)
        return
    said = reply.text.strip() if text and reply is not None else ""
    if text and len(text.strip()) < len(said) and said.startswith(text.strip()):
        # Ultravox repeats the spoken part of a reply that was cut.
        known.note("stopped", item)
        yield LlmDone(item=item)
        yield Interrupt(item=item, heard_text=text, estimated=True, more=True)
    else:
        if delta and not text:
            yield LlmDelta(item=item, text=delta, turn_id=turn)
        yield LlmDone(item=item, text=text or None, turn_id=turn)
        if frame.get("medium") == "text":
            yield Tts(item=item, done=True)


def complete_newest(known: Known) -> Made:
    """Complete the previous reply, because no more of it will come."""
    reply = newest_reply(known)
    if reply is not None and not reply.complete and reply.cut == "no":
        yield LlmDone(item=reply.item)


def has_late_words(ordinal: int, known: Known) -> bool:
    """Return whether the ordinal before a new reply's can only belong to words of the user's that have not come."""
    agent = known.notes.get("agent")
    if agent is None or known.notes.get("between"):
        return False
    newest = max(agent, known.notes.get("user", 0))
    return newest == agent and ordinal > agent + 1 and known.turn_of(item_of(ordinal - 1, known)) is None


def change_state(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the start or end of the agent's speech; an end before the end of its words is an interruption."""
    before, now = known.notes.get("state"), frame["state"]
    known.note("state", now)
    if now in ("listening", "thinking") and before != now:
        known.note_voice(now == "listening", ts)
    if now == "speaking" and before != now:
        since = ts if known.has_clock else None
        known.note_all(since=since, voice=since, again=True if "stopped" in known.notes else None)
    if before != "speaking" or now == before:
        return
    known.note("since", None)
    for reply in islice(known.open_replies(), MAX_PLAYING):
        if not is_own(reply):
            continue
        if reply.complete:
            yield Tts(item=reply.item, done=True)
        elif now == "listening":
            known.note("stopped", reply.item)
            yield Interrupt(item=reply.item, heard_text=reply.text, estimated=True, more=True)


def clear_buffer(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle an interruption: the audio that has not been played is dropped."""
    reply = newest_reply(known)
    if reply is None or reply.heard or reply.item == known.notes.get("stopped"):
        return
    since = known.notes.get("since")
    known.note("stopped", reply.item)
    if not reply.complete:  # the words so far were heard
        yield Interrupt(item=reply.item, heard_text=reply.text, estimated=True, more=True)
    elif known.has_clock and not reply.has_playback:
        began = reply.begun if since is None else began_to_play(reply, since)
        yield Interrupt(item=reply.item, audio_end_ms=max(0, ts - began), estimated=True)
    else:
        yield Interrupt(item=reply.item)


def began_to_play(reply: KnownReply, since: int) -> int:
    """Return when a reply began to play, at the earliest `since`: its transcript may come when it is over."""
    before = reply.before
    ended = None if before is None else before.ended
    is_first = before is None or (ended is not None and ended <= since)
    return since if is_first else max(since, reply.begun)


def closed(ts: int, known: Known) -> Made:
    """Return the events for the agent's current reply when the caller hung up, by the length of its words."""
    since = known.notes.get("since")
    replies = [*islice(known.open_replies(), MAX_PLAYING)]
    for reply in reversed(replies):
        if not is_own(reply) or reply.has_playback:
            continue
        if not reply.complete:
            yield Tts(item=reply.item, heard_text=reply.text, estimated=True, ts=ts)
        elif since is not None:
            length_ms = spoken_ms(reply.text)
            since = began_to_play(reply, since)
            if ts - since < length_ms:
                yield reply.stopped_at(ts - since, ts)
            else:
                yield Tts(item=reply.item, done=True, estimated=True, ts=since + length_ms)
            since += length_ms


def call_tool(frame: JsonObject, ts: int, known: Known) -> Made:
    known.note("between", True)
    yield tool_call(frame["invocationId"], frame["toolName"], frame.get("parameters"), known.here)


def answer_tool(frame: JsonObject, ts: int, known: Known) -> Made:
    result = frame.get("result")
    error = {key: frame[key] for key in ("errorType", "errorMessage") if key in frame}
    yield tool_result(frame["invocationId"], error if result is None and error else result, known.here)


KINDS: dict[str, Kind] = {
    "call_started": Kind("vendor", typed("callId"), start_call, id=named_by("callId")),
    "transcript": Kind("vendor", Transcript, transcribe),
    "state": Kind("vendor", typed("state"), change_state),
    "playback_clear_buffer": Kind("vendor", typed(), clear_buffer),
    "client_tool_invocation": Kind("vendor", Invocation, call_tool, id=named_by("invocationId")),
    "data_connection_tool_invocation": Kind("vendor", Invocation, call_tool, id=named_by("invocationId")),
    ENDED: Kind("vendor", Ended, end_with("endReason", USUAL_REASON), id=named_by("callId")),
    "client_tool_result": Kind("app", Result, answer_tool, id=named_by("invocationId")),
    "data_connection_tool_result": Kind("app", Result, answer_tool, id=named_by("invocationId")),
    "user_text_message": Kind("app", TypedText, type_text),
    "input_text_message": Kind("app", TypedText, type_text),
    **ignored("vendor", "call_event debug pong room_info"),  # `room_info` has a token
    **ignored("app", "forced_agent_message hang_up ping set_output_medium"),  # they are not spoken, or are repeated
}


def verify(body: bytes, headers: Mapping[str, str], secret: str, now: int) -> bool:
    """Return whether a body was signed with this secret in the last minute: HMAC-SHA256 of the body and the timestamp.

    Several signatures are separated by commas, one for each secret of the webhook.
    """
    stated = headers.get(TIMESTAMP, "")
    sent = unix_ms(stated)
    if not secret or sent is None or abs(now - sent) > TOLERANCE_MS:
        return False
    return is_signed(body + stated.encode(), secret, map(str.strip, headers.get(SIGNATURE, "").split(",")))


def frames(body: JsonObject) -> Iterator[JsonObject]:
    """Yield a frame for the end of a call; nothing for other webhooks. Raises `MalformedFrame`."""
    if not isinstance(body.get("event"), str):
        raise MalformedFrame("A webhook has an event.")
    if body["event"] in ENDS:
        call = kept(Call, body.get("call"))
        reason, ended = call.get("endReason"), unix_ms(call.get("ended"))
        yield {"type": ENDED, "callId": call["callId"], "endReason": reason, "ts": ended}


ULTRAVOX = Dialect(
    name="ultravox",
    version=4,
    reduce=reduce,
    translate=translation(KINDS),
    closed=closed,
    texts=texts,
    hook=Hook(verify=verify, frames=frames),
    caller=CallerFields(
        user="call/metadata/user_id",
        number="""
            call/metadata/ultravox.sip.caller_id call/metadata/caller_id call/metadata/from call/medium/sip/outgoing/to
            call/medium/twilio/outgoing/to call/medium/telnyx/outgoing/to call/medium/plivo/outgoing/to
        """,
        parties="call/metadata call/medium call/sipDetails",
    ),
)
