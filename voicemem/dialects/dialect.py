"""Dialects: two pure functions over the frames of another stack, and what they may know (docs/dialects.md).

`reduce` is before the journal and sees one frame alone. `translate` is in the fold and sees one reduced frame
and, through `Known`, what the fold knows by then.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from voicemem.dialects.caller_fields import CallerFields
from voicemem.dialects.known import Known, Made, Translate
from voicemem.protocol.types import SESSION_ID_PATTERN, JsonObject

Side = Literal["vendor", "app"]
RawFrame = JsonObject | str | bytes
"""A frame as it was sent: the JSON object, a text that is not one, or a binary message."""
NOT_IN_IDS = re.compile(r"[^A-Za-z0-9._:-]")
DIGEST_DIGITS = 32
DIGESTED = re.compile(rf"\.\.[0-9a-f]{{{DIGEST_DIGITS}}}\Z")
MAX_ID = 128
SHOWN_OF_ID = MAX_ID - len("..") - DIGEST_DIGITS
AUDIO_BYTES = "audio_bytes"
"""The field of a reduced frame that says how much audio there was in it."""
MERGED_MS = 250
"""Counts of audio this close become one; in a longer pause, nothing may have been playing."""


class Frame(NamedTuple):
    """The parts of one frame that `reduce` keeps."""

    content: JsonObject
    """The journaled part. Reduced again, it gives the same."""
    id: str | None = None
    """The frame's own id, unique in its session; a frame of the same id changes nothing."""
    ts: int | None = None
    """When the vendor says it was sent, Unix ms."""
    side: Side | None = None
    """Who alone sends frames of this type; None where both may."""
    session_id: str | None = None
    """The vendor's id of the session, if this frame says it."""
    end: str | None = None
    """The reason, if this frame ends the session; `translate` makes a `session.end` of it."""
    began: int | None = None
    """When the call began, Unix ms, if this frame ends the session and says so."""
    ended: int | None = None
    """When it ended, likewise."""
    typed: bool = False
    """True if it may be a text that the app added for the LLM: left out on request (`?typed=ignore`)."""
    opens: bool = False
    """True if frames may be `within` it."""
    within: str | None = None
    """The id of the frame that must have opened what this is a part of: alone it cannot be judged."""
    counts_audio: bool = False
    """True if it only says how much audio there was: such frames are added up where all else in them is equal."""


def session_id_of(said: str) -> str:
    """The id of a session, from the vendor's: no two of the vendor's give the same.

    One that a session may not have is cut and ends with a digest of the whole; so does one that looks like that itself.
    """
    if re.match(SESSION_ID_PATTERN, said) and not DIGESTED.search(said):
        return said
    return with_digest(NOT_IN_IDS.sub("-", said[:SHOWN_OF_ID]), said)


def user_id_of(said: str) -> str:
    """The id of a user, from the vendor's, likewise."""
    if len(said) <= MAX_ID and said.isprintable() and not DIGESTED.search(said):
        return said
    return with_digest("".join(filter(str.isprintable, said[:SHOWN_OF_ID])), said)


def with_digest(shown: str, said: str) -> str:
    return f"{shown}..{hashlib.sha256(said.encode(errors='replace')).hexdigest()[:DIGEST_DIGITS]}"


class MalformedFrame(ValueError):
    """The frame is none of the dialect, or its fields have other types than they should. The text is our sentence."""


class UnknownFrame(ValueError):
    """A frame of a type that the dialect does not know; the text is the type's name."""


Speaker = Literal["user", "agent"]


class Text(NamedTuple):
    """The place in a reduced frame of a text that was said, typed or returned by a tool, and may be redacted."""

    holder: Any
    """The object or list that it is in; None where `form` says something by itself."""
    key: str | int
    form: Literal["whole", "piece", "grown", "again", "sentence", "next", "word", "value", "end"]
    """`whole`: all of a text so far. `piece`: it comes after the pieces before it. `grown`: one of the two.
    `sentence`, `word`: it comes after those before it, or again. `again`: what texts of the user's before it have said.
    `next`: what may come in the text of the item. `value`: any JSON. `end`: what follows for the item is another text.
    """
    side: Speaker = "agent"
    item: str | None = None
    """The text that it belongs to; None: of the user's, the one that is not final; of the agent's, one of its own."""
    final: bool = True
    at_ms: int | None = None
    """When a word sounds."""
    channel: str = ""
    """Tells texts apart in which a stack says the same twice."""


Texts = Iterable[Text]


class Parts(Struct, frozen=True):
    """The cutting of messages into frames that cannot be read alone."""

    part: Callable[[JsonObject], tuple[str, int, int | None, str] | None]
    """The message of a reduced frame, the number of its part, how many there are if it says so, and the part."""
    join: Callable[[str], JsonObject | None]
    """The reduced frame that all parts together are, if they are one."""


Verify = Callable[[bytes, Mapping[str, str], str, int], bool]
"""Verifies that a body carries the signature of a secret: body, headers (lower case), secret, now (Unix ms)."""


class Hook(Struct, frozen=True):
    """The webhooks of a dialect: how they are verified and cut into frames."""

    verify: Verify
    frames: Callable[[JsonObject], Iterable[JsonObject]]
    """The frames of a body, each of which becomes one row. Raises `MalformedFrame`."""
    webhook_of: Callable[[JsonObject], JsonObject | None] = lambda saved: saved
    """The webhook of a call as the vendor's API shows it; a webhook stays as it is.

    None for a call that is not over, or has no words. Raises `MalformedFrame`.
    """


class Dialect(Struct, frozen=True, kw_only=True):
    """The native event stream of another stack. Its page in docs/ says what each frame means in the memory.

    `reduce` is an allow-list: what it does not name is not kept. It answers None for a frame that says nothing, and
    raises `MalformedFrame` or `UnknownFrame`. `side` is who sent the frame, where the sender of it says so.
    `Frame.within` says that another frame must have come before.

    `translate` gets what `reduce` kept (`Frame.content`) and the frame's `ts`, and gives at most 64 events; of these at
    most one begins a reply, and one an utterance. An event without `ts` is of the frame's time. `closed` is asked once
    when the session is closed, before open replies are cut, with the time of the hang-up.
    """

    name: str
    version: int
    """To be raised with every change of `translate` or `closed`: folds made by another version are made again."""
    reduce: Callable[[RawFrame, Side | None], Frame | None]
    translate: Translate
    closed: Callable[[int, Known], Made] = lambda ts, known: ()
    hook: Hook | None = None
    caller: CallerFields = CallerFields()
    """The fields in which frames say who calls."""
    texts: Callable[[JsonObject], Texts]
    """All texts in a reduced frame, in the order in which they were said. The service may replace them."""
    parts: Parts | None = None
    split: Callable[[JsonObject], Iterable[JsonObject]] | None = None
    """The frames of one message that may say many things. A message without a number is taken apart before `reduce`."""
    ids_say_texts: bool = False
    """True if ids of frames are made of what they say: from those, what is redacted could be computed."""
