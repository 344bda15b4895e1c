"""The log: its two forms, and that nothing of a call, no key and no secret ever stands in it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from callers import Caller, Reply, receiving, until
from calls import delta, done, final
from processes import running_process
from websockets.asyncio.client import connect

from voicemem.cli import logs
from voicemem.errors import StoreUnavailable

SECRET = "hush-hush-hush-hush"


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger with no handlers, as it is before a command sets it up, and put back afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("voicemem")
    before, levels = root.handlers[:], (root.level, ours.level)
    root.handlers[:] = []
    yield root
    root.handlers[:] = before
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def logged(form: str, level: str = "debug") -> tuple[logging.Logger, io.StringIO]:
    """Our logger, and what it writes."""
    stream = io.StringIO()
    logs.configure_logging(form, level, stream)
    return logging.getLogger("voicemem.test"), stream


def test_a_line_of_json_has_the_fields_by_name(root: logging.Logger) -> None:
    """Time, level, logger and message, then what was given beside the message."""
    log, stream = logged("json")
    log.warning("Webhook to %s failed", "a.example", extra={"status": 500, "host": "a.example"})
    (line,) = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    expected = {"level": "warning", "logger": "voicemem.test", "message": "Webhook to a.example failed"}
    assert {**expected, "status": 500, "host": "a.example"} == line


def test_a_line_of_text_has_the_fields_behind_the_sentence(root: logging.Logger) -> None:
    """The same for people."""
    log, stream = logged("text")
    log.info("Started", extra={"version": "1"})
    assert stream.getvalue().endswith("Z INFO voicemem.test: Started version=1\n")


@pytest.mark.parametrize("form", logs.FORMATS)
def test_an_error_is_its_type_and_place_and_never_its_text(root: logging.Logger, form: str) -> None:
    """What an exception quotes is not logged; where it was is, and so are sentences of ours and of the system."""
    log, stream = logged(form)
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise StoreUnavailable("The store is full.") from error
    except StoreUnavailable as error:
        log.error("A commit failed", exc_info=error)
    try:
        raise OSError(28, "No space left on device", SECRET)
    except OSError as error:
        log.error("No room", exc_info=error)
    written = stream.getvalue()
    assert SECRET not in written
    for said in ("KeyError", "The store is full.", "No space left on device", "test_logs.py"):
        assert said in written


def test_a_message_over_lines_is_one_line_of_json(root: logging.Logger) -> None:
    """Nobody forges a line."""
    log, stream = logged("json")
    log.warning("one\ntwo")
    assert 1 == len(stream.getvalue().splitlines())


def test_the_level_is_for_ours_and_libraries_only_warn(root: logging.Logger) -> None:
    """At `debug` our lines are all there, and those of libraries below a warning are not."""
    log, stream = logged("text", "debug")
    log.debug("ours")
    logging.getLogger("aiohttp.client").info(SECRET)
    logging.getLogger("websockets").debug(SECRET)
    assert ("ours" in stream.getvalue(), SECRET in stream.getvalue()) == (True, False)
    log.setLevel(logging.NOTSET)
    logs.LOG.setLevel("ERROR")
    log.warning("below")
    assert "below" not in stream.getvalue()


async def test_an_error_that_nobody_waited_for_is_not_quoted(root: logging.Logger) -> None:
    """asyncio would print the error's text; ours is the type."""
    _, stream = logged("json")
    loop = asyncio.get_running_loop()
    logs.log_lost_errors(loop)
    try:
        loop.call_soon(lambda: dict[str, str]()[SECRET])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(None)
    assert ("KeyError" in stream.getvalue(), SECRET in stream.getvalue()) == (True, False)


# A busy run of the real process

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
    api, stranger = Caller(rest, p["admin_key"]), Caller(rest, p["wrong_key"])
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
    async with receiving(*[Reply(500, {"X-Said": PLANTED["answer"]})] * 9) as hook:
        arguments = ["--log-format", form, "--log-level", "debug", "--allow-address", "127.0.0.0/8"]
        arguments += ["--webhook-url", hook.url(f"/{PLANTED['path']}?{PLANTED['query']}=1")]
        async with running_process(tmp_path / "db", *arguments, env=env, log=log) as process:
            ingest = f"ws://{process.ingest_address}/v1/ingest"
            await be_busy(process.rest, ingest, hook.url(f"/{PLANTED['path']}"))
            await hook.wait(2)

            async def told() -> bool:
                return log.read_text().count("Webhook") >= 4  # both attempts, and what becomes of them

            await until(True, told)
            assert 0 == await process.stop()
            assert process.process.stdout is not None
            shown = (await process.process.stdout.read()).decode()
    written = log.read_text()
    assert [] == [name for name, value in PLANTED.items() if value in written + shown]
    for said in ("Started", "Stopping", "/v1/sessions/{id}/history", "Webhook", "500"):
        assert said in written
    if form == "json":
        assert all({"time", "level", "logger", "message"} <= json.loads(line).keys() for line in written.splitlines())
