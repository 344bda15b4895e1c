"""Webhooks of other stacks: verified, split into frames, and journaled in the session that they name."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from voicemem.dialects.caller_fields import Caller, carry
from voicemem.dialects.dialect import Dialect, MalformedFrame, Verify, session_id_of
from voicemem.dialects.reading import decode_json
from voicemem.errors import InvalidFrame, Refused
from voicemem.protocol.codec import ENCODER, MALFORMED, RejectedEvent, check_frame
from voicemem.protocol.events import FrameEvent
from voicemem.protocol.types import MAX_VALUES, Reason, SessionId
from voicemem.runtime import FairQueue
from voicemem.sessions.lifecycle import Presence, Sessions
from voicemem.sessions.recording.batches import ProducerLease, ReducedFrame, SenderState
from voicemem.sessions.recording.recorder import YIELD_EVERY, Recorder
from voicemem.store.streams import Stream

OVER = ("session_ended", "session_erased")
"""Codes after which sending a webhook again would not help; platforms give up where many webhooks fail."""
MAX_HOOK_BYTES, MAX_HOOK_VALUES = 8 * 1024 * 1024, 4 * MAX_VALUES
"""More than other bodies may have: after a call of hours, all its words come at once, with times and repetitions."""
OTHER_CALL = "This URL is of another call: the webhooks that it has got name a different one."

OTHER_PLATFORM = (
    "The session has webhooks of another platform, whose call has the same id; a key in Authorization, or a URL "
    "of `voicemem hooks url`, may name one session for both."
)


class HookTaken(Struct, frozen=True):
    """The session that the webhook is about, and how many frames of it were stored now: 0 for a repeat.

    There is no `session_id` for a webhook that says nothing about a call. `refused` is there if the session takes
    nothing any more: `session_ended`, `session_erased`.
    """

    session_id: SessionId | None
    stored: int
    refused: Reason | UnsetType = UNSET


class HookAddress(NamedTuple):
    """The address of an inbound webhook: the project, session and user that it belongs to, as far as its URL says."""

    project: str
    session_id: str | None = None
    """The session, in place of what the webhook says."""
    user_id: str | None = None
    """The user for a session that has none."""
    key_id: str | None = None
    """The key that it came with, whose quotas apply."""
    binds: bool = False
    """True if a token in the URL names the session: then all webhooks to this URL are about one call."""


class InboundWebhooks:
    """Receives the webhooks of other stacks."""

    def __init__(self, recorder: Recorder, sessions: Sessions, presence: Presence) -> None:
        self.recorder = recorder
        self.sessions = sessions
        self.presence = presence
        self.large = FairQueue(1)
        """The slot of large webhooks: one takes ten times its size until it is journaled."""

    def is_signed(self, verify: Verify, body: bytes, headers: Mapping[str, str], secrets: Iterable[str]) -> bool:
        """Return whether one of the secrets signs the bytes as they came."""
        names = {name.lower(): value for name, value in headers.items()}
        for secret in secrets:
            with suppress(Exception):  # a stranger may send anything in a header
                if verify(body, names, secret, self.sessions.clock()):
                    return True
        return False

    def read(self, dialect: Dialect, raw: bytes) -> tuple[list[ReducedFrame], Caller | None]:
        """Return a webhook's kept frames and its caller; slow for a long one. Raises `Refused`, `InvalidFrame`."""
        check_frame(raw, MAX_HOOK_BYTES, MAX_HOOK_VALUES)
        try:
            body = decode_json(raw)
        except MALFORMED:
            raise InvalidFrame("invalid_json", "The body is not UTF-8 encoded JSON.") from None
        if not isinstance(body, dict):
            raise Refused("malformed_frame", "A webhook must be a JSON object.")
        assert dialect.hook is not None
        digest = self.recorder.frames.keyed_id(msgspec.json.encode(body, order="deterministic"))
        try:
            frames = [*carry(dialect.caller.pick(body), dialect.hook.frames(body))]
        except MalformedFrame as malformed:
            raise Refused("malformed_frame", str(malformed)) from None
        except Exception:  # a fault of ours in a dialect
            raise Refused("malformed_frame") from None
        reduced: list[ReducedFrame] = []
        sender = SenderState()
        for frame in frames:
            arrival = self.recorder.frames.reduce(FrameEvent(dialect=dialect.name, frame=frame), sender=sender)
            if isinstance(arrival, RejectedEvent):
                raise Refused(arrival.code, arrival.detail)
            if arrival is not None and arrival.event.id is None:
                # The id is made of the body and the frame's place in it, so that a repeated webhook is recognised.
                event = replace(arrival.event, id=f"~{digest}.{len(reduced)}")
                arrival = ReducedFrame(event, ENCODER.encode(event), arrival.reduced)
            if arrival is not None:
                reduced.append(arrival)
        return reduced, sender.caller

    async def record(
        self, dialect: Dialect, reduced: list[ReducedFrame], address: HookAddress, caller: Caller | None = None
    ) -> HookTaken:
        """Journal the frames of a webhook; it returns after the commit. Raises `Refused`, `StoreUnavailable`."""
        if not reduced:
            return HookTaken(address.session_id, 0)
        said = next((one.reduced.session_id for one in reduced if one.reduced and one.reduced.session_id), None)
        if address.session_id is None and said is None:
            raise Refused("missing_field", "The webhook does not say which session it is about.")
        name = address.session_id or session_id_of(said or "")
        if address.user_id is None and caller is not None:
            address = address._replace(
                user_id=await self.sessions.callers.user_of(address.project, dialect.name, caller)
            )
        try:
            stream = await self.sessions.find_or_create(address.project, name, address.user_id, address.key_id)
            producer = await self.producer_of(stream, dialect, said, address)
        except Refused as refused:
            if refused.code in OVER:
                return HookTaken(name, 0, refused.code)
            raise
        reduced = await self.recorder.new_frames(stream, reduced)
        lease = ProducerLease(stream, producer, None, may_call_out=False, may_set=False)
        stored, over = 0, None
        for first in range(0, len(reduced), YIELD_EVERY):
            result = await self.recorder.record(lease, reduced[first : first + YIELD_EVERY])
            stored += result.stored
            for problem in result.problems:
                if problem.code not in OVER:
                    raise Refused(problem.code, problem.detail)
                over = problem.code
            if result.ended:
                await self.presence.close_when_ended(lease)

        # A repeated report that a call has ended is no loss.
        is_lost = not stored and any(one.reduced is not None and one.reduced.end is None for one in reduced)
        return HookTaken(name, stored, over if over and (is_lost or over == "session_erased") else UNSET)

    async def producer_of(self, stream: Stream, dialect: Dialect, said: str | None, address: HookAddress) -> str:
        """Return the producer of a call's webhooks.

        A session that a URL names belongs to the call whose webhook comes there first, so that no one who has seen
        another call's webhook can send it to that URL. A session that the vendor's id names accepts no webhooks of
        another platform, whose calls may have the same id. Raises `Refused` (`forbidden`).
        """
        suffix = f"{dialect.name}.hooks"
        if said is None or (address.session_id is not None and not address.binds):
            return suffix
        names = await self.sessions.store.journal.list_producers(stream.key)
        if not address.binds:
            if any(name.endswith(".hooks") and not f".{name}".endswith(f".{suffix}") for name in names):
                raise Refused("forbidden", OTHER_PLATFORM)
            return suffix
        own = f"{self.recorder.frames.keyed_id(said.encode(errors='replace'))}.{suffix}"
        if any(name.endswith(f".{suffix}") and name != own for name in names):
            raise Refused("forbidden", OTHER_CALL)
        return own
