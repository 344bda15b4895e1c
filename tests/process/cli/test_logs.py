"""The logs of a running process: the audit, and nothing of a call, no key and no secret."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.support.callers.rest import RestClient
from tests.support.events import delta, done, final
from tests.support.processes.service_process import running_process
from tests.support.samples.audit_lines import ADMIN_KEY
from tests.support.servers.webhook_receiver import Reply, webhook_receiver
from tests.support.waiting import eventually
from voicemem.cli import logs

PLANTED = {
    "admin_key": "vm-operator-planted-key",
    "wrong_key": "vm_000000000000_plantedwrongkey0000000000000000000000000",
    "webhook_secret": "whsec_cGxhbnRlZC1zZWNyZXQtcGxhbnRlZC1zZWNyZXQ=",
    "own_secret": "planted-session-secret",
    "api_key": "sk-planted-llm-key",
    "text": "planted-words-of-a-caller",
    "reply": "planted-words-of-an-agent",
    "refused": "planted-words-in-a-refused-event",
    "raw": "planted-raw-bytes",
    "path": "planted-hook-path",
    "query": "planted-query",
    "system": "planted-system-message",
    "answer": "planted-answer-of-a-receiver",
}


async def be_busy(rest: str, ingest: str, hook_url: str) -> None:
    """Everything that a log could tell of: right and wrong requests, frames, keys and webhooks."""
    p = PLANTED
    api, stranger = RestClient(rest, p["admin_key"]), RestClient(rest, p["wrong_key"])
    llm = {"api_key": p["api_key"], "system_messages": [{"role": "system", "content": p["system"]}]}
    await api.create(llm=llm, webhook={"url": hook_url, "secret": p["own_secret"]})
    assert 401 == (await stranger.get("/v1/sessions")).status
    await api.get(f"/v1/sessions?{p['query']}=1")
    await api.post("/v1/sessions/s/events", p["raw"].encode())
    await api.post("/v1/sessions", {"session_id": p["refused"] + "/"})
    headers = {"Authorization": f"Bearer {p['admin_key']}"}
    async with connect(ingest, additional_headers=headers) as socket:
        await socket.send(json.dumps({"type": "session.open", "session_id": "s"}))
        events: list[dict[str, Any]] = [final(1, p["text"]), delta(1, p["reply"]), done(1), {"type": p["refused"]}]
        await socket.send(json.dumps([{"seq": n, **one} for n, one in enumerate(events, 1)]))
        await socket.send(json.dumps({"seq": 1, **final(1, p["refused"])}))
        await socket.send('{"' + p["raw"])
        await socket.wait_closed()
    async with connect(ingest) as socket:
        await socket.send(json.dumps({"type": "auth", "token": p["wrong_key"]}))
        await socket.wait_closed()
    await api.get("/v1/sessions/s/history")
    await api.end("s", reason=p["refused"])
    await api.get("/metrics")
    assert 404 == (await api.get(f"/{p['raw']}")).status
    host, port = rest.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /{p['raw']}\x01 HTTP/1.1\r\nAuthorization: {p['admin_key']}\r\n\r\n".encode())
    assert b" 400 " in await reader.readline()
    writer.close()


@pytest.mark.parametrize("form", logs.FORMATS)
async def test_a_busy_run_logs_nothing_that_was_planted(tmp_path: Path, form: str) -> None:
    """At the most talkative level, no text, key, secret, query or webhook path is in the log or on standard output."""
    log = tmp_path / "log"
    env = {"VOICEMEM_ADMIN_KEY": PLANTED["admin_key"], "VOICEMEM_WEBHOOK_SECRET": PLANTED["webhook_secret"]}
    async with webhook_receiver(*[Reply(500, {"X-Said": PLANTED["answer"]})] * 9) as hook:
        arguments = ["--log-format", form, "--log-level", "debug", "--allow-address", "127.0.0.0/8"]
        arguments += ["--webhook-url", hook.url(f"/{PLANTED['path']}?{PLANTED['query']}=1")]
        async with running_process(tmp_path / "db", *arguments, env=env, log=log) as process:
            ingest = f"ws://{process.ingest_address}/v1/ingest"
            await be_busy(process.rest, ingest, hook.url(f"/{PLANTED['path']}"))
            await hook.wait(2)

            async def told() -> bool:
                return log.read_text().count("Webhook") >= 4  # both attempts, and what becomes of them

            await eventually(True, told)
            assert 0 == await process.stop()
            assert process.process.stdout is not None
            shown = (await process.process.stdout.read()).decode()
    written = log.read_text()
    assert [] == [name for name, value in PLANTED.items() if value in written + shown]
    for said in ("Started", "Stopping", "/v1/sessions/{id}/history", "Webhook", "500"):
        assert said in written
    if form == "json":
        assert all({"time", "level", "logger", "message"} <= json.loads(line).keys() for line in written.splitlines())


async def test_the_service_writes_its_audit_to_standard_error(tmp_path: Path) -> None:
    """The line stands in the log of `voicemem serve` as it is, without anything being set."""
    log = tmp_path / "log"
    async with running_process(tmp_path / "v.db", env={"VOICEMEM_ADMIN_KEY": ADMIN_KEY}, log=log) as process:
        assert 201 == (await RestClient(process.rest, ADMIN_KEY).post("/v1/keys")).status
        assert 0 == await process.stop()
    (line,) = log.read_text().splitlines()
    assert "voicemem.audit" in line
    assert '"act":"key_created"' in line


async def test_in_a_log_of_json_the_audit_is_fields(tmp_path: Path) -> None:
    """With `--log-format json` the line is one object: the message is the act, and what names it are fields."""
    log = tmp_path / "log"
    env = {"VOICEMEM_ADMIN_KEY": ADMIN_KEY}
    async with running_process(tmp_path / "v.db", "--log-format", "json", env=env, log=log) as process:
        key = (await RestClient(process.rest, ADMIN_KEY).post("/v1/keys", {"scopes": ["read"]})).json
        assert 0 == await process.stop()
    line = json.loads(log.read_text())
    del line["time"]
    act = {"act": "key_created", "by": "environment", "project": "default", "key": key["id"], "scopes": ["read"]}
    assert {"level": "info", "logger": "voicemem.audit", "message": "key_created", **act} == line


def test_the_audit_line_of_a_command_has_the_time_of_the_log(tmp_path: Path) -> None:
    """UTC, to the millisecond, as `serve` writes it."""
    command = [sys.executable, "-m", "voicemem", "keys", "create", "--store", f"sqlite:{tmp_path}/calls.db"]
    written = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.search(rf"^{time} INFO voicemem\.audit: {{", written, re.MULTILINE), written
