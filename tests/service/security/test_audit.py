"""The audit log: a line for every administrative act, with who, what and where, and without payload or secrets."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import LOOPBACK, RestClient, client_with_key
from tests.support.events import final_transcript
from tests.support.samples.audit_lines import ADMIN_KEY, acts
from tests.support.servers.webhook_receiver import Reply, webhook_receiver
from tests.support.services import Serve
from voicemem.app import App

HOOK = "https://hush.example/hush"


@pytest.fixture
async def app(serve: Serve, tmp_path: Path) -> App:
    """A service on a file with the operator's key."""
    return await serve(admin_key=ADMIN_KEY, store=f"sqlite:{tmp_path}/v.db")


async def test_acts_over_rest(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """Keys, tokens, what calls out, and erasures, each by its key."""
    admin = RestClient(app, ADMIN_KEY)
    by = {"by": "environment", "project": "default"}
    key = (await admin.post("/v1/keys", {"name": "hush", "scopes": ["admin"]})).json
    await admin.create("s", webhook={"url": HOOK, "secret": "hush"})
    await admin.patch("/v1/sessions/s", {"webhook": None})
    token = (await admin.post("/v1/sessions/s/tokens")).json
    await RestClient(app, key["key"]).delete("/v1/sessions/s")
    await admin.delete(f"/v1/keys/{key['id']}")
    session = {"session": "s"}
    assert [
        {"act": "key_created", **by, "key": key["id"], "scopes": ["admin"]},
        {"act": "calling_out_changed", **by, **session},
        {"act": "calling_out_changed", **by, **session},
        {"act": "token_created", **by, **session, "expires_at": token["expires_at"]},
        {"act": "session_erased", "by": key["id"], "project": "default", **session},
        {"act": "key_revoked", **by, "key": key["id"]},
    ] == acts(caplog)
    assert not [text for text in (key["key"], token["token"]) if text in caplog.text]


async def test_acts_on_webhooks(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """All that is done with an endpoint and its deliveries over REST, by its id."""
    async with webhook_receiver(*[Reply(500)] * 9) as hook:
        admin = RestClient(await serve(admin_key=ADMIN_KEY, allow_addresses=LOOPBACK), ADMIN_KEY)
        made = (await admin.post("/v1/webhooks", {"url": hook.url("/hush"), "secret": "hush-hush"})).json
        place = f"/v1/webhooks/{made['id']}"
        await admin.patch(place, {"description": "hush"})
        await admin.post(f"{place}/rotate-secret", {"secret": "hush-hush-hush"})
        await admin.post(f"{place}/test")
        await admin.create("s")
        await admin.end("s")
        delivery = (await admin.get(f"{place}/deliveries")).json["deliveries"][0]["id"]
        assert 202 == (await admin.post(f"{place}/deliveries/{delivery}/resend")).status
        assert 202 == (await admin.post(f"{place}/recover", {"since": 7})).status
        assert 404 == (await admin.post(f"{place}/deliveries/999/resend")).status
        await admin.delete(place)
    by = {"by": "environment", "project": "default", "webhook": made["id"]}
    assert [
        {"act": "webhook_created", **by},
        {"act": "webhook_changed", **by},
        {"act": "webhook_secret_rotated", **by},
        {"act": "webhook_tested", **by},
        {"act": "delivery_resent", **by, "delivery": delivery},
        {"act": "deliveries_recovered", **by, "since": 7, "count": 0},
        {"act": "webhook_deleted", **by},
    ] == acts(caplog)


async def test_what_calls_out_on_agoras_paths(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """A join with the URL or the key of an LLM; one without is no act."""
    admin = RestClient(app, ADMIN_KEY)
    for name, llm in {"a": {"api_key": "hush"}, "b": {"max_history": 3}}.items():
        properties = {"channel": "c", "llm": llm}
        path = "/api/conversational-ai-agent/v2/projects/default/join"
        joined = await admin.post(path, {"name": name, "properties": properties})
        assert 200 == joined.status, joined.body
        if name == "a":
            agent = joined.json["agent_id"]
    act = {"act": "calling_out_changed", "by": "environment", "project": "default", "session": agent}
    assert [act] == acts(caplog)


async def test_what_calls_out_over_the_websocket(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """An open with a webhook and an update of one; a resend and a refusal are no acts."""
    update = {"type": "session.update", "seq": 1, "webhook": {"url": HOOK}}
    async with connected_producer(app, {"Authorization": f"Bearer {ADMIN_KEY}"}) as producer:
        await producer.open("s", session={"webhook": {"url": HOOK}})
        await producer.store(update, final_transcript(2, "hush"))
        await producer.store(update)
        await producer.open("t", session={"name": "hush"})
    ingest = await client_with_key(app, "ingest")
    await ingest.send({**update, "seq": 3})
    act = {"act": "calling_out_changed", "by": "environment", "project": "default", "session": "s"}
    assert [act, act] == acts(caplog)


async def test_each_update_of_a_batch_is_an_act(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """Two that come together are two lines, with no line for what lies between."""
    admin = RestClient(app, ADMIN_KEY)
    await admin.create("s")
    update = {"type": "session.update", "webhook": {"url": HOOK}}
    await admin.send({**update, "seq": 1}, final_transcript(2, "hush"), {**update, "seq": 3, "webhook": None})
    act = {"act": "calling_out_changed", "by": "environment", "project": "default", "session": "s"}
    assert [act, act] == acts(caplog)


async def test_what_changes_nothing_is_no_act(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """Reading, sending, other settings, refused acts and the same session once more leave no line."""
    admin = RestClient(app, ADMIN_KEY)
    await admin.create("s", name="hush")
    await admin.patch("/v1/sessions/s", {"name": "x"})
    await admin.send(final_transcript(1, "hush"))
    await admin.contents()
    await admin.get("/v1/keys")
    await admin.delete("/v1/keys/000000000000")
    await admin.delete("/v1/sessions/nobody")
    await (await client_with_key(app, "ingest")).patch("/v1/sessions/s", {"webhook": {"url": HOOK}})
    assert [] == acts(caplog)
