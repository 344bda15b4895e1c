"""Messages of Vapi's history: each is one item, `ROLE:TIME`, or `ROLE#PLACE` where it has no time.

Notes: `bots` and `users`, the newest messages of each: item, time, end, the time of its frame and,
of a reply, how many characters of its text were spoken.
"""

from __future__ import annotations

from collections.abc import Iterator

from voicemem.dialects.dialect import Known, MadeEvent
from voicemem.dialects.vapi.cuts import NotedMessage, cut_of, mark_cut
from voicemem.dialects.vapi.speaking import (
    SETTLE_MS,
    Voice,
    end_voices,
    full_text,
    generated,
    heard_text,
    keep_voices,
    voice_of,
    voices_of,
)
from voicemem.dialects.vapi.turns import HistoryFlow, live_reply, live_text, live_utterance
from voicemem.dialects.wording import begins, completed
from voicemem.protocol.events import Asr, Interrupt, LlmCancel, LlmDone, Resume, ToolCall, ToolResult, Tts
from voicemem.protocol.types import JsonObject

MAX_NEWEST = 6
"""Messages of each speaker of which an older version is recognised."""


def record(messages: list[JsonObject], stamp: int | None, reported: bool, known: Known) -> Iterator[MadeEvent]:
    """What messages of a history say that is new; up to one that this frame may not begin any more."""
    flow = HistoryFlow(known)
    for message in messages:
        match message["role"]:
            case "user":
                events = user_message(message, stamp, reported, flow)
            case "bot":
                events = bot_message(message, stamp, flow)
            case _:
                events = tools(message, flow)
        if events is None:
            return
        yield from events


def item_of(message: JsonObject) -> str:
    role, time = message["role"], message.get("time")
    return f"{role}#{message['place']}" if time is None else f"{role}:{time}"


def noted_message(kind: str, item: str, known: Known) -> NotedMessage:
    """What is noted of a message; nothing for a new one, and for one of long ago."""
    return next((dict(one) for one in known.notes.get(kind, ()) if one["item"] == item), {})


def keep_message(kind: str, now: NotedMessage, known: Known) -> None:
    others = [one for one in known.notes.get(kind, ()) if one["item"] != now["item"]]
    now = {name: value for name, value in now.items() if value is not None}
    known.note(kind, sorted([*others, now], key=lambda one: one.get("time", 0))[-MAX_NEWEST:])


def is_outdated(before: NotedMessage, message: JsonObject, stamp: int | None) -> bool:
    """Whether a message is known in a newer version: webhooks come in any order."""
    if stamp is not None and before.get("stamp") is not None:
        return stamp < int(before["stamp"])
    end, known_end = message.get("endTime"), before.get("end")
    return end is not None and known_end is not None and end < known_end


# The user


def user_message(message: JsonObject, stamp: int | None, reported: bool, flow: HistoryFlow) -> list[MadeEvent] | None:
    known, item, text = flow.known, item_of(message), message["message"]
    before, segment = noted_message("users", item, known), known.segment(item)
    if known.turn_of(item) is None and flow.has_utterance:
        return None
    unheard = say_unheard(message, flow.here, known) if segment is None else []
    if unheard:
        flow.answered.add(flow.here)
    turn = flow.utterance(item, text, reported)
    if turn is None or (segment is not None and (segment.text == text or is_outdated(before, message, stamp))):
        return None if turn is None else []
    end_voices(known, message.get("time"))
    keep_message("users", message_note(item, message, stamp), known)
    events: list[MadeEvent] = [] if segment is not None else [*settle_last(known), *unheard]
    if segment is None and live_text(turn, known):
        events.append(Asr(item=live_utterance(turn), text="", final=True))
    events.append(Asr(item=item, text=text, final=True, turn_id=turn, ts=message.get("time")))
    return [*events, *swallowed("users", message, known)]


def message_note(item: str, message: JsonObject, stamp: int | None) -> NotedMessage:
    return {"item": item, "time": message.get("time"), "end": message.get("endTime"), "stamp": stamp}


def swallowed(kind: str, message: JsonObject, known: Known) -> Iterator[MadeEvent]:
    """Withdraw what used to be messages of their own, and was joined to the one before."""
    start, end = message.get("time"), message.get("endTime")
    if start is None or end is None:
        return
    for one in known.notes.get(kind, ()):
        if start < one.get("time", 0) <= end:
            segment, reply = known.segment(one["item"]), known.reply(one["item"])
            if segment is not None and segment.text and segment.text in message["message"]:
                yield Asr(item=one["item"], text="", final=True)
            if reply is not None and reply.text in message["message"]:
                yield LlmCancel(item=one["item"])


# The agent


def bot_message(message: JsonObject, stamp: int | None, flow: HistoryFlow) -> list[MadeEvent] | None:
    """What of a reply was spoken, by the history; live messages may know how it would have gone on."""
    known, item, text = flow.known, item_of(message), message["message"]
    item = known.notes.get(f"={item}", item)
    before, reply = noted_message("bots", item, known), known.reply(item)
    turn = flow.reply(item)
    if turn is None:
        return None
    if reply is not None and is_outdated(before, message, stamp):
        return []
    events: list[MadeEvent] = []
    if reply is None:
        item, taken_over = take_over(item, turn, known)
        events += [*settle_last(known), *taken_over]
    voices = voices_of(known)
    voice = voice_of(text, voices)
    full = text if voice is None else completed(text, generated(voice))
    if voice is not None:
        voice["recorded"] = True
        keep_voices(voices, known)
    if reply is not None and begins(reply.text, text):
        full = completed(text, reply.text) if len(reply.text) > len(full) else full
    now = message_note(item, message, stamp) | {"spoken": len(text)}
    if reply is None or reply.text != full:
        events.append(LlmDone(item=item, text=full, turn_id=turn, ts=message.get("time")))
    keep_message("bots", now, known)
    events += heard(now, before, full, reply is not None and reply.cut != "no", known)
    return [*events, *swallowed("bots", message, known)]


def complete_newest_reply(known: Known) -> Iterator[MadeEvent]:
    """How the newest reply would have gone on, where live messages of it come after the history had it."""
    now, voices = (known.notes.get("bots") or [None])[-1], voices_of(known)
    reply = None if now is None else known.reply(now["item"])
    voice = voices[-1] if voices else None
    if now is None or reply is None or voice is None or not is_of_time(voice, now):
        return
    text, full = reply.text[: now["spoken"]], generated(voice)
    if not full or not (begins(full, text) or begins(text, full)):
        return
    voice["recorded"] = True
    keep_voices(voices, known)
    if len(completed(text, full)) > len(reply.text):
        yield LlmDone(item=now["item"], text=completed(text, full), turn_id=reply.turn)
        yield from heard(now, {}, completed(text, full), reply.cut != "no", known)


def is_of_time(voice: Voice, noted: NotedMessage) -> bool:
    """Whether live messages are of the time in which a message of the history was said."""
    first, start, end = voice.get("first"), noted.get("time"), noted.get("end")
    return None not in (first, start, end) and start - SETTLE_MS <= first <= end  # type: ignore[operator]


def say_unheard(message: JsonObject, turn: int, known: Known) -> list[MadeEvent]:
    """A reply that was generated, and cut before its first word by what the user says: the history does not have it."""
    found = {one["number"] for one in known.notes.get("cuts", ()) if "item" in one}
    voices, end = voices_of(known), message.get("endTime")
    waiting = (one for one in voices if not one.get("recorded") and generated(one) and one.get("cut") is not None)
    cut = [one for one in waiting if one["by"] not in found and end is not None and one["cut"] <= end]
    return say(cut[-1:], turn, voices, known) if cut and known.reply(live_reply(turn)) is None else []


def say(waiting: list[Voice], turn: int, voices: list[Voice], known: Known) -> list[MadeEvent]:
    """What the agent has said by live messages, as one reply of a turn; the last of them may have been cut."""
    item, last = live_reply(turn), waiting[-1]
    for one in waiting:
        one |= {"recorded": True, "over": True, "item": item}
    keep_voices(voices, known)
    before = known.reply(item)
    said = " ".join([*([] if before is None else [before.text]), *map(full_text, waiting[:-1])])
    text = f"{said} {full_text(last)}".strip()
    events: list[MadeEvent] = [LlmDone(item=item, text=text, turn_id=turn, ts=waiting[0].get("first", last.get("cut")))]
    if "cut" in last:
        heard = f"{said} {heard_text(last) or ''}".strip()
        events.append(Interrupt(item=item, heard_text=heard, estimated=bool(heard), more=True, ts=last["cut"]))
    return events


def take_over(item: str, turn: int, known: Known) -> tuple[str, list[MadeEvent]]:
    """The item of a reply. What live messages said of it is taken back, unless they know where it was cut."""
    live = known.reply(live_reply(turn))
    if live is None or known.notes.get(f"-{turn}"):
        return item, []
    if live.cut == "no":
        known.note(f"-{turn}", True)
        return item, [LlmCancel(item=live_reply(turn))]
    known.note(f"={item}", live_reply(turn))
    return live_reply(turn), []


def heard(now: NotedMessage, before: NotedMessage, full: str, was_cut: bool, known: Known) -> Iterator[MadeEvent]:
    """How much of a reply was heard: what was spoken of it, if the user interrupted it or if it is not all."""
    item, spoken = now["item"], full[: now["spoken"]]
    cut = cut_of(now, spoken, known)
    if was_cut and now["spoken"] > before.get("spoken", 0) and cut is None:
        yield Resume(item=item, ts=now.get("end"))
    if cut is not None:
        yield from mark_cut(cut, now, full, known)
    elif now["spoken"] < len(full):
        yield Tts(item=item, heard_text=spoken, ts=now.get("end"))
    elif before.get("spoken", len(full)) < len(full):
        yield Tts(item=item, heard_text=full, ts=now.get("end"))


def settle_last(known: Known, item: str | None = None) -> Iterator[MadeEvent]:
    """A reply of which the history has only the beginning was cut there, once something else comes after it."""
    bots = known.notes.get("bots") or ()
    last = bots[-1] if bots else None
    reply = None if last is None or last["item"] == item else known.reply(last["item"])
    if last is not None and reply is not None and reply.cut == "no" and last["spoken"] < len(reply.text):
        yield Interrupt(item=last["item"], heard_text=reply.text[: last["spoken"]], ts=last.get("end"))


# Tools


def tools(message: JsonObject, flow: HistoryFlow) -> list[MadeEvent]:
    ts = message.get("time")
    if message["role"] == "tool_call_result":
        return [tool_result(message, flow.here, ts)]
    return [tool_call(call, flow.here, ts) for call in message.get("toolCalls") or ()]


def tool_call(call: JsonObject, turn: int, ts: int | None) -> MadeEvent:
    function = call["function"]
    arguments = function.get("arguments")
    id = call["id"]
    return ToolCall(id=f"call:{id}", call_id=id, name=function["name"], arguments=arguments, turn_id=turn, ts=ts)


def tool_result(answer: JsonObject, turn: int, ts: int | None) -> MadeEvent:
    id, result = answer["toolCallId"], answer.get("result")
    return ToolResult(id=f"result:{id}", call_id=id, result=result, name=answer.get("name"), turn_id=turn, ts=ts)
