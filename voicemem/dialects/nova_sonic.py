"""The dialect `nova-sonic`: the events of Amazon Nova Sonic's bidirectional stream, `{"event": {KIND: …}}`.

The user's words come in blocks, each a content with an id: its item. The model's words come sentence by sentence, as
SPECULATIVE text, its audio, and, once Nova considers it spoken, as FINAL text. A reply `~rN` lasts from the user's
words, a tool, or `END_TURN`, to the next of these.

Audio is counted. Prompts, history and tool definitions are not kept: a text of the app's is only kept if it may have
been typed. Source: "Handling input events" and "Handling output events with the bidirectional API" of the Amazon Nova
user guides.

Notes: `rate` (of the audio, samples a second), `audio` (prompts whose audio has begun), `c:CONTENT` (for an open
content: the role and stage of its text, or AUDIO or LATE and the reply), `i:NAME` (the turn of a typed content, or the
call whose result a content has), `reply` (the number of the newest reply), `prompt` (of its stream), `joined` (only
FINAL texts of it have come), `over` (the next words are another reply), `b:REPLY` (bytes of its audio), `r:REPLY` (how
many of its characters are FINAL; and for each block, where its text and its audio, in ms, begin).
"""

import re
from collections.abc import Iterator
from typing import Any

from voicemem.dialects.dialect import AUDIO_BYTES, Dialect, Frame, MalformedFrame, RawFrame, Side, Text, UnknownFrame
from voicemem.dialects.kinds import ANYTHING, Kind, ignored, kept, optional, record
from voicemem.dialects.known import Known, KnownReply, Made
from voicemem.dialects.reading import audio_bytes, json_object, values
from voicemem.dialects.translating import space_between, tool_call, tool_result
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, MessageEvent, Tts
from voicemem.protocol.types import MAX_INTEGER, JsonObject

EVENT = "event"
REPLY, SPOKEN = "reply", "spoken"
"""The keys of the current reply's sentences, and of the current utterance's blocks."""
MAX_FIELDS = 4_096
"""The most bytes of `additionalModelFields`, and of a text that may be the mark of an interruption."""
CONTENT_START = record(
    "type role? contentId? contentName? promptName? generationStage?",
    interactive=optional(bool),
    audioOutputConfiguration=optional(record(sampleRateHertz=optional(int))),
    toolResultInputConfiguration=optional(record("toolUseId?")),
)
"""The vendor's contents have an id, the app's a name. `generationStage` comes in `additionalModelFields`."""


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    raw = json_object(frame, MAX_INTEGER)
    name, body = kind_and_body(raw)
    sender, record = sender_of(name, body, side), KINDS[name].record
    if record is None or (name == "contentEnd" and sender == "app"):
        return None
    if name == "contentStart":
        body = body | {"generationStage": stage_of(body)}
    elif name == "textOutput":
        body = marked(body)
    content = kept(record, body)
    if name == "textOutput" and not (content.get("content") or content.get("interrupted")):
        return None
    whole: JsonObject = {EVENT: {name: content}}
    if name == "audioOutput":
        count = audio_bytes(body if AUDIO_BYTES not in raw else raw, "content")
        return Frame({AUDIO_BYTES: count} | whole, side="vendor", counts_audio=True)
    if name == "textInput":
        return Frame(whole, side="app", typed=True, within=f"{content['contentName']}/contentStart")
    if name == "contentStart" and sender == "app":
        return app_content(whole, content)
    return Frame(whole, id=id_of(name, content), side=sender, session_id=content.get("sessionId"))


def app_content(whole: JsonObject, start: JsonObject) -> Frame | None:
    """Return the kept fields of a content that the app begins: the first audio, tool results, typed texts after audio.

    Contents before the audio are prompts, and the history of other connections.
    """
    audio, id = f"{start.get('promptName')}/audio", f"{start.get('contentName')}/contentStart"
    if start["type"] == "AUDIO":
        return Frame(whole, id=audio, side="app", opens=True)
    if start["type"] == "TOOL":
        return Frame(whole, id=id, side="app")
    is_typed = start.get("role") == "USER" and start.get("interactive") is not False
    return Frame(whole, id=id, side="app", opens=True, within=audio) if is_typed else None


def kind_and_body(raw: JsonObject) -> tuple[str, JsonObject]:
    """Return the kind of an event, and its body. Raises `MalformedFrame`, `UnknownFrame`."""
    event = raw.get(EVENT)
    if not isinstance(event, dict):
        if EVENT in raw or not raw:
            raise MalformedFrame("A frame of this dialect has an event.")
        raise UnknownFrame(str(next(iter(raw))))
    name = next((key for key in event if key in KINDS), None)
    if name is None:
        if event:
            raise UnknownFrame(str(next(iter(event))))
        raise MalformedFrame("An event of this dialect names its kind.")
    if not isinstance(event[name], dict):
        raise MalformedFrame("The body of an event of this dialect is an object.")
    return name, event[name]


def sender_of(name: str, body: JsonObject, side: Side | None) -> Side:
    """Return who sends an event. Raises `MalformedFrame` if it contradicts `side`, or is unknown."""
    sender = KINDS[name].side
    if sender is None:
        by_vendor = body.get("contentId") is not None or body.get("completionId") is not None
        if not by_vendor and body.get("contentName") is None:
            raise MalformedFrame("A content has a contentId or a contentName.")
        sender = "vendor" if by_vendor else "app"
    if side not in (None, sender):
        raise MalformedFrame("The other side sends events of this kind.")
    return sender


def stage_of(body: JsonObject) -> Any:
    """Return whether a text is SPECULATIVE or FINAL, from JSON in a text."""
    if "generationStage" in body:
        return body["generationStage"]
    fields = body.get("additionalModelFields")
    if isinstance(fields, str):
        fields = small_object(fields)
    stage = fields.get("generationStage") if isinstance(fields, dict) else None
    return stage if isinstance(stage, str) else None


def marked(body: JsonObject) -> JsonObject:
    """Return a text, or the mark of an interruption: a JSON object in place of a text."""
    content = body.get("content")
    mark = small_object(content) if isinstance(content, str) and content.lstrip().startswith("{") else None
    if mark is None or "interrupted" not in mark:
        return body
    return {key: one for key, one in body.items() if key != "content"} | {"interrupted": mark["interrupted"] is True}


def small_object(text: str) -> JsonObject | None:
    """Parse a short text as a JSON object; None if it is not one."""
    try:
        return json_object(text, MAX_FIELDS)
    except MalformedFrame:
        return None


def id_of(name: str, content: JsonObject) -> str | None:
    """An event's own id. A typed text has none: a long one comes in pieces, and some may be alike."""
    if name == "textOutput":
        return f"{content['contentId']}/{name}/{len(content.get('content', ''))}"
    fields = ("contentId", "contentName", "completionId", "promptName")
    return next((f"{content[field]}/{name}" for field in fields if field in content), None)


def texts(frame: JsonObject) -> Iterator[Text]:
    ((name, body),) = frame[EVENT].items()
    if name == "textOutput" and "content" in body:
        if body.get("role") == "USER":
            yield Text(body, "content", "piece", "user", SPOKEN)
        else:
            yield Text(body, "content", "sentence", item=body["contentId"])
    elif name == "textInput":
        yield Text(body, "content", "piece", "user", body["contentName"])
    elif name in ("toolUse", "toolResult"):
        yield from values(body, "content")
    elif name == "contentStart" and body.get("generationStage") == "SPECULATIVE":
        yield Text(None, "", "end", "user", SPOKEN)
    elif name == "contentStart" and body.get("role") == "USER":
        yield Text(None, "", "end", item=REPLY)


USUAL_RATE = 24_000
"""Samples a second of Nova's audio, of 16 bits each."""
KEPT = {"c:": 16, "i:": 8, "b:": 4}
"""How many of the newest notes of each kind are kept."""
KEPT_PROMPTS = 4
KEPT_REPLIES, KEPT_BLOCKS = 6, 40
SLACK_MS = 1_000
"""How much earlier than the clock Nova may report a sentence as spoken."""
WORD = re.compile(r"\w+")
CLOSING = re.compile(r"[^\w\s]*")
LOOK_AHEAD = 4_000
"""How many characters are searched for a sentence, if earlier ones were skipped."""
USER, SPECULATIVE, FINAL, AUDIO, LATE, UNKNOWN = "U", "S", "F", "A", "L", "?"
"""Kinds of contents; LATE is a text that was still to come when its reply was cut."""


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    ((name, body),) = frame[EVENT].items()
    if name == "audioOutput":
        return count_audio(body["contentId"], frame[AUDIO_BYTES], known)
    return KINDS[name].rule(body, ts, known)


def closed(ts: int, known: Known) -> Made:
    """Return the events for replies that were not heard to their end, unless the app reported playback."""
    for reply in unfinished(ts, known):
        if known.notes.get(f"r:{reply.item}", [0])[0] or not reply.has_playback:  # some of it is FINAL
            yield from stop_by_clock(reply, ts)


def stop_by_clock(reply: KnownReply, ts: int) -> Made:
    """Return the events for a reply's position by the clock; FINAL texts by then take precedence."""
    playing = reply.playing_at(ts)
    if playing is None:
        return
    if reply.complete and playing.is_over:
        yield Tts(item=reply.item, done=True, estimated=True, ts=playing.began + playing.total_ms)
    else:
        yield Interrupt(item=reply.item, audio_end_ms=playing.position_ms, estimated=True, ts=ts)


def note_one(key: str, value: object, known: Known) -> None:
    known.note_newest(key, value, KEPT[key[:2]])


def start_content(body: JsonObject, ts: int, known: Known) -> Made:
    if "contentId" not in body:
        start_app_content(body, known)
        return
    id, role, kind = body["contentId"], body.get("role"), body["type"]
    if kind == "AUDIO":
        note_rate(body, ts, known)
        note_one(f"c:{id}", [AUDIO, current(known)], known)
    elif kind == "TEXT" and role == "USER":
        note_one(f"c:{id}", [USER, None], known)
        if known.turn_of(id) is None:
            yield Asr(item=id, text="", turn_id=known.utterance_turn())
    elif kind == "TEXT" and role == "ASSISTANT":
        stage = {"SPECULATIVE": SPECULATIVE, "FINAL": FINAL}.get(body.get("generationStage", ""), UNKNOWN)
        note_one(f"c:{id}", [stage, body.get("promptName")], known)


def start_app_content(body: JsonObject, known: Known) -> None:
    """Handle a content of the app: audio begins the call, texts after that were typed, and a result names its call."""
    name, prompt = body.get("contentName"), body.get("promptName")
    prompts: list[str] = known.notes.get("audio", [])
    if body["type"] == "AUDIO":
        if prompt not in prompts:
            known.note("audio", [*prompts, prompt][-KEPT_PROMPTS:])
    elif body["type"] == "TOOL":
        call = body.get("toolResultInputConfiguration", {}).get("toolUseId")
        note_one(f"i:{name}", call, known)
    elif prompt in prompts:
        note_one(f"i:{name}", -1, known)


def end_content(body: JsonObject, ts: int, known: Known) -> Made:
    id, reason = body.get("contentId"), body.get("stopReason")
    if id is None:  # the completion ends
        if reason == "INTERRUPTED":
            yield from cut(ts, known)
        yield from finish(known)
        return
    kind, _ = known.notes.get(f"c:{id}", [AUDIO if body.get("type") == "AUDIO" else UNKNOWN, None])
    known.note(f"c:{id}", None)
    if reason == "INTERRUPTED" and kind != USER:
        yield from cut(ts, known)
    elif reason == "END_TURN" and kind == AUDIO:
        yield from finish(known)


def note_rate(body: JsonObject, ts: int, known: Known) -> Made:
    rate = body.get("audioOutputConfiguration", {}).get("sampleRateHertz")
    if rate is not None and rate > 0 and rate != known.notes.get("rate", USUAL_RATE):
        known.note("rate", rate)
    return ()


def take_text(body: JsonObject, ts: int, known: Known) -> Made:
    kind, prompt = known.notes.get(f"c:{body['contentId']}", [None, None])
    if body.get("interrupted"):
        return cut(ts, known)
    if "content" not in body:
        return ()
    text = body["content"]
    if kind == LATE:
        reply = known.reply(prompt)
        gap = space_between(reply.text if reply is not None else "", text)
        return (LlmDelta(item=prompt, text=gap + text),)
    if kind == USER or (kind is None and body.get("role") == "USER"):
        return hear(body["contentId"], text, known)
    if kind not in (FINAL, SPECULATIVE):  # it repeats the next words of a reply, or is new
        repeats = any(end_of(text, reply.text, confirmed) is not None for reply, confirmed in candidates(known))
        kind = FINAL if repeats else SPECULATIVE
    if kind == FINAL and (not known.notes.get("reply") or known.notes.get("joined")):
        return repeat(text, prompt, known)
    known.note("joined", None)
    return confirm(text, ts, known) if kind == FINAL else speak(text, prompt, known)


def hear(item: str, text: str, known: Known) -> Made:
    """Handle a block of the user's words; Nova sends no partials."""
    before, turn = known.text_of(item), known.turn_of_speech(item)
    if text.strip():
        yield from finish(known)
        yield Asr(item=item, text=before + space_between(before, text.strip()) + text.strip(), final=True, turn_id=turn)


def take_typed(body: JsonObject, ts: int, known: Known) -> Made:
    """Handle a text that is typed during the call; a long one comes in pieces, which stay in one turn."""
    name = body["contentName"]
    turn = known.notes.get(f"i:{name}")
    if isinstance(turn, int) and body["content"].strip():
        turn = known.next_turn if turn < 0 else turn
        yield from finish(known)
        note_one(f"i:{name}", turn, known)
        yield MessageEvent(role="user", text=body["content"], source="message", turn_id=turn)


def current(known: Known) -> str:
    return f"~r{known.notes.get('reply', 0)}"


def speak(text: str, prompt: str | None, known: Known) -> Made:
    if not text.strip():
        return
    if known.notes.get("over", True) or (prompt is not None and prompt != known.notes.get("prompt")):
        yield from finish(known)
        known.note_all(reply=known.notes.get("reply", 0) + 1, prompt=prompt, over=False)
    item = current(known)
    reply = known.reply(item)
    before = "" if reply is None else reply.text
    gap = space_between(before, text)
    confirmed, blocks = known.notes.get(f"r:{item}", [0, []])
    block = [len(before + gap), audio_ms(known.notes.get(f"b:{item}", 0), known)]
    known.note_newest(f"r:{item}", [confirmed, [*blocks, block][-KEPT_BLOCKS:]], KEPT_REPLIES)
    yield LlmDelta(item=item, text=gap + text, turn_id=known.here if reply is None else None)


def repeat(text: str, prompt: str | None, known: Known) -> Made:
    """Add a spoken sentence of a reply that began before the stream was joined."""
    if not text.strip():
        return
    yield from speak(text, prompt, known)
    before = known.text_of(current(known))
    heard = before + space_between(before, text) + text
    known.note("joined", True)
    known.note_newest(f"r:{current(known)}", [len(heard), []], KEPT_REPLIES)
    yield Tts(item=current(known), heard_text=heard)


def finish(known: Known) -> Made:
    """End the current reply: Nova's next words are another one."""
    if known.notes.get("over", True):
        return
    known.note("over", True)
    yield from known.complete(current(known))


def count_audio(content: str, count: int, known: Known) -> Made:
    _, item = known.notes.get(f"c:{content}", [AUDIO, current(known)])
    key = f"b:{item}"
    total = known.notes.get(key, 0) + count
    if key in known.notes:
        known.note(key, total)
    else:
        note_one(key, total, known)
    yield Tts(item=item, total_audio_ms=audio_ms(total, known))


def audio_ms(count: int, known: Known) -> int:
    rate: int = known.notes.get("rate", USUAL_RATE)
    return count * 500 // rate


def cut(ts: int, known: Known) -> Made:
    """Handle the user's interruption of the reply that plays, and of those that wait behind it."""
    known.note("over", True)
    for key, (kind, _) in [one for one in known.notes.items() if one[0].startswith("c:")]:
        if kind == SPECULATIVE and known.reply(current(known)) is not None:
            known.note(key, [LATE, current(known)])
    for reply in unfinished(ts, known):
        if known.has_clock or reply.item == current(known):
            yield from cut_reply(reply, ts, known)


def cut_reply(reply: KnownReply, ts: int, known: Known) -> Made:
    assert reply.item is not None
    playing = reply.playing_at(ts) if known.has_clock else None
    is_over = playing is not None and playing.is_over
    if playing is not None and reply.has_playback and not is_over:
        yield Interrupt(item=reply.item, audio_end_ms=playing.position_ms, estimated=True)
    elif reply.item == current(known) or (playing is not None and not is_over):
        yield from known.interrupt_by_clock(reply.item, ts)


def call_tool(body: JsonObject, ts: int, known: Known) -> Made:
    id, arguments = body["toolUseId"], body.get("content")
    yield from finish(known)
    yield tool_call(id, body["toolName"], {} if arguments is None else arguments, known.here)


def return_result(body: JsonObject, ts: int, known: Known) -> Made:
    """Handle the result of a call, which the beginning of the content names."""
    id = known.notes.get(f"i:{body['contentName']}")
    if isinstance(id, str):
        yield tool_result(id, body.get("content"), known.here)


# FINAL texts
#
# They may come late, after the user's next words, and do not name their reply: it is found by the words. Nova makes
# audio faster than it is played, so a sentence counts as heard once it can have been played by the clock.


def replies(known: Known) -> Iterator[KnownReply]:
    for key in known.notes:
        reply = known.reply(key[2:]) if key.startswith("r:") else None
        if reply is not None:
            yield reply


def unfinished(ts: int, known: Known) -> Iterator[KnownReply]:
    """Yield the replies that may still play; FINAL text may be heard later than now."""
    for reply in replies(known):
        ended = reply.ended
        if reply.cut == "no" and (ended is None or (known.has_clock and ended > ts)):
            yield reply


def candidates(known: Known) -> list[tuple[KnownReply, int]]:
    """Return the replies that may get FINAL texts, and how much of each is FINAL, in the order of the search.

    A reply that was cut before another began hardly gets any, so such replies come last.
    """
    pairs = [(reply, known.notes[f"r:{reply.item}"][0]) for reply in replies(known)]
    return sorted(pairs, key=lambda one: one[0].cut != "no" and one is not pairs[-1])


def confirm(text: str, ts: int, known: Known) -> Made:
    """Handle a spoken sentence: with the text before it in its reply, it is the heard text."""
    place = place_of(text, known)
    if place is None:
        return
    reply, end = place
    assert reply.item is not None
    _, blocks = known.notes[f"r:{reply.item}"]
    heard = reply.text[:end]
    later = {key: value for key, value in known.notes.items() if key.startswith("r:")}
    for key, value in later.items():  # noted again, because the order of notes is that of the replies
        known.note(key, [end, blocks] if key == f"r:{reply.item}" else value)
    if reply.cut != "no":
        yield Interrupt(item=reply.item, heard_text=heard)
        return
    starts = [start for start, _ in blocks]
    is_whole = len(heard.rstrip()) == len(reply.text.rstrip()) or any(
        len(heard) <= at <= len(heard) + 1 for at in starts
    )
    yield Tts(item=reply.item, heard_text=heard, ts=played_at(reply, end, ts, known) if is_whole else None)


def place_of(text: str, known: Known) -> tuple[KnownReply, int] | None:
    """Return the reply of a sentence, and its end there: at the expected place, else further on."""
    for find in (end_of, end_after):
        for reply, confirmed in candidates(known):
            end = find(text, reply.text, confirmed)
            if end is not None:
                return reply, end
    return None


def end_of(text: str, said: str, start: int) -> int | None:
    """Return the end of `text` in `said` at `start`, word for word; its last word may be cut off."""
    words = WORD.findall(text)
    end = None
    scan = WORD.finditer(said, start)
    for number, word in enumerate(words):
        match = next(scan, None)
        if match is None:
            return None
        said_word, folded = match[0].casefold(), word.casefold()
        if said_word == folded:
            end = match.end()
        elif number == len(words) - 1 and said_word.startswith(folded):
            return match.start() + len(word)
        else:
            return None
    closing = None if end is None else CLOSING.match(said, end)
    if closing is None:
        return None
    marks = len(text.rstrip()) - [*WORD.finditer(text)][-1].end()
    return min(closing.end(), closing.start() + marks)


def end_after(text: str, said: str, start: int) -> int | None:
    """Return the end of `text` in `said` anywhere after `start`."""
    first = WORD.search(text)
    if first is None:
        return None
    for match in WORD.finditer(said, start, start + LOOK_AHEAD):
        if match[0].casefold() == first[0].casefold():
            end = end_of(text, said, match.start())
            if end is not None:
                return end
    return None


def played_at(reply: KnownReply, end: int, ts: int, known: Known) -> int | None:
    """Return the earliest time at which the audio up to a character can have been played, if it is later than `ts`."""
    playing = reply.playing_at(ts) if known.has_clock else None
    if playing is None:
        return None
    _, blocks = known.notes[f"r:{reply.item}"]
    audio_ms = next((at for start, at in blocks if start >= end), playing.total_ms)
    due = playing.began + audio_ms - SLACK_MS
    return due if due > ts else None


KINDS: dict[str, Kind] = {
    "contentStart": Kind(None, CONTENT_START, start_content),
    "contentEnd": Kind(None, record("contentId type? stopReason?"), end_content),
    "completionStart": Kind("vendor", record("sessionId? completionId?")),
    "textOutput": Kind("vendor", record("contentId role? content?", interrupted=optional(bool)), take_text),
    "audioOutput": Kind("vendor", record("contentId")),
    "toolUse": Kind("vendor", record("toolUseId toolName contentId?", content=ANYTHING), call_tool),
    "completionEnd": Kind("vendor", record("completionId? stopReason?"), end_content),
    "promptStart": Kind(
        "app",
        record("promptName?", audioOutputConfiguration=optional(record(sampleRateHertz=optional(int)))),
        note_rate,
    ),
    "textInput": Kind("app", record("contentName content"), take_typed),
    "toolResult": Kind("app", record("contentName", content=ANYTHING), return_result),
    "sessionEnd": Kind("app", record()),  # only its time matters
    **ignored("vendor", "usageEvent"),
    **ignored("app", "sessionStart audioInput promptEnd"),
}
NOVA_SONIC = Dialect(name="nova-sonic", version=4, reduce=reduce, translate=translate, closed=closed, texts=texts)
