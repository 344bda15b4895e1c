"""The dialect `gemini-live`: the messages of Gemini's Live API.

There are no ids. The user's words and the model's answer, up to `turnComplete`, are an exchange n: `~uN` and `~aN`.
The model's words after a tool call are another reply, `~aN.1` and so on.

Transcriptions and the model's words come in no fixed order: a place is reserved for the user's words if the model
begins before they come. Once the model has generated all, words after an utterance with a text belong to the next one.

Notes: `exchange` (n), `part` (of its reply), `tool` (a tool was called since the part began), `begun` (the model has
begun in it), `turn` (of its reply), `generated` and `cut` (the reply's end, and when), `written` (its text is that of
`modelTurn`), `paused` (a transcription of its words was finished), `ahead` (the user's words belong to the next
exchange), `late` (they came after the reply), `said` (characters of the user's words that are not interim), `finished`
(the item with a finished transcription), `answered` (the model has begun since the last utterance), `prompted` (the
model continues without speech, after a text or a tool result; a number: in that turn), `resumed` (another connection
has begun in this exchange), `bytes` (of the reply's audio), `wordless` (audio before any words: its start, when it will
have been played, and its length), `timed` (the offset of the reply's first word, and the end of the last one),
`late_of` (the reply of the previous exchange, when it was cut or over, in the latter case its turn, and when its words
were made), `missing` (the user's item without words at the end of its exchange, and when that was; not in the first
exchange, where the agent may have greeted), `spoken`, `given`, `found` (`give`).
"""

from collections.abc import Iterable
from itertools import islice

from voicemem.dialects.dialect import AUDIO_BYTES, Dialect
from voicemem.dialects.gemini_live import frames
from voicemem.dialects.known import Known, KnownReply, Made, MadeEvent, Playing
from voicemem.dialects.translating import grown, space_between, timed_words, tool_call, tool_result, words_since
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, LlmDone, MessageEvent, ToolResult, Tts, Word
from voicemem.protocol.types import JsonObject

OF_EXCHANGE = (
    *("ahead", "begun", "turn", "generated", "cut", "late", "bytes"),
    *("part", "tool", "written", "paused", "resumed", "timed", "wordless"),
)
"""Notes about the current exchange."""
ANSWERED = "answered"
LATE_MS = 300
"""How long after an interruption or an exchange words of its reply may come, even after the user's next words."""
MISSING_MS = 500
"""How long after a reply was played the words that it answers may come: no one has said anything new by then."""
MAX_PARTS = 16
"""The most replies of one exchange that may wait to be played."""
OFF_COURSE = {"cut", "generated", "tool", "written", "paused", "resumed"}
"""Notes with which the current reply is not simply continued."""


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    """Return the events of one message. Most are audio or words of the current reply, so these are checked first."""
    notes = known.notes
    if "begun" in notes and OFF_COURSE.isdisjoint(notes):
        if frame.keys() == frames.ONLY_AUDIO:
            return (count_audio(frame, ts, known),)
        content = frame.get("serverContent", {})
        if len(frame) == len(content) == 1 and "outputTranscription" in content:
            return say(content["outputTranscription"], known)
    if "toolResponse" in frame:
        return tool_results(frame, known)
    if frame.keys() == {"toolCallCancellation"}:
        return cancel_tools(frame["toolCallCancellation"]["ids"], known)
    voice = frames.speaks(frame)
    if voice is not None:
        known.note_voice(voice, ts)
    added = frames.given_texts(frame)
    if added:
        return type_texts(added, ts, known)
    if "setupComplete" in frame:
        known.note("resumed", True)
        return known.connect()
    return (say_late if "late_of" in notes else server_events)(frame, ts, known)


def say_late(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle a message after the end of an exchange: words without audio that come at once belong to its reply."""
    item, ended, turn, since = known.notes["late_of"]
    content: JsonObject = frame.get("serverContent", {})
    text = output_of(content, known)[0].get("text")
    is_said = known.notes.get("prompted") or known.turn_of(f"~u{exchange(known)}") is not None
    is_new = turn is not None and ("outputTranscription" not in content or is_said)
    is_late = ts - ended <= LATE_MS or not known.has_clock
    if text and AUDIO_BYTES not in frame and is_late and not is_new:
        reply = known.reply(item)
        text = text.lstrip() if reply is None else text
        yield LlmDelta(item=item, text=text, ts=since, turn_id=turn if reply is None else None)
        if turn is not None and reply is None:
            yield LlmDone(item=item)
            yield Tts(item=item, done=True)
        rest = {name: one for name, one in content.items() if name not in ("outputTranscription", "modelTurn")}
        frame = frame | {"serverContent": rest}
    yield from server_events(frame, ts, known)


def server_events(frame: JsonObject, ts: int, known: Known) -> Made:
    content: JsonObject = frame.get("serverContent", {})
    cut = content.get("interrupted", False)
    output, is_transcribed = output_of(content, known)
    heard, interim = content.get("inputTranscription", {}), content.get("interimInputTranscription", {}).get("text", "")
    has_audio, is_heard = AUDIO_BYTES in frame, bool(heard.get("text") or interim)
    has_text = bool(output.get("text"))
    answers = has_text or has_audio or "modelTurn" in content or "toolCall" in frame
    if answers or is_heard:
        yield from settle_connection(is_heard, known)
    if answers and is_next(ts, known):  # another reply, although the end of the previous one was not sent
        yield from end_exchange(known, played=False)
    begins = answers and not known.notes.get("begun")
    are_next = cut and not begins  # a message begins one utterance at most
    if (heard or interim) and not are_next:
        yield from hear(heard, interim, begins, ts, known)
    if begins:
        yield from begin("text" in heard, known)
    yield from divide(has_audio, has_text, known)
    if output:
        yield from say(output, known, is_transcribed)
    if has_audio and not known.notes.get("cut"):
        yield count_audio(frame, ts, known)
    if content.get("generationComplete"):
        yield from generated(has_text, known)
    if cut:
        yield from interrupt(ts, known)
        if are_next and (heard or interim):
            yield from hear(heard, interim, False, ts, known)
    if "toolCall" in frame:
        yield from tool_calls(frame, known)
    if content.get("turnComplete"):
        note_missing(ts, known)
        yield from end_exchange(known, played=True, has_text=has_text, ts=ts)
        known.note("prompted", "interactionStatus" in content or known.notes.get("prompted"))


def output_of(content: JsonObject, known: Known) -> tuple[JsonObject, bool]:
    """Return the model's words, and whether they are a transcription, which takes precedence over its own text."""
    transcription: JsonObject = content.get("outputTranscription", {})
    if transcription:
        return transcription, True
    written = "".join(part["text"] for part in content.get("modelTurn", {}).get("parts", ()))
    is_under_way = known.notes.get("begun") and known.reply(reply_item(known)) is not None
    is_transcribed = is_under_way and not known.notes.get("written")
    return ({} if is_transcribed or not written else {"text": written}), False


def is_next(ts: int, known: Known) -> bool:
    """Return whether the model answers the user's words after its last reply; late words still belong to that one."""
    if known.turn_of(f"~u{exchange(known) + 1}") is None:
        return False
    cut = known.notes.get("cut")
    return "generated" in known.notes if cut is None else not (known.has_clock and ts - cut <= LATE_MS)


def settle_connection(is_heard: bool, known: Known) -> Made:
    """Settle a new connection once someone speaks: the model may continue its reply; the user begins an exchange."""
    is_resumed, typed = known.notes.get("resumed"), [*known.settle_given()]
    known.note("resumed", None)
    has_begun = known.notes.get("begun") or known.segment(f"~u{exchange(known)}") is not None
    if is_resumed and has_begun and (is_heard or typed):
        yield from end_exchange(known, played=False)
    if typed:
        yield from typed
        known.note_all(prompted=known.next_turn, answered=None)


def say(said: JsonObject, known: Known, is_transcribed: bool = True) -> Made:
    """Add to the model's words. A transcription may be repeated whole, or follow the text of the model's turn."""
    text, item = said.get("text", ""), reply_item(known)
    reply = known.reply(item)
    again = None
    if reply is None:
        text = text.lstrip()
    elif known.notes.get("written") and is_transcribed:
        again = text.lstrip()
    else:
        if len(text) + 2 > reply.length:
            again = grown(reply.text, text)
        if known.notes.get("paused") and text:
            text = space_between(reply.text, text) + text
    if text and not is_transcribed:
        known.note("written", True)
    elif text:
        known.forget("written", "paused")
    if said.get("finished"):
        known.note("paused", True)
    if again or text:
        turn = known.notes.get("turn")
        yield LlmDelta(item=item, text=again or text, whole=again is not None, turn_id=turn, ts=made_at(reply, known))
    yield from time_words(said.get("words") or (), item, known)


def made_at(reply: KnownReply | None, known: Known) -> int | None:
    """Return when words were spoken that come after the interruption of their audio; None for others."""
    cut, wordless = known.notes.get("cut"), known.notes.get("wordless")
    if cut is None or not known.has_clock:
        return None
    since: int = cut if wordless is None or reply is not None else wordless[0]
    return since


def span_of(word: JsonObject) -> tuple[int, int] | None:
    """Return the start and end of a word; None unless both are stated."""
    begin, end = frames.offset_ms(word.get("startOffset")), frames.offset_ms(word.get("endOffset"))
    return None if begin is None or end is None else (begin, end)


def time_words(raw: Iterable[JsonObject], item: str, known: Known) -> Made:
    """Yield the words of a reply with their times, counted from its first word."""
    timed = [(one["word"], *span) for one in raw if one.get("word") and (span := span_of(one)) is not None]
    if timed:
        zero, last = known.notes.get("timed") or (timed[0][1], 0)
        words = words_since(zero, timed)
        known.note("timed", [zero, max(last, *(word.end_ms for word in words))])
        yield Tts(item=item, words=words)


def playing(known: Known, reply: KnownReply, ts: int) -> Playing | None:
    """Return the playback of a reply at a time; without audio, by the times of its words."""
    by_audio, timed = reply.playing_at(ts), known.notes.get("timed")
    if timed is None or reply.total_audio_ms is not None or reply.item != reply_item(known):
        return by_audio
    return Playing(reply.begun, max(0, ts - reply.begun), timed[1])


def divide(has_audio: bool, has_text: bool, known: Known) -> Made:
    """Begin another reply after a tool call; but words of earlier audio may be late."""
    is_over = has_audio or (has_text and (not known.notes.get("bytes") or known.notes.get("tool") == ANSWERED))
    if is_over and known.notes.get("tool"):
        yield from known.complete(reply_item(known))
        known.note("part", known.notes.get("part", 0) + 1)
        known.forget("tool", "bytes", "generated", "written", "paused", "timed", "wordless")


def closed(ts: int, known: Known) -> Made:
    yield from known.settle_given()
    yield from measure(known)
    yield from known.close_by_clock(ts, lambda item: item.startswith("~a"), playing)


def exchange(known: Known) -> int:
    return int(known.notes.get("exchange", 1))


def reply_item(known: Known) -> str:
    part = known.notes.get("part")
    return f"~a{exchange(known)}.{part}" if part else f"~a{exchange(known)}"


def parts_unheard(known: Known) -> list[str]:
    """Return the replies of the exchange that may still be played: the newest, and earlier ones."""
    name, newest = f"~a{exchange(known)}", reply_item(known)
    replies = (reply.item or "" for reply in islice(known.open_replies(), MAX_PARTS))
    return [newest, *(item for item in replies if item != newest and item.split(".")[0] == name)]


def end_exchange(known: Known, played: bool, has_text: bool = False, ts: int | None = None) -> Made:
    """End an exchange. If the user did not interrupt, Gemini waited until all was played."""
    if known.notes.get("begun"):
        yield from generated(has_text, known)
        for item in parts_unheard(known) if played and "cut" not in known.notes else ():
            if known.reply(item) is not None or (has_text and item == reply_item(known)):
                yield Tts(item=item, done=True)
    else:
        yield from settle_words(known)
    note_late(ts, known)
    known.note("exchange", exchange(known) + 1)
    if not known.notes.get("ahead"):
        known.note("said", None)
    known.forget(*OF_EXCHANGE)


def note_late(ts: int | None, known: Known) -> None:
    """Note the end of an exchange, with a time if all was played: words of its reply may still come."""
    cut, late = known.notes.get("cut"), None
    if cut is not None and known.has_clock:
        late = [reply_item(known), cut, None, cut]
    elif cut is None and ts is not None and known.notes.get("bytes"):
        since = ts if known.reply(reply_item(known)) else known.notes.get("wordless", [ts])[0]
        late = [reply_item(known), ts, known.notes.get("turn", known.here), since if known.has_clock else None]
    known.note("late_of", late)


def note_missing(ts: int, known: Known) -> None:
    """Note the end of an exchange whose user's words may still come."""
    item = f"~u{exchange(known)}"
    segment = known.segment(item)
    is_missing = known.here > 1 and known.has_clock and segment is not None and not segment.text
    known.note("missing", [item, ts] if is_missing and "cut" not in known.notes else None)


def hear(heard: JsonObject, interim: str, final: bool, ts: int, known: Known) -> Made:
    """Add to the user's words; a transcription may be repeated whole."""
    item = f"~u{exchange(known)}"
    missing, since = known.notes.get("missing") or (item, None)
    if since is not None and not interim and not final and ts - since <= MISSING_MS:
        item, final = missing, True
    else:
        known.note("missing", None)
    segment = known.segment(item)
    if known.notes.get("generated") and not known.notes.get("late"):
        is_late = segment is not None and not segment.text
        known.note("late" if is_late else "ahead", True)
    if known.notes.get("ahead"):
        item = f"~u{exchange(known) + 1}"
        segment = known.segment(item)
        if segment is None:
            known.note("said", None)
    elif known.notes.get("begun"):
        final, interim = True, ""
    before = "" if segment is None else segment.text[: known.notes.get("said", 0)]
    piece = heard.get("text", "")
    is_finished = known.notes.get("finished") == item
    known.note("finished", item if heard.get("finished") or (is_finished and not piece) else None)
    gap = space_between(before, piece) if is_finished else ""
    text = (grown(before, piece) or before + gap + piece).lstrip()
    if piece:
        known.note("said", len(text))
    elif not interim:
        return
    turn = known.turn_of_speech(item, new_turn(known))
    if turn is not None:
        known.note("answered", None)
    said = text + ("" if final else interim)
    words, user, language = heard_words(heard), heard.get("speakerLabel"), heard.get("languageCode")
    at = known.said_by() if final else None
    yield Asr(item=item, text=said, final=final, turn_id=turn, words=words, user=user, language=language, ts=at)


def heard_words(heard: JsonObject) -> tuple[Word, ...] | None:
    """Return the words of a transcription with their times from its first word; None unless all are timed."""
    raw = heard.get("words") or ()
    spans = [span for one in raw if (span := span_of(one)) is not None]
    return timed_words(heard.get("text", ""), spans) if len(spans) == len(raw) else None


def type_texts(added: list[str | None], ts: int, known: Known) -> Made:
    """Handle turns that the app adds: history until someone speaks on a connection; then a last user turn was typed."""
    if frames.is_prompt(added[-1]):
        if known.notes.get("resumed") and known.notes.get("begun"):
            yield from end_exchange(known, played=False)
            known.note("resumed", None)
        known.note("prompted", True)
    if "spoken" not in known.notes:
        for text in added:
            if text is None:
                known.note("given", None)
            elif not frames.is_prompt(text):
                known.give(text, None, ts)
    elif added[-1] is not None and not frames.is_prompt(added[-1]):
        known.note_all(prompted=True, answered=None)
        yield MessageEvent(role="user", text=added[-1], source="message")


def new_turn(known: Known) -> int:
    """Return the turn of a new utterance: the same one until it is answered."""
    return known.next_turn if known.notes.get("answered") else known.utterance_turn()


def settle_words(known: Known) -> Made:
    """Make the user's words final: no more are expected."""
    item = f"~u{exchange(known)}"
    segment = known.segment(item)
    if segment is not None and segment.text and not segment.final:
        text = segment.text[: known.notes.get("said", 0)]
        yield Asr(item=item, text=text or segment.text, final=True, ts=known.said_by())


def begin(is_heard: bool, known: Known) -> Made:
    """Handle the model's start: the user's words are final, and words still to be recognised get a place."""
    item = f"~u{exchange(known)}"
    turn = known.turn_of(item)
    if known.notes.get("prompted"):
        prompted = known.notes["prompted"]
        turn = known.here if prompted is True else prompted
        yield from settle_words(known)
    elif turn is not None:
        if not is_heard:
            yield from settle_words(known)
    else:
        turn = new_turn(known)
        if not is_heard:
            yield Asr(item=item, text="", turn_id=turn)
    known.note_all(begun=True, late_of=None, missing=None, answered=True, turn=turn, prompted=None)


def generated(has_text: bool, known: Known) -> Made:
    """Handle the end of the model's generation; `has_text`: this message has more of its words."""
    item = reply_item(known)
    reply = known.reply(item)
    if has_text or (reply is not None and not reply.complete):
        yield LlmDone(item=item, turn_id=known.notes.get("turn"))
    known.note("generated", True)


def count_audio(frame: JsonObject, ts: int, known: Known) -> MadeEvent:
    count = known.notes.get("bytes", 0) + frame[AUDIO_BYTES]
    known.note("bytes", count)
    if known.has_clock and known.reply(reply_item(known)) is None:  # no words of it have come yet
        since, until, length_ms = known.notes.get("wordless", (ts, ts, 0))
        more_ms = frame[AUDIO_BYTES] * 500 // frame[frames.RATE]
        known.note("wordless", [since, max(ts, until) + more_ms, length_ms + more_ms])
    return Tts(item=reply_item(known), total_audio_ms=count * 500 // frame[frames.RATE])


def measure(known: Known) -> Made:
    """Report the audio's length again: audio comes before its words, so all words so far belong to it."""
    reply = known.reply(reply_item(known))
    if reply is not None and known.has_clock and reply.total_audio_ms is not None:
        yield Tts(item=reply.item, total_audio_ms=reply.total_audio_ms)


def interrupt(ts: int, known: Known) -> Made:
    """Handle the user's interruption of the model; before its first words there is nothing to cut."""
    if known.notes.get("begun") and not known.notes.get("cut"):
        known.note("cut", ts)
        if not known.notes.get("ahead"):
            known.note_all(ahead=True, said=None)
        yield from measure(known)
        for item in parts_unheard(known):
            wordless = known.notes.get("wordless")
            if wordless is not None and known.reply(item) is None:
                _, until, length_ms = wordless
                yield Interrupt(item=item, audio_end_ms=length_ms - max(0, until - ts), estimated=True)
            elif known.reply(item) is not None or not known.notes.get("part"):
                yield from known.interrupt_by_clock(item, ts, where=playing)


def tool_calls(frame: JsonObject, known: Known) -> Made:
    if known.notes.get("bytes") or known.reply(reply_item(known)) is not None:
        known.note("tool", True)
    for call in frame["toolCall"]["functionCalls"]:
        yield tool_call(call.get("id"), call["name"], call.get("args", {}), known.notes.get("turn"))


def tool_results(frame: JsonObject, known: Known) -> Made:
    results = frame["toolResponse"]["functionResponses"]
    if known.reply(reply_item(known)) is not None:
        known.note("tool", known.notes.get("tool") and ANSWERED)
    if not known.notes.get("begun"):
        known.note("prompted", True)
    turn = known.notes.get("turn", known.here)
    for result in results:
        yield tool_result(result.get("id"), result.get("response"), turn, result.get("name"))


def cancel_tools(ids: Iterable[str], known: Known) -> Made:
    """Handle tool calls whose results the model no longer needs, because the user interrupted."""
    turn = known.notes.get("turn", known.here)
    for id in ids:
        yield ToolResult(id=f"cancelled:{id}", call_id=id, result={"error": "cancelled"}, turn_id=turn)


GEMINI_LIVE = Dialect(
    name="gemini-live", version=8, reduce=frames.reduce, translate=translate, closed=closed, texts=frames.texts
)
