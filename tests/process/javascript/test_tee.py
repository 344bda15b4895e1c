"""The tests of the JavaScript tee, and of LiveKit's JavaScript agents, beside the real packages of npm."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from tests.support.needs import missing
from tests.support.paths import ROOT
from tests.support.processes.doc_programs import node_command

CLIENT = ROOT / "clients" / "javascript"
FILES = {
    path.relative_to(CLIENT).as_posix(): packages
    for folder, packages in (("tee", ("ws", "openai")), ("livekit", ("ws", "@livekit/agents")))
    for path in sorted((CLIENT / "tests" / folder).glob("*.test.js"))
}
END_S = 400.0


@pytest.mark.needs("node")
@pytest.mark.needs("openssl")
@pytest.mark.parametrize("file", FILES)
async def test_the_javascript_tee(file: str) -> None:
    """Each file of its tests passes under Node."""
    for package in FILES[file]:
        if not (CLIENT / "node_modules" / package).exists():
            missing(f"{package} is not installed (make javascript-packages)")
    node, *flags = node_command()
    process = await asyncio.create_subprocess_exec(
        *(node, *flags, "--no-warnings", "--test-reporter=spec", "--test", file),
        cwd=CLIENT,
        env={**os.environ, "PYTHON": sys.executable},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), END_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said.decode()
