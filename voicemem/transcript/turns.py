"""The turns of a call with causes and latencies, in the form of Agora's `/turns`, and the times of their parts."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from voicemem.protocol.types import MAX_INTEGER
from voicemem.transcript.history import known_reply_entry
from voicemem.transcript.replies import playing
from voicemem.transcript.replies.evidence import Source, first_entries, last_entries
from voicemem.transcript.speech import spoken_segments
from voicemem.transcript.state import Reply, Segment, State, Turn
from voicemem.transcript.timeline import AFTER_ALL

START_TYPES = {"greeting": "greeting", "silence": "silence_timeout", "command": "api_speak"}
"""By the source of the reply that began the turn. Any other turn began with the user's voice, except the one before
all utterances, which the agent's greeting began."""
BEFORE_UTTERANCES = 0
TYPED_START_TYPES = {"command": "api_think", "asr": "voice_input"}
"""The start's type by the source of a whole user message, which is `asr` in a restored memory."""
END_TO_END = ("e2e", "e2e_latency", "e2e_latency_ms")
CHARACTER_MS = 60
"""The assumed duration of a character, if only the end of an utterance is known."""
MAX_SPOKEN_MS = 60_000
"""The longest assumed duration of an utterance of which only the end is known."""
VOICE_MS = 150
"""The assumed time from the first text to the voice, if only the text is known."""
FIRST_AUDIO = "tts_ttfb"
"""The latency that a pipeline reports when the audio of a reply begins."""
FAILURES = ("is_error", "isError", "error")
"""Fields that mark the result of a tool call as failed, if they are neither false nor empty."""


def turns(state: State, marks: bool = False) -> Iterator[dict[str, Any]]:
    """Return one object per turn; times are Unix ms, and `end` is null while the turn continues."""
    return (turn_report(state, turn, marks) for turn in state.each_turn())


def turn_report(state: State, turn: Turn, marks: bool = False) -> dict[str, Any]:
    """Return one turn with its false alarms and, on request, the times of its parts and of its tool calls."""
    replies = marks_of_replies(state, turn)
    after = reply_after(state, turn, replies)
    report = turn_object(state, turn) | {
        "reply_after_ms": after.ms,
        "reply_after_by": after.by,
        "false_alarms": count_false_alarms(state, turn),
    }
    return report | {"marks": turn_marks(state, turn, replies), "tools": list(tool_marks(turn))} if marks else report


def turn_object(state: State, turn: Turn) -> dict[str, Any]:
    """Return one turn, without the ids of its call, which the state does not know."""
    return {
        "turn_id": turn.number,
        "start": turn_start(state, turn),
        "end": turn_end(state, turn),
        "metrics": turn_metrics(turn),
    }


def turn_start(state: State, turn: Turn) -> dict[str, Any] | None:
    begins = [(segment.begin, "voice_input") for segment in spoken_segments(state, turn)]
    begins += [
        (typed.begin, TYPED_START_TYPES.get(str(typed.metadata.get("source")), "message")) for typed in turn.typed or ()
    ]
    if not begins:
        usual = "greeting" if turn.number == BEFORE_UTTERANCES else "voice_input"
        replies = playing.each_standing_reply(state, turn)
        begins = [(reply.begin, START_TYPES.get(reply.source, usual)) for reply in replies]
    if not begins:
        return None
    start_at, kind = min(begins)
    return {"start_at": start_at, "type": kind, "metadata": {}}


def turn_end(state: State, turn: Turn) -> dict[str, Any] | None:
    playing.settle(state)
    replies = partial(playing.each_standing_reply, state, turn)
    cuts = [cut for reply in replies() for cut in cuts_of(state, reply)]
    if cuts:
        end_at, cause = min(cuts, key=itemgetter(0))
        return {"end_at": end_at, "type": "interrupted", "metadata": {"caused_by": cause or "start_of_speech"}}
    if turn.failure is not None:
        details = {} if turn.failure.code is None else {"details": str(turn.failure.code)}
        return {"end_at": turn.failure.ts, "type": "error", "metadata": {"reason": "LLM_REQUEST_ERR", **details}}
    if {reply.generation.complete for reply in replies()} == {True}:
        dones = [done.ts for reply in replies() for done in last_entries(playing.sources_of(state, reply), "dones")]
        end_at = max(dones or [reply.generation.ended_ts or reply.begin for reply in replies()])
        return {"end_at": end_at, "type": "ok", "metadata": {}}
    return None if state.closed_ts is None else {"end_at": state.closed_ts, "type": "ok", "metadata": {}}


def cuts_of(state: State, reply: Reply) -> list[tuple[int, str | None]]:
    """Return the interruptions of a reply, with causes. For a restored one, the metadata have the time, and an event
    of the fork the cause."""
    sources = playing.sources_of(state, reply)
    if reply.restored:
        known = [(cut.ts, cut.cause) for source in sources for cut in source.interruptions()]
        return known or [(restored_cut_ts(reply), None)]
    if reply.cut_ts is not None:
        first = playing.marking_cut(state, reply, sources)
        return [] if first is None else [(first.ts, first.cause)]
    if playing.is_cut(state, reply) and state.closed_ts is not None:
        return [(state.closed_ts, state.close_reason)]
    return []


def restored_cut_ts(reply: Reply) -> int:
    """Return when a restored reply was cut, by its metadata."""
    ts = (reply.metadata or {}).get("interrupt_timestamp", (0, 0, None))[2]
    return ts if isinstance(ts, int) else reply.begin


def turn_metrics(turn: Turn) -> dict[str, Any]:
    segments, whole = turn_latencies(turn)
    metrics = {"segmented_latency_ms": [{"name": name, "latency": latency} for name, latency in segments.items()]}
    return metrics if whole is None else {"e2e_latency_ms": whole, **metrics}


def turn_latencies(turn: Turn) -> tuple[dict[str, float], float | None]:
    """Return the newest reported latency of each stage by name, and the end-to-end latency, in ms."""
    newest = {latency.name: compact_number(latency.latency_ms) for latency in turn.latencies or ()}
    whole = next((newest.pop(name) for name in END_TO_END if name in newest), None)
    return newest, whole


def is_end_to_end(name: str) -> bool:
    return name in END_TO_END


def compact_number(value: float) -> float:
    return int(value) if abs(value) <= MAX_INTEGER and value == int(value) else value


# The times of a turn's parts, for a picture of it: all are the `ts` of events, or derived from them


class TurnMarks(Struct, frozen=True):
    """The times of a turn's parts, in Unix ms; null if it has not happened or is not known."""

    user_started: int | None = None
    user_ended: int | None = None
    user_final: int | None = None
    llm_first: int | None = None
    llm_done: int | None = None
    heard_first: int | None = None
    heard_last: int | None = None
    cut: int | None = None
    resumed: int | None = None
    estimated: tuple[str, ...] = ()
    """The names of the times that are estimated."""


class ToolMarks(Struct, frozen=True):
    """The times of a tool call and of its result; `failed` if the result says so."""

    name: str
    call_id: str
    started: int
    ended: int | None
    failed: bool


class ReplyMarks(Struct, frozen=True):
    """The marks of one reply: the LLM from `first` to `done`, the voice from `heard_first` to `heard_last`."""

    first: int | None = None
    done: int | None = None
    heard_first: int | None = None
    heard_last: int | None = None
    cut: int | None = None
    resumed: int | None = None
    is_begin_estimated: bool = False
    is_end_estimated: bool = False
    is_begin_played: bool = False
    """True if playback, rather than a latency or a guess, gives the start of the voice."""


def marks_of_replies(state: State, turn: Turn) -> list[ReplyMarks]:
    playing.settle(state)
    audio = first_audio(turn, [reply.begin for reply in playing.each_standing_reply(state, turn)])
    standing = enumerate(playing.each_standing_reply(state, turn))
    return [reply_marks(state, reply, audio.get(place)) for place, reply in standing]


def turn_marks(state: State, turn: Turn, replies: Sequence[ReplyMarks] | None = None) -> TurnMarks:
    """Return the marks of a turn; those of several replies reach from the first to the last."""
    replies = marks_of_replies(state, turn) if replies is None else replies
    user_started, is_estimate, user_ended, user_final = user_marks(state, turn)
    dones = [one.done for one in replies]
    first, last = extreme(min, replies, "heard_first"), extreme(max, replies, "heard_last")
    estimated = {
        "user_started": is_estimate,
        "heard_first": any(one.is_begin_estimated and one.heard_first == first for one in replies),
        "heard_last": any(one.is_end_estimated and one.heard_last == last for one in replies),
    }
    return TurnMarks(
        user_started=user_started,
        user_ended=user_ended,
        user_final=user_final,
        llm_first=extreme(min, replies, "first"),
        llm_done=None if None in dones else extreme(max, replies, "done"),
        heard_first=first,
        heard_last=last,
        cut=extreme(min, replies, "cut"),
        resumed=extreme(max, replies, "resumed"),
        estimated=tuple(name for name, is_estimated in estimated.items() if is_estimated),
    )


def extreme(of: Callable[..., int | None], replies: Iterable[ReplyMarks], name: str) -> int | None:
    return of((ts for one in replies if (ts := getattr(one, name)) is not None), default=None)


def user_marks(state: State, turn: Turn) -> tuple[int | None, bool, int | None, int | None]:
    """Return when the caller began, whether that is an estimate, when they ended, and when the last final came."""
    said = [one for one in spoken_segments(state, turn) if one.text]
    # Only the end of a lone final is known.
    lone = [(one, one.final and one.begin == one.newest_ts) for one in said]
    begins = [(one.begin - spoken_ms(one.text) if is_lone else one.begin, is_lone) for one, is_lone in lone]
    finals = [one for one in said if one.final]
    typed = [one.begin for one in turn.typed or ()]
    start, is_estimate = min([*begins, *((ts, False) for ts in typed)], default=(None, False))
    ended = max([*(end for _, end in spoken_spans(state, turn)), *typed], default=None)
    return start, is_estimate, ended, max([*(one.final_ts for one in finals), *typed], default=None)


def spoken_spans(state: State, turn: Turn) -> list[tuple[int, int]]:
    """Return the spans of the caller's finals; if there are none, those of ended speech that has no words yet."""
    segments = spoken_segments(state, turn)
    ended = [one for one in segments if one.final and one.text] or [one for one in segments if one.end_ms is not None]
    return [(one.begin, speech_end(one)) for one in ended]


def speech_end(segment: Segment) -> int:
    """Return the end of a segment's speech: by the recogniser's times if known, else by its newest text."""
    newest_ts = segment.final_ts if segment.final else segment.newest_ts
    if segment.end_ms is None or segment.begin >= newest_ts:
        return newest_ts
    return max(segment.begin, min(newest_ts, segment.begin + segment.end_ms - (segment.start_ms or 0)))


def spoken_ms(text: str) -> int:
    return min(MAX_SPOKEN_MS, CHARACTER_MS * len(text))


def first_audio(turn: Turn, begins: list[int]) -> dict[int, int]:
    """Return the reported first audio of each reply, by place; a report is about the newest reply by then."""
    first: dict[int, int] = {}
    for one in turn.latencies or ():
        if one.name == FIRST_AUDIO:
            place = max(0, bisect_right(begins, one.ts) - 1)
            first[place] = min(one.ts, first.get(place, one.ts))
    return first


def reply_marks(state: State, reply: Reply, audio_ts: int | None) -> ReplyMarks:
    """Return the marks of one reply, whose first audio was reported at `audio_ts`."""
    sources = playing.sources_of(state, reply)
    cut = cut_ts(state, reply, sources)
    if reply.heard_only or reply.restored:  # only its cut is known
        return ReplyMarks(heard_last=cut, cut=cut, done=reply.generation.ended_ts if reply.restored else None)
    begin, known_by = heard_first(reply, sources, audio_ts)
    if begin is not None and cut is not None:
        begin = min(begin, cut)
    end, is_end_estimated = heard_last(state, reply, sources) if cut is None else (cut, False)
    return ReplyMarks(
        first=reply.text_ts if reply.text_ts < AFTER_ALL else None,
        done=ended_ts(state, reply),
        heard_first=begin,
        heard_last=end if end is None or begin is None else max(begin, end),
        cut=cut,
        resumed=reply.resumed_ts,
        is_begin_estimated=known_by == "guess",
        is_end_estimated=is_end_estimated,
        is_begin_played=known_by == "playback",
    )


def cut_ts(state: State, reply: Reply, sources: list[Source]) -> int | None:
    """Return when a reply was cut, unless it resumed. The time of a close is by the clock of the reply's producer."""
    if reply.restored:
        return restored_cut_ts(reply)
    if reply.cut_ts is not None:
        first = playing.marking_cut(state, reply, sources)
        return None if first is None else first.ts
    if state.closed_ts is None or not playing.is_cut(state, reply):
        return None
    return state.clock_of(reply.producer, state.closed_ts) if state.ended_ts is None else state.ended_ts


def ended_ts(state: State, reply: Reply) -> int | None:
    """Return the end of a reply's generation. If the service's close ended it, its producer's clock counts."""
    ts = reply.generation.ended_ts
    if ts is None or ts != state.closed_ts or state.ended_ts is not None:
        return ts
    return state.clock_of(reply.producer, ts)


def heard_first(
    reply: Reply, sources: list[Source], audio_ts: int | None
) -> tuple[int | None, Literal["playback", "latency", "guess"]]:
    """Return when the voice of a reply began, and by what evidence; only playback may put it before the text."""
    began = min((one.ts for one in first_entries(sources, "starts")), default=None)
    if began is not None:
        return began, "playback"
    played = min((one.ts - one.value for one in first_entries(sources, "audio")), default=None)
    if played is not None:
        return max(played, reply.text_ts), "playback"
    if audio_ts is not None:
        return audio_ts, "latency"
    begin = min((one.ts - one.value for one in first_entries(sources, "estimated_audio")), default=None)
    made = min((one.ts for one in first_entries(sources, "totals")), default=None)
    if begin is not None or reply.text_ts == AFTER_ALL:
        return None if begin is None else max(begin, reply.text_ts), "guess"
    return reply.text_ts + VOICE_MS if made is None else max(made, reply.text_ts), "guess"


def heard_last(state: State, reply: Reply, sources: list[Source]) -> tuple[int | None, bool]:
    """Return when the voice of a reply ended, or was last known to play, and whether that is an estimate."""
    for names in (("dones",), ("starts", "audio", "estimated_audio", "texts", "estimated_texts")):
        ends = [last.ts for last in last_entries(sources, *names)]
        if ends:
            return max(ends), False
    deltas = reply.generation.deltas
    known = [deltas.ts(-1) if deltas.marks else None, ended_ts(state, reply)]
    return max((ts for ts in known if ts is not None), default=None), True


def count_false_alarms(state: State, turn: Turn) -> int:
    """Return how often a reply of a turn resumed after an interruption."""
    playing.settle(state)
    resumed = (reply for reply in playing.each_standing_reply(state, turn) if reply.resumed_ts is not None)
    return sum(1 for reply in resumed for _ in playing.false_alarms_of(state, reply, playing.sources_of(state, reply)))


class ReplyAfter(NamedTuple):
    """The caller's wait for the agent's voice; `by` is the kind of evidence."""

    ms: int | float | None = None
    by: Literal["marks", "reported", "estimate"] | None = None


def reply_after(state: State, turn: Turn, replies: Sequence[ReplyMarks] | None = None) -> ReplyAfter:
    """Return the time from the end of the caller's speech to the first audio of the reply to it.

    Playback takes precedence over the stack's own end-to-end latency, and that over an estimate.
    """
    if not (turn.segments or turn.typed or turn.latencies):
        return ReplyAfter()
    first, ms = waited(state, turn, marks_of_replies(state, turn) if replies is None else replies)
    _, whole = turn_latencies(turn)
    if whole is not None and (first is None or not first.is_begin_played):
        return ReplyAfter(whole, "reported")
    return ReplyAfter() if first is None else ReplyAfter(ms, "estimate" if first.is_begin_estimated else "marks")


def waited(state: State, turn: Turn, replies: Sequence[ReplyMarks]) -> tuple[ReplyMarks | None, int]:
    """Return the first reply to the caller, and how long they waited for it; None if the marks do not show it."""
    spoken = [*spoken_spans(state, turn), *((one.begin, one.begin) for one in turn.typed or ())]
    began = min(spoken, default=(AFTER_ALL,))[0]
    pairs = zip(playing.each_standing_reply(state, turn), replies, strict=True)
    heard = (
        (one.heard_first, one)
        for reply, one in pairs
        if one.heard_first is not None and one.heard_first >= began and was_heard(state, reply, one)
    )
    heard_ms, first = min(heard, key=itemgetter(0), default=(0, None))
    if first is None:
        return None, 0
    ms = heard_ms - max(end for begin, end in spoken if begin <= heard_ms)
    # A transcript that comes after the reply has begun does not show when its words were said.
    return (None, 0) if ms < 0 else (first, ms)


def was_heard(state: State, reply: Reply, marks: ReplyMarks) -> bool:
    """Return whether any of a reply was heard, as far as is known."""
    if marks.cut is None:
        return True
    entry = known_reply_entry(state, reply, unfinished=True)
    return entry is not None and bool(entry.message.content.strip())


def reply_afters(state: State) -> list[float]:
    """Return the caller's known waits in all turns, in ms, the shortest first."""
    latencies = (reply_after(state, turn).ms for turn in state.each_turn())
    return sorted(ms for ms in latencies if ms is not None)


def tool_marks(turn: Turn) -> Iterator[ToolMarks]:
    for record in turn.tool_calls or ():
        if record.name is not None:
            result = msgspec.json.decode(record.result)
            failed = isinstance(result, dict) and any(result.get(name) for name in FAILURES)
            yield ToolMarks(record.name, record.call_id, record.ts, record.answered_ts, failed)
