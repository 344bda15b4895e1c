"""Endpoints of a project over REST: what they hear, how they are managed, and what became of every webhook event."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.rest import LOOPBACK, RestClient, client_with_key
from tests.support.callers.webhooks import SECRET, add, at_time, attempted, counted, everything, finish, read, verified
from tests.support.rows import every_row
from tests.support.servers.webhook_receiver import Reply, WebhookEvent, WebhookReceiver
from tests.support.services import Serve, running_service
from tests.support.waiting import eventually
from voicemem.errors import StoreUnavailable
from voicemem.protocol.types import JsonObject
from voicemem.webhooks.endpoints import MAX_ENDPOINTS

# Managing


async def test_an_endpoints_life(caller: RestClient, hook: WebhookReceiver) -> None:
    """It is made, shown without its secret, changed, and forgotten."""
    made = await add(caller, hook.url(), 112, 103, description="ours", contents="standard")
    secret = made.pop("secret")

    assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{32}", secret)
    assert ([103, 112], "ours", "standard", True) == tuple(
        made[name] for name in ("event_types", "description", "contents", "enabled")
    )
    assert made == await read(caller, made)
    assert {"webhooks": [made]} == (await caller.get("/v1/webhooks")).json
    changed = await caller.patch(f"/v1/webhooks/{made['id']}", {"event_types": [102], "url": hook.url("/new")})
    assert {**made, "event_types": [102], "url": hook.url("/new")} == changed.json == await read(caller, made)
    await finish(caller, "first")
    assert ("/new", 102) == ((await hook.one()).path, (await hook.one()).json["eventType"])
    assert 204 == (await caller.delete(f"/v1/webhooks/{made['id']}")).status
    assert (404, "unknown_webhook") == (await caller.get(f"/v1/webhooks/{made['id']}")).problem
    assert {"webhooks": []} == (await caller.get("/v1/webhooks")).json


async def test_a_new_endpoints_secret_is_shown_whatever_follows(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown only once, so nothing that fails once the endpoint is there may take its place."""

    async def count(_: object) -> None:
        raise StoreUnavailable

    app = await serve()
    monkeypatch.setattr(app.services.webhooks, "counts_of_day", count)
    made = await RestClient(app).post("/v1/webhooks", {"url": "https://a.example", "event_types": [103]})
    assert (201, True) == (made.status, made.json["secret"].startswith("whsec_"))


async def test_a_forgotten_endpoint_hears_nothing(caller: RestClient, hook: WebhookReceiver) -> None:
    """What waited for it is not sent any more either."""
    hook.otherwise = Reply(500)
    made, other = await add(caller, hook.url("/gone")), await add(caller, hook.url("/other"))
    await finish(caller, "first")
    await attempted(caller, made, 2)
    await caller.delete(f"/v1/webhooks/{made['id']}")
    before = len([one for one in hook.webhook_events if one.path == "/gone"])
    await finish(caller, "second")
    await eventually(2, lambda: counted(caller, other))

    assert before == len([one for one in hook.webhook_events if one.path == "/gone"])


async def test_an_unknown_endpoint(caller: RestClient) -> None:
    """Every call about an endpoint that is not there says so."""
    for webhook in ("0" * 32, "no-such"):
        for answered in await everything(caller, webhook):
            assert (404, "unknown_webhook") == answered.problem


BAD: list[Any] = [
    {},
    {"url": "ftp://example.com/"},
    {"url": "https://example.com/", "event_types": []},
    {"url": "https://example.com/", "event_types": [104]},
    {"url": "https://example.com/", "event_types": ["103"]},
    {"url": "https://example.com/", "contents": "some"},
    {"url": "https://example.com/", "secret": "short"},
    {"url": "https://example.com/", "secret": "with spaces in it"},
    {"url": "https://example.com/", "secret": "whsec_notbase64"},
    {"url": "https://example.com/", "description": "x" * 1001},
    {"url": "https://example.com/", "enabled": "yes"},
    {"url": "https://example.com/", "id": "mine"},
    {"url": None},
    {"url": "https://user:pass@example.com/"},
    {"url": "https://example.com:22/"},
]


@pytest.mark.parametrize("body", BAD, ids=range(len(BAD)))
async def test_what_is_no_endpoint_is_refused(serve: Serve, body: JsonObject) -> None:
    """A bad field gets a clear 400, and nothing is kept; neither by a change."""
    caller = RestClient(await serve())
    assert (400, "invalid_field") == (await caller.post("/v1/webhooks", body)).problem
    assert {"webhooks": []} == (await caller.get("/v1/webhooks")).json
    if body:
        made = await add(caller, "https://example.com/hook")
        changes = {key: value for key, value in body.items() if key != "url" or len(body) == 1}
        assert (400, "invalid_field") == (await caller.patch(f"/v1/webhooks/{made['id']}", changes)).problem
        made.pop("secret")
        assert made == await read(caller, made)


@every_row(
    ("path", "body"),
    [
        ("rotate-secret", {"overlap_seconds": -1}),
        ("rotate-secret", {"overlap_seconds": 604_801}),
        ("rotate-secret", {"secret": "\u00fcmlaut-secret"}),
        ("rotate-secret", {"secret": "whsec_notbase64"}),
        ("recover", {}),
        ("recover", {"since": "yesterday"}),
        ("recover", {"since": -1}),
        ("recover", {"since": 0, "until": 1}),
    ],
)
async def test_bad_bodies_of_the_other_calls(caller: RestClient, path: str, body: JsonObject) -> None:
    """They are refused, and change nothing."""
    made = await add(caller, "https://example.com/")
    assert (400, "invalid_field") == (await caller.post(f"/v1/webhooks/{made['id']}/{path}", body)).problem
    assert (await read(caller, made))["old_secret_until"] is None


@every_row("query", ["state=lost", "event_type=104", "limit=0", "before=x", "before=-1", "page=2"])
async def test_bad_queries_for_deliveries(caller: RestClient, query: str) -> None:
    """Unknown parameters and values are refused."""
    made = await add(caller, "https://example.com/")
    answered = await caller.get(f"/v1/webhooks/{made['id']}/deliveries?{query}")
    assert (400, "invalid_query") == answered.problem


async def test_only_admin_keys_manage_endpoints(serve: Serve) -> None:
    """Keys for ingest and reading get 403 everywhere."""
    app = await serve()
    made = await add(await client_with_key(app, "admin"), "https://example.com/")
    caller = await client_with_key(app, "ingest", "read")
    for answered in (*await everything(caller, made["id"]), await caller.get("/v1/webhooks")):
        assert (403, "forbidden") == answered.problem
    assert (403, "forbidden") == (await caller.post("/v1/webhooks", {"url": "https://example.com/"})).problem


async def test_a_project_has_so_many_endpoints(caller: RestClient) -> None:
    """One more than there may be is refused; one that was forgotten makes room."""
    for _ in range(MAX_ENDPOINTS):
        made = await add(caller, "https://example.com/")
    answered = await caller.post("/v1/webhooks", {"url": "https://example.com/"})
    assert (409, "too_many_webhooks") == answered.problem
    await caller.delete(f"/v1/webhooks/{made['id']}")
    await add(caller, "https://example.com/")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/", "http://[::1]/", "http://169.254.169.254/", "http://10.0.0.1/"]
)
async def test_an_endpoint_is_a_public_address(serve: Serve, url: str) -> None:
    """An address inside the operator's network is refused, by a change too."""
    caller = RestClient(await serve())
    assert (400, "address_not_allowed") == (await caller.post("/v1/webhooks", {"url": url})).problem
    made = await add(caller, "https://example.com/hook")
    assert (400, "address_not_allowed") == (await caller.patch(f"/v1/webhooks/{made['id']}", {"url": url})).problem
    assert "https://example.com/hook" == (await read(caller, made))["url"]


async def test_the_guard_holds_at_the_connection_too(tmp_path: Path, hook: WebhookReceiver) -> None:
    """An endpoint from when the allow-list had its network is not called any more without it."""
    store = f"sqlite:{tmp_path / 'calls.db'}"
    async with running_service(store=store, allow_addresses=LOOPBACK) as app:
        made = await add(RestClient(app), hook.url())
    async with running_service(store=store) as app:
        caller = RestClient(app)
        tried = (await caller.post(f"/v1/webhooks/{made['id']}/test")).json
        await finish(caller)
        delivery = await attempted(caller, made, 2)
    assert (False, "address_not_allowed") == (tried["passed"], tried["results"][0]["error"])
    assert [(None, "address_not_allowed")] * 2 == [(one["status"], one["error"]) for one in delivery["attempts"]]
    assert [] == hook.webhook_events


# Secrets


def agoras(webhook_event: WebhookEvent, secret: str) -> bool:
    expected = hmac.digest(secret.encode(), webhook_event.body, hashlib.sha256).hex()
    return expected == webhook_event.headers["Agora-Signature-V2"]


async def test_both_secrets_sign_while_one_takes_over(caller: RestClient, hook: WebhookReceiver) -> None:
    """After a rotation the old secret signs as well; Agora's headers hold the new one's; other secrets fit nothing."""
    made = await add(caller, hook.url(), secret=SECRET)
    assert SECRET == made["secret"]
    rotated = (await caller.post(f"/v1/webhooks/{made['id']}/rotate-secret")).json
    await finish(caller)
    webhook_event = await hook.one()

    assert rotated["secret"] != SECRET
    assert rotated["old_secret_until"] >= made["created_at"] + 86_400_000
    assert (True, True, False) == tuple(
        verified(webhook_event, one) for one in (SECRET, rotated["secret"], "whsec_AAAA")
    )
    assert (False, True) == (agoras(webhook_event, SECRET), agoras(webhook_event, rotated["secret"]))


async def test_without_an_overlap_only_the_new_secret_signs(caller: RestClient, hook: WebhookReceiver) -> None:
    """That is for a secret that others have seen."""
    made = await add(caller, hook.url(), secret=SECRET)
    place = f"/v1/webhooks/{made['id']}/rotate-secret"
    rotated = (await caller.post(place, {"overlap_seconds": 0, "secret": "a-secret-of-ours"})).json
    await finish(caller)
    webhook_event = await hook.one()

    assert ("a-secret-of-ours", None) == (rotated["secret"], rotated["old_secret_until"])
    assert (False, True) == (verified(webhook_event, SECRET), agoras(webhook_event, "a-secret-of-ours"))
    assert 1 == len(webhook_event.headers["webhook-signature"].split())


async def test_a_rotation_that_is_repeated_changes_nothing(caller: RestClient, hook: WebhookReceiver) -> None:
    """Given the same new secret again, the one of before the first still signs."""
    made = await add(caller, hook.url(), secret=SECRET)
    for _ in range(2):
        await caller.post(f"/v1/webhooks/{made['id']}/rotate-secret", {"secret": "a-secret-of-ours"})
    await finish(caller)

    assert verified(await hook.one(), SECRET)


async def test_an_overlap_ends(hook: WebhookReceiver) -> None:
    """When its time is over only the new secret signs."""
    async with at_time() as (caller, clock):
        made = await add(caller, hook.url(), secret=SECRET)
        rotated = (await caller.post(f"/v1/webhooks/{made['id']}/rotate-secret", {"overlap_seconds": 60})).json
        clock.wait(60)
        await finish(caller)
        webhook_event = await hook.one()
    assert 1 == len(webhook_event.headers["webhook-signature"].split())
    assert agoras(webhook_event, rotated["secret"])
