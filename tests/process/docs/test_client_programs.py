"""The programs of the client's page run as printed."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.support.documentation import TEXTS, code_blocks, start_program
from tests.support.services import Serve


async def test_the_follower_of_the_docs_runs(serve: Serve) -> None:
    """The program in docs/tail.md shows the history of the call when it is over."""
    app = await serve()
    root, program = f"http://{app.rest_address}/v1/sessions", dict[str, Any](__name__="follower")
    shown: list[Any] = []
    exec(compile(code_blocks(TEXTS["tail.md"], "python")[0], "tail.md", "exec"), program)
    async with aiohttp.ClientSession() as http:
        await http.post(root, json={"session_id": "s"})
        following = asyncio.create_task(program["follow"](f"{root}/s/events?view=messages&open=true", shown.append))
        for text in ("Tell", "Tell me a joke."):
            await http.post(
                f"{root}/s/events", json={"type": "asr", "turn_id": 1, "text": text, "final": text[-1] == "."}
            )
        await http.post(f"{root}/s/end")
        await asyncio.wait_for(following, 20)
        async with http.get(f"{root}/s/history") as history:
            assert (await history.json())["contents"] == shown[-1]


PROGRAMS = [block for name in ("README.md", "client.md") for block in code_blocks(TEXTS[name], "python")]
CLIENTS = [program for program in PROGRAMS if "voicemem.client" in program]
SHOWN = [
    ("user 'Tell me a joke.'", "assistant 'Why did the '", "A story, please."),
    ("on disk: 1", "assistant 'Why did the '", "messages for the next LLM request: 3"),
    ("seq 1 turn 1", "seq 2 turn 2"),
    ("on disk: 1", "1 message"),
]
"""What the programs that use the client print, among other things."""


UNHURRIED = """
from voicemem.client import Options
Options.__init__.__kwdefaults__.update(open_timeout_s=15, context_timeout_s=15, read_timeout_s=15)
"""
"""Comes before a program: the machine of a test may be busier than one with a caller on the phone."""


@pytest.mark.parametrize(("program", "shown"), [*zip(CLIENTS, SHOWN, strict=True)], ids=range(len(SHOWN)))
async def test_the_programs_of_the_client_run(serve: Serve, program: str, shown: tuple[str, ...]) -> None:
    """Each program in the README and in docs/client.md that uses the client works as printed."""
    app = await serve()
    program = program.replace("127.0.0.1:8765", str(app.ingest_address))
    running = await start_program(UNHURRIED + program.replace("127.0.0.1:8080", str(app.rest_address)))
    printed, errors = await asyncio.wait_for(running.communicate(), 20)
    assert (running.returncode, b"Traceback" in errors) == (0, False)
    assert [text for text in shown if text not in printed.decode()] == []


async def test_a_second_run_of_the_readmes_program_is_one_line(serve: Serve) -> None:
    """It says that the call has ended, and without a service what to check; neither with a traceback."""
    app = await serve()
    there = {"127.0.0.1:8765": str(app.ingest_address), "127.0.0.1:8080": str(app.rest_address)}
    nowhere = {"127.0.0.1:8765": "127.0.0.1:9", "127.0.0.1:8080": "127.0.0.1:9"}
    for addresses, code, words in ((there, 0, b""), (there, 1, b"The session call-1 has ended"), (nowhere, 1, b"9")):
        program = CLIENTS[0]
        for printed, used in addresses.items():
            program = program.replace(printed, used)
        running = await start_program(UNHURRIED + program)
        _, errors = await asyncio.wait_for(running.communicate(), 30)
        assert (running.returncode, b"Traceback" in errors, words in errors) == (code, False, True), errors


async def test_the_program_with_agoras_sdk_runs(serve: Serve) -> None:
    """The program in docs/agora.md works as printed."""
    app = await serve()
    (program,) = code_blocks(TEXTS["agora.md"], "python")
    running = await start_program(program.replace("127.0.0.1:8080", str(app.rest_address)))
    printed, errors = await asyncio.wait_for(running.communicate(), 60)
    assert (running.returncode, printed) == (0, b"assistant Welcome.\n"), errors
