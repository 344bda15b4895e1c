"""Events by their kind, and ends, for tests of the fold."""

from __future__ import annotations

from tests.support.events import JOKE, EventLike, interrupt, tts, words
from tests.support.transcripts import messages_after


def cut_texts(*given: EventLike) -> list[str]:
    """What was generated of each interrupted reply."""
    return [one["metadata"]["original"] for one in messages_after(*given) if "interrupted" in one["metadata"]]


KINDS = {
    "heard_text": [interrupt(1, 50, heard_text="Why did")],
    "heard_chars": [interrupt(1, 50, heard_chars=7)],
    "words": [tts(1, 20, words=words(JOKE)), interrupt(1, 50, audio_end_ms=200)],
    "progress": [tts(1, 20, heard_text="Why did"), interrupt(1, 50)],
    "share": [tts(1, 20, total_audio_ms=100), interrupt(1, 50, audio_end_ms=100)],
    "generated": [interrupt(1, 50)],
}
ENDS = {
    "done": [tts(1, 20, done=True)],
    "text": [tts(1, 20, heard_text="One two.")],
    "text but for white space": [tts(1, 20, heard_text=" One  two. ")],
    "total": [tts(1, 15, total_audio_ms=500), tts(1, 20, audio_ms=500)],
    "words": [tts(1, 15, words=words("One two.")), tts(1, 20, audio_ms=200)],
}
