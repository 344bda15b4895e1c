"""Apps of Agora's over REST: registered, listed without certificates, rotated, retired, removed."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.support.callers.rest import RestClient, make_key
from tests.support.rows import every_row
from tests.support.samples.agora_tokens import APP_ID, CERTIFICATE, OTHER_CERTIFICATE
from tests.support.samples.audit_lines import ADMIN_KEY, acts
from tests.support.services import Serve
from voicemem.app import App
from voicemem.protocol.types import JsonObject

APPS = "/v1/agora-apps"
PLACE = f"{APPS}/{APP_ID}"
NEW = {"app_id": APP_ID, "certificate": CERTIFICATE}


@pytest.fixture
async def app(serve: Serve) -> App:
    return await serve(admin_key=ADMIN_KEY)


@pytest.fixture
async def admin(app: App) -> RestClient:
    """A caller with an admin key of the project `shop`."""
    return RestClient(app, await make_key(app, "admin", project="shop"))


async def test_the_life_of_an_app(app: App, admin: RestClient, caplog: pytest.LogCaptureFixture) -> None:
    """Each step is answered with the app as it is now, and audited; certificates are in no answer and no log."""
    made = await admin.post(APPS, NEW)
    shown = {"app_id": APP_ID, "project": "shop", "scopes": ["ingest", "read", "admin"], "has_old_certificate": False}
    assert 201 == made.status
    assert {**shown, "created_at": made.json["created_at"]} == made.json
    listed = await admin.get(APPS)
    rotated = await admin.post(f"{PLACE}/rotate-certificate", {"certificate": OTHER_CERTIFICATE})
    assert {**made.json, "has_old_certificate": True} == rotated.json
    retired = await admin.post(f"{PLACE}/retire-certificate")
    assert made.json == retired.json
    assert {"agora_apps": [made.json]} == listed.json == (await admin.get(APPS)).json
    kept = await app.services.store.directory.find_agora_app(APP_ID)
    assert kept is not None
    assert (OTHER_CERTIFICATE, None) == (kept.certificate, kept.old_certificate)
    assert 204 == (await admin.delete(PLACE)).status
    assert {"agora_apps": []} == (await admin.get(APPS)).json

    by = admin.headers["Authorization"].split("_")[1]
    act = {"by": by, "project": "shop", "app": APP_ID}
    assert [
        {"act": "agora_app_added", **act, "scopes": ["ingest", "read", "admin"]},
        {"act": "agora_certificate_rotated", **act},
        {"act": "agora_certificate_retired", **act},
        {"act": "agora_app_removed", **act},
    ] == acts(caplog)[-4:]
    answers = caplog.text + str([made.body, listed.body, rotated.body, retired.body])
    assert not [text for text in (CERTIFICATE, OTHER_CERTIFICATE) if text in answers]


async def test_an_app_may_do_less(admin: RestClient) -> None:
    """Its scopes are those that were asked for."""
    made = await admin.post(APPS, {**NEW, "scopes": ["read"]})
    assert ["read"] == made.json["scopes"]


@every_row(
    "body",
    [
        {},
        {"app_id": APP_ID},
        {**NEW, "app_id": "shop"},
        {**NEW, "app_id": APP_ID + "0"},
        {**NEW, "certificate": ""},
        {**NEW, "certificate": CERTIFICATE[:-1] + "g"},
        {**NEW, "certificate": CERTIFICATE + "\n"},
        {**NEW, "certificate": None},
        {**NEW, "scopes": []},
        {**NEW, "scopes": ["everything"]},
        {**NEW, "project": "other"},
    ],
    ids=str,
)
async def test_apps_that_cannot_be_registered(admin: RestClient, body: JsonObject) -> None:
    """App ID and certificate have Agora's form; an error does not repeat them."""
    answered = await admin.post(APPS, body)
    assert (400, "invalid_field") == answered.problem
    assert CERTIFICATE[:-1] not in answered.body.decode()
    assert {"agora_apps": []} == (await admin.get(APPS)).json


async def test_an_app_is_in_one_project(app: App, admin: RestClient) -> None:
    """Another project neither registers it again nor reaches it."""
    await admin.post(APPS, NEW)
    other = RestClient(app, await make_key(app, "admin", project="other"))
    for caller in (admin, other):
        assert (409, "agora_app_exists") == (await caller.post(APPS, NEW)).problem
    assert {"agora_apps": []} == (await other.get(APPS)).json
    certificate = {"certificate": OTHER_CERTIFICATE}
    for client, place in ((other, PLACE), (admin, f"{APPS}/{'f' * 32}"), (admin, f"{APPS}/x")):
        for answered in (
            await client.post(f"{place}/rotate-certificate", certificate),
            await client.post(f"{place}/retire-certificate"),
            await client.delete(place),
        ):
            assert (404, "unknown_agora_app") == answered.problem
    assert 204 == (await admin.delete(PLACE)).status
    assert 201 == (await other.post(APPS, NEW)).status


@pytest.mark.parametrize("scope", ["ingest", "read"])
async def test_apps_need_the_scope_admin(app: App, scope: str) -> None:
    """Other keys do not see them either."""
    caller = RestClient(app, await make_key(app, scope, project="shop"))
    assert (403, "forbidden") == (await caller.get(APPS)).problem
    assert (403, "forbidden") == (await caller.post(APPS, NEW)).problem


async def test_the_first_app_is_not_registered_over_rest(serve: Serve) -> None:
    """Whoever is let in because there are no keys cannot shut the service for everybody."""
    api = RestClient(await serve())
    assert (409, "no_keys") == (await api.post(APPS, NEW)).problem
    assert 200 == (await api.get("/v1/sessions")).status
