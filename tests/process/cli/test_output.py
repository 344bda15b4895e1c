"""Where the output of commands goes: pipes that close, disks that are full, terminals that obey what they are given."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from tests.process.cli.test_calls import voicemem
from tests.support.callers.rest import RestClient
from tests.support.events import delta, done, final, interrupt
from tests.support.services import Serve
from voicemem.exports.call import HIDDEN

ESCAPES = "\x1b[2J\x1b]0;title\x07 \x9b31m red \u202e turned\nand on"
CALL = [
    final(1, f"clear {ESCAPES}", 1_790_000_000_000, user="Ann"),
    delta(2, f"reply {ESCAPES} never heard {ESCAPES}", 1_790_000_001_000),
    done(2, 1_790_000_001_100),
    interrupt(2, 1_790_000_003_000, heard_text=f"reply {ESCAPES}"),
]
READING = (
    ("history", "call-1"),
    ("history", "call-1", "--json"),
    ("tail", "call-1"),
    ("tail", "call-1", "--json"),
    ("tail", "call-1", "--messages"),
    ("search", "clear"),
    ("search", "clear", "--json"),
    ("memories", "list", "ann"),
    ("sessions",),
    ("export", "call-1", "--format", "markdown"),
)


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    """A service with a call in which someone says what would command a terminal."""
    api = RestClient(await serve())
    await api.create("call-1", user_id="ann")
    await api.send(*CALL, session_id="call-1")
    await api.post("/v1/sessions/call-1/end", {"reason": f"[/]{ESCAPES}"})
    memory = {"text": f"Ann likes {ESCAPES}", "user_id": "ann"}
    assert (await api.post("/v1/memories", {"memories": [memory]})).status < 300
    return api


async def test_nothing_that_was_said_commands_a_terminal(api: RestClient) -> None:
    """No command for reading prints control characters, or those that reorder text, of what others said."""
    for command in READING:
        code, output, errors = await voicemem(*command, "--url", api.base)
        assert (0, None) == (code, HIDDEN.search(output)), (command, output, errors)


async def test_a_message_is_a_line_in_a_pipe(api: RestClient) -> None:
    """However long it is, and whatever line breaks are in it."""
    _, output, _ = await voicemem("history", "call-1", "--url", api.base)
    assert ["call-1", "turn 1", "turn 2"] == [line[:6] for line in output.splitlines()]


async def test_a_locale_without_utf_8_shows_what_it_can(api: RestClient) -> None:
    """JSON stays exact, since what the output cannot hold is escaped."""
    said = "日本語 שלום 👩"
    await api.create("call-2")
    await api.send(final(3, said, 1_790_000_009_000), session_id="call-2")
    outputs = []
    for flags in ((), ("--json",)):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "voicemem", "history", "call-2", "--url", api.base, *flags),
            env=os.environ | {"PYTHONIOENCODING": "latin-1"},
            stdout=asyncio.subprocess.PIPE,
        )
        outputs.append((await asyncio.wait_for(process.communicate(), 60))[0])
        assert 0 == process.returncode
    assert b"???" in outputs[0]
    assert said == json.loads(outputs[1])["contents"][0]["content"]


@pytest.mark.parametrize("command", [("history", "call-1"), ("export", "call-1"), ("sessions",), ("check-config",)])
async def test_a_full_disk_is_one_sentence(api: RestClient, command: tuple[str, ...]) -> None:
    """And an exit code, wherever the output goes."""
    url = () if command == ("check-config",) else ("--url", api.base)
    full = os.open("/dev/full", os.O_WRONLY)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "voicemem", *command, *url, stdout=full, stderr=asyncio.subprocess.PIPE
    )
    os.close(full)
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (1, b"voicemem: No space left on device\n") == (process.returncode, errors)
