"""What went wrong, in sentences that an LLM can act on: what to do, and whether to try again."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from voicemem.client.errors import ClientError, Unreachable

WRONG_KEY = (
    "voicemem does not accept the key of this connection: it is missing, unknown, revoked or has expired. "
    "Trying again will not help; ask the person who set up this connection for a valid key."
)
AWAY = (
    "The memory service did not answer ({reason}), so nothing is known from it now. "
    "Go on without the memory, say so if it matters, and try again in a minute."
)
NOT_WRITTEN = (
    "The memory service did not answer ({reason}), so it is not certain whether this was done. "
    "Do not claim that it was; try again in a minute, which does no harm."
)
ADVICE: Mapping[str, str] = MappingProxyType(
    {
        "forbidden": "The key of this connection may not do that; ask the person who set it up.",
        "unknown_session": "recent_calls lists the ids of a user's calls.",
        "session_erased": "Nothing of it can be read any more.",
        "unknown_memory": "Only what was noted or given can be removed, by the id that search_memories gave; what was "
        "heard (kind message) belongs to its call.",
        "rate_limited": "Wait ten seconds, then try again.",
        "quota_exceeded": "The quota of this project is used up; trying again now will not help.",
        "store_unavailable": "Try again in a minute.",
        "draining": "The service is being restarted; try again in a minute.",
        "session_set_aside": "This session cannot be read until an operator has looked at it.",
    }
)
"""By the code of the error, what to do besides what the service says."""


def sentence_of(error: ClientError, *, writes: bool = False) -> str:
    """An error of a request as sentences; `writes` says that the request was to change something."""
    if isinstance(error, Unreachable):
        return (NOT_WRITTEN if writes else AWAY).format(reason=error.reason.rstrip("."))
    if error.code == "unauthorized":
        return WRONG_KEY
    if error.code == "token_expired":
        return "The session token of this connection has expired. Trying again will not help; a newer one is needed."
    detail = error.detail if error.detail.endswith((".", "!", "?")) else f"{error.detail}."
    return f"{detail} {ADVICE.get(error.code, '')}".rstrip()
