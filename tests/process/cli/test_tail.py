"""`voicemem tail`, run as a command against running services."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.callers.rest import RestClient, make_key
from tests.support.events import delta, done, final, interrupt
from tests.support.processes.ports import free_ports
from tests.support.services import Serve, running_service
from voicemem.config.service import Address

CALL = [
    final(1, "Tell me a joke.", 1),
    delta(1, "Why did the scarecrow", 2),
    interrupt(1, 3, heard_text="Why "),
    done(1),
]
TIMEOUT_S = 30.0
WAITING = "waiting for calls\n"


class Command:
    """A running `voicemem tail`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def lines(self, count: int) -> list[str]:
        assert self.process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            return [(await self.process.stdout.readline()).decode().rstrip("\n") for _ in range(count)]

    async def end(self) -> tuple[int, str, str]:
        """Exit code, the rest of the output, error output."""
        output, errors = await asyncio.wait_for(self.process.communicate(), TIMEOUT_S)
        return self.process.returncode or 0, output.decode(), errors.decode()


def interruptible() -> None:
    """Give a child the SIGINT of a terminal, however the shell started this run."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def uninterruptible() -> None:
    """Give a child the SIGINT of `command &` in a shell without job control."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@asynccontextmanager
async def running_tail(
    api: RestClient, *arguments: str, prepare: Callable[[], None] = interruptible, stdout: int = asyncio.subprocess.PIPE
) -> AsyncIterator[Command]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", "tail", "--url", api.base, *arguments),
        stdout=stdout,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=prepare,
    )
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_a_call_is_followed_to_its_end(serve: Serve) -> None:
    """Events are shown one a line as they happen; the end of the session ends the command."""
    api = RestClient(await serve())
    await api.create()
    await api.send(CALL[0])
    async with running_tail(api, "s") as command:
        assert ["     1 asr              turn 1   Tell me a joke."] == await command.lines(1)
        await api.send(*CALL[1:])
        assert "Why did the scarecrow" in (await command.lines(1))[0]
        await api.end(reason="hangup")
        code, output, errors = await command.end()
    assert (0, "", "s ended (hangup)") == (code, errors, output.splitlines()[-1])


async def test_json_is_what_the_api_gives(serve: Serve) -> None:
    """With --json each entry is a line of JSON."""
    api = RestClient(await serve())
    await api.create()
    await api.send(*CALL)
    await api.end()
    async with running_tail(api, "s", "--json") as command:
        _, output, _ = await command.end()
    journal = [{"session_id": "s", **row} for row in await api.journal()]
    assert journal == [json.loads(line) for line in output.splitlines()][:-1]


async def test_messages_are_shown_as_they_change(serve: Serve) -> None:
    """With --messages the memory is shown: what is interrupted is shown again, marked."""
    api = RestClient(await serve())
    await api.create()
    async with running_tail(api, "s", "--messages", "--open") as command:
        for one in CALL[:3]:
            await api.send(one)
            (shown,) = await command.lines(1)
        assert "~~did the scarecrow~~" in shown
        await api.end()
        assert (0, "") == (await command.end())[::2]


@pytest.mark.parametrize("prepare", [interruptible, uninterruptible])
async def test_calls_with_a_label_are_followed(serve: Serve, prepare: Callable[[], None]) -> None:
    """Without a session the calls that match are followed until Ctrl-C, which ends it quietly, also in background."""
    app = await serve()
    api = RestClient(app, await make_key(app, "admin"))
    await api.create("front", labels={"desk": "front"})
    await api.create("back", labels={"desk": "back"})
    await api.send(final(1, "Back."), session_id="back")
    await api.send(final(1, "Front."), session_id="front")
    flags = ("--label", "desk:front", "--key", api.headers["Authorization"][7:])
    async with running_tail(api, *flags, prepare=prepare) as command:
        assert ["front      1 asr              turn 1   Front."] == await command.lines(1)
        command.process.send_signal(signal.SIGINT)
        code, output, errors = await command.end()
    assert (0, "") == (code, output)
    assert errors in ("", WAITING)  # a busy machine may need longer for the first event


async def test_a_tail_without_calls_says_that_it_waits(serve: Serve) -> None:
    """While there is no call, standard error says so, and standard output stays empty."""
    async with running_tail(RestClient(await serve())) as command:
        assert command.process.stderr is not None
        assert WAITING == (await asyncio.wait_for(command.process.stderr.readline(), TIMEOUT_S)).decode()
        command.process.send_signal(signal.SIGINT)
        assert (0, "", "") == await command.end()


def unread(pipe: int) -> int:
    """Bytes in a pipe."""
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])


async def test_ctrl_c_ends_a_tail_that_cannot_write(serve: Serve) -> None:
    """One SIGINT is enough while the command waits for a reader of its output, such as a pager."""
    api = RestClient(await serve())
    await api.create()
    await api.send(*(delta(1, f"word {seq} ", seq) for seq in range(1, 2_001)))
    reading, writing = os.pipe()
    try:
        async with running_tail(api, "s", "--json", stdout=writing) as command:
            waiting = [-1, 0]
            while waiting[-1] == 0 or waiting[-1] != waiting[-2]:
                waiting.append(unread(reading))
                await asyncio.sleep(0.5)
            assert unread(reading) > 32_768
            command.process.send_signal(signal.SIGINT)
            assert (0, "") == (await asyncio.wait_for(command.process.wait(), TIMEOUT_S), await errors_of(command))
    finally:
        os.close(reading)
        os.close(writing)


async def errors_of(command: Command) -> str:
    assert command.process.stderr is not None
    return (await command.process.stderr.read()).decode()


async def test_a_restart_of_the_service_is_survived(tmp_path: Path) -> None:
    """While the service is away the command tries again; then it goes on, without missing or showing anything twice."""
    rest = Address("127.0.0.1", free_ports(1)[0])
    settings = {"store": f"sqlite:{tmp_path / 'calls.db'}", "rest": rest}
    async with running_service(**settings) as app:
        api = RestClient(app)
        await api.create()
        await api.send(*CALL[:2])
        command = running_tail(api, "s", "--json")
        running = await command.__aenter__()
        shown = await running.lines(2)
    try:
        async with running_service(**settings) as app:
            await RestClient(app).send(*CALL[2:])
            await RestClient(app).end()
            code, output, errors = await running.end()
    finally:
        await command.__aexit__(None, None, None)
    positions = [json.loads(line).get("position") for line in [*shown, *output.splitlines()]]
    assert (0, "", [1, 2, 3, 4, 5, None]) == (code, errors, positions)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none"], "There is no such session. (unknown_session)"),
        (["s", "--key", "wrong", "--url", "http://127.0.0.1:1"], "(unreachable)"),
        (["s", "--label", "a:b"], "do not go with SESSION"),
        (["--label", "a"], "(invalid_query)"),
    ],
)
async def test_what_cannot_be_followed_is_one_sentence(serve: Serve, arguments: list[str], sentence: str) -> None:
    """An error ends the command with one sentence and no traceback."""
    async with running_tail(RestClient(await serve()), *arguments) as command:
        code, output, errors = await command.end()
    assert code > 0
    assert sentence in errors
    assert ("", False) == (output, "Traceback" in errors)
