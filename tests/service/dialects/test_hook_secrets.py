"""Secrets of webhooks over REST: set, rotated with an overlap, removed, and of one project alone."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import hashlib
import hmac
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.callers.rest import RestClient, make_key
from tests.support.clock import ManualClock
from tests.support.samples.audit_lines import ADMIN_KEY, acts
from tests.support.services import Serve, running_service
from voicemem.app import App
from voicemem.dialects.dialect import Dialect, Frame, Hook, RawFrame, Side
from voicemem.dialects.known import Known, MadeEvent
from voicemem.dialects.registry import DIALECTS
from voicemem.protocol.events import MessageEvent
from voicemem.protocol.types import JsonObject

HOOK = "/v1/hooks/platform"
SECRET = f"{HOOK}/secret"
BODY = msgspec.json.encode({"call": "call-1", "said": "Hello."})


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """Keep all; frames of this platform have no ids."""
    assert isinstance(frame, dict)
    return Frame(frame, session_id=frame["call"])


def translate(frame: JsonObject, ts: int, known: Known) -> Iterator[MadeEvent]:
    """One message."""
    yield MessageEvent(role="user", text=frame["said"], source="message")


def verify(body: bytes, headers: Mapping[str, str], secret: str, now_ms: int) -> bool:
    """A plain signature."""
    return hmac.compare_digest(signature(secret, body), headers["x-signature"])


def signature(secret: str, body: bytes = BODY) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


@pytest.fixture(autouse=True)
def platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack whose webhooks have no ids."""
    hook = Hook(verify, lambda body: [body])
    made = Dialect(name="platform", version=1, reduce=reduce, translate=translate, hook=hook, texts=lambda _: ())
    monkeypatch.setitem(DIALECTS, "platform", made)


async def send(app: App, secret: str, project: str = "shop", body: bytes = BODY) -> Any:
    """The answer to a webhook that is signed with a secret."""
    headers = {"Content-Type": "application/json", "X-Signature": signature(secret, body)}
    return await RestClient(app).call("POST", f"{HOOK}?project={project}", headers=headers, data=io.BytesIO(body))


@pytest.fixture
async def app(serve: Serve) -> App:
    return await serve(admin_key=ADMIN_KEY)


@pytest.fixture
async def admin(app: App) -> RestClient:
    return RestClient(app, await make_key(app, "admin", project="shop"))


async def test_a_secret_that_is_set_verifies(app: App, admin: RestClient, caplog: pytest.LogCaptureFixture) -> None:
    """It is shown in no answer, list or log, and the change is audited."""
    assert 401 == (await send(app, "the-secret")).status
    answered = await admin.call("PUT", SECRET, json={"secret": "the-secret"})
    shown = {"dialect": "platform", "set_at": answered.json["set_at"], "old_secret_until": None, "in_settings": False}
    shown["identify"] = None
    assert (200, shown) == (answered.status, answered.json)
    assert {"hooks": [shown]} == (await admin.get("/v1/hooks")).json
    assert (200, 1) == ((first := await send(app, "the-secret")).status, first.json["stored"])
    assert (401, "unauthorized") == (await send(app, "another-1")).problem
    assert 204 == (await admin.delete(SECRET)).status
    assert (404, "unknown_hook_secret") == (await admin.delete(SECRET)).problem
    assert 401 == (await send(app, "the-secret")).status

    by = {"by": admin.headers["Authorization"].split("_")[1], "project": "shop", "dialect": "platform"}
    assert [{"act": "hook_secret_set", **by}, {"act": "hook_secret_removed", **by}] == acts(caplog)[-2:]
    assert "the-secret" not in caplog.text


async def test_a_secret_that_is_made_is_shown_once(app: App, admin: RestClient) -> None:
    """Without one in the body the service makes it."""
    made = (await admin.call("PUT", SECRET)).json["secret"]
    assert 200 == (await send(app, made)).status
    assert made not in (await admin.get("/v1/hooks")).body.decode()


async def test_both_secrets_verify_during_the_overlap(app: App, admin: RestClient) -> None:
    """After it, and with an overlap of 0, only the new one does."""
    clock = app.services.hook_secrets.clock = ManualClock()
    for secret in ("secret-1", "secret-2"):
        answered = await admin.call("PUT", SECRET, json={"secret": secret, "overlap_seconds": 60})
    assert clock() + 60_000 == answered.json["old_secret_until"]
    assert [200, 200] == [(await send(app, secret)).status for secret in ("secret-1", "secret-2")]
    clock.wait(60)
    assert [401, 200] == [(await send(app, secret)).status for secret in ("secret-1", "secret-2")]
    assert None is (await admin.get("/v1/hooks")).json["hooks"][0]["old_secret_until"]
    await admin.call("PUT", SECRET, json={"secret": "secret-3", "overlap_seconds": 0})
    assert [401, 401, 200] == [(await send(app, f"secret-{number}")).status for number in (1, 2, 3)]


async def test_the_same_again_rotates_nothing(app: App, admin: RestClient) -> None:
    """A repeated request keeps the secret before it, and when the new one was set."""
    await admin.call("PUT", SECRET, json={"secret": "secret-1"})
    first, again = [await admin.call("PUT", SECRET, json={"secret": "secret-2"}) for _ in range(2)]
    assert first.json["set_at"] == again.json["set_at"]
    assert [200, 200] == [(await send(app, secret)).status for secret in ("secret-1", "secret-2")]


async def test_a_secret_of_another_project_does_not_verify(app: App, admin: RestClient) -> None:
    """Neither does an admin of one see, change or remove those of another."""
    other = RestClient(app, await make_key(app, "admin", project="other"))
    await admin.call("PUT", SECRET, json={"secret": "of-the-shop"})
    await other.call("PUT", SECRET, json={"secret": "of-the-other"})
    assert [200, 401, 401, 200] == [
        (await send(app, secret, project)).status
        for secret in ("of-the-shop", "of-the-other")
        for project in ("shop", "other")
    ]
    await other.delete(SECRET)
    assert [200, 401] == [(await send(app, "of-the-shop", project)).status for project in ("shop", "other")]
    assert {"hooks": []} == (await other.get("/v1/hooks")).json


async def test_secrets_of_the_settings_verify_beside_it(serve: Serve) -> None:
    """They stay the operator's: no project removes them."""
    app = await serve(hook_secrets=("shop/platform=of-the-operator",), admin_key=ADMIN_KEY)
    admin = RestClient(app, await make_key(app, "admin", project="shop"))
    given = {"dialect": "platform", "set_at": None, "old_secret_until": None, "in_settings": True}
    given["identify"] = None
    assert {"hooks": [given]} == (await admin.get("/v1/hooks")).json
    await admin.call("PUT", SECRET, json={"secret": "of-the-shop"})
    assert [200, 200] == [(await send(app, secret)).status for secret in ("of-the-operator", "of-the-shop")]
    await admin.delete(SECRET)
    assert [200, 401] == [(await send(app, secret)).status for secret in ("of-the-operator", "of-the-shop")]


async def test_a_replayed_webhook_stores_nothing(app: App, admin: RestClient) -> None:
    """Also where the platform's frames have no ids: the same bytes are the same webhook."""
    await admin.call("PUT", SECRET, json={"secret": "the-secret"})
    assert [1, 0, 0] == [(await send(app, "the-secret")).json["stored"] for _ in range(3)]
    other = msgspec.json.encode({"call": "call-1", "said": "Hello.", "at": 2})
    assert 1 == (await send(app, "the-secret", body=other)).json["stored"]
    assert ["Hello.", "Hello."] == [one["content"] for one in await admin.contents("call-1")]


async def test_a_restarted_service_knows_it(serve: Serve, tmp_path: Path) -> None:
    """It stands in the store."""
    store = f"sqlite:{tmp_path}/calls.db"
    async with running_service(store=store, admin_key=ADMIN_KEY) as app:
        await RestClient(app, ADMIN_KEY).call("PUT", SECRET, json={"secret": "the-secret"})
    again = await serve(store=store, admin_key=ADMIN_KEY)
    assert 200 == (await send(again, "the-secret", "default")).status


@pytest.mark.parametrize(
    "body", [{"secret": "short"}, {"secret": "with a space"}, {"secret": 1}, {"overlap_seconds": -1}, {"name": "x"}]
)
async def test_bad_secrets_are_refused(admin: RestClient, body: JsonObject) -> None:
    """Nothing is set."""
    assert (400, "invalid_field") == (await admin.call("PUT", SECRET, json=body)).problem
    assert {"hooks": []} == (await admin.get("/v1/hooks")).json


async def test_only_admins_of_dialects_with_webhooks(app: App, admin: RestClient) -> None:
    """Other keys are refused, and so are stacks that call no one."""
    reader = RestClient(app, await make_key(app, "read", project="shop"))
    for answered in (await reader.call("PUT", SECRET), await reader.delete(SECRET), await reader.get("/v1/hooks")):
        assert (403, "forbidden") == answered.problem
    assert (404, "unknown_dialect") == (await admin.call("PUT", "/v1/hooks/openai-realtime/secret")).problem
