"""The dialect `elevenlabs-agents`: the websocket of a conversation, and the webhook after it.

The user's items are `uEVENT`, replies `aEVENT`, by the vendor's event number; the second answer to an event, after a
tool, is `aEVENT/2`, and so on. Items that only the webhook has are `~pINDEX`. In a second conversation they are
`u2.EVENT`, and so on. A reply that comes before the transcript of its event reserves a place for that. Notes: `format`
(bytes of audio a millisecond), `said` (the items of the live conversation, in order), `tentative` (the user's item that
is not final), `parts` (the reply that came in parts), `whole` (the item under which it came again), `named` (items of
replies by their `response_id`), `audio` (the newest reply with audio, its bytes so far and its last word), `waiting`
(audio that came before its reply), `interrupted` (which reply, when, by which event), `called` (the turn of the newest
tool call), `conversations` (numbers by id), `matched` (how many of `said` the webhook has passed), `over` (the
conversation that a webhook has ended), `silent` (the user's item without words, as the user was silent).
"""

from collections.abc import Generator, Iterable
from itertools import islice, takewhile

from voicemem.dialects.caller_fields import CallerFields
from voicemem.dialects.dialect import AUDIO_BYTES, Dialect, Frame, Hook, MalformedFrame, RawFrame, Side
from voicemem.dialects.elevenlabs_agents import frames
from voicemem.dialects.elevenlabs_agents.post_call import (
    RECENT,
    USUAL_REASON,
    add_said,
    end_call,
    item_of,
    newest_reply,
    post_call_item,
    replies,
    said_text,
    stated_ts,
    without_ellipsis,
)
from voicemem.dialects.kinds import ANYTHING, Kind, ignored, keep, named_by, optional, record, translation, typed
from voicemem.dialects.known import Known, KnownReply, Made, MadeEvent
from voicemem.dialects.reading import has_words
from voicemem.dialects.translating import end_of_beginning, plain, tool_call, tool_result
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, LlmDone, MessageEvent, Tts, Word
from voicemem.protocol.types import JsonObject

MAX_CALLS = 8
"""The most conversations of one session whose ids are kept."""
METADATA = "conversation_initiation_metadata"
GREETING = 1
"""The event of the agent's first words, which answer no one."""
PCM_BYTES_PER_MS = 32
"""The rate of the default format: 16 bits at 16 kHz."""
ULAW_BYTES_PER_MS = 8
MAX_WAITING_WORDS = 100
"""The most words whose audio came before their reply; the times of further ones are lost."""
MAX_PLAYING = 8
"""The most replies of one turn that may wait to be played."""


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    if isinstance(frame, dict) and "user_audio_chunk" in frame and "type" not in frame:
        if side == "vendor":
            raise MalformedFrame("The other side sends frames of this type.")
        return None
    name, kind, content = keep(frame, KINDS, side)
    if content is None:
        return None
    return Frame(
        content,
        id=kind.id(content),
        ts=content.get("ts"),
        side=kind.side,
        session_id=content.get("conversation_initiation_metadata_event", content).get("conversation_id"),
        end=USUAL_REASON if name == frames.ENDED else None,
        began=content.get("began"),
        ended=content.get("ts") if name == frames.ENDED else None,
        typed=name in ("user_message", "multimodal_message"),
        counts_audio=name == "audio" and "words" not in content,
    )


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    """Return the events of one frame; live frames after the transcript's webhook are ignored."""
    is_late = "over" in known.notes and frame["type"] not in (METADATA, frames.ITEM, frames.ENDED)
    return () if is_late else translate_live(frame, ts, known)


def closed(ts: int, known: Known) -> Made:
    return known.close_by_clock(ts, frozenset(replies(known)).__contains__)


def grow_transcript(frame: JsonObject, ts: int, known: Known) -> Made:
    event = frame["tentative_user_transcription_event"]
    item = item_of("u", event["event_id"], known)
    segment = known.segment(item)
    if has_words(event["user_transcript"]) and (segment is None or not segment.final):
        yield from withdraw_tentative(item, known)
        known.note("tentative", item)
        yield Asr(item=item, text=event["user_transcript"], turn_id=turn_of_words(item, known))


def finish_transcript(frame: JsonObject, ts: int, known: Known) -> Made:
    event = frame["user_transcription_event"]
    item = item_of("u", event["event_id"], known)
    segment = known.segment(item)
    if segment is not None and segment.final:
        return
    if not has_words(event["user_transcript"]):
        known.note("silent", item)
        yield from withdraw_tentative("", known)
        known.note("tentative", None)
        return
    turn, place = turn_of_words(item, known), place_before_answer(item, known)
    yield from withdraw_tentative(item, known)
    known.note("tentative", None)
    if "cut" in known.notes.get("waiting", ()):  # audio that was interrupted before its text will have none
        known.note("waiting", None)
    add_said(item, known, answer=f"a{(place or item)[1:]}")
    yield Asr(item=item, text=event["user_transcript"], final=True, turn_id=turn)


def turn_of_words(item: str, known: Known) -> int | None:
    """Return the turn for the user's words; None if they already have one."""
    place = place_before_answer(item, known)
    return known.turn_of_speech(item) if place is None else known.turn_of(place)


def place_before_answer(item: str, known: Known) -> str | None:
    """Return the place that a later event's first reply has reserved for late words: event numbers grow with time."""
    if known.turn_of(item) is not None:
        return None
    places = (f"u{reply[1:].split('/')[0]}" for reply in replies(known) if reply.startswith("a"))
    return min((one for one in places if is_free_after(one, item, known)), key=number_of, default=None)


def is_free_after(place: str, item: str, known: Known) -> bool:
    segment, (conversation, event) = known.segment(place), number_of(place)
    is_later = conversation == number_of(item)[0] and event > number_of(item)[1]
    return is_later and segment is not None and not segment.text and not segment.final


def number_of(item: str) -> tuple[str, int]:
    """Return the conversation and the event of an item."""
    conversation, _, event = item[1:].rpartition(".")
    return conversation, int(event)


def withdraw_tentative(item: str, known: Known) -> Made:
    """Withdraw a tentative text of another event that is repeated under this one."""
    tentative = known.notes.get("tentative")
    if tentative is not None and tentative != item:
        yield Asr(item=tentative, text="", final=True)


def typed_text(frame: JsonObject, ts: int, known: Known) -> Made:
    text = frame["text"].get("text") if isinstance(frame.get("text"), dict) else frame.get("text")
    if text and text.strip():
        yield MessageEvent(role="user", text=text, source="message", turn_id=known.turn_of_speech(None))


def grow_reply(frame: JsonObject, ts: int, known: Known) -> Made:
    part = frame["text_response_part"]
    first, id = item_of("a", part["event_id"], known), part.get("response_id")
    item = answer_of(first, known) if part.get("type") != "start" else next_answer(first, known)
    item = item if id is None else named_answer(id, first, known)
    reply = known.reply(item)
    if part.get("type") == "start":
        known.note("parts", item)
    if part["text"] and (reply is None or not reply.complete):
        turn = None
        if reply is None:
            turn = yield from begin_reply(item, part["event_id"], known)
            known.note("parts", item)
        yield LlmDelta(item=item, text=part["text"], turn_id=turn)
    if part.get("type") == "stop" and (reply is not None or part["text"]):
        yield LlmDone(item=item)


def finish_reply(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle a whole reply, which may have come in parts, even under another event number, or not be the first."""
    event = frame["agent_response_event"]
    first, text = item_of("a", event["event_id"], known), event["agent_response"].strip()
    id = event.get("response_id")
    item = unnamed_answer(first, text, known) if id is None else named_answer(id, first, known)
    if not text or item is None:
        return
    known.note("parts", None)
    turn = None
    if known.reply(item) is None:
        turn = yield from begin_reply(item, event["event_id"], known)
    yield LlmDone(item=item, text=text, turn_id=turn)
    yield from play_waiting(item, known)


def unnamed_answer(first: str, text: str, known: Known) -> str | None:
    """Return the item of a reply that has only an event number; None if its text is a repeat."""
    in_parts, newest = known.notes.get("parts"), answer_of(first, known)
    if newest == in_parts:
        return newest
    if first == known.notes.get("whole") or any(said_text(one, known) == text for one in answers(first, known)):
        return None
    if in_parts is not None and known.reply(first) is None and said_text(in_parts, known) == text:
        known.note("whole", first)
        return str(in_parts)
    return next_answer(first, known)


def named_answer(id: str, first: str, known: Known) -> str:
    """Return the item of a reply with an id of its own, under which it may come in parts, whole, and repeated."""
    named: dict[str, str] = known.notes.get("named") or {}
    if id not in named:
        named = dict([*named.items()][-RECENT + 1 :]) | {id: next_answer(first, known)}
        known.note("named", named)
    return named[id]


def answers(first: str, known: Known) -> list[str]:
    """Return the items of the replies to one event, the newest first."""
    return [item for item in replies(known) if item.split("/")[0] == first]


def answer_of(first: str, known: Known) -> str:
    """Return the item of the newest reply to an event."""
    return next(iter(answers(first, known)), first)


def next_answer(first: str, known: Known) -> str:
    """Return the item of one more reply to an event: replies after a tool have the same number."""
    count = len(answers(first, known))
    return f"{first}/{count + 1}" if count else first


def begin_reply(item: str, event: int, known: Known) -> Generator[MadeEvent, None, int | None]:
    """Begin a reply: a further one of its event in the same turn, else with a place for the transcript of its event."""
    first, utterance = known.reply(item_of("a", event, known)), item_of("u", event, known)
    add_said(item, known)
    if first is not None:
        return first.turn
    is_silent = known.notes.get("silent") == utterance
    is_free = not known.here or (known.is_answered(known.here) and known.notes.get("called") != known.here)
    if is_free and event > GREETING and known.turn_of(utterance) is None and not is_silent:
        yield Asr(item=utterance, text="", turn_id=known.next_turn)
        return known.next_turn
    return known.turn_of(utterance) if known.turn_of(utterance) is not None else known.turn_of_answer(item)


def interrupt(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the user's interruption: replies that may still play are cut at their position by the clock."""
    newest, event = newest_reply(known), frame["interruption_event"]["event_id"]
    noted = known.notes.get("interrupted")
    if noted is not None and noted[2] == event:
        return
    waiting = known.notes.get("waiting")
    if waiting is not None:  # its text has not come yet; without times nothing is known of it
        has_begun = known.has_clock and waiting["ts"] is not None and ts >= waiting["ts"]
        known.note("waiting", waiting | {"cut": ts} if has_begun else None)
    if newest is None:
        return
    known.note("interrupted", [newest.item, stated_ts(ts, known), event])
    own = frozenset(replies(known))
    playing = takewhile(lambda reply: reply.turn == newest.turn, known.open_replies())
    for reply in islice(playing, MAX_PLAYING):
        if reply.item in own:
            yield from known.interrupt_by_clock(reply.item, ts)
        if not known.has_clock:
            break


def correct(frame: JsonObject, ts: int, known: Known) -> Made:
    """Record the exact spoken text of an interrupted reply, found by its text, as the event number is unreliable."""
    event = frame["agent_response_correction_event"]
    original = event["original_agent_response"].strip()
    heard = without_ellipsis(event["corrected_agent_response"].strip(), original)
    items = replies_of(original, known)
    if not items and original:
        items = [item_of("~c", event["event_id"], known)]
        add_said(items[0], known)
        yield LlmDone(item=items[0], text=original, turn_id=known.turn_of_answer(items[0]))
    for item in items if heard != original else ():
        text = said_text(item, known) or original
        end = end_of_beginning(heard, text) if item != items[-1] else None
        if end is not None:  # all of it was heard, and a part of the next
            heard = heard[end:].lstrip()
            continue
        noted, interrupted_at, _ = known.notes.get("interrupted") or (None, None, None)
        at = interrupted_at if noted == item and interrupted_at is not None else stated_ts(ts, known)
        # `more`: the clock may say that it was over, but the vendor knows better.
        yield Interrupt(item=item, heard_text=heard, more=True, ts=at)
        heard = ""


def replies_of(text: str, known: Known) -> list[str]:
    """Return the reply with a text, or consecutive replies (around a tool) that make it up; empty if there are none."""
    items = [*replies(known)]
    for start, newest in enumerate(items):
        said: list[str] = []
        if not text.endswith(said_text(newest, known) or "\n"):
            continue
        for count, item in enumerate(items[start:], 1):
            said.insert(0, said_text(item, known) or "")
            if plain(" ".join(said)) == plain(text):
                return items[start : start + count][::-1]
    return []


def call_tool(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle a tool call; the vendor's own tools come without arguments."""
    call = frame.get("client_tool_call") or frame["agent_tool_request"]
    known.note("called", known.here)
    if call.get("tool_type") != "client":
        yield tool_call(call["tool_call_id"], call["tool_name"], call.get("parameters"), known.here)


def answer_tool(frame: JsonObject, ts: int, known: Known) -> Made:
    answer = frame.get("agent_tool_response_full_payload", frame)
    result = answer.get("full_tool_result", answer.get("result"))
    yield tool_result(answer["tool_call_id"], result, known.here, answer.get("tool_name"))


# Audio: it may come before the text of its reply, and a word may be split between two pieces


def begin(frame: JsonObject, ts: int, known: Known) -> Made:
    """Note the conversation, and the bytes of audio a millisecond: 32 for `pcm_16000`, 8 for `ulaw_8000`."""
    event = frame["conversation_initiation_metadata_event"]
    numbers: dict[str, int] = known.notes.get("conversations", {})
    if event["conversation_id"] not in (*numbers, known.notes.get("over")):  # its event numbers start again
        number = max(numbers.values(), default=0) + 1
        known.note("conversations", dict([*numbers.items()][-MAX_CALLS + 1 :]) | {event["conversation_id"]: number})
        for note in ("tentative", "parts", "whole", "named", "waiting", "interrupted", "over"):
            known.note(note, None)
    name, _, rate = (event.get("agent_output_audio_format") or "").partition("_")
    if name == "pcm" and rate.isascii() and rate.isdecimal():
        known.note("format", max(1, int(rate[:6]) * 2 // 1000))
    elif name == "ulaw":
        known.note("format", ULAW_BYTES_PER_MS)
    return ()


def count_audio(frame: JsonObject, ts: int, known: Known) -> Made:
    """Count the audio of the newest reply, or of the next one if the user has spoken since."""
    event, newest = frame.get("event_id"), newest_reply(known)
    reply = None if event is None else known.reply(answer_of(item_of("a", event, known), known))
    if reply is None and newest is not None and newest.turn >= known.here:
        reply = newest
    if reply is None or reply.item is None:
        wait_for_reply(frame, ts, known)
        return
    rate = bytes_per_ms(known)
    count, last = audio_so_far(reply, rate, known)
    words, last = joined_words(frame.get("words") or (), count // rate, last)
    count += frame[AUDIO_BYTES]
    known.note("audio", [reply.item, count, last])
    yield Tts(item=reply.item, total_audio_ms=count // rate, words=words or None)


def audio_so_far(reply: KnownReply, rate: int, known: Known) -> tuple[int, list[object] | None]:
    """Return the bytes of a reply's audio (`rate` a millisecond), and its last word."""
    item, count, last = known.notes.get("audio") or (None, 0, None)
    if item != reply.item:
        # Another reply's audio came in between: only the length of this one's is known.
        return (reply.total_audio_ms or 0) * rate, None
    return count, last


def joined_words(
    pieces: Iterable[tuple[str, int, int]], before: int, last: list[object] | None
) -> tuple[tuple[Word, ...], list[object] | None]:
    """Return the words of a piece of audio that begins at `before`; one that the last piece began is completed."""
    words: list[Word] = []
    for text, start_ms, end_ms in pieces:
        begin_ms = before + start_ms
        if last is not None and text[:1].strip() and not frames.begins_word(str(last[0]), text):
            text, begin_ms = f"{last[0]}{text}", int(str(last[1]))
        if text.strip():
            words.append(Word(text.strip(), begin_ms, max(begin_ms, before + end_ms)))
            last = [text, begin_ms]
        elif last is not None:
            last = [f"{last[0]} ", last[1]]
    return tuple(words), last


def wait_for_reply(frame: JsonObject, ts: int, known: Known) -> None:
    """Keep the count of audio that comes before the text of its reply."""
    waiting = known.notes.get("waiting")
    if waiting is None or "cut" in waiting:
        waiting = {"bytes": 0, "ts": stated_ts(ts, known), "words": []}
    before = waiting["bytes"] // bytes_per_ms(known)
    if known.has_clock and waiting["ts"] is not None:  # the clock pauses in a gap
        waiting = waiting | {"ts": max(waiting["ts"], ts - before)}
    pieces = [(text, before + start_ms, before + end_ms) for text, start_ms, end_ms in frame.get("words") or ()]
    words = [*waiting["words"], *pieces][:MAX_WAITING_WORDS]
    known.note("waiting", waiting | {"bytes": waiting["bytes"] + frame[AUDIO_BYTES], "words": words})


def play_waiting(item: str, known: Known) -> Made:
    """Give a new reply the audio that came before it."""
    waiting = known.notes.get("waiting")
    if waiting is not None:
        words, last = joined_words(waiting["words"], 0, None)
        known.note_all(waiting=None, audio=[item, waiting["bytes"], last])
        total_ms = waiting["bytes"] // bytes_per_ms(known)
        yield Tts(item=item, total_audio_ms=total_ms, words=words or None, ts=waiting["ts"])
        cut = waiting.get("cut")
        if cut is not None:
            yield Interrupt(item=item, audio_end_ms=min(cut - waiting["ts"], total_ms), estimated=True, ts=cut)


def bytes_per_ms(known: Known) -> int:
    return int(known.notes.get("format", PCM_BYTES_PER_MS))


STARTED = "data/conversation_initiation_client_data"
"""The field in the webhook with the app's data about the call from its start."""
KINDS: dict[str, Kind] = {
    METADATA: Kind(
        "vendor",
        typed(conversation_initiation_metadata_event=record("conversation_id agent_output_audio_format?")),
        begin,
    ),
    "tentative_user_transcript": Kind(
        "vendor", typed(tentative_user_transcription_event=frames.UserText), grow_transcript
    ),
    "user_transcript": Kind("vendor", typed(user_transcription_event=frames.UserText), finish_transcript),
    "agent_response": Kind(
        "vendor",
        typed(agent_response_event=record("agent_response response_id?", event_id=int)),
        finish_reply,
    ),
    "agent_chat_response_part": Kind(
        "vendor",
        typed(text_response_part=record("text type? response_id?", event_id=int)),
        grow_reply,
    ),
    "audio": Kind("vendor", frames.Audio, count_audio, prepare=frames.counted),
    "interruption": Kind("vendor", typed(interruption_event=record(event_id=int)), interrupt),
    "agent_response_correction": Kind("vendor", typed(agent_response_correction_event=frames.Correction), correct),
    "client_tool_call": Kind(
        "vendor",
        typed(client_tool_call=record("tool_name tool_call_id", parameters=ANYTHING)),
        call_tool,
        named_by("client_tool_call", "tool_call_id"),
    ),
    "agent_tool_request": Kind(
        "vendor",
        typed(agent_tool_request=record("tool_name tool_call_id tool_type?")),
        call_tool,
        named_by("agent_tool_request", "tool_call_id"),
    ),
    "agent_tool_response_full_payload": Kind(
        "vendor",
        typed(agent_tool_response_full_payload=record("tool_call_id tool_name?", full_tool_result=ANYTHING)),
        answer_tool,
        named_by("agent_tool_response_full_payload", "tool_call_id"),
    ),
    frames.ITEM: Kind(
        "vendor", frames.Item, post_call_item, lambda item: f"{frames.ITEM}/{item['conversation_id']}/{item['index']}"
    ),
    frames.ENDED: Kind(
        "vendor",
        typed("conversation_id", began=optional(int), ts=optional(int)),
        end_call,
        named_by("conversation_id"),
    ),
    "client_tool_result": Kind("app", typed("tool_call_id", result=ANYTHING), answer_tool, named_by("tool_call_id")),
    "user_message": Kind("app", frames.TypedText, typed_text),
    "multimodal_message": Kind("app", typed(text=optional(frames.TypedText)), typed_text),
    **ignored(
        "vendor",
        """
        agent_reasoning_response_part agent_response_complete agent_response_metadata agent_tool_response agent_typing
        asr_initiation_metadata client_error context_usage dtmf_request error external_agent_connected
        external_agent_disconnected guardrail_triggered internal_tentative_agent_response internal_turn_probability
        mcp_connection_status mcp_tool_call ping rich_content vad_score
        """,
    ),
    **ignored(
        "app",
        """
        contextual_update conversation_initiation_client_data feedback mcp_tool_approval_result pong user_activity
        """,
    ),
}
translate_live = translation(KINDS)
"""Translates a frame of a running call, or of the transcript after it."""
ELEVENLABS_AGENTS = Dialect(
    name="elevenlabs-agents",
    version=9,
    reduce=reduce,
    translate=translate,
    closed=closed,
    texts=frames.texts,
    hook=Hook(verify=frames.verify, frames=frames.frames, webhook_of=frames.webhook_of),
    caller=CallerFields(
        user=f"user_id data/user_id {STARTED}/user_id",
        number=f"""
            data/metadata/phone_call/external_number dynamic_variables/system__caller_id
            {STARTED}/dynamic_variables/system__caller_id data/metadata/whatsapp/whatsapp_user_id
        """,
        called=f"""
            data/metadata/phone_call/external_number dynamic_variables/system__called_number
            {STARTED}/dynamic_variables/system__called_number data/metadata/whatsapp/whatsapp_user_id
        """,
        direction="data/metadata/phone_call/direction",
        parties=f"""
            dynamic_variables custom_llm_extra_body {STARTED}/dynamic_variables {STARTED}/custom_llm_extra_body
            data/metadata/phone_call data/metadata/whatsapp
        """,
    ),
)
