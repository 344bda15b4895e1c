"""Working memories as sessions: found by their owners, listed, created and erased."""

import base64
import hashlib
import re
import sys
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta, structs

from voicemem.compat.agent_memory_server.records import SessionList, StrategyConfig
from voicemem.config.context import MESSAGES, NOW
from voicemem.config.session import parse_config
from voicemem.errors import Refused
from voicemem.protocol.types import SESSION_ID_PATTERN, JsonObject
from voicemem.services import Services
from voicemem.store.records import CLIENT_ID_LABEL
from voicemem.store.session_filters import SessionFilter
from voicemem.store.streams import Stream

ID_LABEL = CLIENT_ID_LABEL
"""The client's own id of a session that was created through this API."""
NAMESPACE_LABEL = "namespace"
MAX_ID = 512
IDLE_TIMEOUT_S = 60
"""After this long without a change a session is closed, as calls are; the next change reopens it."""
MEMORIES_TTL_S = 10**9
"""How long memories outlive their working memory: thirty years."""
PROMPT_NAMES = {"{message}": MESSAGES, "{current_datetime}": NOW}
"""Placeholders of clients' prompts, and ours."""
MOST_SAME_ID = 100
"""The most sessions with one id, of different users and namespaces, that are searched."""
Given = Annotated[str, Meta(min_length=1)]
"""Not empty, because an empty text must not mean everyone."""
SESSION_ID = re.compile(SESSION_ID_PATTERN)


class Owner(NamedTuple):
    """The owner of a working memory. Without a namespace or user, any matches if there is only one."""

    session_id: str
    namespace: str | None = None
    user_id: str | None = None


def checked_owner(session_id: str, namespace: str | None, user_id: str | None) -> Owner:
    """Return the owner that a request names. Raises `Refused` (`invalid_field`)."""
    named = {"session_id": (session_id, MAX_ID), "namespace": (namespace, 256), "user_id": (user_id, 128)}
    for name, (value, most) in named.items():
        if value is not None and len(value) > most:
            raise Refused("invalid_field", f"`{name}` may have at most {most} characters.")
    return Owner(session_id, namespace or None, user_id or None)


def owner_of(stream: Stream) -> Owner:
    """Return the owner of any session, even one that was not created through this API."""
    labels = stream.config.get("labels") or {}
    return Owner(labels.get(ID_LABEL, stream.id), labels.get(NAMESPACE_LABEL) or None, stream.config.get("user_id"))


def is_own(stream: Stream) -> bool:
    return ID_LABEL in (stream.config.get("labels") or {})


def matches_owner(owner: Owner, other: Owner) -> bool:
    """Return whether the fields that `owner` has are the same in `other`."""
    return (
        owner.session_id == other.session_id
        and owner.namespace in (None, other.namespace)
        and owner.user_id in (None, other.user_id)
    )


def derived_id(owner: Owner) -> str:
    """A session id for when the client's own is taken or invalid here; the label `ID_LABEL` holds the client's id."""
    parts = "\0".join((owner.namespace or "", owner.user_id or "", owner.session_id))
    digest = hashlib.sha256(parts.encode("utf-8", "surrogatepass")).digest()
    return f"am-{base64.b32encode(digest).decode()[:26].lower()}"


def config_of(owner: Owner, ttl_s: int | None) -> JsonObject:
    labels = {ID_LABEL: owner.session_id} | ({} if owner.namespace is None else {NAMESPACE_LABEL: owner.namespace})
    optional = {"user_id": owner.user_id, **lifetime(ttl_s)}
    known = {name: value for name, value in optional.items() if value is not None}
    return {"labels": labels, "reopen_window": 10**9, **known}


def lifetime(ttl_s: int | None) -> JsonObject:
    """Return the settings that erase a session `ttl_s` seconds after its last change, but keep its user's memories."""
    if ttl_s is None:
        return {"idle_timeout": IDLE_TIMEOUT_S, "ttl_seconds": None, "memories_ttl_seconds": None}
    idle = max(1, min(IDLE_TIMEOUT_S, ttl_s))
    return {"idle_timeout": idle, "ttl_seconds": max(0, ttl_s - idle), "memories_ttl_seconds": MEMORIES_TTL_S}


def extract_of(config: StrategyConfig) -> JsonObject | None:
    """Return the setting `memory.extract` for a client's strategy; None, the default, for `discrete`."""
    length, prompt = config.config.get("max_summary_length"), config.config.get("custom_prompt")
    match config.strategy:
        case "preferences":
            return {"strategy": "preferences"}
        case "summary" if type(length) is int and 0 < length <= 10_000:
            return {"strategy": "summary", "instructions": f"Write at most {length} words."}
        case "summary":
            return {"strategy": "summary"}
        case "custom" if isinstance(prompt, str) and prompt.strip():
            for theirs, ours in PROMPT_NAMES.items():
                prompt = prompt.replace(theirs, ours)
            return {"strategy": "custom", "prompt": prompt if MESSAGES in prompt else f"{prompt}\n\n{MESSAGES}"}
    return None


def ttl_of(stream: Stream) -> int | None:
    """Return the seconds without a change after which a session expires; None for never."""
    settings = parse_config(stream.config)
    if settings.ttl_seconds is None:
        return None
    return int(settings.ttl_seconds + (settings.idle_timeout if is_own(stream) else 0))


def is_expired(stream: Stream, now_ms: int) -> bool:
    """Return whether a session's lifetime is over, even if it has not been erased yet."""
    ttl_s = ttl_of(stream)
    if ttl_s is None or not is_own(stream):
        return False
    if stream.silent_since_ms is not None:
        return stream.silent_since_ms + ttl_s * 1000 <= now_ms
    settings = parse_config(stream.config)
    return stream.ended_ms is not None and stream.ended_ms + int((settings.ttl_seconds or 0) * 1000) <= now_ms


class OwnedSessions:
    """Sessions by the client's id, namespace and user."""

    def __init__(self, services: Services) -> None:
        self.store = services.store
        self.read_models = services.read_models
        self.sessions = services.sessions
        self.clock = services.sessions.clock

    # Finding

    async def find(self, project: str, owner: Owner) -> Stream | None:
        """Return the session of an owner: the exact match, else the only session that matches all given fields."""
        plain = None
        if SESSION_ID.match(owner.session_id):
            plain = await self.store.journal.find_session(project, owner.session_id)
        now_ms = self.clock()
        if plain is not None and owner_of(plain) == owner and not is_expired(plain, now_ms):
            return plain
        labelled = await self.store.journal.list_sessions(
            SessionFilter(project=project, label=(ID_LABEL, owner.session_id), limit=MOST_SAME_ID)
        )
        several = {one.key: one for one in (plain, *labelled) if one is not None}
        of_anyone = owner._replace(user_id=None)
        known = [
            one for one in several.values() if matches_owner(of_anyone, owner_of(one)) and not is_expired(one, now_ms)
        ]
        exact = [one for one in known if owner_of(one) == owner] or await self.of_user(project, owner, known)
        return exact[0] if len(exact) == 1 else None

    async def of_user(self, project: str, owner: Owner, streams: Sequence[Stream]) -> Sequence[Stream]:
        """Return the sessions that match the owner, or those of another id of the same person."""
        own = [one for one in streams if matches_owner(owner, owner_of(one))]
        if own or not streams or owner.user_id is None:
            return own
        linked_id = await self.store.users.find_linked(project, owner.user_id)
        return [one for one in streams if linked_id is not None and owner_of(one).user_id == linked_id]

    async def get(self, project: str, owner: Owner) -> Stream:
        """Return the session of an owner, as `find` does. Raises `Refused` (`unknown_session`)."""
        stream = await self.find(project, owner)
        if stream is None:
            raise Refused("unknown_session", "Session not found: there is no such working memory.")
        return stream

    async def list_ids(self, project: str, namespace: str | None, user_id: str | None, page: slice) -> SessionList:
        """Return a page of session ids, the newest first. Raises `Refused` (`invalid_query`)."""
        if page.stop > 10_000:
            raise Refused("invalid_query", "Only the newest 10,000 sessions are listed; narrow the list by user_id.")
        label = None if not namespace else (NAMESPACE_LABEL, namespace)
        owner = SessionFilter(project=project, user_id=user_id or None, label=label, limit=page.start)
        total = await self.store.journal.count_sessions(owner)
        after = None
        if page.start:
            skipped, _ = await self.store.overviews.list_overviews(owner, most_looks=sys.maxsize)
            if len(skipped) < page.start:
                return SessionList([], total)
            after = skipped[-1].started_ms, skipped[-1].key
        streams = await self.store.journal.list_sessions(
            structs.replace(owner, after=after, limit=page.stop - page.start)
        )
        now_ms = self.clock()
        return SessionList([owner_of(one).session_id for one in streams if not is_expired(one, now_ms)], total)

    # Beginning and erasing

    async def create(self, project: str, owner: Owner, ttl_s: int | None, key_id: str | None) -> Stream:
        """Begin a session, with the client's id if it is free and valid here, else with one derived from it."""
        config = config_of(owner, ttl_s)
        derived = derived_id(owner)
        ids = [owner.session_id] if SESSION_ID.match(owner.session_id) else []
        for session_id in (*ids, derived):
            existing = await self.store.journal.find_session(project, session_id)
            if existing is None:
                try:
                    return (await self.sessions.create(project, session_id, config, key_id))[0]
                except Refused as refused:
                    if refused.code not in ("session_exists", "session_erased"):
                        raise
                existing = await self.store.journal.find_session(project, session_id)
            if existing is not None and owner_of(existing) == owner and not is_expired(existing, self.clock()):
                return existing
        # Both ids were used before. If several nodes do this at once, one of them succeeds.
        session_id = f"{derived}-{self.sessions.new_id()}"
        try:
            return (await self.sessions.create(project, session_id, config | {"name": derived}, key_id, True))[0]
        except Refused as refused:
            stream = await self.find(project, owner) if refused.code == "session_exists" else None
            if stream is None:
                raise
            return stream

    async def delete(self, project: str, owner: Owner) -> Stream | None:
        """Erase a session with all that came from it; None if there is none, or several match."""
        stream = await self.find(project, owner)
        if stream is not None:
            await self.sessions.erase(stream)
            self.read_models.discard(stream.key)
        return stream
