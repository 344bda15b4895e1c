"""`/v1/sessions/{id}/observe`: who may use it, and what is refused."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.support.callers.rest import RestClient, make_key
from tests.support.samples.audit_lines import ADMIN_KEY, acts
from tests.support.services import Serve
from tests.support.sideband import KEY, Sideband
from tests.support.sideband import sideband as sideband
from voicemem.app import App
from voicemem.protocol.types import JsonObject

PLACE = "/v1/sessions/s/observe"
CALL = {"dialect": "openai-realtime", "call_id": "rtc_1"}


@pytest.fixture
async def app(serve: Serve, sideband: Sideband) -> App:
    return await serve(
        admin_key=ADMIN_KEY, observe_key=KEY, observe_urls=(f"openai-realtime={sideband.url}",), observe_limit=2
    )


@pytest.fixture
async def admin(app: App) -> RestClient:
    """A caller with an admin key of the project `shop`, who has created the session `s`."""
    admin = RestClient(app, await make_key(app, "admin", project="shop"))
    await admin.create()
    return admin


@pytest.mark.parametrize("scope", ["ingest", "read"])
async def test_observing_needs_the_scope_admin(app: App, admin: RestClient, scope: str, sideband: Sideband) -> None:
    """Neither other keys nor session tokens begin, see or stop it; nor does another project."""
    caller = RestClient(app, await make_key(app, scope, project="shop"))
    token = (await admin.post("/v1/sessions/s/tokens")).json["token"]
    for one in (caller, RestClient(app, token)):
        for answered in (await one.post(PLACE, CALL), await one.get(PLACE), await one.delete(PLACE)):
            assert (403, "forbidden") == answered.problem
    other = RestClient(app, await make_key(app, "admin", project="other"))
    assert (404, "unknown_session") == (await other.post(PLACE, CALL)).problem
    assert [] == sideband.requests


async def test_a_repeated_request_changes_nothing(app: App, admin: RestClient, sideband: Sideband) -> None:
    """The same call is 200, another one 409."""
    assert 201 == (await admin.post(PLACE, CALL)).status
    await sideband.accept()
    assert 200 == (await admin.post(PLACE, CALL)).status
    assert (409, "already_observed") == (await admin.post(PLACE, {**CALL, "call_id": "rtc_2"})).problem
    assert 1 == len(sideband.requests)


async def test_the_acts_are_audited(app: App, admin: RestClient, caplog: pytest.LogCaptureFixture) -> None:
    """With the call, and without the vendor's key."""
    await admin.post(PLACE, CALL)
    await admin.post(PLACE, CALL)
    await admin.delete(PLACE)
    by = {"by": admin.headers["Authorization"].split("_")[1], "project": "shop", "session": "s"}
    of = {"dialect": "openai-realtime", "call": "rtc_1"}
    assert [{"act": "observation_started", **by, **of}, {"act": "observation_stopped", **by, **of}] == acts(caplog)[-2:]
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"dialect": "openai-realtime"},
        {**CALL, "call_id": ""},
        {**CALL, "call_id": "a" * 257},
        {**CALL, "call_id": "rtc_1&model=x"},
        {**CALL, "call_id": "../../v1/files"},
        {**CALL, "call_id": 5},
        {**CALL, "url": "wss://evil.example"},
        {**CALL, "session_id": "sess_1"},
        {"dialect": "openai-realtime", "session_id": "sess_1"},
        {"dialect": "openai-live", "call_id": "rtc_1"},
    ],
    ids=str,
)
async def test_bad_requests(admin: RestClient, body: JsonObject, sideband: Sideband) -> None:
    """Nothing is observed; no request names an address."""
    assert (400, "invalid_field") == (await admin.post(PLACE, body)).problem
    assert (404, "unknown_observation") == (await admin.get(PLACE)).problem
    assert [] == sideband.requests


async def test_what_is_not_there(admin: RestClient) -> None:
    """Sessions, dialects and observations that there are not."""
    assert (404, "unknown_session") == (await admin.post("/v1/sessions/t/observe", CALL)).problem
    assert (404, "unknown_dialect") == (await admin.post(PLACE, {**CALL, "dialect": "gemini-live"})).problem
    assert (404, "unknown_dialect") == (await admin.post(PLACE, {**CALL, "dialect": "nonsense"})).problem
    assert (404, "unknown_observation") == (await admin.get(PLACE)).problem
    assert (404, "unknown_observation") == (await admin.delete(PLACE)).problem


async def test_without_a_key_nothing_is_observed(serve: Serve) -> None:
    """The answer says what to set."""
    api = RestClient(await serve())
    await api.create()
    assert (409, "observer_not_configured") == (await api.post(PLACE, CALL)).problem
