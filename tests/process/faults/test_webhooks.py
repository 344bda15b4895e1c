"""A webhook whose process was killed in the middle of an attempt is sent by the next process."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from tests.support.callers.rest import RestClient
from tests.support.samples.deliveries import HELLO, WHSEC, state_in, texts
from tests.support.servers.webhook_receiver import Reply, WebhookReceiver, comparable_body, webhook_receiver
from voicemem.runtime import Runtime, now_ms
from voicemem.sessions.cache import ReadModelCache
from voicemem.store.sqlite import SqliteStore
from voicemem.webhooks.outbox import LEASE_MS, OutboxWorker
from voicemem.webhooks.sender import WebhookSender


@pytest.fixture
async def hook() -> AsyncIterator[WebhookReceiver]:
    """A receiver of webhooks."""
    async with webhook_receiver() as receiver:
        yield receiver


async def killed_in_the_middle(tmp_path: Path, hook: WebhookReceiver) -> None:
    """Run the service as a process of its own, end a call, and kill it while its first attempt is under way."""
    arguments = ["serve", "--store", f"sqlite:{tmp_path}/v.db", "--rest", "127.0.0.1:0", "--ingest", "127.0.0.1:0"]
    arguments += ["--webhook-url", hook.url(), "--webhook-secret", WHSEC]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "voicemem", *arguments, stdout=asyncio.subprocess.PIPE, env={**os.environ, "TZ": "UTC"}
    )
    assert process.stdout is not None
    try:
        shown = ""
        while "webhook" not in shown:
            shown += (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
        api = RestClient(re.findall(r"http://[\d.]+:\d+", shown)[0])
        await api.create()
        await api.send(*HELLO)
        await api.end()
        await hook.one()
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


@pytest.mark.fault(20)
async def test_a_process_that_was_killed_in_an_attempt_is_succeeded(tmp_path: Path, hook: WebhookReceiver) -> None:
    """After its lease the notice is sent once more: the same noticeId, the same bytes, signed anew."""
    hook.replies = [Reply(gate=asyncio.Event())]
    await killed_in_the_middle(tmp_path, hook)
    store = SqliteStore(str(tmp_path / "v.db"))
    async with WebhookSender() as sender:
        later = OutboxWorker(store, ReadModelCache(store), sender.send, Runtime(lambda: now_ms() + LEASE_MS))
        assert 1 == await later.start_due()
        await asyncio.gather(*later.tasks)
    await store.close_store()
    first, second = hook.notices
    assert comparable_body(first) == comparable_body(second)
    assert ["Hi.", "Good day."] == texts(second)
    Webhook(WHSEC).verify(second.body, dict(second.headers))
    assert "delivered" == await state_in(tmp_path / "v.db")
