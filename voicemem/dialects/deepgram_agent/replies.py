"""Which reply of Deepgram's agent is under way: they have no names, so the user's words divide them.

`~rN` is all that the agent says up to the user's next words. What it says after an interruption, before any of these,
is another reply too, once the agent begins again.
"""

from __future__ import annotations

from voicemem.dialects.dialect import Known, KnownReply, Made
from voicemem.protocol.events import LlmDone

CUT, OVER = "cut", "over"
"""What `stopped` says of the reply under way: it was interrupted, and late words of it may come; nothing more comes."""
OF_ONE_REPLY = ("begun", "stopped", "last", "sent", "bytes", "since", "silent", "unvoiced", "audio_first")
"""Notes that are about the reply under way."""


def reply_item(known: Known) -> str:
    return f"~r{known.notes.get('replies', 1)}"


def is_newest(reply: KnownReply, known: Known) -> bool:
    return reply.item == reply_item(known)


def begin(known: Known) -> None:
    """Words or audio come: of the reply under way, or of the next where that is over."""
    if known.notes.get("stopped") == OVER:
        next_reply(known)
    known.note("begun", True)


def next_reply(known: Known) -> None:
    """What the agent says from here on is another reply."""
    if known.notes.get("begun"):
        known.note("replies", known.notes.get("replies", 1) + 1)
    for key in OF_ONE_REPLY:
        known.note(key, None)


def complete(known: Known) -> Made:
    """The reply under way has all its words."""
    reply = known.reply(reply_item(known))
    if reply is not None and not reply.complete:
        yield LlmDone(item=reply.item)
