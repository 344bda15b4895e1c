"""Processes that observe calls die or stand still in mid-call: another goes on, and nothing is there twice."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.callers.rest import RestClient
from tests.support.postgresql import database_of, server
from tests.support.processes.service_process import ServiceProcess, running_process
from tests.support.sideband import KEY, Sideband, said, send
from tests.support.sideband import sideband as sideband
from tests.support.waiting import eventually

CALL = {"dialect": "openai-realtime", "call_id": "rtc_1"}


@asynccontextmanager
async def node(sideband: Sideband, folder: Path, name: str, url: str | None = None) -> AsyncIterator[ServiceProcess]:
    """A process that observes calls at this vendor."""
    env = {"VOICEMEM_OBSERVE_KEY": KEY, "VOICEMEM_OBSERVE_URL": f"openai-realtime={sideband.url}"}
    log = folder / f"{name}.log"
    async with running_process(folder / "calls.db", env=env, log=log, url=url) as process:
        yield process
    assert KEY not in log.read_text("utf-8")


async def begin(api: RestClient) -> None:
    await api.create()
    assert 201 == (await api.post("/v1/sessions/s/observe", CALL)).status


async def remembers(api: RestClient, text: str) -> None:
    async def texts() -> list[str]:
        return [message["content"] for message in await api.contents()]

    await eventually([text], texts, timeout_s=60)


async def event_ids(api: RestClient) -> list[str]:
    """Those of the frames in the journal."""
    return [row["event"]["frame"]["event_id"] for row in await api.journal() if row["event"]["type"] == "frame"]


async def test_a_killed_process_goes_on_after_its_start(sideband: Sideband, tmp_path: Path) -> None:
    """On the same file, in the middle of a call."""
    async with node(sideband, tmp_path, "one") as one:
        await begin(one.api)
        connection = await sideband.accept()
        await send(connection, said("u1", "One.", "e1"))
        await remembers(one.api, "One.")
        await one.kill()
    async with node(sideband, tmp_path, "again") as again:
        connection = await sideband.accept()
        await send(connection, said("u1", "One.", "e1"), said("u2", "Two.", "e2"))
        await remembers(again.api, "One. Two.")
        assert ["e1", "e2"] == await event_ids(again.api)


@pytest.mark.postgresql
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
async def test_another_node_goes_on(sideband: Sideband, tmp_path: Path, fault: signal.Signals) -> None:
    """Where one is killed, and where one stands still and comes back: then what it still gets is not stored again."""
    with database_of(tmp_path) as name:
        url = server().url(name)
        async with node(sideband, tmp_path, "one", url) as one:
            await begin(one.api)
            connection = await sideband.accept()
            await send(connection, said("u1", "One.", "e1"))
            await remembers(one.api, "One.")
            async with node(sideband, tmp_path, "other", url) as other:
                assert 1 == len(sideband.requests)
                one.signal(fault)
                again = await sideband.accept()
                for each in (connection, again) if fault is signal.SIGSTOP else (again,):
                    await send(each, said("u2", "Two.", "e2"))
                await remembers(other.api, "One. Two.")
                one.signal(signal.SIGCONT)
                if fault is signal.SIGSTOP:
                    await connection.wait_closed()
                await send(again, said("u3", "Three.", "e3"))
                await remembers(other.api, "One. Two. Three.")
                assert ["e1", "e2", "e3"] == await event_ids(other.api)
                assert 2 == len(sideband.requests)
