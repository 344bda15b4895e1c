"""The reach of a session token besides the paths of its session: what was said on it, or also of its user."""

from typing import NamedTuple

from aiohttp import web
from msgspec import structs

from voicemem.errors import Refused
from voicemem.memory.long_term.records import GivenMemory, Memory
from voicemem.server.http.request import GRANT, services_of
from voicemem.store.scopes import scope_of

OTHERS = "The session token reaches only what was said on its own session."


class TokenReach(NamedTuple):
    """Whose memories a token reaches: those of a user, in one namespace, or only those of its session."""

    session_id: str
    namespace: str | None
    user_id: str | None
    """None for a token that does not reach its user's, or whose session has none."""

    def scope(self, user_id: str | None, session_id: str | None, namespace: str | None) -> dict[str, str | None]:
        """Return the scope of a caller's search. Raises `Refused` (`forbidden`) for what is further away."""
        if self.user_id is None:
            if user_id is not None or session_id not in (None, self.session_id):
                raise Refused("forbidden", OTHERS)
            return {"session_id": self.session_id, "namespace": namespace}
        if user_id not in (None, self.user_id) or (
            self.namespace is not None and namespace not in (None, self.namespace)
        ):
            raise Refused("forbidden", "The session token reaches only what is remembered of the user of its session.")
        return {"user_id": self.user_id, "session_id": session_id, "namespace": namespace or self.namespace}

    def own(self, given: GivenMemory) -> GivenMemory:
        """A memory that the token's holder gives, as one of its session. Raises `Refused` (`forbidden`)."""
        owner = self.scope(given.user_id, given.session_id, given.namespace)
        if owner["session_id"] not in (None, self.session_id):
            raise Refused("forbidden", OTHERS)
        if given.id is not None or given.supersedes:
            raise Refused("forbidden", "A session token replaces no memory: leave out `id` and `supersedes`.")
        return structs.replace(given, session_id=self.session_id, user_id=None, namespace=self.namespace)

    def has(self, memory: Memory) -> bool:
        """Return whether the token's holder may remove a memory, and what says the same."""
        if self.user_id is None:
            return memory.session_id == self.session_id and memory.same_as is None
        return memory.user_id == self.user_id and self.namespace in (None, memory.namespace)


async def token_reach(request: web.Request) -> TokenReach | None:
    """Return the reach of a caller's token; None for a key, which reaches its whole project.

    Raises `Refused` (`unknown_session`) when the token's session is gone.
    """
    grant = request[GRANT]
    if grant.session_id is None:
        return None
    scope = scope_of(await services_of(request).sessions.get(grant.project, grant.session_id))
    return TokenReach(grant.session_id, scope.namespace, scope.user_id if grant.reaches_user else None)
