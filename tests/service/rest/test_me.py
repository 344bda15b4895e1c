"""Who the caller is."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.support.callers.rest import RestClient, make_key
from tests.support.services import Serve
from voicemem.security.access import SCOPES
from voicemem.version import __version__

KEY = "an operator's own key"


async def test_without_keys_everybody_may_do_all(api: RestClient) -> None:
    """There is no key to name, and none is needed."""
    everything = {"project": "default", "scopes": list(SCOPES), "key_id": None, "name": None}
    assert {**everything, "keys_required": False, "version": __version__} == (await api.get("/v1/me")).json


@pytest.mark.parametrize("scope", SCOPES)
async def test_every_key_hears_what_it_is(serve: Serve, scope: str) -> None:
    """Whatever its scopes, it hears its project, its id, and what it may do."""
    app = await serve()
    key = await make_key(app, scope, project="shop")
    found = (await RestClient(app, key).get("/v1/me")).json
    expected = {"project": "shop", "scopes": [scope], "key_id": key.split("_")[1], "keys_required": True}
    assert expected == {name: found[name] for name in expected}


async def test_names_are_told(serve: Serve) -> None:
    """A key that was given a name hears it; the operator's own key has none."""
    app = await serve(admin_key=KEY)
    operator = RestClient(app, KEY)
    made = (await operator.post("/v1/keys", {"name": "media server", "scopes": ["ingest"]})).json
    assert "media server" == (await RestClient(app, made["key"]).get("/v1/me")).json["name"]
    found = (await operator.get("/v1/me")).json
    assert ("environment", None) == (found["key_id"], found["name"])


async def test_a_session_token_is_no_key(serve: Serve) -> None:
    """Its holder hears that it needs a key."""
    app = await serve(admin_key=KEY)
    operator = RestClient(app, KEY)
    await operator.create()
    token = (await operator.post("/v1/sessions/s/tokens")).json["token"]
    answered = await RestClient(app, token).get("/v1/me")
    assert (403, "forbidden") == answered.problem
    assert "A session token cannot do this; use a key." == answered.json["detail"]
