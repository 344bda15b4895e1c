"""`sessions`, `export`, `end` and `erase`, run as commands in a pipe and in a terminal."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import signal
import stat
import sys
from functools import partial
from pathlib import Path

import pytest
import webvtt

from tests.process.cli.test_calls import voicemem
from tests.support.callers.rest import RestClient
from tests.support.checks.vcon import check_vcon
from tests.support.events import delta, done, final, interrupt
from tests.support.processes.terminal import Terminal, in_terminal
from tests.support.services import Serve
from tests.support.waiting import eventually

CALL = [
    final(1, "Tell me a joke.", 1_000),
    delta(1, "Why did the scarecrow win an award?", 2_000),
    done(1, 2_100),
    interrupt(1, 3_000, heard_text="Why did the scarecrow "),
]
SUFFIXES = {"vcon": ".vcon.json", "webvtt": ".vtt", "srt": ".srt", "markdown": ".md", "csv": ".csv", "jsonl": ".jsonl"}


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    """A service with two calls of Ann and one of Ben."""
    api = RestClient(await serve())
    for session_id, user_id in (("ann-1", "ann"), ("ann-2", "ann"), ("ben-1", "ben")):
        await api.create(session_id, user_id=user_id, labels={"line": "shop"})
        await api.send(*CALL, session_id=session_id)
    await api.end("ann-1")
    return api


async def run(api: RestClient, *arguments: str) -> tuple[int, str, str]:
    return await voicemem(*arguments, "--url", api.base)


def is_asking(terminal: Terminal) -> bool:
    return "[y/N]" in terminal.text


async def have_figures(api: RestClient) -> bool:
    """Whether every row of the list has its figures, which are made in the background."""
    rows = (await api.get("/v1/sessions?fields=overview")).json["sessions"]
    return all(row["figures"] is not None for row in rows)


def ids(output: str) -> list[str]:
    return [json.loads(line)["session_id"] for line in output.splitlines()]


async def test_sessions_are_json_lines_in_a_pipe(api: RestClient) -> None:
    """The rows of the slim list, the newest first, as many as are asked for and as the conditions leave."""
    code, output, errors = await run(api, "sessions")
    assert (0, ["ben-1", "ann-2", "ann-1"], "") == (code, ids(output), errors)
    for arguments, expected in (
        (("--limit", "1"), ["ben-1"]),
        (("--user-id", "ann", "--state", "running"), ["ann-2"]),
        (("--label", "line:shop", "--state", "ended"), ["ann-1"]),
        (("--user-id", "nobody"), []),
    ):
        assert expected == ids((await run(api, "sessions", *arguments))[1]), arguments


async def test_sessions_are_a_table_on_a_terminal(api: RestClient) -> None:
    """With the last words; what a caller's name says to the terminal is not heard there."""
    await api.create("evil", user_id="\u001b[2J\u0007eve\u202e")
    await eventually(True, lambda: have_figures(api))
    async with in_terminal("sessions", "--url", api.base, columns=120) as terminal:
        assert 0 == await terminal.ended()
        head, *rows = terminal.shown
    assert ["SESSION", "STATE", "STARTED", "LENGTH", "TURNS", "CUT", "USER", "LAST", "WORDS"] == head.split()
    assert ["evil", "ben-1", "ann-2", "ann-1"] == [row.split()[0] for row in rows]
    assert "eve" in rows[0]
    assert "assistant: Why did the scarecrow" in rows[1]


async def test_two_ids_are_linked(api: RestClient) -> None:
    """Calls of either are then of both; a second partner is refused, and a link is undone from either."""
    assert 0 == (await run(api, "users", "same-as", "ann", "ben"))[0]
    assert ["ben-1", "ann-2", "ann-1"] == ids((await run(api, "sessions", "--user-id", "ben"))[1])
    assert 1 == (await run(api, "users", "same-as", "ann", "carl"))[0]
    assert 2 == (await run(api, "users", "same-as", "ann"))[0]
    assert 0 == (await run(api, "users", "same-as", "ben", "--undo"))[0]
    assert ["ben-1"] == ids((await run(api, "sessions", "--user-id", "ben"))[1])


async def test_json_on_a_terminal(api: RestClient) -> None:
    """By choice."""
    async with in_terminal("sessions", "--url", api.base, "--json", "--limit", "1", columns=2_000) as terminal:
        assert 0 == await terminal.ended()
        assert ["ben-1"] == ids(terminal.text)


async def test_no_sessions_are_said_to_be_none(serve: Serve) -> None:
    """On a terminal; in a pipe there is nothing."""
    api = RestClient(await serve())
    async with in_terminal("sessions", "--url", api.base) as terminal:
        assert 0 == await terminal.ended()
        assert "no calls" in terminal.text
    assert (0, "", "") == await run(api, "sessions")


async def test_a_pipe_that_follows_has_a_line_for_each_change(api: RestClient) -> None:
    """All rows first, the oldest first, then what is new."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", "sessions", "--follow", "--user-id", "cat", "--url", api.base),
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            await api.create("cat-1", user_id="cat")
            assert ["cat-1"] == ids((await process.stdout.readline()).decode())
            await api.end("cat-1")
            row = json.loads(await process.stdout.readline())
            while row["state"] != "ended":
                row = json.loads(await process.stdout.readline())
    finally:
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert 0 == process.returncode


async def test_a_terminal_that_follows_draws_its_table_again(api: RestClient) -> None:
    """A call that begins and ends changes its row where it stands, and Ctrl-C leaves the table."""
    async with in_terminal("sessions", "--follow", "--url", api.base, columns=140) as terminal:
        await terminal.until(lambda: len(terminal.shown) == 4)
        await api.create("cat-1", user_id="cat")
        await terminal.until(lambda: len(terminal.shown) == 5 and "cat-1" in terminal.shown[1])
        assert "running" in terminal.shown[1]
        await api.end("cat-1")
        await terminal.until(lambda: "ended" in terminal.shown[1])
        terminal.process.send_signal(signal.SIGINT)
        assert 0 == await terminal.ended()
        assert (1, 0) == (terminal.text.count("cat-1"), terminal.text.count("Traceback"))


async def test_an_export_shows_how_far_it_is(api: RestClient, tmp_path: Path) -> None:
    """A bar counts the calls on a terminal, and is full at the end."""
    arguments = ("export", "--all", "--url", api.base, "--output", str(tmp_path / "calls.jsonl"))
    async with in_terminal(*arguments, columns=100) as terminal:
        assert 0 == await terminal.ended()
        assert "exporting" in terminal.text
        assert "100%" in terminal.text
        assert "calls.jsonl has 3 calls" in terminal.text


@pytest.mark.parametrize("form", SUFFIXES)
async def test_a_call_is_exported(api: RestClient, tmp_path: Path, form: str) -> None:
    """To standard output, to a file, and into a folder: the same document, which only its owner may read."""
    code, printed, errors = await run(api, "export", "ann-1", "--format", form)
    assert (0, "") == (code, errors)
    file = tmp_path / "call"
    assert 0 == (await run(api, "export", "ann-1", "--format", form, "--output", str(file)))[0]
    assert 0 == (await run(api, "export", "ann-1", "--format", form, "--output", str(tmp_path)))[0]
    in_folder = tmp_path / f"ann-1{SUFFIXES[form]}"
    assert [printed.encode()] * 2 == [file.read_bytes(), in_folder.read_bytes()]
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)


async def test_calls_are_exported_into_a_folder(api: RestClient, tmp_path: Path) -> None:
    """A file each; what exists is replaced only by --force."""
    arguments = ("export", "--user-id", "ann", "--format", "webvtt", "--output", str(tmp_path))
    code, output, _ = await run(api, *arguments)
    assert (0, f"{tmp_path} has 2 calls\n") == (code, output)
    assert ["ann-1.vtt", "ann-2.vtt"] == sorted(os.listdir(tmp_path))
    assert [2, 2] == [len(webvtt.read(str(tmp_path / f"ann-{n}.vtt")).captions) for n in (1, 2)]
    code, _, errors = await run(api, *arguments)
    assert (1, True) == (code, "--force replaces it" in errors)
    assert 0 == (await run(api, *arguments, "--force"))[0]


async def test_calls_are_exported_into_one_file(api: RestClient, tmp_path: Path) -> None:
    """A table with one head, or vCons as lines."""
    table = tmp_path / "calls.csv"
    assert 0 == (await run(api, "export", "--all", "--format", "csv", "--output", str(table)))[0]
    rows = list(csv.DictReader(io.StringIO(table.read_bytes().decode(), newline="")))
    assert ["ben-1", "ben-1", "ann-2", "ann-2", "ann-1", "ann-1"] == [row["session_id"] for row in rows]
    _, output, _ = await run(api, "export", "--state", "running")
    vcons = [json.loads(line) for line in output.splitlines()]
    assert 2 == len(vcons)
    for one in vcons:
        check_vcon(one)


async def test_what_cannot_be_exported_is_said(api: RestClient) -> None:
    """Nothing chosen, too much chosen, subtitles without a folder, and a call that is not there."""
    for arguments in ((), ("ann-1", "--all"), ("--all", "--user-id", "ann"), ("--all", "--format", "srt")):
        assert 2 == (await run(api, "export", *arguments))[0], arguments
    code, _, errors = await run(api, "export", "nobody")
    assert (1, True) == (code, "unknown_session" in errors)


async def test_calls_are_ended(api: RestClient) -> None:
    """Several at once, with a reason; on a terminal in words."""
    code, output, _ = await run(api, "end", "ann-2", "ben-1", "--reason", "over")
    assert (0, ["ann-2", "ben-1"]) == (code, ids(output))
    assert {"state": "ended", "reason": "over"}.items() <= (await api.session("ann-2")).items()
    async with in_terminal("end", "ann-1", "--url", api.base) as terminal:
        assert 0 == await terminal.ended()
        assert "ann-1 ended" in terminal.text


async def test_a_call_is_erased_once_somebody_says_yes(api: RestClient) -> None:
    """It asks on a terminal, and names what will be gone; any other answer leaves the call."""
    for answer, status in (("n\r", 200), ("\r", 200), ("y\r", 404)):
        async with in_terminal("erase", "ann-1", "--url", api.base, columns=160) as terminal:
            await terminal.until(partial(is_asking, terminal))
            assert "Erase ann-1 of ann (ended," in terminal.text
            terminal.press(answer)
            assert 0 == await terminal.ended()
        assert status == (await api.get("/v1/sessions/ann-1")).status


async def test_nothing_is_erased_where_nobody_can_be_asked(api: RestClient) -> None:
    """Unless the command says yes itself."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", "erase", "ann-1", "--url", api.base),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert (1, True) == (process.returncode, b"--yes" in errors)
    assert 200 == (await api.get("/v1/sessions/ann-1")).status
    code, output, _ = await run(api, "erase", "--yes", "ann-1", "ann-2")
    assert (0, [{"erased": "ann-1"}, {"erased": "ann-2"}]) == (code, [json.loads(one) for one in output.splitlines()])
    assert 404 == (await api.get("/v1/sessions/ann-2")).status
