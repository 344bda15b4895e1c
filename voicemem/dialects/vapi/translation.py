"""The dialect `vapi`: messages of Vapi's server URL, or of its clients.

A webhook is split: one frame for each message of its history, so that each is kept once.

The history is the memory: each of its messages is one item, `ROLE:TIME`, or `ROLE#PLACE` without a time. Until it
comes, live messages are used: the user's words are `~uTURN`, withdrawn when the history has them; the agent's wait in
the notes (`speaking`) until the user speaks or the call ends, and then are `~aTURN`; its words after a tool are
`~aTURN/2`, and so on.

Notes: `bots` and `users`, the newest messages of each (item, time, end, the time of its frame and, for a reply, its
spoken characters); `live` (turn, finals and newest time of the user's words); `final` (the report has come);
`+TURN` and `-TURN`, how many live replies of a turn were recorded and how many the history has replaced; `=ITEM`, the
live reply of a history message; `marks`, of the newest history's messages; those of `speaking`.
"""

from collections.abc import Iterator
from typing import Any

from voicemem.dialects.caller_fields import CallerFields
from voicemem.dialects.dialect import Dialect, Frame, Hook, RawFrame, Side
from voicemem.dialects.kinds import ANYTHING, Kind, ignored, keep, many, optional, require_object, translation
from voicemem.dialects.known import Known, Made, MadeEvent
from voicemem.dialects.reading import checksum
from voicemem.dialects.translating import (
    TurnTracker,
    begin_voice,
    begins,
    completed,
    latencies,
    plain,
    said_until,
    tool_call,
    tool_result,
)
from voicemem.dialects.vapi import frames, speaking
from voicemem.dialects.vapi.frames import Message, Report, Speech, ToolCall, sent
from voicemem.dialects.vapi.speaking import is_outdated, keep_message, message_note, noted_message
from voicemem.protocol.events import Asr, Interrupt, LlmCancel, LlmDone, Resume, SessionEnd, Tts
from voicemem.protocol.types import JsonObject

MAX_LIVE = 40
"""How many turns of live transcripts are searched for one that a history message repeats."""
MAX_LOOKED = 16_000
"""How many characters at the end of a message are searched for a late transcript."""
VOICES = "voices"
"""The key, among the marks of messages, of the mark of the agent's live speech."""
MAX_CALLS = 60
"""The most tool calls that one message may report."""


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    name, _, content = keep(frames.message_of(require_object(frame)), KINDS, side)
    if content is None:
        return None
    return Frame(
        content,
        id=frames.id_of(content),
        ts=content.get("timestamp"),
        side="vendor",
        session_id=content.get("call", {}).get("id"),
        end=content.get("endedReason", frames.ENDED) if name == frames.REPORT else None,
        began=content.get("startedAt"),
        ended=content.get("endedAt"),
    )


def closed(ts: int, known: Known) -> Made:
    if not known.notes.get("final"):
        yield from stop_voices(known, ts)
    yield from stop_last(known, ts)


# The history


def read_message(frame: JsonObject, ts: int, known: Known) -> Made:
    reported = frame.get("reported", False)
    if reported:
        known.note("final", True)
    messages = [frame["item"]] if "item" in frame else frame["messages"]
    return read_messages(messages, frame.get("timestamp"), reported, known)


def end_call(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the report, which has all messages; other live texts are withdrawn."""
    messages = frame.get("messages") or []
    if messages or frame.get("reported"):
        known.note("final", True)
    if messages:
        yield from read_messages(messages, frame.get("timestamp"), True, known)
    if known.notes.get("final"):
        yield from withdraw_live(known)
    ended = frame.get("endedAt", frame.get("timestamp"))
    yield SessionEnd(reason=frame.get("endedReason", frames.ENDED), ts=ended)


def withdraw_live(known: Known) -> Made:
    """Withdraw live texts, except replies that were not heard at all: no history has these."""
    taken_over = {item for key, item in known.notes.items() if key.startswith("=")}
    for turn in range(max(0, known.next_turn - MAX_LIVE), known.next_turn):
        if known.text_of(f"~u{turn}"):
            yield Asr(item=f"~u{turn}", text="", final=True)
        for number in range(known.notes.get(f"-{turn}", 0) + 1, live_number(turn, known) + 1):
            item = live_item(turn, number)
            reply = known.reply(item)
            if reply is not None and reply.cut != "exact" and item not in taken_over:
                yield LlmCancel(item=item)


def measure(frame: JsonObject, ts: int, known: Known) -> Made:
    reply = known.reply(known.notes.get(f"={frame['reply']}", frame["reply"]))
    if reply is not None:
        yield from latencies(frame, frames.LATENCIES, reply.turn, reply.begun)


def hear_transcript(frame: JsonObject, ts: int, known: Known) -> Made:
    text = frame["transcript"].strip()
    kind = "users" if frame["role"] == "user" else "bots"
    if not text or known.notes.get("final") or is_in_history(kind, frame, known):
        return
    if frame["role"] != "user":
        with speaking.Voices(known) as voices:
            speaking.note_transcript(frame, voices, known)
            speaking.attach_late(speaking.newest_of(voices), known)
        yield from say_parted(known)
        return
    at = frame.get("timestamp")
    speaking.part_at(known, at)
    speaking.end_voices(known, at)
    said = say_voices(known, at)
    yield from said
    yield from grow_utterance(frame, text, known.next_turn if said else known.utterance_turn(), known)


def grow_utterance(frame: JsonObject, text: str, turn: int, known: Known) -> Made:
    """Insert a text among the finals of its turn; a partial that comes after its final is outdated."""
    live: dict[str, Any] = known.notes.get("live") or {}
    at = frame.get("timestamp")
    finals: list[Any] = live["finals"] if live.get("turn") == turn else []
    before, newest = speaking.joined(finals, " "), live.get("ts")
    is_past = at is not None and newest is not None and at <= newest
    if frame.get("transcriptType", "final") == "final":
        finals = speaking.in_order(finals, text, at, " ")
        known.note("live", {"turn": turn, "finals": finals, "ts": finals[-1][0] or None})
        yield Asr(item=f"~u{turn}", text=speaking.joined(finals, " "), final=True, turn_id=turn, ts=known.said_by(at))
        known.note("silent", None)
    elif not before or not (is_past or before.endswith(text)):
        yield Asr(item=f"~u{turn}", text=f"{before} {text}".strip(), turn_id=turn, ts=at)


def is_in_history(kind: str, frame: JsonObject, known: Known) -> bool:
    """Return whether the newest history message already has a late transcript."""
    newest, at = (known.notes.get(kind) or [None])[-1], frame.get("timestamp")
    if newest is None or (at is not None and "end" in newest and at > newest["end"] + speaking.SETTLE_MS):
        return False
    text, transcript = known.text_of(newest["item"]), plain(frame["transcript"])
    return transcript in plain(text[-len(frame["transcript"]) - MAX_LOOKED :])


def note_speech(frame: JsonObject, ts: int, known: Known) -> Made:
    """Note when the caller stops, and when the agent begins to speak."""
    begins = frame["status"] == "started"
    if frames.role_of(frame["role"]) == "user":
        known.note_voice(begins, frame.get("timestamp", ts))
    elif begins and known.has_clock:
        known.note("began", frame.get("timestamp", ts))
    return ()


def hear_agent(frame: JsonObject, ts: int, known: Known) -> Made:
    with speaking.Voices(known) as voices:
        (speaking.note_output if "output" in frame else speaking.note_speech)(frame, voices)
        speaking.attach_late(speaking.newest_of(voices), known)
    return [*say_parted(known), *complete_newest_reply(known)]


def interrupt(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle an interruption; the history shows, now or later, what it cut."""
    cut = speaking.note_cut(frame, ts, known)
    for noted in reversed(known.notes.get("bots", ())):
        reply = known.reply(noted["item"])
        if reply is not None and speaking.cut_of(noted, reply.text[: noted["spoken"]], known) == cut:
            return speaking.mark_cut(cut, noted, reply.text, known)
    return cut_live(cut, known)


def cut_live(cut: speaking.Cut, known: Known) -> list[MadeEvent]:
    """Apply an interruption that came after the user's words to a live reply, which no history has."""
    with speaking.Voices(known) as voices:
        voice = next((one for one in voices if one.get("by") == cut["number"] and "until" in one), None)
        if voice is None:
            return []
        if not voice.get("recorded"):
            return say([voice], voice["in"], known) if speaking.generated(voice) else []
    item, full, words = voice.get("item"), speaking.full_text(voice), speaking.heard_text(voice) or ""
    reply = None if item is None else known.reply(item)
    if reply is None or not reply.text.endswith(full):
        return []
    heard = reply.text[: len(reply.text) - len(full)] + words
    return [Interrupt(item=item, heard_text=heard.strip(), estimated=bool(words), more=True, ts=cut["when"])]


# Speech that the history does not have yet


def live_item(turn: int, number: int) -> str:
    """Return the item of a live reply; a turn may have further ones after tools."""
    return f"~a{turn}" if number == 1 else f"~a{turn}/{number}"


def live_number(turn: int, known: Known) -> int:
    """Return the number of a turn's newest live reply."""
    number: int = known.notes.get(f"+{turn}", 1)
    return number


def say_parted(known: Known) -> list[MadeEvent]:
    """Record the agent's words before a tool, once it speaks again."""
    with speaking.Voices(known) as voices:
        parted = (one for one in voices[:-1] if "parted" in one and not one.get("recorded") and not one.get("over"))
        voice = next(parted, None)
        return [] if voice is None else say([voice], known.here, known)


def say_voices(known: Known, ts: int | None = None) -> list[MadeEvent]:
    """Record the agent's words as one reply, now that the user answers, or answered at a time."""
    with speaking.Voices(known) as voices:
        spoken = [one for one in voices if speaking.full_text(one) and speaking.began_before(one, ts)]
        waiting = [one for one in spoken if not one.get("recorded")]
        return say(waiting, known.here, known) if waiting else []


def stop_voices(known: Known, ts: int) -> Made:
    """Record the agent's current words when the caller hung up, and how much was spoken."""
    newest = speaking.newest_of(known.notes.get("voices", ()))
    if newest.get("recorded"):
        return
    heard = speaking.heard_text(newest)
    yield from say_voices(known)
    if heard is not None and "cut" not in newest and not speaking.is_spoken_out(newest):
        yield Interrupt(item=known.notes["voices"][-1]["item"], heard_text=heard, estimated=True, ts=ts)


def stop_last(known: Known, ts: int) -> Made:
    """Stop the last reply of the history: the heard text is the history's, or the words spoken by then."""
    noted = (known.notes.get("bots") or [None])[-1]
    reply = None if noted is None else known.reply(noted["item"])
    if noted is None or reply is None or reply.cut != "no":
        return
    voice = speaking.voice_of(reply.text, known.notes.get("voices", ()))
    words = (
        None
        if voice is None or not speaking.generated(voice) or speaking.is_spoken_out(voice)
        else speaking.heard_text(voice)
    )
    if noted["spoken"] < len(reply.text):
        yield Interrupt(item=noted["item"], heard_text=reply.text[: noted["spoken"]], ts=ts)
    elif words is not None and noted.get("end", ts) >= ts - speaking.SETTLE_MS:
        yield Interrupt(item=noted["item"], heard_text=words, estimated=True, ts=ts)


def use_tools(frame: JsonObject, ts: int, known: Known) -> Made:
    speaking.part_voices(known, frame.get("timestamp", ts))
    return tools(frame, known.here, frame.get("timestamp"))


# The history, message by message


def read_messages(messages: list[JsonObject], stamp: int | None, reported: bool, known: Known) -> Iterator[MadeEvent]:
    """Yield the news in a history's messages, up to one that this frame may not begin.

    Each history repeats earlier ones: unchanged messages are skipped, unless live messages have more of the agent's
    words since.
    """
    tracker = TurnTracker(known)
    if len(messages) == 1:
        yield from read_one(messages[0], stamp, reported, tracker) or ()
        return
    seen, marks = known.notes.get("marks", {}), {}
    has_new_voices = seen.get(VOICES) != checksum(known.notes.get("voices", ()))
    for message in messages:
        mark, item = checksum(message), frames.item_of(message)
        if seen.get(item) != mark or reported or (has_new_voices and message["role"] == "bot"):
            events = read_one(message, stamp, reported, tracker)
            if events is None:
                break
            yield from events
        marks[item] = mark
    marks[VOICES] = checksum(known.notes.get("voices", ()))
    if marks != seen:
        known.note("marks", marks)


def read_one(message: JsonObject, stamp: int | None, reported: bool, tracker: TurnTracker) -> list[MadeEvent] | None:
    """Return the news in one history message; None if this frame may not begin it."""
    match message["role"]:
        case "user":
            return user_message(message, stamp, reported, tracker)
        case "bot":
            return bot_message(message, stamp, tracker)
    return tools(message, tracker.here, message.get("time"))


def user_message(
    message: JsonObject, stamp: int | None, reported: bool, tracker: TurnTracker
) -> list[MadeEvent] | None:
    known, item, text = tracker.known, frames.item_of(message), message["message"]
    before, segment = noted_message("users", item, known), known.segment(item)
    if known.turn_of(item) is None and tracker.has_utterance:
        return None
    unheard = say_unheard(message, tracker.here, known) if segment is None else []
    if unheard:
        tracker.answered.add(tracker.here)
    turn = tracker.utterance(item, lambda: new_turn(text, reported, tracker))
    if turn is None or (segment is not None and (segment.text == text or is_outdated(before, message, stamp))):
        return None if turn is None else []
    speaking.end_voices(known, message.get("time"))
    keep_message("users", message_note(item, message, stamp), known)
    events: list[MadeEvent] = [] if segment is not None else [*settle_last(known), *unheard]
    if segment is None and known.text_of(f"~u{turn}"):
        events.append(Asr(item=f"~u{turn}", text="", final=True))
    said = Asr(item=item, text=text, final=True, turn_id=turn, ts=message.get("time"))
    events += said_until(said, message.get("endTime"))
    return [*events, *withdraw_merged("users", message, known)]


def withdraw_merged(kind: str, message: JsonObject, known: Known) -> Iterator[MadeEvent]:
    """Withdraw messages that were merged into the one before them."""
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


def bot_message(message: JsonObject, stamp: int | None, tracker: TurnTracker) -> list[MadeEvent] | None:
    """Return the spoken part of a reply, from the history; live messages may have its whole text."""
    known, item, text = tracker.known, frames.item_of(message), message["message"]
    item = known.notes.get(f"={item}", item)
    before, reply = noted_message("bots", item, known), known.reply(item)
    turn = tracker.reply(item)
    if turn is None:
        return None
    if reply is not None and is_outdated(before, message, stamp):
        return []
    events: list[MadeEvent] = []
    if reply is None:
        item, taken_over = take_over(item, turn, text, known)
        events += [*settle_last(known), *taken_over]
    with speaking.Voices(known) as voices:
        voice = speaking.voice_of(text, voices)
        if voice is not None:
            voice["recorded"] = True
    full = text if voice is None else completed(text, speaking.generated(voice))
    if reply is not None and begins(reply.text, text):
        full = completed(text, reply.text) if len(reply.text) > len(full) else full
    now = message_note(item, message, stamp) | {"spoken": len(text)}
    if reply is None or reply.text != full:
        agent = message.get("assistantName")
        events.append(LlmDone(item=item, text=full, turn_id=turn, ts=message.get("time"), agent=agent))
        events += begin_voice(item, message.get("time")) if reply is None else ()
    keep_message("bots", now, known)
    events += heard(now, before, full, reply is not None and reply.cut != "no", known)
    return [*events, *withdraw_merged("bots", message, known)]


def complete_newest_reply(known: Known) -> Iterator[MadeEvent]:
    """Complete the newest reply, if live messages with more of it come after the history had it."""
    now = (known.notes.get("bots") or [None])[-1]
    reply = None if now is None else known.reply(now["item"])
    if now is None or reply is None:
        return
    with speaking.Voices(known) as voices:
        voice = speaking.newest_of(voices)
        first, start, end = voice.get("first"), now.get("time"), now.get("end")
        if first is None or start is None or end is None or not start - speaking.SETTLE_MS <= first <= end:
            return  # it is from another time than the message
        text, full = reply.text[: now["spoken"]], speaking.generated(voice)
        if not full or not (begins(full, text) or begins(text, full)):
            return
        voice["recorded"] = True
    if len(completed(text, full)) > len(reply.text):
        yield LlmDone(item=now["item"], text=completed(text, full), turn_id=reply.turn)
        yield from heard(now, {}, completed(text, full), reply.cut != "no", known)


def say_unheard(message: JsonObject, turn: int, known: Known) -> list[MadeEvent]:
    """Record a reply that the user's words cut before its first word, so that the history does not have it."""
    matched = {one["number"] for one in known.notes.get("cuts", ()) if "item" in one}
    end, reply = message.get("endTime"), known.reply(live_item(turn, live_number(turn, known)))
    with speaking.Voices(known) as voices:
        were_cut = [one for one in voices if not one.get("recorded") and one.get("cut") is not None]
        unheard = [one for one in were_cut if speaking.generated(one) and one["by"] not in matched]
        before = [one for one in unheard if end is not None and one["cut"] <= end]
        return say(before[-1:], turn, known) if before and reply is None else []


def say(waiting: list[speaking.Voice], turn: int, known: Known) -> list[MadeEvent]:
    """Record the agent's words from live messages as one reply of a turn; the last part may have been cut."""
    number, last = live_number(turn, known), waiting[-1]
    item = live_item(turn, number)
    if "parted" in last:
        known.note(f"+{turn}", number + 1)
    for one in waiting:
        one |= {"recorded": True, "over": True, "item": item}
    before = known.reply(item)
    said = " ".join([*([] if before is None else [before.text]), *map(speaking.full_text, waiting[:-1])])
    text = f"{said} {speaking.full_text(last)}".strip()
    first, began = waiting[0].get("first", last.get("cut")), known.notes.get("began")
    known.note("began", None)
    if began is not None and not ((known.notes.get("live") or {}).get("ts") or began) <= began <= last.get(
        "last", began
    ):
        began = None
    times = [ts for ts in (first, began) if ts is not None]
    events: list[MadeEvent] = [LlmDone(item=item, text=text, turn_id=turn, ts=min(times, default=None))]
    events += begin_voice(item, began) if before is None else ()
    if "cut" in last:
        heard = f"{said} {speaking.heard_text(last) or ''}".strip()
        events.append(Interrupt(item=item, heard_text=heard, estimated=bool(heard), more=True, ts=last["cut"]))
    return events


def take_over(item: str, turn: int, text: str, known: Known) -> tuple[str, list[MadeEvent]]:
    """Return the item of a reply. Its live text is withdrawn, unless live messages know where it was cut.

    A live reply that was not heard is not in the history, unless the message has the same beginning.
    """
    number = known.notes.get(f"-{turn}", 0) + 1
    taken = live_item(turn, number)
    live = known.reply(taken)
    if live is None or (live.cut == "exact" and not begins(live.text, text)):
        return item, []
    known.note(f"-{turn}", number)
    if live.cut == "no":
        return item, [LlmCancel(item=taken)]
    known.note(f"={item}", taken)
    return taken, []


def heard(
    now: speaking.NotedMessage, before: speaking.NotedMessage, full: str, was_cut: bool, known: Known
) -> Iterator[MadeEvent]:
    """Report the heard text of a reply: the spoken part, if the user interrupted it or if it is not all."""
    item, spoken = now["item"], full[: now["spoken"]]
    cut = speaking.cut_of(now, spoken, known)
    if was_cut and now["spoken"] > before.get("spoken", 0) and cut is None:
        yield Resume(item=item, ts=now.get("end"))
    if cut is not None:
        yield from speaking.mark_cut(cut, now, full, known)
    elif now["spoken"] < len(full):
        yield Tts(item=item, heard_text=spoken, ts=now.get("end"))
    elif before.get("spoken", len(full)) < len(full):
        yield Tts(item=item, heard_text=full, ts=now.get("end"))


def settle_last(known: Known) -> Iterator[MadeEvent]:
    """Cut a reply whose beginning alone is in the history, once another message follows."""
    bots = known.notes.get("bots") or ()
    last = bots[-1] if bots else None
    reply = None if last is None else known.reply(last["item"])
    if last is not None and reply is not None and reply.cut == "no" and last["spoken"] < len(reply.text):
        yield Interrupt(item=last["item"], heard_text=reply.text[: last["spoken"]], ts=last.get("end"))


def tools(message: JsonObject, turn: int, ts: int | None) -> list[MadeEvent]:
    if "toolCallId" in message:
        return [tool_result(message["toolCallId"], message.get("result"), turn, message.get("name"), ts)]
    calls = [(call["id"], call["function"]) for call in message.get("toolCalls") or message["toolCallList"][:MAX_CALLS]]
    return [tool_call(id, function["name"], function.get("arguments"), turn, ts) for id, function in calls]


# Live messages


def new_turn(text: str, reported: bool, tracker: TurnTracker) -> int:
    """Return the turn of the live transcript that an utterance repeats, else a new one if the last has an answer."""
    known = tracker.known
    newest = range(max(known.notes.get("at", 0) + 1, known.next_turn - MAX_LIVE), known.next_turn)
    said = {turn: live for turn in newest if (live := known.text_of(f"~u{turn}"))}
    repeated = next((turn for turn, live in said.items() if speaking.is_similar(live, text)), None)
    if repeated is None and reported:
        repeated = next(iter(said), None)
    return tracker.next_turn() if repeated is None else repeated


KINDS: dict[str, Kind] = {
    **dict.fromkeys(
        (frames.HISTORY, "status-update"),
        Kind("vendor", sent(messages=(many(Message), [])), read_message, prepare=frames.history),
    ),
    frames.MESSAGE: Kind("vendor", sent(item=Message, reported=(bool, False)), read_message),
    frames.LATENCY: Kind("vendor", sent("reply", **dict.fromkeys(frames.LATENCIES, optional(int))), measure),
    frames.REPORT: Kind("vendor", Report, end_call, prepare=frames.report),
    "transcript": Kind(
        "vendor",
        sent("role transcript", transcriptType=(str, "final")),
        hear_transcript,
        prepare=lambda raw: raw | {"role": frames.role_of(raw.get("role"))},
    ),
    "user-interrupted": Kind("vendor", sent("turnId?"), interrupt),
    "speech-update": Kind("vendor", sent("role status"), note_speech, prepare=frames.voice),
    "assistant.speechStarted": Kind("vendor", Speech, hear_agent, prepare=frames.speech),
    "model-output": Kind("vendor", sent("output turnId?"), hear_agent, prepare=frames.output),
    "tool-calls": Kind("vendor", sent(toolCallList=many(ToolCall)), use_tools, prepare=frames.calls),
    "tool-calls-result": Kind(
        "vendor", sent("toolCallId name?", result=ANYTHING), use_tools, prepare=frames.tool_answer
    ),
    # Messages that add nothing to the transcript.
    **ignored(
        "vendor",
        """
        assistant-request assistant.started call.artifact.upload call.delete.failed call.deleted
        call.endpointing.request campaign.predial chat.created chat.deleted function-call function-call-result
        handoff-destination-request hang knowledge-base-request language-change-detected language-changed metadata
        phone-call-control session.created session.deleted session.updated
        transfer-destination-request transfer-update voice-input voice-request workflow.node.started
        """,
    ),
}
VAPI = Dialect(
    name="vapi",
    version=10,
    reduce=reduce,
    translate=translation(KINDS),
    closed=closed,
    texts=frames.texts,
    hook=Hook(verify=frames.verify, frames=frames.split, webhook_of=frames.webhook_of),
    caller=CallerFields(
        within="message",
        user="customer/externalId call/customer/externalId",
        number="customer/number call/customer/number customer/sipUri call/customer/sipUri",
        parties="""
            customer phoneNumber call/customer call/customers call/phoneNumber call/destination destination
            call/phoneCallProviderDetails call/assistantOverrides/variableValues assistantOverrides/variableValues
            artifact/variables artifact/variableValues
        """,
    ),
    split=frames.split,
    ids_say_texts=True,
)
