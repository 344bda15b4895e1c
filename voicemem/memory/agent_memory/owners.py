"""Which session stands for which working memory: by namespace, user and the client's own id."""

from __future__ import annotations

import base64
import hashlib
from typing import NamedTuple

from voicemem.config.context import MESSAGES, NOW
from voicemem.config.session import parse_config
from voicemem.errors import Refused
from voicemem.memory.agent_memory.models import StrategyConfig
from voicemem.protocol.types import JsonObject
from voicemem.store.records import CLIENT_ID_LABEL
from voicemem.store.streams import Stream

ID_LABEL = CLIENT_ID_LABEL
"""The id as the client has it, of each session that came into being by this API."""
NAMESPACE_LABEL = "namespace"
MAX_ID = 512
MAX_NAMESPACE = 256
IDLE_TIMEOUT_S = 60
"""After this long without a change a session is closed, as calls are; the next change opens it again."""
REOPEN_WINDOW_S = 10**9
"""A working memory can be written to for as long as it is there."""
MEMORIES_TTL_S = 10**9
"""How long memories outlive the working memory that brought them: thirty years."""
MAX_SUMMARY_WORDS = 10_000
PROMPT_NAMES = {"{message}": MESSAGES, "{current_datetime}": NOW}
"""What the placeholders of a client's prompt are in ours."""


class Owner(NamedTuple):
    """What a working memory is known by. Where namespace or user are not given, any will do if only one is there."""

    session_id: str
    namespace: str | None = None
    user_id: str | None = None


def checked_owner(session_id: str, namespace: str | None, user_id: str | None) -> Owner:
    """The owner that a request names. Raises `Refused` (`invalid_field`)."""
    for value, name, most in ((session_id, "session_id", MAX_ID), (namespace, "namespace", MAX_NAMESPACE)):
        if value is not None and len(value) > most:
            raise Refused("invalid_field", f"`{name}` may have at most {most} characters.")
    if user_id is not None and len(user_id) > 128:
        raise Refused("invalid_field", "`user_id` may have at most 128 characters.")
    return Owner(session_id, namespace or None, user_id or None)


def owner_of(stream: Stream) -> Owner:
    """The owner of a session, also of one that came into being otherwise."""
    labels = stream.config.get("labels") or {}
    return Owner(labels.get(ID_LABEL, stream.id), labels.get(NAMESPACE_LABEL) or None, stream.config.get("user_id"))


def is_own(stream: Stream) -> bool:
    """Whether a session came into being by this API."""
    return ID_LABEL in (stream.config.get("labels") or {})


def covers(wanted: Owner, found: Owner) -> bool:
    """Whether all that is given of an owner holds for another."""
    return (
        wanted.session_id == found.session_id
        and wanted.namespace in (None, found.namespace)
        and wanted.user_id in (None, found.user_id)
    )


def derived_id(owner: Owner) -> str:
    """The id of the session where the client's own is taken, or is none of ours; `ID_LABEL` leads back."""
    parts = "\0".join((owner.namespace or "", owner.user_id or "", owner.session_id))
    digest = hashlib.sha256(parts.encode("utf-8", "surrogatepass")).digest()
    return f"am-{base64.b32encode(digest).decode()[:26].lower()}"


def config_of(owner: Owner, ttl_s: int | None) -> JsonObject:
    """The configuration of a new session."""
    labels = {ID_LABEL: owner.session_id}
    if owner.namespace is not None:
        labels[NAMESPACE_LABEL] = owner.namespace
    optional = {"user_id": owner.user_id, **lifetime(ttl_s)}
    given = {name: value for name, value in optional.items() if value is not None}
    return {"labels": labels, "reopen_window": REOPEN_WINDOW_S, **given}


def lifetime(ttl_s: int | None) -> JsonObject:
    """The settings with which a session is erased `ttl_s` seconds after its last change: closed first, then expired.

    Its memories go on with its user.
    """
    if ttl_s is None:
        return {"idle_timeout": IDLE_TIMEOUT_S, "ttl_seconds": None, "memories_ttl_seconds": None}
    idle = max(1, min(IDLE_TIMEOUT_S, ttl_s))
    return {"idle_timeout": idle, "ttl_seconds": max(0, ttl_s - idle), "memories_ttl_seconds": MEMORIES_TTL_S}


def extract_of(given: StrategyConfig) -> JsonObject | None:
    """The setting `memory.extract` for a client's strategy; None, the service's default, for `discrete`."""
    length, prompt = given.config.get("max_summary_length"), given.config.get("custom_prompt")
    match given.strategy:
        case "preferences":
            return {"strategy": "preferences"}
        case "summary" if type(length) is int and 0 < length <= MAX_SUMMARY_WORDS:
            return {"strategy": "summary", "instructions": f"Write at most {length} words."}
        case "summary":
            return {"strategy": "summary"}
        case "custom" if isinstance(prompt, str) and prompt.strip():
            for theirs, ours in PROMPT_NAMES.items():
                prompt = prompt.replace(theirs, ours)
            return {"strategy": "custom", "prompt": prompt if MESSAGES in prompt else f"{prompt}\n\n{MESSAGES}"}
    return None


def ttl_of(stream: Stream) -> int | None:
    """After how many seconds without a change a session expires; None for never."""
    settings = parse_config(stream.config)
    if settings.ttl_seconds is None:
        return None
    return int(settings.ttl_seconds + (settings.idle_timeout if is_own(stream) else 0))


def is_expired(stream: Stream, now_ms: int) -> bool:
    """Whether the lifetime of a session is over, though it may not be erased yet."""
    ttl_s = ttl_of(stream)
    if ttl_s is None or not is_own(stream):
        return False
    if stream.silent_since_ms is not None:
        return stream.silent_since_ms + ttl_s * 1000 <= now_ms
    settings = parse_config(stream.config)
    return stream.ended_ms is not None and stream.ended_ms + int((settings.ttl_seconds or 0) * 1000) <= now_ms
