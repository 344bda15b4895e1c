"""`voicemem serve` as a process: its first lines, its exit codes, and what keeps it from starting."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import aiohttp
import pytest


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", "serve", "--rest", "127.0.0.1:0", "--ingest", "127.0.0.1:0", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if not name.startswith("VOICEMEM_")},
    )


async def first_lines(process: asyncio.subprocess.Process, count: int) -> list[str]:
    assert process.stdout is not None
    return [(await asyncio.wait_for(process.stdout.readline(), 20)).decode() for _ in range(count)]


async def test_serve_says_where_it_listens_and_stops_on_sigterm(tmp_path: Path) -> None:
    """serve prints its addresses, answers there, and exits with 0 after SIGTERM."""
    process = await start("--store", f"sqlite:{tmp_path}/calls.db")
    lines = await first_lines(process, 7)
    assert [" ".join(line.split()) for line in lines[4:6]] == ["webhook none (--webhook-url)", "llm none (--llm-url)"]
    base = lines[2].split()[-1].removesuffix("/v1/sessions")
    assert lines[3].split() == ["page", f"{base}/ui/"]
    async with aiohttp.ClientSession() as http:
        for path in ("/readyz", "/ui/"):
            async with http.get(f"{base}{path}") as response:
                assert response.status == 200
    process.send_signal(signal.SIGTERM)
    _, errors = await asyncio.wait_for(process.communicate(), 10)
    assert (process.returncode, errors) == (0, b"")


async def test_serve_says_which_llm_it_calls() -> None:
    """Its host, and nothing that may be secret."""
    process = await start("--store", "memory:", "--llm-url", "http://127.0.0.1:9/secret/v1?key=secret")
    try:
        assert (await first_lines(process, 6))[5] == "  llm      http://127.0.0.1:9\n"
    finally:
        process.terminate()
        await process.communicate()


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--ui", "off"], "none (--ui)"),
        (["--ui-origin", "https://memory.example"], "https://memory.example/ui/"),
        (["--rest", "0.0.0.0:0", "--insecure"], "/ui/ on this machine (--ui-origin for others)"),
    ],
)
async def test_serve_says_where_the_page_is(options: list[str], shown: str) -> None:
    """Nowhere, behind a proxy, or on this machine alone."""
    process = await start("--store", "memory:", *options)
    try:
        assert (await first_lines(process, 4))[3].rstrip().endswith(shown)
    finally:
        process.terminate()
        await process.communicate()


async def test_a_second_server_on_one_file_is_refused(tmp_path: Path) -> None:
    """One server per file: the second exits with a sentence."""
    first = await start("--store", f"sqlite:{tmp_path}/calls.db")
    await first_lines(first, 5)
    second = await start("--store", f"sqlite:{tmp_path}/calls.db")
    _, errors = await asyncio.wait_for(second.communicate(), 20)
    assert (second.returncode, b"Another server is already using" in errors) == (1, True)
    first.terminate()
    await first.communicate()


async def test_binding_beyond_loopback_without_keys_is_refused() -> None:
    """Without keys, and without --insecure, the service does not listen where others can reach it."""
    process = await start("--store", "memory:", "--rest", "0.0.0.0:0")
    _, errors = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, b"Without keys" in errors) == (1, True)


async def test_a_port_that_is_taken_is_one_sentence() -> None:
    """An address in use is no traceback."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        process = await start("--store", "memory:", "--rest", f"127.0.0.1:{port}")
        _, errors = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, b"Traceback" in errors) == (1, False)
