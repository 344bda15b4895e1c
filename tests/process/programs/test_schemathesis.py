"""Schemathesis (https://schemathesis.io) calls the running service as `/openapi.json` says, and as it does not.

A longer run: `make schemathesis`, or with other numbers (so many seconds for each of the two tests)
`SCHEMATHESIS_SECONDS=600 SCHEMATHESIS_SEED=2 python -m pytest tests/process/programs/test_schemathesis.py`.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

from tests.support.callers.rest import LOOPBACK
from tests.support.paths import ROOT, TESTS
from tests.support.services import Serve
from voicemem.app import App

KEY = "vm_000000000000_0000000000000000000000000000000000000000"
EXAMPLES = 5
SECONDS = os.environ.get("SCHEMATHESIS_SECONDS")
SEED = os.environ.get("SCHEMATHESIS_SEED", "1")


async def call_everything(app: App, folder: Path, examples: int, *options: str, **environment: str) -> None:
    """Run Schemathesis against a service, with all checks; its report is the failure's text."""
    if SECONDS is not None:
        options = (*options, "--max-time", SECONDS)
    program = "from schemathesis.cli import schemathesis; schemathesis()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, "--config-file", str(TESTS / "process/programs/schemathesis.toml")),
        *("run", f"http://{app.rest_address}/openapi.json", "--max-examples", str(examples), "--seed", SEED, *options),
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        report, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, report.decode()
    assert re.search(rb"(\d+) generated, \1 passed", report), report.decode()  # it may warn that it met many 404s


async def test_everything_answers_as_documented_with_a_key(serve: Serve, tmp_path: Path) -> None:
    """All checks hold for every route, and none lets anybody in without a key."""
    app = await serve(store=f"sqlite:{tmp_path / 'calls.db'}", admin_key=KEY, allow_addresses=LOOPBACK)
    await call_everything(app, tmp_path, EXAMPLES, "--header", f"Authorization: Bearer {KEY}")


async def test_calls_that_build_on_each_other_without_keys(serve: Serve, tmp_path: Path) -> None:
    """All checks hold where no one needs a key, also for what was made, changed and erased before."""
    await call_everything(
        await serve(allow_addresses=LOOPBACK),
        tmp_path,
        6 * EXAMPLES,
        "--phases",
        "stateful",
        WITHOUT_KEYS="1",
    )
