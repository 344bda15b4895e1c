"""Memories that last beyond a call: keep, make, read, change, remove and find them, and find what was said."""

from contextlib import suppress
from typing import Annotated, NamedTuple

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Struct, structs

from voicemem.errors import Refused
from voicemem.memory.extraction.extractor import ExtractionState, StateName
from voicemem.memory.long_term.memories import MemoriesQuery, MemoryPage, list_filter, memory_page
from voicemem.memory.long_term.records import MAX_GIVEN, GivenMemory, KnownMemory, Memory, MemoryPatch, draft_of
from voicemem.memory.long_term.removal import ForgetMemories, forget, policy_of
from voicemem.memory.search import FoundMemories, MemorySearch
from voicemem.protocol.arguments import converted
from voicemem.protocol.memories import Analysis, outcome_of
from voicemem.protocol.pieces import object_parts
from voicemem.protocol.types import JsonObject, SessionId
from voicemem.security.audit import audit
from voicemem.server.http.request import Request, answer_in_parts, json_response, name_in_path, read_body, read_object
from voicemem.server.http.routes import JSON, Routes
from voicemem.store.memory_filters import AnyOf
from voicemem.store.scopes import scope_of
from voicemem.store.streams import Stream

ROUTES = Routes()
PATH = "/v1/memories/{memory_id}"
FEW = 100
"""Memories that are answered in one piece."""
GIVEN_CODES = "invalid_field text_too_long too_big quota_exceeded"
OTHERS = "The session token reaches only what was said on its own session."


class GivenMemories(Struct, frozen=True, forbid_unknown_fields=True):
    """Several memories to keep."""

    memories: Annotated[list[GivenMemory], Meta(min_length=1, max_length=MAX_GIVEN)]


class KeptMemories(Struct, frozen=True):
    """The memories as they stand, in the order in which they were given."""

    memories: list[Memory]


class MemoryId(Struct, frozen=True):
    """The part of a memory that a key without the right to read may see."""

    id: str


class KeptIds(Struct, frozen=True):
    """The answer to a key that may not read."""

    memories: list[MemoryId]


class ForgottenMemories(Struct, frozen=True):
    """The ids of the memories that were forgotten, or with `dry_run` would be."""

    ids: list[str]
    dry_run: bool


class SessionAnalysis(Struct, frozen=True):
    """The values that were found out of a call, in the order of its schema, and the words that show each.

    `state` is as in `extraction` of the statistics, and null where no analysis is made. `missing` are the fields that
    no line shows so far.
    """

    session_id: SessionId
    state: StateName | None
    outcome: str | None
    values: Analysis
    missing: list[str]


class MemoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a memory; `evidence=true` shows the messages that it comes from too."""

    evidence: bool = False


# What a session token may read and change, besides the paths of its session


class TokenScope(NamedTuple):
    """The scope of a token: a user's memories, in one namespace, or only those of its session."""

    session_id: str
    namespace: str | None
    user_id: str | None
    """None for a token that does not reach its user's, or whose session has none."""
    linked_id: str | None = None
    """The other id of the same person."""

    @property
    def user_ids(self) -> tuple[str | None, ...]:
        return (self.user_id,) if self.linked_id is None else (self.user_id, self.linked_id)

    def scope(self, user_id: str | None, session_id: str | None, namespace: str | None) -> dict[str, str | None]:
        """Return the scope of a client's search. Raises `Refused` (`forbidden`) for one that exceeds the token's."""
        if self.user_id is None:
            if user_id is not None or session_id not in (None, self.session_id):
                raise Refused("forbidden", OTHERS)
            return {"session_id": self.session_id, "namespace": namespace}
        if user_id not in (None, *self.user_ids) or (
            self.namespace is not None and namespace not in (None, self.namespace)
        ):
            raise Refused("forbidden", "The session token reaches only what is remembered of the user of its session.")
        return {"user_id": self.user_id, "session_id": session_id, "namespace": namespace or self.namespace}

    def own(self, memory: GivenMemory) -> GivenMemory:
        """Return a memory from the token's holder as one of its session. Raises `Refused` (`forbidden`)."""
        owner = self.scope(memory.user_id, memory.session_id, memory.namespace)
        if owner["session_id"] not in (None, self.session_id):
            raise Refused("forbidden", OTHERS)
        if memory.id is not None or memory.supersedes:
            raise Refused("forbidden", "A session token replaces no memory: leave out `id` and `supersedes`.")
        return structs.replace(memory, session_id=self.session_id, user_id=None, namespace=self.namespace)

    def has(self, memory: Memory) -> bool:
        """Return whether the token's holder may remove a memory and its repetitions."""
        if self.user_id is None:
            return memory.session_id == self.session_id and memory.same_as is None
        return memory.user_id in self.user_ids and self.namespace in (None, memory.namespace)


async def token_scope(request: Request) -> TokenScope | None:
    """Return the scope of a token; None for a key. Raises `Refused` (`unknown_session`) when its session is gone."""
    grant = request.grant
    if grant.session_id is None:
        return None
    scope = scope_of(await request.services.store.journal.get_session(grant.project, grant.session_id))
    if not grant.reaches_user or scope.user_id is None:
        return TokenScope(grant.session_id, scope.namespace, None)
    linked_id = await request.services.store.users.find_linked(grant.project, scope.user_id)
    return TokenScope(grant.session_id, scope.namespace, scope.user_id, linked_id)


@ROUTES.add(
    "POST /v1/memories",
    "ingest",
    body=GivenMemory | GivenMemories,
    codes=f"{GIVEN_CODES} unknown_session session_erased memory_exists",
    for_tokens=True,
)
async def keep_memories(request: Request) -> KeptMemories | KeptIds:
    """Keep a memory, or several; they are found once this is answered.

    What the same owner has in the same words already is not kept twice. One with the `id` of a memory replaces it.
    """
    services, grant = request.services, request.grant
    body = await read_object(request)
    memories = given_in(body)
    reach = await token_scope(request)
    if reach is not None:
        memories = [reach.own(one) for one in memories]
    services.limits.count_events(grant.principal, len(memories), len(await read_body(request)))
    kept = await services.long_term.add(grant.project, [draft_of(one) for one in memories])
    if grant.allows("read", grant.session_id) and (reach is None or reach.user_id is not None):
        return KeptMemories(kept)
    return KeptIds([MemoryId(memory.id) for memory in kept])


def given_in(body: JsonObject) -> list[GivenMemory]:
    """Return the memories of a body. Raises `Refused`, which names the invalid one."""
    if "memories" not in body:
        return [converted(body, GivenMemory)]
    try:
        return converted(body, GivenMemories).memories
    except Refused as refused:
        place = 0
        with suppress(Refused, TypeError):
            for one in body["memories"]:
                converted(one, GivenMemory)
                place += 1
        raise Refused(refused.code, refused.detail.replace("memories[...]", f"memories[{place}]")) from None


@ROUTES.add(f"GET {PATH}", "read", codes="unknown_memory invalid_field")
async def read_memory(request: Request, query: MemoryQuery) -> KnownMemory:
    """Read a memory, and on request the messages that it comes from, as they were heard."""
    memory = await request.services.long_term.find(request.grant.project, name_in_path(request, "memory_id"))
    lines = await request.services.long_term.evidence(request.grant.project, memory) if query.evidence else UNSET
    return KnownMemory(**msgspec.structs.asdict(memory), lines=lines)


@ROUTES.add(
    f"PATCH {PATH}",
    "ingest",
    body=MemoryPatch,
    codes=f"{GIVEN_CODES} unknown_memory unknown_session session_erased memory_exists",
)
async def change_memory(request: Request, patch: MemoryPatch) -> Memory | MemoryId:
    """Change a memory: the fields that are given; null takes a value away. `metadata` is replaced as a whole."""
    services, grant = request.services, request.grant
    services.limits.count_events(grant.principal, 1, len(await read_body(request)))
    memory = await services.long_term.edit(grant.project, name_in_path(request, "memory_id"), patch)
    return memory if grant.allows("read", None) else MemoryId(memory.id)


@ROUTES.add(f"DELETE {PATH}", "ingest", codes="unknown_memory invalid_field", for_tokens=True)
async def remove_memory(request: Request) -> None:
    """Remove a memory: no one can read or find it any more, and its text leaves the store."""
    long_term, project, id = request.services.long_term, request.grant.project, name_in_path(request, "memory_id")
    reach, memory = await token_scope(request), await long_term.find(project, id)
    if reach is not None and not reach.has(memory):
        raise Refused("unknown_memory")
    if not await long_term.remove(project, [id]):
        raise Refused("unknown_memory")


@ROUTES.add("GET /v1/users/{user_id}/memories", "read", MemoryPage, codes="invalid_cursor", for_tokens=True)
async def list_user_memories(request: Request, query: MemoriesQuery) -> web.StreamResponse:
    """List the memories of a user, the newest first."""
    user_id, reach = name_in_path(request, "user_id"), await token_scope(request)
    if reach is not None:
        scope = reach.scope(user_id, None, query.namespace)
        query = structs.replace(query, namespace=scope["namespace"])
    return await answer_page(request, query, user_ids=AnyOf((user_id,)))


@ROUTES.add("GET /v1/sessions/{id}/memories", "read", MemoryPage, codes="invalid_cursor")
async def list_session_memories(request: Request, query: MemoriesQuery, stream: Stream) -> web.StreamResponse:
    """List the memories that come from a session or are about it, the newest first."""
    own = scope_of(stream).user_id
    return await answer_page(request, query, user_ids=AnyOf(tuple({own, None})), session_ids=AnyOf((stream.id,)))


async def answer_page(request: Request, query: MemoriesQuery, **conditions: AnyOf) -> web.StreamResponse:
    conditions_of_all = list_filter(request.grant.project, query, **conditions)
    page = await memory_page(request.services.long_term, conditions_of_all, query.cursor)
    if len(page.memories) <= FEW:
        return json_response(page)
    fields = {"memories": iter(page.memories), "next_cursor": page.next_cursor}
    return await answer_in_parts(request, {"Content-Type": JSON}, object_parts(fields))


@ROUTES.add("POST /v1/users/{user_id}/memories/forget", "admin", body=ForgetMemories, codes="missing_field")
async def forget_user_memories(request: Request, body: ForgetMemories) -> ForgottenMemories:
    """Forget memories of a user for good: no one can read or find them any more, and their texts leave the store.

    What was heard stays in the sessions that it comes from.
    """
    policy = policy_of(body, request.grant.project, name_in_path(request, "user_id"))
    ids = await forget(request.services.long_term, request.grant.project, policy, body.dry_run)
    if not body.dry_run:
        audit("memories_forgotten", request.grant, memories=len(ids))
    return ForgottenMemories(ids, body.dry_run)


@ROUTES.add("POST /v1/memories/search", "read", codes="invalid_field invalid_cursor", for_tokens=True)
async def search_memories(request: Request, search: MemorySearch) -> FoundMemories:
    """Search what was heard and what is remembered in the project, of a user or of one session, by words.

    Each message is shown as it was heard, and each memory with all it says and the place that it comes from. The best
    is first.
    """
    reach = await token_scope(request)
    if reach is not None:
        scope = search.scope_in(request.grant.project)
        search = search.within(reach.scope(scope.user_id, scope.session_id, scope.namespace))
    return await request.services.finder.search(request.grant.project, search)


@ROUTES.add(
    "POST /v1/sessions/{id}/memories/extract",
    "ingest",
    ExtractionState,
    codes="no_extraction llm_not_configured session_set_aside",
    status=202,
    keys_only=True,
)
async def extract_memories(request: Request, stream: Stream) -> ExtractionState | None:
    """Make memories of what was heard in a session since the last time, without waiting for a pause or its end.

    It happens in the background: the statistics of the session say how far it is.
    """
    services = request.services
    services.extractions.ask(stream)
    state = await services.read_models.get_state(stream)
    return services.extractions.state_of(stream, state.extracted)


@ROUTES.add("GET /v1/sessions/{id}/analysis", "read", codes="session_set_aside", keys_only=True)
async def read_analysis(request: Request, stream: Stream) -> SessionAnalysis:
    """Read what was found out of a call by the schema of its configuration, each value with the words that show it."""
    services = request.services
    state = await services.read_models.get_state(stream)
    config = services.extractions.config_of(stream)
    fields = [] if config is None or config.schema is None else [*config.schema["properties"]]
    extraction = services.extractions.state_of(stream, state.extracted) if fields else None
    names = [name for name in fields if name in state.analysis]
    values = {name: state.analysis[name] for name in (*names, *sorted(state.analysis.keys() - fields))}
    return SessionAnalysis(
        stream.id,
        None if extraction is None else extraction.state,
        outcome_of(values),
        values,
        [name for name in fields if name not in values],
    )
