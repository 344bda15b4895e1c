"""Dialects: two pure functions over the frames of another stack, and their input (docs/dialects.md).

`reduce` runs before the journal and sees one frame alone. `translate` runs in the fold, and sees one reduced frame and,
through `Known`, the state of the fold before it.
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
"""A frame as sent: a JSON object, any other text, or a binary message."""
NOT_IN_IDS = re.compile(r"[^A-Za-z0-9._:-]")
DIGEST_DIGITS = 32
DIGESTED = re.compile(rf"\.\.[0-9a-f]{{{DIGEST_DIGITS}}}\Z")
MAX_ID = 128
SHOWN_OF_ID = MAX_ID - len("..") - DIGEST_DIGITS
AUDIO_BYTES = "audio_bytes"
"""The field of a reduced frame with the number of its audio bytes."""
MERGED_MS = 250
"""Audio counts this close are merged; in a longer pause, playback may have stopped."""


class Frame(NamedTuple):
    """The parts of one frame that `reduce` keeps."""

    content: JsonObject
    """The journaled part. Reducing it again changes nothing."""
    id: str | None = None
    """The frame's own id, unique in its session; a repeated id changes nothing."""
    ts: int | None = None
    """When it was sent, according to the vendor, Unix ms."""
    side: Side | None = None
    """The only side that sends frames of this type; None if both may."""
    session_id: str | None = None
    """The vendor's id of the session, if this frame has it."""
    end: str | None = None
    """The reason, if this frame ends the session; `translate` makes a `session.end` of it."""
    began: int | None = None
    """When the call began, Unix ms, if a frame that ends the session has that."""
    ended: int | None = None
    """When it ended, likewise."""
    typed: bool = False
    """True if it may be a text that the app added for the LLM; ignored on request (`?typed=ignore`)."""
    opens: bool = False
    """True if frames may be `within` it."""
    within: str | None = None
    """The id of the earlier frame that this one depends on: without it, this frame is not kept."""
    counts_audio: bool = False
    """True if it only counts audio bytes: such frames are added up if all else in them is equal."""


def session_id_of(said: str) -> str:
    """Return a session id for the vendor's; different ids stay different.

    An invalid id is cut and gets a digest of the whole at its end, and so does one that already looks like that.
    """
    if re.match(SESSION_ID_PATTERN, said) and not DIGESTED.search(said):
        return said
    return with_digest(NOT_IN_IDS.sub("-", said[:SHOWN_OF_ID]), said)


def user_id_of(said: str) -> str:
    """Return a user id for the vendor's, likewise."""
    if len(said) <= MAX_ID and said.isprintable() and not DIGESTED.search(said):
        return said
    return with_digest("".join(filter(str.isprintable, said[:SHOWN_OF_ID])), said)


def with_digest(shown: str, said: str) -> str:
    return f"{shown}..{hashlib.sha256(said.encode(errors='replace')).hexdigest()[:DIGEST_DIGITS]}"


class MalformedFrame(ValueError):
    """The frame is not one of the dialect, or its fields have wrong types. The text is our sentence."""


class UnknownFrame(ValueError):
    """The dialect does not know the frame's type; the text is the type's name."""


Speaker = Literal["user", "agent"]


class Text(NamedTuple):
    """The place in a reduced frame of a text to redact: spoken, typed, or returned by a tool."""

    holder: Any
    """The object or list that contains it; None if `form` needs none."""
    key: str | int
    form: Literal["whole", "piece", "grown", "again", "sentence", "next", "word", "value", "end"]
    """`whole`: all of a text so far. `piece`: it continues the pieces before it. `grown`: one of the two.
    `sentence`, `word`: it continues those before it, or repeats one. `again`: it repeats earlier texts of the user's.
    `next`: a preview of the item's text. `value`: any JSON. `end`: later texts of the item are new ones.
    """
    side: Speaker = "agent"
    item: str | None = None
    """The text that it belongs to; None: the user's current text, or for the agent, a text of its own."""
    final: bool = True
    at_ms: int | None = None
    """When a word is spoken."""
    channel: str = ""
    """Separates texts if a stack reports the same words twice."""


Texts = Iterable[Text]


class Parts(Struct, frozen=True):
    """How a dialect splits long messages into frames that cannot be read alone."""

    part: Callable[[JsonObject], tuple[str, int, int | None, str] | None]
    """Returns a reduced frame's message id, its part's number, how many parts there are (if known), and the part."""
    join: Callable[[str], JsonObject | None]
    """Returns the reduced frame that all parts make up, if they make one."""


Verify = Callable[[bytes, Mapping[str, str], str, int], bool]
"""Returns whether a body is signed with a secret: body, headers (lower case), secret, now (Unix ms)."""


class Hook(Struct, frozen=True):
    """The webhooks of a dialect: how they are verified and split into frames."""

    verify: Verify
    frames: Callable[[JsonObject], Iterable[JsonObject]]
    """Returns the frames of a body, each of which becomes one row. Raises `MalformedFrame`."""
    webhook_of: Callable[[JsonObject], JsonObject | None] = lambda saved: saved
    """Returns the webhook for a call from the vendor's API; a webhook is returned unchanged.

    None for a call that is not over, or has no words. Raises `MalformedFrame`.
    """


class Dialect(Struct, frozen=True, kw_only=True):
    """The native event stream of another stack. Its page in docs/ explains the meaning of each frame.

    `reduce` is an allow-list: only named fields are kept. It returns None for a frame without meaning, and raises
    `MalformedFrame` or `UnknownFrame`. `side` is who sent the frame, if the sender states it.
    `Frame.within` names a frame that must have come before.

    `translate` gets the kept fields (`Frame.content`) and the frame's `ts`, and returns at most 64 events, of which at
    most one begins a reply, and one an utterance. An event without `ts` has the frame's time. `closed` is called once
    when the session is closed, before open replies are cut, with the time of the hang-up.
    """

    name: str
    version: int
    """Must be raised with every change of `translate` or `closed`: folds of other versions are then rebuilt."""
    reduce: Callable[[RawFrame, Side | None], Frame | None]
    translate: Translate
    closed: Callable[[int, Known], Made] = lambda ts, known: ()
    hook: Hook | None = None
    caller: CallerFields = CallerFields()
    """The fields in which frames name the caller."""
    texts: Callable[[JsonObject], Texts]
    """Yields all texts in a reduced frame, in the order of speaking. The service may replace them."""
    parts: Parts | None = None
    split: Callable[[JsonObject], Iterable[JsonObject]] | None = None
    """Splits a message with several meanings into frames, before `reduce`, if the message has no number."""
    ids_say_texts: bool = False
    """True if ids of frames are made from their texts, so that redacted text could be computed from them."""
