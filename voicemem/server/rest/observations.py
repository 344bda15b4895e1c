"""Calls at other stacks whose events the service fetches itself: begun, shown, stopped (docs/observer.md)."""

from typing import Annotated

from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from voicemem.errors import Refused
from voicemem.observer.vendors import find_vendor
from voicemem.protocol.types import Name, SessionId, matching
from voicemem.security.audit import Act, audit
from voicemem.server.http.request import GRANT, get_stream, json_response, read_struct, services_of
from voicemem.server.http.routes import JSON, ResponseSpec, Routes
from voicemem.store.observations import Observation, ObservationState
from voicemem.store.streams import Stream

ROUTES = Routes()
PLACE = "/v1/sessions/{id}/observe"

CALL_RULE = "The id of a call is 1 to 256 characters of A-Za-z0-9._:-, and does not begin with a dot"
CallId = Annotated[str, matching(r"^[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,255}\Z", CALL_RULE)]


class NewObservation(Struct, frozen=True, forbid_unknown_fields=True):
    """The call to observe: `call_id` for `openai-realtime`, the vendor's `session_id` for `openai-live`."""

    dialect: Name
    call_id: CallId | UnsetType = UNSET
    session_id: CallId | UnsetType = UNSET


class ShownObservation(Struct, frozen=True):
    """How an observation stands; times are Unix ms. `call_id` is what the vendor calls the call.

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


def answer(stream: Stream, one: Observation, status: int = 200) -> web.Response:
    shown = (one.dialect, one.call, one.state, one.reason, one.status, one.connections)
    times = (one.started_ms, one.changed_ms, one.ended_ms)
    return json_response(ShownObservation(stream.id, *shown, *times), status)


def audit_observation(request: web.Request, act: Act, one: Observation) -> None:
    audit(act, request[GRANT], session=request.match_info["id"], dialect=one.dialect, call=one.call)


@ROUTES.add(
    f"POST {PLACE}",
    "admin",
    dict.fromkeys((200, 201), ResponseSpec({JSON: ShownObservation})),
    NewObservation,
    "invalid_field unknown_dialect session_ended session_erased observer_not_configured already_observed "
    "too_many_observations",
)
async def begin_observation(request: web.Request) -> web.Response:
    """Observe a call at another stack for this session: the service connects to it, and records what it says.

    200 if this call is being observed already. An observation that is over may be begun again.
    """
    stream = await get_stream(request)
    body = await read_struct(request, NewObservation)
    field = find_vendor(body.dialect).call_field
    call, other = (body.call_id, body.session_id) if field == "call_id" else (body.session_id, body.call_id)
    if call is UNSET or other is not UNSET:
        raise Refused("invalid_field", f"A call of {body.dialect} is named by {field} alone.")
    observation, is_new = await services_of(request).observers.begin(stream, body.dialect, call)
    if is_new:
        audit_observation(request, "observation_started", observation)
    return answer(stream, observation, 201 if is_new else 200)


@ROUTES.add(f"GET {PLACE}", "admin", ShownObservation, codes="unknown_observation")
async def read_observation(request: web.Request) -> web.Response:
    """Show how the observation of this session stands, also when it is over."""
    stream = await get_stream(request)
    return answer(stream, await services_of(request).observers.get(stream))


@ROUTES.add(f"DELETE {PLACE}", "admin", ShownObservation, codes="unknown_observation")
async def stop_observation(request: web.Request) -> web.Response:
    """Stop observing; the call and the session go on. One that is over stays as it is."""
    stream = await get_stream(request)
    observation = await services_of(request).observers.stop(stream)
    audit_observation(request, "observation_stopped", observation)
    return answer(stream, observation)
