"""Scopes: whose a message or a memory is, and the words under which a full-text index has that."""

import json
from hashlib import blake2b
from typing import NamedTuple

from voicemem.store.streams import Stream

NAMESPACE_LABEL = "namespace"
"""The label of a session that says which namespace its messages are in."""
FIRST_MS, LAST_MS = -(2**62), 2**62


class Scope(NamedTuple):
    """Whose a message is. A query has the same fields, and finds only what agrees with all that are not None."""

    project: str
    namespace: str | None = None
    user_id: str | None = None
    session_id: str | None = None

    @property
    def given(self) -> dict[str, str]:
        return {name: part for name, part in self._asdict().items() if part is not None}


def scope_of(stream: Stream) -> Scope:
    labels = stream.config.get("labels") or {}
    return Scope(stream.project, labels.get(NAMESPACE_LABEL), stream.config.get("user_id"), stream.id)


def scope_terms(scope: Scope, secret: bytes) -> list[str]:
    """One word for each part of a scope that is given, of which no two are alike.

    Each ends with a digit, so that stemming leaves it as it is.
    """
    project, namespace, user_id, session_id = scope
    parts = (("p", ()), ("n", namespace), ("u", user_id), ("s", session_id))
    terms = []
    for kind, value in parts:
        if value is not None:
            name = json.dumps([kind, project, *([value] if value else [])]).encode()
            terms.append(f"{kind}{blake2b(name, digest_size=16, key=secret).hexdigest()}0")
    return terms


def query_terms(scope: Scope, secret: bytes) -> list[str]:
    """The words of a scope that a query looks up: each names its project, so that of the project is needed alone only.

    How rare a word is, a search finds out by going through all texts that have it, which may be a whole project.
    """
    terms = scope_terms(scope, secret)
    return terms[1:] or terms
