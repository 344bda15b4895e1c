"""What was really said and played on a call, word by word, as a session's `data` holds it (docs/evidence.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from voicemem.cli.truth.calls import TrueCall, TrueReply, TrueUtterance, TrueWord
from voicemem.protocol.types import JsonObject

NAME = "played"
"""Where it is in the `data`."""


def played_call(call: TrueCall, evidence: str) -> JsonObject:
    """All times in Unix ms, as the `ts` of events. The words of a text, joined, are the text."""
    return {
        "call": call.name,
        "evidence": evidence,
        "began_ms": call.began,
        "ended_ms": call.began + call.end_ms,
        "replies": [played_reply(reply, call.began) for reply in call.replies],
        "utterances": [spoken(utterance, call.began) for utterance in call.utterances],
    }


def played_reply(reply: TrueReply, began: int) -> JsonObject:
    """Each word as [text, from, until, heard]; the times are null of a word that was not played to its end."""
    words: list[list[object]] = []
    end = 0
    for text, word in pieces(reply.text, reply.words, reply.cut_ms is None):
        heard = reply.cut_ms is None or word.end_ms <= reply.position_ms
        times = [began + reply.time_of(at_ms) if heard else None for at_ms in (word.start_ms, word.end_ms)]
        words.append([text, *times, heard])
        end += len(text)
    if end < len(reply.text):  # the reply was cut before this was synthesised
        words.append([reply.text[end:], None, None, False])
    return {
        "turn_id": reply.turn_id,
        "item": reply.item,
        "text": reply.text,
        "heard": reply.heard(),
        "cut_ms": None if reply.cut_ms is None else began + reply.cut_ms,
        "words": words,
    }


def spoken(utterance: TrueUtterance, began: int) -> JsonObject:
    """Each word as [text, from, until]."""
    begin = began + utterance.begin_ms
    return {
        "turn_id": utterance.turn_id,
        "item": utterance.item,
        "text": utterance.text,
        "noise": utterance.noise,
        "words": [
            [text, begin + word.start_ms, begin + word.end_ms] for text, word in pieces(utterance.text, utterance.words)
        ],
    }


def pieces(text: str, words: Sequence[TrueWord], whole: bool = True) -> Iterator[tuple[str, TrueWord]]:
    """Each word with what stands after it; what stands after the last may not be known to have been spoken."""
    begins = [0, *(word.begin for word in words[1:])]
    rest = text[words[-1].end :] if words and not whole else ""
    ends = [*begins[1:], len(text) - len(rest.lstrip())]
    for word, begin, end in zip(words, begins, ends, strict=False):
        yield text[begin:end], word
