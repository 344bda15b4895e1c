"""The audit log: a line for every administrative act, with who, what and where, and without payload or secrets."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from callers import LOOPBACK, Caller, JsonObject, Reply, keyed, receiving
from click.testing import CliRunner
from processes import running_process
from producers import connected, said
from services import Serve

from voicemem.app import App
from voicemem.cli import main

ADMIN_KEY = "the operator's own key"
HOOK = "https://hush.example/hush"


@pytest.fixture
async def app(serve: Serve, tmp_path: Path) -> App:
    """A service on a file with the operator's key."""
    return await serve(admin_key=ADMIN_KEY, store=f"sqlite:{tmp_path}/v.db")


def acts(caplog: pytest.LogCaptureFixture) -> list[JsonObject]:
    """The audit lines; each must be one JSON object on one line that has no secret."""
    assert "hush" not in caplog.text
    assert ADMIN_KEY not in caplog.text
    records = [record for record in caplog.records if record.name == "voicemem.audit"]
    assert {"INFO"} >= {record.levelname for record in records}
    assert not [record for record in records if "\n" in record.getMessage()]
    return [json.loads(record.getMessage()) for record in records]


async def test_acts_over_rest(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """Keys, tokens, what calls out, and erasures, each by its key."""
    admin = Caller(app, ADMIN_KEY)
    by = {"by": "environment", "project": "default"}
    key = (await admin.post("/v1/keys", {"name": "hush", "scopes": ["admin"]})).json
    await admin.create("s", webhook={"url": HOOK, "secret": "hush"})
    await admin.patch("/v1/sessions/s", {"webhook": None})
    token = (await admin.post("/v1/sessions/s/tokens")).json
    await Caller(app, key["key"]).delete("/v1/sessions/s")
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
    async with receiving(*[Reply(500)] * 9) as hook:
        admin = Caller(await serve(admin_key=ADMIN_KEY, allow_addresses=LOOPBACK), ADMIN_KEY)
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
    admin = Caller(app, ADMIN_KEY)
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
    async with connected(app, {"Authorization": f"Bearer {ADMIN_KEY}"}) as producer:
        await producer.open("s", session={"webhook": {"url": HOOK}})
        await producer.store(update, said(2, "hush"))
        await producer.store(update)
        await producer.open("t", session={"name": "hush"})
    ingest = await keyed(app, "ingest")
    await ingest.send({**update, "seq": 3})
    act = {"act": "calling_out_changed", "by": "environment", "project": "default", "session": "s"}
    assert [act, act] == acts(caplog)


async def test_what_changes_nothing_is_no_act(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """Reading, sending, other settings, refused acts and the same session once more leave no line."""
    admin = Caller(app, ADMIN_KEY)
    await admin.create("s", name="hush")
    await admin.patch("/v1/sessions/s", {"name": "x"})
    await admin.send(said(1, "hush"))
    await admin.contents()
    await admin.get("/v1/keys")
    await admin.delete("/v1/keys/000000000000")
    await admin.delete("/v1/sessions/nobody")
    await (await keyed(app, "ingest")).patch("/v1/sessions/s", {"webhook": {"url": HOOK}})
    assert [] == acts(caplog)


async def test_the_service_writes_its_audit_to_standard_error(tmp_path: Path) -> None:
    """The line stands in the log of `voicemem serve` as it is, without anything being set."""
    log = tmp_path / "log"
    async with running_process(tmp_path / "v.db", env={"VOICEMEM_ADMIN_KEY": ADMIN_KEY}, log=log) as process:
        assert 201 == (await Caller(process.rest, ADMIN_KEY).post("/v1/keys")).status
        assert 0 == await process.stop()
    (line,) = log.read_text().splitlines()
    assert "voicemem.audit" in line
    assert '"act":"key_created"' in line


async def test_in_a_log_of_json_the_audit_is_fields(tmp_path: Path) -> None:
    """With `--log-format json` the line is one object: the message is the act, and what names it are fields."""
    log = tmp_path / "log"
    env = {"VOICEMEM_ADMIN_KEY": ADMIN_KEY}
    async with running_process(tmp_path / "v.db", "--log-format", "json", env=env, log=log) as process:
        key = (await Caller(process.rest, ADMIN_KEY).post("/v1/keys", {"scopes": ["read"]})).json
        assert 0 == await process.stop()
    line = json.loads(log.read_text())
    del line["time"]
    act = {"act": "key_created", "by": "environment", "project": "default", "key": key["id"], "scopes": ["read"]}
    assert {"level": "info", "logger": "voicemem.audit", "message": "key_created", **act} == line


async def test_acts_of_the_command_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Keys, backups and restores by the commands; the line names the files and no key's text."""
    path = f"{tmp_path}/v.db"
    store = ("--store", f"sqlite:{path}")

    async def command(*arguments: str) -> str:
        result = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, *store])
        assert 0 == result.exit_code, result.output
        return result.stdout.split()[-1]

    text = await command("keys", "create", "--project", "shop")
    key_id = text.split("_")[1]
    await command("keys", "revoke", key_id)
    await command("backup", f"{tmp_path}/b")
    await command("restore", f"{tmp_path}/b", "--force")
    by = {"by": "command line"}
    files = {"store": path, "file": f"{tmp_path}/b"}
    assert [
        {"act": "key_created", **by, "project": "shop", "key": key_id, "scopes": ["ingest", "read"]},
        {"act": "key_revoked", **by, "project": "shop", "key": key_id},
        {"act": "backup", **by, **files},
        {"act": "restore", **by, **files},
    ] == acts(caplog)
    assert text not in caplog.text


def test_a_command_shows_its_audit_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On standard error, so that the key alone is on standard output."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger("voicemem.audit"), "handlers", [])
    result = CliRunner().invoke(main, ["keys", "create", "--store", f"sqlite:{tmp_path}/v.db"])
    assert '"act":"key_created"' in result.stderr
    assert result.stdout.startswith("vm_")
    assert result.stdout.strip() not in result.stderr
