"""The systemd unit and the Containerfile: checked by the real tools where they are, and by what the service does."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deploy_files import PROXY_UNIT, UNIT, instruction
from tests.support.needs import needs
from tests.support.processes.service_process import running_process
from tests.support.services import Serve

UNITS = pytest.mark.parametrize("text", [UNIT, PROXY_UNIT], ids=["service", "proxy"])


def analyze(text: str, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What systemd says of the unit, with a program in it that exists."""
    binary = needs("systemd-analyze")
    unit = tmp_path / "voicemem.service"
    unit.write_text(text.replace("/opt/voicemem/bin/voicemem", sys.executable))
    return subprocess.run([binary, *arguments, str(unit)], capture_output=True, text=True, timeout=60)


@UNITS
def test_the_unit_is_one(tmp_path: Path, text: str) -> None:
    """systemd finds nothing to say about it."""
    result = analyze(text, tmp_path, "verify", "--man=no")
    ours = [line for line in result.stderr.splitlines() if "voicemem" in line]
    assert (0, []) == (result.returncode, ours)


@UNITS
def test_the_unit_is_hardened(tmp_path: Path, text: str) -> None:
    """By systemd's own scale (0 to 10, lower is better) little is exposed."""
    result = analyze(text, tmp_path, "security", "--offline=true", "--threshold=20", "--no-pager")
    assert 0 == result.returncode, result.stdout[-300:]


async def test_a_supervisor_is_told_when_the_service_is_ready_and_when_it_stops(tmp_path: Path) -> None:
    """`Type=notify`: READY=1 comes once it listens, STOPPING=1 at SIGTERM."""
    assert "Type=notify" in UNIT
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(path))
        supervisor.settimeout(20)
        async with running_process(tmp_path / "db", env={"NOTIFY_SOCKET": str(path)}) as process:
            assert b"READY=1" == await asyncio.to_thread(supervisor.recv, 100)
            assert 200 == (await process.api.get("/readyz")).status
            process.signal(signal.SIGTERM)
            assert b"STOPPING=1" == await asyncio.to_thread(supervisor.recv, 100)
            assert 0 == await process.ended()


async def test_a_supervisor_that_is_gone_is_no_fault(tmp_path: Path) -> None:
    """A socket that no one reads, or that is none, does not keep the service from running."""
    async with running_process(tmp_path / "db", env={"NOTIFY_SOCKET": str(tmp_path / "nobody")}) as process:
        assert 200 == (await process.api.get("/readyz")).status


async def test_the_health_check_knows_the_living_from_the_dead(serve: Serve) -> None:
    """Its command ends well while the service answers, and not otherwise."""
    app = await serve()
    _, program, code = json.loads(re.findall(r"CMD (\[.*\])$", instruction("HEALTHCHECK"))[0])

    async def check(port: int) -> int | None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, program, code.replace(":8080", f":{port}")), stderr=asyncio.subprocess.DEVNULL
        )
        await asyncio.wait_for(process.wait(), 60)
        return process.returncode

    assert 0 == await check(app.rest_address.port)
    assert 0 != await check(app.ingest_address.port)
