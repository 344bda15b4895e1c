"""True calls as a framework would report them to a ledger: each thing at the time at which it happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from voicemem.cli.truth import TrueCall, TrueReply
from voicemem.integrations.ledger import Ledger
from voicemem.protocol.types import JsonObject

Step = tuple[int, Callable[[], None]]
PROGRESS_MS = 200


def events_of(call: TrueCall, words: bool, sentences: bool = True) -> list[JsonObject]:
    """What a ledger makes of a call, with the times of words, of sentences, or of whole replies."""
    events: list[JsonObject] = []
    ledger = Ledger(events.append)
    steps = [*speech(ledger, call)]
    for reply in call.replies:
        steps += generation(ledger, call, reply)
        steps += audio(ledger, call, reply, words, sentences)
        steps += playback(ledger, call, reply)
    steps += tools(ledger, call)
    for _, step in sorted(steps, key=lambda one: one[0]):
        step()
    ledger.end(call.began + call.end_ms)
    return events


def speech(ledger: Ledger, call: TrueCall) -> Iterator[Step]:
    for one in call.utterances:
        text = "" if one.noise else one.text
        began, final = call.began + one.begin_ms + 100, call.began + one.final_ms
        yield one.begin_ms + 100, partial(ledger.user_said, one.text.split(" ")[0], began, final=False)
        yield one.final_ms, partial(ledger.user_said, text, final, final=True)
        yield one.final_ms, ledger.user_turn_ended


def generation(ledger: Ledger, call: TrueCall, reply: TrueReply) -> Iterator[Step]:
    first = reply.deltas[0].at_ms
    if reply.source != "llm":
        yield first, partial(ledger.announced, reply.item, reply.text, call.began + first, source=reply.source)
        return
    begin = 0
    for delta in reply.deltas:
        yield delta.at_ms, partial(ledger.said, reply.item, reply.text[begin : delta.end], call.began + delta.at_ms)
        begin = delta.end
    yield reply.done_ms, partial(ledger.said_all, reply.item, call.began + reply.done_ms)


def audio(ledger: Ledger, call: TrueCall, reply: TrueReply, words: bool, sentences: bool) -> Iterator[Step]:
    begin, begin_ms = 0, 0
    for one in reply.synthesised:
        at = call.began + one.at_ms
        text = reply.text[begin : one.end]
        if words:
            spoken = [
                (reply.text[word.begin : word.end], word.start_ms, word.end_ms)
                for word in reply.words
                if begin_ms <= word.start_ms < one.audio_ms
            ]
            yield one.at_ms, partial(ledger.words_timed, reply.item, spoken, at)
        else:
            yield one.at_ms, partial(ledger.voiced, reply.item, text)
            yield one.at_ms, partial(ledger.audio_made, reply.item, one.audio_ms - begin_ms)
            if sentences or one is reply.synthesised[-1]:
                yield one.at_ms, partial(ledger.span_made, reply.item, at)
        begin, begin_ms = one.end, one.audio_ms


def playback(ledger: Ledger, call: TrueCall, reply: TrueReply) -> Iterator[Step]:
    """Progress five times a second, false alarms, and the cut; a hang-up is no event, but the end of the call."""
    yield reply.played[0].from_ms, partial(ledger.played, reply.item, 0, call.began + reply.played[0].from_ms)
    last_ms = reply.played[-1].until_ms
    for part in reply.played:
        for at in [*range(part.from_ms + PROGRESS_MS, part.until_ms, PROGRESS_MS), part.until_ms]:
            yield at, partial(ledger.played, reply.item, reply.position_at(at), call.began + at)
    for alarm in reply.alarms:
        at, until = call.began + alarm.at_ms, call.began + alarm.until_ms
        yield alarm.at_ms, partial(ledger.cut, reply.item, reply.position_at(alarm.at_ms), at)
        yield alarm.until_ms, partial(ledger.resumed, reply.item, until)
    if reply.cut_ms is None:
        yield last_ms, partial(ledger.finished, reply.item, call.began + last_ms)
    elif not call.is_hung_up(reply):
        yield reply.cut_ms, partial(ledger.cut, reply.item, reply.position_ms, call.began + reply.cut_ms)


def tools(ledger: Ledger, call: TrueCall) -> Iterator[Step]:
    for tool in call.tools:
        called, returned = call.began + tool.called_ms, call.began + tool.returned_ms
        yield tool.called_ms, partial(ledger.tool_called, tool.call_id, tool.name, tool.arguments, called)
        yield tool.returned_ms, partial(ledger.tool_returned, tool.call_id, tool.result, returned)
