"""Calls at other stacks: their platforms' webhooks, with their signing secrets, and calls that the service observes."""

import asyncio
import logging
from contextlib import nullcontext
from functools import partial
from typing import Annotated, NoReturn

from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from voicemem.context.caller_variables import ANSWER_TIMEOUT_S
from voicemem.dialects.call_starts import CALL_STARTS, CallStart, StartAnswer
from voicemem.dialects.dialect import Dialect, MalformedFrame, Verify
from voicemem.dialects.reading import json_object
from voicemem.errors import Refused, StoreUnavailable, VoicememError
from voicemem.observer.vendors import find_vendor
from voicemem.protocol.types import JsonObject, Name, SessionId, matching
from voicemem.security.access import DEFAULT_PROJECT, Gate, Grant
from voicemem.security.audit import Act, audit
from voicemem.security.caller_ids import Fact
from voicemem.security.hook_secrets import HookSecret, check_hooked, find_hooked, new_hook_secret, read_target
from voicemem.server.http.request import DECODING, LARGE_BODY_BYTES, Request, json_response, read_body
from voicemem.server.http.routes import JSON, ResponseSpec, Routes, Tag
from voicemem.server.rest.webhooks import NewSecret
from voicemem.sessions.inbound_webhooks import MAX_HOOK_BYTES, HookAddress, HookTaken
from voicemem.store.observations import Observation, ObservationState
from voicemem.store.streams import Stream

LOG = logging.getLogger("voicemem.call_starts")
ROUTES = Routes()
HOOKS = Tag("hooks", "Inbound webhooks: those of other stacks' platforms, and their signing secrets.")
HOOK = "/v1/hooks/{dialect}/secret"
MAX_START_BYTES = 256 * 1024
"""A longer webhook is no question at the start of a call."""
NOT_TAKEN = (
    "The webhook has no valid signature of its project, or an old one; where no secret is set for its dialect, it needs"
    " a key of the project with the scope ingest, or read at the start of a call."
)
NAMED_BY_KEY = (
    "The signature does not cover the URL: session_id and user_id need a key in Authorization, or stand in the token t"
    " that `voicemem hooks url` makes."
)


class HookQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a webhook: `project` is whose secret signs, else the key's; `t` is a token of `voicemem hooks url`.

    `session_id` is for webhooks that do not say it, and `user_id` for the session that one begins. Both count with a
    key, or in the token.
    """

    session_id: SessionId | None = None
    user_id: Name | None = None
    project: Name | None = None
    t: str | None = None


ANSWERED = {"assistant_id": "assistantId", "assistant_overrides": "assistantOverrides"}


class StartAnswered(Struct, frozen=True, rename=ANSWERED):
    """The answer to a question at the start of a call, as its platform takes it.

    `call_inbound` or `chat_inbound` for Retell, `dynamic_variables` for Telnyx and, with a `type`, ElevenLabs,
    `assistantId` and `assistantOverrides` for Vapi.
    """

    call_inbound: JsonObject | UnsetType = UNSET
    chat_inbound: JsonObject | UnsetType = UNSET
    type: str | UnsetType = UNSET
    dynamic_variables: JsonObject | UnsetType = UNSET
    assistant_id: str | UnsetType = UNSET
    assistant_overrides: JsonObject | UnsetType = UNSET


@ROUTES.add(
    "POST /v1/hooks/{dialect}",
    None,
    HookTaken | StartAnswered,
    JsonObject,
    "unauthorized token_expired forbidden rate_limited unknown_dialect malformed_frame missing_field seq_required "
    "quota_exceeded",
    tag=HOOKS,
)
async def take_hook(request: Request, query: HookQuery) -> web.StreamResponse:
    """Take a webhook of another stack's platform; the answer comes once it is on disk.

    It must be signed with a secret that the project or the operator has set for this dialect. Without one, a key with
    the scope `ingest` is needed, in `Authorization`. A question at the start of a call is answered within 300 ms with
    what is known of the caller; a key needs the scope `read` for it.
    """
    name = request.in_path["dialect"]
    check_hooked(name)
    body = await read_body(request, MAX_HOOK_BYTES)
    start = start_in(name, body)
    if start is not None:
        return await answer_start(request, query, name, body, start)
    dialect = find_hooked(name)
    hook = CALL_STARTS[name] if dialect is None or dialect.hook is None else dialect.hook
    return await record(request, dialect, body, await address_of(request, query, name, body, hook.verify))


@ROUTES.add(
    "POST /v1/hooks/{dialect}/import",
    "ingest",
    HookTaken,
    JsonObject,
    "unknown_dialect malformed_frame missing_field seq_required quota_exceeded",
    tag=HOOKS,
)
async def import_hook(request: Request) -> web.StreamResponse:
    """Take a webhook that was saved, or made of a call as the platform's API shows it; it is stored once, as any.

    The key stands in for a signature.
    """
    name, grant = request.in_path["dialect"], request.grant
    check_hooked(name)
    body = await read_body(request, MAX_HOOK_BYTES)
    return await record(request, find_hooked(name), body, HookAddress(grant.project, key_id=grant.key_id))


async def record(request: Request, dialect: Dialect | None, body: bytes, address: HookAddress) -> web.StreamResponse:
    if dialect is None:  # its platform only asks
        return json_response(HookTaken(None, 0))
    webhooks = request.services.inbound_webhooks
    read = partial(webhooks.read, dialect, body)
    async with webhooks.large.slot(address.project) if len(body) > LARGE_BODY_BYTES else nullcontext():
        reduced, caller = await request.shared[DECODING].decode(len(body), read, address.project)
        return json_response(await webhooks.record(dialect, reduced, address, caller))


def start_in(dialect: str, body: bytes) -> CallStart | None:
    """Return the question in a webhook that asks at the start of a call."""
    asks = CALL_STARTS.get(dialect)
    if asks is None or asks.mark not in body or len(body) > MAX_START_BYTES:
        return None
    try:
        return asks.read(json_object(body, MAX_START_BYTES))
    except MalformedFrame:  # which is reported to senders with a credential
        return None


async def answer_start(
    request: Request, query: HookQuery, dialect: str, body: bytes, start: CallStart
) -> web.StreamResponse:
    """Answer in time, without data about the caller if the store is slow. Raises `Refused`, and `RateLimited`."""
    services = request.services
    starts, project, user_id = services.caller_variables, query.project or DEFAULT_PROJECT, None
    variables, result = starts.nothing, "late"
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            address = await address_of(request, query, dialect, body, CALL_STARTS[dialect].verify, "read")
            project = address.project
            user_id = address.user_id or await services.callers.user_of(project, dialect, start.caller)
            variables = starts.nothing if user_id is None else await starts.known(project, user_id, start.call_id)
            result = "known" if variables["caller_known"] == "yes" else "unknown"
    except Exception as error:  # whatever it is, the phone is ringing
        if isinstance(error, VoicememError) and not isinstance(error, StoreUnavailable):
            raise
        LOG.warning("A call of %s begins without what is known of its caller: %s", dialect, type(error).__name__)
    services.telemetry.metrics.call_starts.labels(dialect, result).inc()
    answer = StartAnswer(variables, user_id, starts.assistants.get(project, starts.assistants.get(None)))
    return json_response(CALL_STARTS[dialect].answer(start, answer))


async def address_of(
    request: Request, query: HookQuery, dialect: str, body: bytes, verify: Verify, scope: str = "ingest"
) -> HookAddress:
    """Return the address of a webhook, if its sender may send it. Raises `Refused`, and `RateLimited`.

    A sender without a valid signature or key gets the same answer whether or not the project exists and has a secret.
    """
    services, names = request.services, (query.session_id, query.user_id)
    project = query.project or DEFAULT_PROJECT
    secrets = await services.hook_secrets.verifying(project, dialect)
    signed = services.inbound_webhooks.is_signed(verify, body, request.headers, secrets)
    grant = None if signed and names == (None, None) else await key_of(request, signed)
    if grant is not None:
        grant.require(scope)
        named = project if signed else query.project
        is_free = signed and grant.key_id is None  # without keys, everyone on this machine may name a session
        if not is_free and named not in (None, grant.project):
            raise Refused("forbidden", "The key is of another project.")
        project = named or grant.project
    if not signed and secrets:
        refuse_unauthorized(request)
    key_id = None if grant is None else grant.key_id
    if query.t is None:
        return HookAddress(project, *names, key_id)
    target = read_target(query.t, project, dialect, services.store.directory.cursor_secret)
    session_id, user_id = query.session_id or target.session_id, query.user_id or target.user_id
    return HookAddress(project, session_id, user_id, key_id, binds=grant is None and target.session_id is not None)


async def key_of(request: Request, signed: bool) -> Grant:
    """Return the grant of the sender's key. Raises `Refused`, and `RateLimited`."""
    access, limits = request.services.access, request.services.limits
    authorization = request.headers.get("Authorization")
    try:
        return await Gate(access, limits=limits).grant(authorization, await access.needs_key(), request.remote)
    except Refused:
        if signed:
            raise Refused("forbidden", NAMED_BY_KEY) from None
        if authorization is None:
            refuse_unauthorized(request)
        raise Refused("unauthorized", NOT_TAKEN) from None


def refuse_unauthorized(request: Request) -> NoReturn:
    """Refuse a webhook, and count it for its address. Raises `Refused` (`unauthorized`), and `RateLimited`."""
    request.services.limits.count_wrong_key(request.remote)
    raise Refused("unauthorized", NOT_TAKEN)


class NewHookSecret(NewSecret, frozen=True, forbid_unknown_fields=True):
    """The next secret, likewise; `identify` says what frames may say about who calls (docs/privacy.md)."""

    identify: list[Fact] | UnsetType = UNSET


class HookSecretSet(HookSecret, frozen=True):
    """A secret that was set, with `secret` itself where the service has made it: only this answer shows it."""

    secret: Annotated[str, Meta(extra_json_schema={"readOnly": True})] | UnsetType = UNSET


class HookSecretList(Struct, frozen=True):
    """The dialects whose webhooks are signed, by name."""

    hooks: list[HookSecret]


@ROUTES.add("GET /v1/hooks", "admin", tag=HOOKS)
async def list_hook_secrets(request: Request) -> HookSecretList:
    """List the dialects whose webhooks are signed in the project, without the secrets."""
    return HookSecretList(await request.services.hook_secrets.list(request.grant.project))


@ROUTES.add(f"PUT {HOOK}", "admin", codes="invalid_field unknown_dialect", tag=HOOKS)
async def set_hook_secret(request: Request, body: NewHookSecret) -> HookSecretSet:
    """Set what signs webhooks of a dialect in the project, or rotate it; for a while the old secret verifies too.

    Without a `secret` the service makes one, which the answer shows.
    """
    secret = new_hook_secret() if body.secret is UNSET else body.secret
    project, dialect = request.grant.project, request.in_path["dialect"]
    identify = None if body.identify is UNSET else frozenset(body.identify)
    shown = await request.services.hook_secrets.set(project, dialect, secret, body.overlap_seconds, identify)
    audit("hook_secret_set", request.grant, dialect=dialect)
    return HookSecretSet(**asdict(shown), secret=secret if body.secret is UNSET else UNSET)


@ROUTES.add(f"DELETE {HOOK}", "admin", codes="unknown_hook_secret", tag=HOOKS)
async def remove_hook_secret(request: Request) -> None:
    """Remove what the project has set; without another secret, webhooks of the dialect need a key."""
    dialect = request.in_path["dialect"]
    await request.services.hook_secrets.remove(request.grant.project, dialect)
    audit("hook_secret_removed", request.grant, dialect=dialect)


OBSERVATIONS = Tag("observations", "Calls at other stacks whose events the service fetches itself (docs/observer.md).")
OBSERVE = "/v1/sessions/{id}/observe"

CALL_RULE = "The id of a call is 1 to 256 characters of A-Za-z0-9._:-, and does not begin with a dot"
CallId = Annotated[str, matching(r"^[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,255}\Z", CALL_RULE)]


class NewObservation(Struct, frozen=True, forbid_unknown_fields=True):
    """The call to observe: `call_id` for `openai-realtime`, the vendor's `session_id` for `openai-live`."""

    dialect: Name
    call_id: CallId | UnsetType = UNSET
    session_id: CallId | UnsetType = UNSET


class ShownObservation(Struct, frozen=True):
    """The state of an observation; times are Unix ms. `call_id` is what the vendor calls the call.

    `reason` says why it is not being observed, and `status` what the vendor said: the status of its answer, or the code
    of its close.
    """

    session_id: SessionId
    dialect: str
    call_id: str
    state: ObservationState
    reason: str | None
    status: int | None
    connections: int
    started_at: int
    changed_at: int
    ended_at: int | None


def shown(stream: Stream, one: Observation) -> ShownObservation:
    times = (one.started_ms, one.changed_ms, one.ended_ms)
    return ShownObservation(
        stream.id, one.dialect, one.call, one.state, one.reason, one.status, one.connections, *times
    )


def audit_observation(request: Request, act: Act, one: Observation) -> None:
    audit(act, request.grant, session=request.in_path["id"], dialect=one.dialect, call=one.call)


@ROUTES.add(
    f"POST {OBSERVE}",
    "admin",
    dict.fromkeys((200, 201), ResponseSpec({JSON: ShownObservation})),
    codes="invalid_field unknown_dialect session_ended session_erased observer_not_configured already_observed "
    "too_many_observations",
    tag=OBSERVATIONS,
)
async def begin_observation(request: Request, stream: Stream, body: NewObservation) -> web.StreamResponse:
    """Observe a call at another stack for this session: the service connects to it, and records what it says.

    200 if this call is being observed already. An observation that is over may be begun again.
    """
    field = find_vendor(body.dialect).call_field
    call, other = (body.call_id, body.session_id) if field == "call_id" else (body.session_id, body.call_id)
    if call is UNSET or other is not UNSET:
        raise Refused("invalid_field", f"A call of {body.dialect} is named by {field} alone.")
    observation, is_new = await request.services.observers.begin(stream, body.dialect, call)
    if is_new:
        audit_observation(request, "observation_started", observation)
    return json_response(shown(stream, observation), 201 if is_new else 200)


@ROUTES.add(f"GET {OBSERVE}", "admin", codes="unknown_observation", tag=OBSERVATIONS)
async def read_observation(request: Request, stream: Stream) -> ShownObservation:
    """Show the state of the observation of this session, also when it is over."""
    return shown(stream, await request.services.observers.get(stream))


@ROUTES.add(f"DELETE {OBSERVE}", "admin", codes="unknown_observation", tag=OBSERVATIONS)
async def stop_observation(request: Request, stream: Stream) -> ShownObservation:
    """Stop observing; the call and the session continue. One that is over stays as it is."""
    observation = await request.services.observers.stop(stream)
    audit_observation(request, "observation_stopped", observation)
    return shown(stream, observation)
