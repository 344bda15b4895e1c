"""The first programs of the docs run as printed, and do what their pages say."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.producer import key_over_its_rate
from tests.support.documentation import TEXTS, code_blocks, start_program
from tests.support.processes.doc_programs import run_shell
from tests.support.processes.ports import free_ports
from tests.support.processes.service_process import running_process
from tests.support.services import Serve


@pytest.mark.needs("curl")
async def test_the_call_of_the_readme_goes_as_shown(tmp_path: Path) -> None:
    """Service, receiver, program and requests as the README gives them: they print what it shows, times apart."""
    readme, commands = TEXTS["README.md"], code_blocks(TEXTS["README.md"], "sh")
    serving, receiving = (
        shlex.split(next(text for text in commands if f"voicemem {name} " in text).replace("\\\n", " "))
        for name in ("serve", "receive")
    )
    (shown_history,) = code_blocks(readme, "json")
    (port,) = free_ports(1)
    listening = await asyncio.create_subprocess_exec(
        *(sys.executable, "-u", "-m", *receiving, "--listen", f"127.0.0.1:{port}"), stdout=asyncio.subprocess.PIPE
    )
    try:
        options = [option.replace("127.0.0.1:9000", f"127.0.0.1:{port}") for option in serving[4:]]
        async with running_process(tmp_path / "calls.db", *options) as process:
            program = code_blocks(readme, "python")[0].replace("127.0.0.1:8765", str(process.ingest_address))
            calling = await start_program(program.replace("http://127.0.0.1:8080", process.rest))
            printed, errors = await asyncio.wait_for(calling.communicate(), 60)
            shown = [DAY.sub("DAY", text) for text in (printed.decode(), code_blocks(readme, "text")[1])]
            assert (calling.returncode, shown[0]) == (0, shown[1]), errors
            answers = [
                json.loads(await run_shell(text.replace("http://127.0.0.1:8080", process.rest), tmp_path))
                for text in commands
                if text.startswith("curl")
            ]
            assert without_times(answers[0]) == without_times(json.loads(shown_history))
            assert answers[1]["config"]["memory"] == {"policy": "window", "max_tokens": 4000}
            assert listening.stdout is not None
            seen = b""
            while seen.count(b"verified") < 3 or b"Why did the scarecrow win an award?" not in seen:
                line = await asyncio.wait_for(listening.stdout.readline(), 60)
                assert line, seen
                seen += line
    finally:
        listening.terminate()
        await listening.communicate()


def without_times(answer: Any) -> Any:
    """An answer with every time in ms made the same."""
    return json.loads(re.sub(r"\b\d{13}\b", "0", json.dumps(answer)))


DAY = re.compile(r"\d+ [A-Z][a-z]+ \d{4}")
SENDER = code_blocks(TEXTS["first-client-python.md"], "python")[0]


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        ({}, 0, "'seq': 5"),
        ({'"hangup"': "7"}, 0, "'code': 'invalid_field'"),
        ({'"turn_id": 1, "text": "win': '"text": 7, "x": "win'}, 0, "'seq': 5"),
        ({'"seq": seq}': '"seq": seq + 1}'}, 1, "Events are missing before this seq"),
    ],
    ids=["as printed", "the last refused", "another refused", "a gap"],
)
async def test_the_first_sender_ends(serve: Serve, change: dict[str, str], code: int, told: str) -> None:
    """The sender of the first client ends, whatever is refused; run again it says that its call has ended."""
    app = await serve()
    program = SENDER.replace("127.0.0.1:8765", str(app.ingest_address))
    for old, new in change.items():
        assert old in program
        program = program.replace(old, new)
    once = await start_program(program)
    printed, errors = await asyncio.wait_for(once.communicate(), 60)
    assert (once.returncode, told in (printed + errors).decode()) == (code, True), printed + errors
    if not change:
        again = await start_program(program)
        _, errors = await asyncio.wait_for(again.communicate(), 60)
        assert (again.returncode, errors.splitlines()[-1].startswith(b"sender-call has ended.")) == (1, True)


async def test_the_first_sender_waits_when_its_key_is_over_its_rate(serve: Serve) -> None:
    """A `rate_limited` before `session.ready` is not a refusal: the sender waits, and comes to its end."""
    key = "an operator's own key"
    app = await serve(admin_key=key, event_rate=20.0)
    program = SENDER.replace("127.0.0.1:8765", str(app.ingest_address))
    program = program.replace('/ingest")', f'/ingest", additional_headers={{"Authorization": "Bearer {key}"}})')
    told = 'if frame["type"] in types and'
    assert told in program
    program = program.replace(told, f'print("told:", frame.get("code", frame["type"]))\n        {told}')
    async with key_over_its_rate(app, key):
        sending = await start_program(program)
        assert sending.stdout is not None
        assert await asyncio.wait_for(sending.stdout.readline(), 60) == b"told: rate_limited\n"
    rest, errors = await asyncio.wait_for(sending.communicate(), 60)
    assert (sending.returncode, b"'seq': 5" in rest) == (0, True), errors
