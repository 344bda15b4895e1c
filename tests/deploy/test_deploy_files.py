"""The systemd unit and the Containerfile: checked by the real tools where they are, and by what the service does."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from processes import running_process
from services import Serve

from voicemem.cli.service import SERVE_OPTIONS, serve

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
UNIT = (DEPLOY / "voicemem.service").read_text()
CONTAINER = (DEPLOY / "Containerfile").read_text()
VARIABLES = {str(option.envvar) for option in serve.params if getattr(option, "envvar", None)}


def analyze(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What systemd says of the unit, with a program in it that exists."""
    binary = shutil.which("systemd-analyze") or pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "voicemem.service"
    unit.write_text(UNIT.replace("/opt/voicemem/bin/voicemem", sys.executable))
    return subprocess.run([binary, *arguments, str(unit)], capture_output=True, text=True, timeout=60)


def test_the_unit_is_one(tmp_path: Path) -> None:
    """systemd finds nothing to say about it."""
    result = analyze(tmp_path, "verify", "--man=no")
    ours = [line for line in result.stderr.splitlines() if "voicemem" in line]
    assert (0, []) == (result.returncode, ours)


def test_the_unit_is_hardened(tmp_path: Path) -> None:
    """By systemd's own scale (0 to 10, lower is better) little is exposed."""
    result = analyze(tmp_path, "security", "--offline=true", "--threshold=20", "--no-pager")
    assert 0 == result.returncode, result.stdout[-300:]


def test_the_files_set_what_there_is_to_set() -> None:
    """Every variable in them is one of the service's."""
    named = set(re.findall(r"VOICEMEM_\w+", UNIT + CONTAINER))
    assert named
    assert SERVE_OPTIONS
    assert [] == sorted(named - VARIABLES)


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
    """A socket that nobody reads, or that is none, does not keep the service from running."""
    async with running_process(tmp_path / "db", env={"NOTIFY_SOCKET": str(tmp_path / "nobody")}) as process:
        assert 200 == (await process.api.get("/readyz")).status


def instruction(name: str) -> str:
    """The last instruction of this name in the Containerfile."""
    found: list[str] = re.findall(rf"^{name} (.*)$", CONTAINER, re.MULTILINE)
    return found[-1]


def test_the_container_is_nobody_in_particular_and_keeps_its_store_outside() -> None:
    """Not root, a volume under the store's path, both ports, and a stop that drains."""
    assert "10001:10001" == instruction("USER")
    assert f"sqlite:{instruction('VOLUME')}/" in CONTAINER
    assert "8080 8765" == instruction("EXPOSE")
    assert "SIGTERM" == instruction("STOPSIGNAL")


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


def test_what_the_image_copies_is_there() -> None:
    """Every source of a COPY exists, and all that the package needs to be built is copied."""
    copied = [
        name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINER, re.MULTILINE) for name in line.split()
    ]
    assert {"pyproject.toml", "README.md", "LICENSE", "voicemem"} <= set(copied)
    assert [] == [name for name in copied if not (DEPLOY.parent / name).exists()]
