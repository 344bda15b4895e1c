"""Keys over REST: made, listed and revoked by an admin of their project."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json

import pytest

from tests.support.callers.rest import RestClient, client_with_key, make_key
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.app import App
from voicemem.protocol.types import JsonObject

ADMIN_KEY = "the operator's own key"


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service with the operator's key."""
    return await serve(admin_key=ADMIN_KEY)


@pytest.fixture
async def admin(app: App) -> RestClient:
    """An admin of the project `shop`."""
    return await client_with_key(app, "admin", project="shop")


async def keys(api: RestClient) -> list[JsonObject]:
    return list((await api.get("/v1/keys")).json["keys"])


async def test_a_key_is_made_and_shown_once(app: App, admin: RestClient) -> None:
    """It opens its project with its scopes; no list ever shows its text or hash again."""
    made = await admin.post("/v1/keys", {"name": "worker", "scopes": ["ingest"]})
    assert 201 == made.status
    shown = dict(made.json)
    text = shown.pop("key")
    assert {"project": "shop", "name": "worker", "scopes": ["ingest"], "revoked_at": None}.items() <= shown.items()
    api = RestClient(app, text)
    assert 201 == (await api.post("/v1/sessions", {"session_id": "s"})).status
    assert (403, "forbidden") == (await api.get("/v1/sessions/s")).problem
    assert "running" == (await admin.session())["state"]
    listed = await admin.get("/v1/keys")
    assert shown == listed.json["keys"][-1]
    assert text.split("_")[2].encode() not in listed.body


async def test_without_words_a_key_sends_and_reads(admin: RestClient) -> None:
    """The usual scopes, and no name."""
    made = (await admin.post("/v1/keys")).json
    assert (["ingest", "read"], "") == (made["scopes"], made["name"])


@every_row(
    "body",
    [
        {"scopes": []},
        {"scopes": ["all"]},
        {"scopes": "admin"},
        {"scopes": ["read"] * 4},
        {"name": 1},
        {"name": "x" * 129},
        {"project": "other"},
        {"key": "vm_1"},
    ],
    ids=str,
)
async def test_keys_that_cannot_be_made(admin: RestClient, body: JsonObject) -> None:
    """Scopes are those that there are, and a key is always of the caller's project."""
    assert (400, "invalid_field") == (await admin.post("/v1/keys", body)).problem
    assert 1 == len(await keys(admin))


async def test_one_sees_and_revokes_the_keys_of_ones_own_project(app: App, admin: RestClient) -> None:
    """Another project's key is not there, and goes on working."""
    theirs = await make_key(app, "read", project="theirs")
    assert ["shop"] == [key["project"] for key in await keys(admin)]
    key_id = theirs.split("_")[1]
    for gone in (key_id, "0" * 12, "environment", "x"):
        assert (404, "unknown_key") == (await admin.delete(f"/v1/keys/{gone}")).problem
    assert 200 == (await RestClient(app, theirs).get("/v1/sessions")).status
    assert [] == await keys(RestClient(app, ADMIN_KEY))


async def test_a_revoked_key_stays_listed_and_opens_nothing(app: App, admin: RestClient) -> None:
    """It is revoked once; the second time there is no such key."""
    text = await make_key(app, "read", project="shop")
    key_id = text.split("_")[1]
    assert 204 == (await admin.delete(f"/v1/keys/{key_id}")).status
    assert (401, "unauthorized") == (await RestClient(app, text).get("/v1/sessions")).problem
    assert (404, "unknown_key") == (await admin.delete(f"/v1/keys/{key_id}")).problem
    listed = {key["id"]: key["revoked_at"] for key in await keys(admin)}
    assert [False, True] == sorted(revoked is not None for revoked in listed.values())
    assert listed[key_id] is not None


async def test_the_first_key_is_not_made_over_rest(serve: Serve) -> None:
    """Whoever is let in because there are no keys cannot shut the service for everybody."""
    api = RestClient(await serve())
    assert (409, "no_keys") == (await api.post("/v1/keys", {"scopes": ["read"]})).problem
    assert [] == await keys(api)
    assert 200 == (await api.get("/v1/sessions")).status


async def test_an_admin_may_revoke_the_key_that_it_uses(admin: RestClient) -> None:
    """The answer still comes; it is the last one."""
    (own,) = await keys(admin)
    assert 204 == (await admin.delete(f"/v1/keys/{own['id']}")).status
    assert (401, "unauthorized") == (await admin.get("/v1/keys")).problem


async def test_a_strange_name_comes_back_as_it_was(admin: RestClient) -> None:
    """A name is text like any other."""
    name = 'Büro "Süd" \u2603 <script>'
    await admin.post("/v1/keys", {"name": name})
    assert name == json.loads((await admin.get("/v1/keys")).body)["keys"][-1]["name"]
