"""Every error that voicemem raises, each with a stable code and a plain sentence.

`CODES` is the only table that maps a code to its HTTP status and websocket close code.
"""

from typing import NamedTuple


class ErrorSpec(NamedTuple):
    """How a code appears to clients."""

    status: int
    """HTTP status of the problem document."""
    sentence: str
    """The sentence to show when there is no more precise one."""
    close: int | None = None
    """Websocket close code, or None if the connection stays open."""


CODES: dict[str, ErrorSpec] = {
    # Messages that are not a frame of events
    "invalid_json": ErrorSpec(400, "The frame is not valid JSON in UTF-8.", 1007),
    "too_deep": ErrorSpec(400, "The JSON is nested deeper than 32 levels.", 1007),
    "not_events": ErrorSpec(400, "A frame must be one event or an array of events, each a JSON object.", 1007),
    "binary_frame": ErrorSpec(400, "Frames must be JSON text; binary frames are not accepted.", 1003),
    "too_big": ErrorSpec(413, "A frame may be at most 1 MiB.", 1009),
    "flood": ErrorSpec(429, "Too many events or frames in a row could not be stored.", 1008),
    # Single events that cannot be accepted
    "unknown_type": ErrorSpec(400, "The event's type is unknown."),
    "unknown_field": ErrorSpec(400, "An event has a field that does not exist."),
    "missing_field": ErrorSpec(400, "A required field is missing."),
    "invalid_field": ErrorSpec(400, "A field has an invalid value."),
    "text_too_long": ErrorSpec(400, "A text may be at most 256 KiB long in UTF-8."),
    "reserved_metadata": ErrorSpec(400, "The event's metadata uses a key that is reserved for voicemem."),
    "last_seq_mismatch": ErrorSpec(400, "last_seq must be the seq just before that of the session.end itself."),
    "malformed_frame": ErrorSpec(400, "The frame is not one of its dialect."),
    # The order of a producer's events
    "not_open": ErrorSpec(409, "No session is open on this connection; send session.open first."),
    "session_required": ErrorSpec(400, "The connection carries several sessions; say which in session_id."),
    "seq_conflict": ErrorSpec(409, "A different event is already stored under this seq."),
    "seq_gap": ErrorSpec(409, "Events are missing before this seq; resend from the expected one."),
    "seq_required": ErrorSpec(400, "A producer must give all of its events a seq, or none."),
    "session_ended": ErrorSpec(410, "The session has ended; it takes no new events."),
    "superseded": ErrorSpec(409, "A newer connection has opened this producer."),
    "events_refused": ErrorSpec(422, "Not all events were stored; errors says which were refused, and why."),
    # Requests
    "unknown_dialect": ErrorSpec(404, "There is no such dialect; docs/stacks.md lists those there are."),
    "unknown_session": ErrorSpec(404, "There is no such session."),
    "session_erased": ErrorSpec(410, "The session was erased; its id cannot be used again."),
    "session_in_use": ErrorSpec(409, "A producer is connected to the session; wait until it is gone."),
    "session_exists": ErrorSpec(409, "The session already exists, with a different configuration."),
    "user_erased": ErrorSpec(409, "The user was erased; a call that begins with this id makes a new user of it."),
    "user_conflict": ErrorSpec(409, "The user or the session has another user_id already."),
    "unknown_memory": ErrorSpec(404, "There is no such memory."),
    "memory_exists": ErrorSpec(409, "Another memory of the project has this id."),
    "invalid_query": ErrorSpec(400, "A query parameter is unknown or has an invalid value."),
    "invalid_cursor": ErrorSpec(400, "The cursor must be the next_cursor of a page of this project's list."),
    "invalid_http": ErrorSpec(400, "The request is not valid HTTP."),
    "not_found": ErrorSpec(404, "There is nothing at this path; /openapi.json lists what there is."),
    "method_not_allowed": ErrorSpec(405, "This path does not support the method."),
    # Access
    "unauthorized": ErrorSpec(401, "A valid key is required.", 1008),
    "forbidden": ErrorSpec(403, "The key does not have the scope that this requires.", 1008),
    "foreign_host": ErrorSpec(403, "Without keys, the service answers only requests to loopback hosts.", 1008),
    "foreign_origin": ErrorSpec(403, "Without keys, the service answers only pages served from loopback.", 1008),
    # The service itself
    "timeout": ErrorSpec(408, "The data that was expected did not arrive in time.", 1008),
    "too_many_connections": ErrorSpec(503, "Too many connections are open; connect again a little later.", 1013),
    "draining": ErrorSpec(503, "The service is shutting down; connect again shortly.", 1012),
    "store_unavailable": ErrorSpec(503, "The store is not available at the moment; try again.", 1013),
    "session_set_aside": ErrorSpec(
        503, "The session's memory cannot be made, so it is set aside; an operator can try again with refold."
    ),
    "internal": ErrorSpec(500, "Something went wrong inside voicemem.", 1011),
    # Starting, and addresses that the service may not contact
    "cannot_start": ErrorSpec(500, "The service cannot start with these settings."),
    "address_not_allowed": ErrorSpec(
        400,
        "The address is not public; use a public one, or allow its network where the service is started, with"
        " --allow-address.",
    ),
    # Keys, tokens and rates
    "token_expired": ErrorSpec(401, "The session token has expired; get a new one.", 1008),
    "rate_limited": ErrorSpec(429, "Too many requests; nothing is lost, try again a little later.", 1008),
    "quota_exceeded": ErrorSpec(429, "The project has used up one of its quotas."),
    "no_keys": ErrorSpec(409, "There are no keys yet; create the first one with voicemem keys create."),
    "unknown_key": ErrorSpec(404, "There is no active key with this id."),
    "unknown_agora_app": ErrorSpec(404, "No app of Agora's is registered with this App ID."),
    "agora_app_exists": ErrorSpec(409, "The App ID is already registered; rotate gives it a new certificate."),
    "unknown_hook_secret": ErrorSpec(404, "The project has set no secret for the webhooks of this dialect."),
    # Observed calls
    "unknown_observation": ErrorSpec(404, "No call was observed for this session."),
    "observer_not_configured": ErrorSpec(
        409, "The service has no key for the vendor; set VOICEMEM_OBSERVE_KEY where it is started."
    ),
    "already_observed": ErrorSpec(409, "Another call is observed for this session; stop that first."),
    "too_many_observations": ErrorSpec(
        409, "As many calls are observed as the service, or one project of several, may; try again later."
    ),
    # Live tails
    "not_acceptable": ErrorSpec(406, "This is served as text/event-stream only; ask for that in Accept."),
    "invalid_position": ErrorSpec(400, "Last-Event-ID must be a position that this tail has issued."),
    "other_incarnation": ErrorSpec(409, "The position is of another incarnation of the store; start without it."),
    "too_many_sessions": ErrorSpec(409, "Too many running sessions match; narrow the filter."),
    # Webhooks
    "unknown_webhook": ErrorSpec(404, "There is no such webhook; GET /v1/webhooks lists those of the project."),
    "unknown_delivery": ErrorSpec(404, "There is no such delivery."),
    "webhook_disabled": ErrorSpec(409, "The webhook is disabled; enable it first."),
    "too_many_webhooks": ErrorSpec(409, "The project already has as many webhooks as it may have."),
    # The gateway
    "llm_not_configured": ErrorSpec(
        409, "No LLM is set: give the session an llm.url, or start the service with --llm-url."
    ),
    "llm_failed": ErrorSpec(502, "The LLM request failed, or its answer could not be read."),
    "llm_timeout": ErrorSpec(504, "The LLM did not answer in time."),
    # The proxy
    "upstream_unreachable": ErrorSpec(502, "The upstream of the call cannot be reached."),
    "upstream_timeout": ErrorSpec(504, "The upstream of the call did not answer in time."),
    # Memories of calls
    "no_extraction": ErrorSpec(
        409, "No memories are made of this session: give it memory.extract, or all of them by --context."
    ),
    # Working memory
    "no_user": ErrorSpec(409, "The session has no user_id, so it has no user's working memory."),
    "precondition_failed": ErrorSpec(412, "The document's version is not the one in If-Match; read it again."),
    "unknown_version": ErrorSpec(404, "The document has no such version; its versions are listed under …/versions."),
    # Managing a memory
    "unknown_turn": ErrorSpec(404, "The session has no such turn; its turns are listed under …/turns."),
    "invalid_checkpoint": ErrorSpec(400, "This is not a checkpoint that can be restored here."),
}


class VoicememError(Exception):
    """Base of all errors of voicemem. `code` is a key of `CODES`; `detail` never contains text of a payload."""

    code = "internal"

    def __init__(self, code: str, detail: str | None = None) -> None:
        self.code = self.word = code  # the word is the same, or says more
        self.detail = detail or CODES[code].sentence
        super().__init__(f"{code}: {self.detail}")


class InvalidFrame(VoicememError):
    """A message is not a frame of events: none of it is stored, and a websocket closes with the code's close code."""


class Refused(VoicememError):
    """An event or request cannot be accepted, through its sender's fault. None of it is stored."""


class RateLimited(Refused):
    """A client exceeds its rate, and may try again after `retry_after_s` seconds."""

    def __init__(self, retry_after_s: float, detail: str | None = None) -> None:
        super().__init__("rate_limited", detail)
        self.retry_after_s = retry_after_s


class QuotaExceeded(Refused):
    """A project has used up a quota; `retry_after_s` is None if it is not known when there is more."""

    def __init__(self, quota: str, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__("quota_exceeded", detail)
        self.quota = quota
        self.retry_after_s = retry_after_s


class StoreUnavailable(VoicememError):
    """The store is down, or a commit's outcome is unknown: acknowledge nothing, and drop cached state."""

    def __init__(self, detail: str | None = None) -> None:
        super().__init__("store_unavailable", detail)


class DamagedEntry(StoreUnavailable):
    """An entry of one session's journal is damaged; the store itself can be read."""

    def __init__(self, detail: str = "An entry of the journal is damaged in the store.") -> None:
        super().__init__(detail)


class SessionQuarantined(VoicememError):
    """A session's memory could not be made, or would take too long: it is not retried automatically."""

    def __init__(self) -> None:
        super().__init__("session_set_aside")


class StoreRuined(VoicememError):
    """This process can no longer trust the store: it must end, and the next process continues."""

    def __init__(self, detail: str) -> None:
        super().__init__("store_unavailable", detail)


class LlmFailed(VoicememError):
    """An LLM request failed; `why` is the HTTP status of the answer, or a short word (docs/gateway.md)."""

    def __init__(self, why: int | str) -> None:
        codes = {"timeout": "llm_timeout", "address_not_allowed": "address_not_allowed"}
        code = codes.get(str(why), "llm_failed")
        sentence = f"The LLM answered {why}." if type(why) is int else f"{CODES[code].sentence[:-1]}: {why}."
        super().__init__(code, sentence if code == "llm_failed" else None)
        self.why, self.word = why, str(why)


class CannotStart(VoicememError):
    """The service must not start: invalid settings, a newer version's database, a file in use by another process."""

    def __init__(self, detail: str) -> None:
        super().__init__("cannot_start", detail)
