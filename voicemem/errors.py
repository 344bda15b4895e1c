"""Every error that voicemem raises, each with a stable code and a plain sentence.

::

    VoicememError
    ├── InvalidFrame     what came is no frame of events; its connection is closed
    ├── Refused          one event or request that cannot be taken; nothing of it is stored
    │   └── RateLimited  a caller that is over its rate
    ├── StoreUnavailable the store is down, or the outcome of a commit is unknown; nothing is acknowledged
    ├── LlmFailed        an LLM was called in vain
    └── CannotStart      the settings or the database do not allow the service to start

`CODES` is the one table that maps a code to its HTTP status and its websocket close code.
"""

from __future__ import annotations

from typing import NamedTuple


class ErrorSpec(NamedTuple):
    """What a code means to the outside."""

    status: int
    """HTTP status of the problem document."""
    close: int | None
    """Websocket close code, or None where the connection lives on."""
    sentence: str
    """The plain sentence that stands where nothing more exact can be said."""


CODES: dict[str, ErrorSpec] = {
    # What is no frame of events
    "invalid_json": ErrorSpec(400, 1007, "The frame is not UTF-8 encoded JSON."),
    "too_deep": ErrorSpec(400, 1007, "The JSON is nested deeper than 32 levels."),
    "not_events": ErrorSpec(400, 1007, "A frame is one event or an array of events, each a JSON object."),
    "binary_frame": ErrorSpec(400, 1003, "Frames are JSON text; binary frames are not taken."),
    "too_big": ErrorSpec(413, 1009, "A frame may be at most 1 MiB."),
    "flood": ErrorSpec(429, 1008, "Too many frames that cannot be stored."),
    # One event that cannot be taken
    "unknown_type": ErrorSpec(400, None, "The event's type is not known."),
    "missing_field": ErrorSpec(400, None, "A required field is missing."),
    "invalid_field": ErrorSpec(400, None, "A field has a value that it cannot have."),
    "text_too_long": ErrorSpec(400, None, "A text may be at most 256 KiB of UTF-8."),
    "reserved_metadata": ErrorSpec(400, None, "The event's metadata uses a key that is reserved for voicemem."),
    "last_seq_mismatch": ErrorSpec(400, None, "last_seq is not the seq before the end's own."),
    # The order of a producer's events
    "not_open": ErrorSpec(409, None, "No session is open on this connection; send session.open first."),
    "session_required": ErrorSpec(400, None, "The connection carries several sessions; the event must name its own."),
    "seq_conflict": ErrorSpec(409, None, "Another event was stored under this seq."),
    "seq_gap": ErrorSpec(409, None, "Events are missing before this seq; send on from the expected one."),
    "seq_required": ErrorSpec(400, None, "A producer gives all of its events a seq, or none."),
    "session_ended": ErrorSpec(409, None, "The session has ended; it takes no new events."),
    "superseded": ErrorSpec(409, None, "A newer connection has opened this producer."),
    # Requests
    "unknown_session": ErrorSpec(404, None, "There is no such session."),
    "session_erased": ErrorSpec(410, None, "The session was erased; its id is not used again."),
    "session_exists": ErrorSpec(409, None, "The session exists with another configuration."),
    "invalid_query": ErrorSpec(400, None, "A query parameter is unknown or has a value that it cannot have."),
    "invalid_cursor": ErrorSpec(400, None, "The cursor was not given out by this store for this project."),
    "invalid_http": ErrorSpec(400, None, "The request is no HTTP that can be read."),
    "not_found": ErrorSpec(404, None, "There is nothing at this path."),
    "method_not_allowed": ErrorSpec(405, None, "The path does not take this method."),
    # Access
    "unauthorized": ErrorSpec(401, 1008, "A valid key is needed."),
    "forbidden": ErrorSpec(403, 1008, "The key does not have the scope that this needs."),
    "foreign_host": ErrorSpec(403, 1008, "Without keys the service answers only to loopback hosts."),
    "foreign_origin": ErrorSpec(403, 1008, "Without keys the service answers only to pages from loopback."),
    # The service itself
    "timeout": ErrorSpec(408, 1008, "What was announced did not arrive in time."),
    "draining": ErrorSpec(503, 1012, "The service is shutting down; connect again."),
    "store_unavailable": ErrorSpec(503, 1013, "The store cannot be written now; try again."),
    "internal": ErrorSpec(500, 1011, "Something went wrong inside voicemem."),
    # Starting and calling out
    "cannot_start": ErrorSpec(500, None, "The service cannot start with these settings."),
    "address_not_allowed": ErrorSpec(400, None, "The address is not a public one, and not on the allow-list."),
    # Keys, tokens and rates
    "token_expired": ErrorSpec(401, 1008, "The session token has expired; get a new one."),
    "rate_limited": ErrorSpec(429, None, "Too much in too short a time; nothing is lost, come back a little later."),
    "no_keys": ErrorSpec(409, None, "There are no keys yet; make the first with voicemem keys create."),
    "unknown_key": ErrorSpec(404, None, "There is no active key with this id."),
    # Following
    "not_acceptable": ErrorSpec(406, None, "This is answered as text/event-stream only; send it as Accept."),
    "invalid_position": ErrorSpec(400, None, "Last-Event-ID is no position that was given out for this."),
    "other_incarnation": ErrorSpec(409, None, "The position is of another incarnation of the store; begin without it."),
    "too_many_sessions": ErrorSpec(409, None, "Too many running sessions match; narrow the filter."),
    # Webhooks
    "unknown_webhook": ErrorSpec(404, None, "There is no such webhook."),
    "unknown_delivery": ErrorSpec(404, None, "There is no such delivery."),
    "webhook_disabled": ErrorSpec(409, None, "The webhook is disabled; enable it first."),
    "too_many_webhooks": ErrorSpec(409, None, "The project has as many webhooks as it can have."),
    # The gateway
    "llm_not_configured": ErrorSpec(409, None, "The session has no llm.url, and the service no LLM for those without."),
    "llm_failed": ErrorSpec(502, None, "The LLM could not be called, or gave no answer that can be read."),
    "llm_timeout": ErrorSpec(504, None, "The LLM did not answer in time."),
    # Working memory
    "no_user": ErrorSpec(409, None, "The session has no user_id, whose working memory this would be."),
    "precondition_failed": ErrorSpec(412, None, "The document has another version than If-Match says; read it again."),
    "unknown_version": ErrorSpec(404, None, "The document has no such version."),
    # Managing a memory
    "unknown_turn": ErrorSpec(404, None, "The session has no such turn."),
    "invalid_checkpoint": ErrorSpec(400, None, "This is no checkpoint that can be restored here."),
}


class VoicememError(Exception):
    """The base of all errors here. `code` is a key of `CODES`; `detail` never holds payload text."""

    code = "internal"

    def __init__(self, code: str, detail: str | None = None) -> None:
        self.code = code
        self.detail = detail or CODES[code].sentence
        super().__init__(f"{code}: {self.detail}")


class InvalidFrame(VoicememError):
    """What came is no frame of events: nothing in it is stored, and a websocket is closed with its close code."""


class Refused(VoicememError):
    """One event or request cannot be taken, by fault of its sender. Nothing of its content is stored."""


class RateLimited(Refused):
    """A caller is over its rate, and may come back after so many seconds."""

    def __init__(self, retry_after_s: float, detail: str | None = None) -> None:
        super().__init__("rate_limited", detail)
        self.retry_after_s = retry_after_s


class StoreUnavailable(VoicememError):
    """The store is down, or nobody knows whether a commit took place: acknowledge nothing, forget cached state."""

    def __init__(self, detail: str | None = None) -> None:
        super().__init__("store_unavailable", detail)


class StoreRuined(VoicememError):
    """The store cannot be trusted any more by this process: it must end, and the next one goes on."""

    def __init__(self, detail: str) -> None:
        super().__init__("store_unavailable", detail)


class LlmFailed(VoicememError):
    """A call of an LLM that failed; `why` is the HTTP status of its answer, or a short word (docs/gateway.md)."""

    def __init__(self, why: int | str) -> None:
        codes = {"timeout": "llm_timeout", "address_not_allowed": "address_not_allowed"}
        code = codes.get(str(why), "llm_failed")
        sentence = f"The LLM answered {why}." if type(why) is int else f"{CODES[code].sentence[:-1]}: {why}."
        super().__init__(code, sentence if code == "llm_failed" else None)
        self.why = why


class CannotStart(VoicememError):
    """The service must not start: bad settings, a database of a newer version, a file that another server holds."""

    def __init__(self, detail: str) -> None:
        super().__init__("cannot_start", detail)
