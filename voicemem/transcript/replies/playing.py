"""Replies in order: the evidence about each, and which are playing, were heard or cut (docs/memory.md, rules 4-5).

Evidence that names only a turn is about its newest reply begun by then, else the next one to begin. So each reply has a
window of time, from its start to that of the next one in its turn; the window of the first has no start, since playback
or an interrupt may have an earlier `ts` than the first text. Evidence that names an item is about its reply, and after
an error with text about the failure message.

The lists in the state find "the oldest reply that …" by bisection. An event only notes the replies that it is about;
`settle` brings the lists up to date before they are read.
"""

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from operator import itemgetter

from voicemem.transcript.replies.evidence import (
    BY_TIME,
    POSITIONS,
    Interruption,
    Source,
    TimedWord,
    has_progress,
    largest_total,
    may_show_end,
    measured_text,
    timelines,
    was_played,
)
from voicemem.transcript.replies.matching import WordMatch
from voicemem.transcript.state import Reply, ReplyKey, State, Turn, put
from voicemem.transcript.timeline import AFTER_ALL, BEFORE_ALL, Entry, TextTimeline, WholeText
from voicemem.transcript.whole_words import after_closing_marks, whole_word_end

LAST_ID = AFTER_ALL


def standing_keys(state: State) -> list[ReplyKey]:
    """Return the keys of the replies that ever had text and are not cancelled, in order."""
    return state.begun if state.standing is None else state.standing


def standing_replies(state: State, turn: Turn) -> list[Reply]:
    return [*each_standing_reply(state, turn)]


def each_standing_reply(state: State, turn: Turn) -> Iterator[Reply]:
    keys = standing_keys(state)
    first, stop = bisect_left(keys, (turn.number,)), bisect_left(keys, (turn.number + 1,))
    return state.each_reply([key[2] for key in keys[first:stop]])


def neighbours(keys: list[ReplyKey], key: ReplyKey) -> tuple[ReplyKey | None, ReplyKey | None]:
    """Return the neighbours of a reply in its turn; the reply itself need not be in the list."""
    place = bisect_left(keys, key)
    before = keys[place - 1] if place and keys[place - 1][0] == key[0] else None
    place += place < len(keys) and keys[place] == key
    after = keys[place] if place < len(keys) and keys[place][0] == key[0] else None
    return before, after


def key_at(keys: list[ReplyKey], turn: int, ts: int) -> ReplyKey | None:
    """Return the reply meant by an event of this time that names only the turn."""
    place = bisect_right(keys, (turn, ts, LAST_ID)) - 1
    if place >= 0 and keys[place][0] == turn:
        return keys[place]
    return keys[place + 1] if place + 1 < len(keys) and keys[place + 1][0] == turn else None


def sources_of(state: State, reply: Reply, keys: list[ReplyKey] | None = None) -> list[Source]:
    """Return all evidence about a reply, with its window among the replies `keys`, by default the standing ones."""
    sources = [] if reply.own is None else [Source(reply.own)]
    if reply.item is not None and (evidence := state.item_evidence.get(reply.item)) is not None:
        sources.append(Source(evidence, *item_validity(state, reply)))
    evidence = state.turns[reply.turn].evidence
    if evidence is not None:
        before, after = neighbours(standing_keys(state) if keys is None else keys, reply.key)
        since, until = BEFORE_ALL if before is None else reply.begin, AFTER_ALL if after is None else after[1]
        sources.append(Source(evidence, since, until))
    return sources


def item_validity(state: State, reply: Reply) -> tuple[int, int]:
    """Return the window of time in which its item means this reply."""
    assert reply.item is not None
    failures = state.item_failures.get(reply.item)
    if not failures:
        return BEFORE_ALL, AFTER_ALL
    if not reply.is_failure:
        return BEFORE_ALL, failures[0][0]
    place = bisect_left(failures, (reply.begin, reply.id))
    return reply.begin, failures[place + 1][0] if place + 1 < len(failures) else AFTER_ALL


def reply_of_item(state: State, item: str, ts: int) -> Reply | None:
    """Return the reply meant by an event of this time that names the item; None while it has not begun."""
    failures = state.item_failures.get(item) if state.item_failures else None
    place = bisect_right(failures, (ts, LAST_ID)) - 1 if failures else -1
    if failures and place >= 0:
        return state.replies[failures[place][1]]
    id = state.item_replies.get(item)
    reply = None if id is None else state.replies[id]
    if reply is not None and reply.shown:
        return reply
    id = state.heard_only_items.get(item)
    return reply if id is None else state.replies[id]


# False alarms: which reply a `resume` is about, and which interruptions it withdraws


def interruption_stack(state: State, number: int) -> list[tuple[ReplyKey, int]]:
    """Return the replies of a turn that were interrupted before all later ones, with the times of the interruptions.

    A `resume` that names the turn is about the newest reply interrupted by then, which is always one of these.
    """
    stack = state.memo.interruption_stack.get(number)
    if stack is None:
        stack = []
        for reply in reversed(standing_replies(state, state.turns[number])):
            cut_ts = reply.first_cut_ts
            if cut_ts is not None and (not stack or cut_ts < stack[-1][1]):
                stack.append((reply.key, cut_ts))
        stack.reverse()
        state.memo.interruption_stack[number] = stack
    return stack


def move_cut(state: State, reply: Reply, ts: int | None) -> None:
    """Note the time of a reply's first interruption, which may change the reply that a `resume` is about."""
    before, reply.first_cut_ts = reply.first_cut_ts, ts
    evidence = state.turns[reply.turn].evidence
    if ts == before or evidence is None or not evidence.resumes:
        return
    stack = state.memo.interruption_stack.get(reply.turn)
    if stack is None:
        return
    if ts is None or (before is not None and before < ts):
        for key, _ in stack:
            state.touch(state.replies[key[2]])
        del state.memo.interruption_stack[reply.turn]
        return
    place = bisect_left(stack, reply.key, key=itemgetter(0))
    stop = place + (place < len(stack) and stack[place][0] == reply.key)
    if stop < len(stack) and stack[stop][1] <= ts:
        return
    first = bisect_left(stack, ts, hi=place, key=itemgetter(1))
    for key, _ in stack[max(0, first - 1) : place]:
        state.touch(state.replies[key[2]])
    stack[first:stop] = [(reply.key, ts)]


def note_resume(state: State, reply: Reply, ts: int | None) -> None:
    """Note when a reply resumed after a false alarm."""
    if ts != reply.resumed_ts:
        if state.memo.false_alarms is not None:
            state.memo.false_alarms.change(reply, ts)
        reply.resumed_ts = ts


def resumed_until(state: State, reply: Reply, sources: list[Source]) -> int:
    """Return the time of the newest `resume` about a reply: interruptions up to then were false alarms."""
    return max((source.newest_resume(*span) for source, *span in resumes_of(state, reply, sources)), default=BEFORE_ALL)


def false_alarms_of(state: State, reply: Reply, sources: list[Source]) -> Iterator[tuple[int, int]]:
    """Yield the false alarms of a reply, each as its first interruption and the resume that ended it."""
    resumes = sorted(ts for source, *span in resumes_of(state, reply, sources) for ts in source.resumes(*span))
    cuts = sorted(cut.ts for source in sources for cut in source.interruptions())
    after = BEFORE_ALL
    for resume in resumes:
        began = bisect_left(cuts, after)
        if began < len(cuts) and cuts[began] <= resume:
            yield cuts[began], resume
        after = resume + 1


def resumes_of(state: State, reply: Reply, sources: list[Source]) -> Iterator[tuple[Source, int, int]]:
    """Yield each source of resumes about a reply, with the window of time in which they are about it."""
    turn_evidence = state.turns[reply.turn].evidence
    for source in sources:
        if source.evidence is not turn_evidence:
            yield source, source.since, source.until
        elif turn_evidence.resumes:
            stack = interruption_stack(state, reply.turn)
            place = bisect_left(stack, reply.key, key=itemgetter(0))
            if place < len(stack) and stack[place][0] == reply.key:
                until = stack[place + 1][1] if place + 1 < len(stack) else AFTER_ALL
                yield source, stack[place][1], until


REACH = 20
"""How many earlier replies the rate of speech is taken from, so how many later ones an event may change."""


def settle(state: State) -> None:
    """Bring the lists of replies up to date with everything that has arrived."""
    while state.stale:
        reply = state.replies[state.stale.pop()]
        if reply.shown and not reply.cancelled:
            settle_reply(state, reply)
    state.stale.clear()  # frees its memory


def settle_reply(state: State, reply: Reply) -> None:
    """Derive the state of a reply from its evidence, and put it into the lists that this implies."""
    sources = sources_of(state, reply)
    reply.progress, heard_ts = has_progress(sources), heard_to_end(state, reply, sources)
    first_ts = first_mark(reply, sources, BEFORE_ALL, heard_ts)
    if first_ts != reply.first_cut_ts:
        move_cut(state, reply, first_ts)
    resumed_ts = resumed_until(state, reply, sources)
    cut_ts = first_ts
    if resumed_ts > BEFORE_ALL:  # the values above ignore withdrawn interruptions
        heard_ts = heard_to_end(state, reply, sources, resumed_ts)
        cut_ts = None if first_ts is None else first_mark(reply, sources, resumed_ts, heard_ts)
    reply.heard_ts, reply.cut_ts = heard_ts, cut_ts
    note_resume(state, reply, resumed_ts if first_ts is not None and resumed_ts >= first_ts else None)
    key = remake_later(state, reply)
    is_unheard = heard_ts is None and cut_ts is None and not reply.restored and not reply.over
    put(state.played, key, reply.progress)
    put(state.interrupted, key, cut_ts is not None)
    put(state.unheard, key, is_unheard)
    put(state.playable, key, is_unheard and (reply.progress or not reply.generation.complete))


def marking_cut(state: State, reply: Reply, sources: list[Source]) -> Interruption | None:
    """Return the first interruption that marks a reply, which must be settled."""
    return first_marking_cut(sources, resumed_until(state, reply, sources), reply.heard_ts)


def first_marking_cut(sources: list[Source], resumed_ts: int, heard_ts: int | None) -> Interruption | None:
    """Return the first interruption that marks a reply: not withdrawn, and before it was heard to the end."""
    firsts = [one for source in sources if (one := source.first_interruption(resumed_ts + 1)) is not None]
    first = min(firsts, key=BY_TIME) if firsts else None
    if first is None or first.marks(heard_ts):
        return first
    with_more = (source for source in sources if source.evidence.has_more)
    later = (cut for source in with_more for cut in source.interruptions(resumed_ts + 1) if cut.marks(heard_ts))
    return min(later, key=BY_TIME, default=None)


def first_mark(reply: Reply, sources: list[Source], resumed_ts: int, heard_ts: int | None) -> int | None:
    """Return when a reply was first interrupted after a time."""
    cut = None if reply.restored else first_marking_cut(sources, resumed_ts, heard_ts)
    return None if cut is None else cut.ts


def remake_later(state: State, reply: Reply) -> ReplyKey:
    """Note that the heard text of the next replies may have changed, if it depends on the clock or on a rate.

    Return the reply's key: the same tuple as in the list of all, so that other lists share it.
    """
    keys, key = standing_keys(state), reply.key
    place = bisect_right(keys, key)
    for _, _, id in keys[place : place + REACH]:
        later = state.replies[id]
        if later.cut_ts is not None or state.closed_ts is not None:
            state.remake(later)
    return keys[place - 1] if place and keys[place - 1] == key else key


def show(state: State, reply: Reply) -> None:
    """Add a reply to the lists, now that it has text."""
    reply.shown, key = True, reply.key
    insort(state.begun, key)
    if can_be_cancelled(reply):
        insort(state.generated, key)
    if state.standing is not None:
        insort(state.standing, key)
    touch_around(state, reply)
    update_cancelled_around(state, reply)


def leave(state: State, reply: Reply) -> None:
    """Remove a reply from the lists."""
    touch_around(state, reply)
    move_cut(state, reply, None)
    note_resume(state, reply, None)
    for keys in (state.begun, state.generated, *lists_of(state)):
        put(keys, reply.key, False)


def lists_of(state: State) -> Iterator[list[ReplyKey]]:
    """Yield the lists that a cancelled reply is not in."""
    if state.standing is not None:
        yield state.standing
    yield from (state.played, state.interrupted, state.unheard, state.playable)


def can_be_cancelled(reply: Reply) -> bool:
    return not (reply.is_failure or reply.heard_only)


def begin_at(state: State, reply: Reply, ts: int) -> None:
    """Note the `ts` of an event of a reply, whose earliest event is its beginning."""
    if ts >= reply.begin:
        return
    is_unfinished = not reply.generation.complete and not reply.cancelled
    put(state.unfinished, reply.key, False)
    if reply.shown:
        before, _ = neighbours(state.begun, reply.key)
        leave(state, reply)
        state.turns[reply.turn].standing += reply.cancelled
        reply.cancelled, reply.begin = False, ts
        if before is not None:
            update_cancelled_around(state, state.replies[before[2]])
        show(state, reply)
    reply.begin = ts
    put(state.unfinished, reply.key, is_unfinished and not reply.cancelled)


def touch_around(state: State, reply: Reply) -> None:
    """Note that the windows of a reply and its neighbours have changed, for evidence that names only their turn."""
    state.touch(reply)
    remake_later(state, reply)
    turn = state.turns[reply.turn]
    if turn.evidence is None:
        return
    for key in neighbours(standing_keys(state), reply.key):
        if key is not None:
            state.touch(state.replies[key[2]])


def update_cancelled_around(state: State, reply: Reply) -> None:
    """Decide again whether a reply and its neighbours are cancelled, if that may have changed."""
    if state.has_cancels:
        around = (*neighbours(state.begun, reply.key), *neighbours(state.generated, reply.key), reply.key)
        for key in around:
            if key is not None:
                update_cancelled(state, state.replies[key[2]])


def interrupted_by(state: State, turn: Turn, ts: int) -> Reply | None:
    """Return the newest reply of a turn that had been interrupted by then."""
    settle(state)
    stack = interruption_stack(state, turn.number)
    place = bisect_right(stack, ts, key=itemgetter(1)) - 1
    return None if place < 0 else state.replies[stack[place][0][2]]


# When all of a reply was heard

TAKEN_BACK_MS = 250
"""A position that is further below the total than this overrides a `tts.done`."""
SHORT = 1_000
"""The size of a text (characters) or a timeline (numbers) up to which a new search costs less than a kept result."""
A_WORD, IN_A_WORD = re.compile(r"\w"), re.compile(r"[^\W_]")


def match_words(state: State, reply: Reply, sources: list[Source]) -> WordMatch | None:
    """Return the match of a reply's timed words with its text; None if none of them is found there."""
    known: list[list[TimedWord]] = []
    for source in sources:
        words = (None if source.evidence.playback is None else source.evidence.playback.words) or []
        words = words if source.is_whole else [word for word in words if source.since <= word.ts < source.until]
        known += [words] if words else []
    if not known:
        return None
    text, windows = reply.generation.text(), [(source.since, source.until) for source in sources]
    kept_windows, stored = state.memo.word_matches.get(reply.id, (None, None))
    counts = [len(words) for words in known]
    if stored is None or kept_windows != windows or not stored.extend(known, counts, text):
        stored = WordMatch([word for words in known for word in words], text, counts)
        state.memo.word_matches[reply.id] = windows, stored
    return stored if stored.reached else None


def heard_to_end(state: State, reply: Reply, sources: list[Source], resumed_ts: int = BEFORE_ALL) -> int | None:
    """Return when playback first showed that all of a reply was heard; interruptions up to `resumed_ts` do not count.

    Until the LLM has finished, only a `tts.done` can show the end of the reply, no text or position.
    """
    if not any(may_show_end(source.evidence) for source in sources):
        return None
    total = largest_total(sources)
    times = [standing_done(state, reply, sources, total, resumed_ts)]
    if reply.generation.complete and not reply.heard_only:
        times += heard_texts(state, reply, sources)
        end_ms = None if total is None else total[0].value
        if end_ms is None and any(True for source in sources for _ in timelines(source, *POSITIONS)):
            match = match_words(state, reply, sources)
            end_ms = None if match is None else match.whole_ms
        if end_ms is not None:
            reached = (
                series.first_at_least(end_ms, source.until, source.since)
                for source in sources
                for series in timelines(source, *POSITIONS)
            )
            times += [entry.ts for entry in reached if entry is not None]
    return min((ts for ts in times if ts is not None), default=None)


def heard_texts(state: State, reply: Reply, sources: list[Source]) -> Iterator[int]:
    """Yield when heard texts, including those of interrupts, equalled the reply, apart from white space."""
    series: list[tuple[TextTimeline, Source]] = []
    for source in sources:
        playback = source.evidence.playback
        for one in () if playback is None else (playback.texts, playback.estimated_texts):
            if one is not None:
                series.append((one, source))
    if not series and not any(source.evidence.heard for source in sources):
        return
    whole = whole_text(state, reply, sources)
    for one, source in series:
        ts = whole.first_equal(one, source.until, source.since)
        if ts is not None:
            yield ts
    for source in sources:
        ts = source.first_heard(whole.joined()) if source.evidence.heard else None
        if ts is not None:
            yield ts


def standing_done(
    state: State, reply: Reply, sources: list[Source], total: tuple[Entry, Source] | None, resumed_ts: int
) -> int | None:
    """Return when the first `tts.done` came that no later position overrides."""
    dones = [(series, source) for source in sources for series in timelines(source, "dones")]
    after = (BEFORE_ALL, 0)
    if dones and total is not None:
        leaves_unheard = unheard_after(state, reply, sources, total)
        after = max(last_position_stated(sources, leaves_unheard, resumed_ts), last_peak(sources, leaves_unheard))
    times = (
        next((done.ts for done in series.entries(source.until, max(source.since, after[0])) if done[:2] > after), None)
        for series, source in dones
    )
    return min((ts for ts in times if ts is not None), default=None)


def last_position_stated(
    sources: list[Source], leaves_unheard: Callable[[int], bool], resumed_ts: int
) -> tuple[int, int]:
    """Return the last stated position of an interruption that overrides dones, as (ts, order), with all of its `ts`."""
    times = [BEFORE_ALL]
    for source in sources:
        for cut in reversed(source.stating("audio_end_ms")):
            if cut.ts <= resumed_ts:
                break
            if leaves_unheard(cut.audio_end_ms or 0):
                times.append(cut.ts)
                break
    return max(times), AFTER_ALL


def last_peak(sources: list[Source], leaves_unheard: Callable[[int], bool]) -> tuple[int, int]:
    """Return the last position that overrides dones and is above all earlier ones, as (ts, order).

    Such positions grow, so the last one that leaves a word unheard is the highest before the first that leaves none.
    """
    series = [(one, source) for source in sources for one in timelines(source, *POSITIONS)]
    tops = (one.highest_entry(source.until, source.since) for one, source in series)
    highest = max((top.value for top in tops if top is not None), default=0)
    limit = bisect_left(range(highest + 1), True, key=lambda position_ms: not leaves_unheard(position_ms))
    reached = (one.first_at_least(limit, source.until, source.since) for one, source in series)
    end = min((entry[:2] for entry in reached if entry is not None), default=(AFTER_ALL, 0))
    tops = (one.highest_entry(min(source.until, end[0]), source.since) for one, source in series)
    peak = max((top.value for top in tops if top is not None), default=0)
    firsts = (one.first_at_least(max(peak, 1), min(source.until, end[0]), source.since) for one, source in series)
    last = min((entry for entry in firsts if entry is not None), default=None)
    for one, source in series:  # at one time, positions that arrived before the end may rise further
        for entry in one.entries(min(source.until, end[0] + 1), max(source.since, end[0])):
            if entry[:2] < end and entry.value > (peak if last is None else last.value):
                last = entry
    return (BEFORE_ALL, 0) if last is None else last[:2]


def unheard_after(
    state: State, reply: Reply, sources: list[Source], total: tuple[Entry, Source]
) -> Callable[[int], bool]:
    """Return a function that tells whether a position is clearly below the total and leaves a word unheard."""
    match, text = match_words(state, reply, sources), reply.generation.text()
    total_ms, measured = total[0].value, len(measured_text(reply.generation, total))

    def leaves_unheard(position_ms: int) -> bool:
        if position_ms >= total_ms - TAKEN_BACK_MS:
            return False
        if match is not None:
            end = after_closing_marks(text, match.end_at(position_ms))
        else:
            length = measured * position_ms // total_ms
            if IN_A_WORD.search(text, length):
                return True  # a prefix is cut back to whole words, or continued by marks and white space alone
            end = whole_word_end(text, length)
        return A_WORD.search(text, end) is not None

    return leaves_unheard


def whole_text(state: State, reply: Reply, sources: list[Source]) -> WholeText:
    """Return the whole text of a reply, which is kept if a new search would be expensive."""
    text, events = reply.generation.text(), reply.generation.events
    whole: WholeText | None = state.memo.whole_texts.get(reply.id)
    if whole is None:
        whole = WholeText()
        playbacks = [source.evidence.playback for source in sources]
        series = (getattr(playback, name, None) for playback in playbacks for name in ("texts", "estimated_texts"))
        if len(text) > SHORT or any(one is not None and len(one.lengths.numbers) > SHORT for one in series):
            state.memo.whole_texts[reply.id] = whole
    if whole.events != events:
        whole.update(events, text)
    return whole


# Replies that never existed


def update_cancelled(state: State, reply: Reply) -> None:
    """Decide again whether a reply is cancelled: an `llm.cancel` names it, and nothing shows that it was played."""
    cancelled = reply.shown and has_cancel(state, reply) and not was_played(sources_of(state, reply, state.begun))
    if cancelled == reply.cancelled:
        return
    reply.cancelled = cancelled
    state.turns[reply.turn].standing += -1 if cancelled else 1
    put(state.unfinished, reply.key, not cancelled and not reply.generation.complete)
    if cancelled:
        state.standing = state.begun.copy() if state.standing is None else state.standing
        move_cut(state, reply, None)
        note_resume(state, reply, None)
        for keys in lists_of(state):
            put(keys, reply.key, False)
    else:
        insort(standing_keys(state), reply.key)
    touch_around(state, reply)


def has_cancel(state: State, reply: Reply) -> bool:
    """Return whether an `llm.cancel` means a reply: by its item, or as the newest of its turn begun by then."""
    if not can_be_cancelled(reply):
        return False
    evidence = None if reply.item is None else state.item_evidence.get(reply.item)
    if evidence is not None and evidence.cancels:
        return True
    evidence = state.turns[reply.turn].evidence
    if evidence is None or not evidence.cancels:
        return False
    _, after = neighbours(state.generated, reply.key)
    place = bisect_left(evidence.cancels, reply.begin)
    return place < len(evidence.cancels) and (after is None or evidence.cancels[place] < after[1])


def plays_at_close(state: State, reply: Reply) -> bool:
    key = reply.key
    place = bisect_left(state.playable, key)
    is_playable = place < len(state.playable) and state.playable[place] == key
    return reply.progress and is_playable and key >= playing_since(state)


def playing_since(state: State) -> ReplyKey:
    """Return the key before which replies no longer play: a later one was played, or a later turn has a final."""
    begin = (state.final_turn, BEFORE_ALL, 0)
    return max(begin, state.played[-1]) if state.played else begin


def is_cut(state: State, reply: Reply) -> bool:
    """Return whether a reply was cut by the user, or by the close.

    The close cuts one that is still being generated, or known to be still playing (rule 8).
    """
    if reply.cut_ts is not None:
        return True
    if state.closed_ts is None or reply.restored or reply.heard_only:
        return False
    if not reply.generation.complete:
        return reply.heard_ts is None
    return plays_at_close(state, reply)


def forget_playing(state: State) -> None:
    """Note that no reply copied from another session still plays."""
    settle(state)
    for keys in (state.unheard, state.playable):
        for key in keys:
            state.replies[key[2]].over = True
        keys.clear()
