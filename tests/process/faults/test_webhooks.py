"""A webhook whose process was killed in the middle of an attempt is sent by the next process."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from tests.support.processes.service_process import running_process
from tests.support.samples.deliveries import HELLO, WHSEC, state_in, texts
from tests.support.servers.webhook_receiver import Reply, WebhookReceiver, comparable_body, webhook_receiver
from voicemem.runtime import Runtime, now_ms
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.store.sqlite.store import SqliteStore
from voicemem.webhooks.outbox import LEASE_MS, OutboxWorker
from voicemem.webhooks.requests import WebhookSender


@pytest.fixture
async def hook() -> AsyncIterator[WebhookReceiver]:
    """A receiver of webhooks."""
    async with webhook_receiver() as receiver:
        yield receiver


async def killed_in_the_middle(tmp_path: Path, hook: WebhookReceiver) -> None:
    """Run the service as a process of its own, end a call, and kill it while its first attempt is under way."""
    arguments = ("--webhook-url", hook.url(), "--webhook-secret", WHSEC)
    async with running_process(tmp_path / "v.db", *arguments, env={"TZ": "UTC"}) as process:
        await process.api.create()
        await process.api.send(*HELLO)
        await process.api.end()
        await hook.one()
        await process.kill()


@pytest.mark.fault(20)
async def test_a_process_that_was_killed_in_an_attempt_is_succeeded(tmp_path: Path, hook: WebhookReceiver) -> None:
    """After its lease the webhook event is sent once more: the same noticeId, the same bytes, signed again."""
    hook.replies = [Reply(gate=asyncio.Event())]
    await killed_in_the_middle(tmp_path, hook)
    store = SqliteStore(str(tmp_path / "v.db"))
    async with WebhookSender() as sender:
        later = OutboxWorker(store, ReadModelCache(store), sender.send, Runtime(lambda: now_ms() + LEASE_MS))
        assert 1 == await later.start_due()
        await asyncio.gather(*later.tasks)
    await store.close_store()
    first, second = hook.webhook_events
    assert comparable_body(first) == comparable_body(second)
    assert ["Hi.", "Good day."] == texts(second)
    Webhook(WHSEC).verify(second.body, dict(second.headers))
    assert "delivered" == await state_in(tmp_path / "v.db")
