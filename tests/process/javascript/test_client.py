"""The tests of the JavaScript client, which Node runs against services of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from tests.support.paths import ROOT
from tests.support.processes.doc_programs import node_command

CLIENT = ROOT / "clients" / "javascript"
FILES = sorted(path.name for path in (CLIENT / "tests").glob("*.test.js"))
END_S = 300.0


@pytest.mark.needs("node")
@pytest.mark.parametrize("file", FILES)
async def test_the_javascript_client(file: str) -> None:
    """Each file of its tests passes under Node."""
    node, *flags = node_command()
    process = await asyncio.create_subprocess_exec(
        *(node, *flags, "--no-warnings", "--test-reporter=spec", "--test", f"tests/{file}"),
        cwd=CLIENT,
        env={**os.environ, "PYTHON": sys.executable},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), END_S)
    finally:
        if process.returncode is None:  # with the tests and the services that it has started
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert process.returncode == 0, said.decode()
