"""`serve` and `check-config`, run as commands."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner, Result

from voicemem.cli import main


def check_config(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["check-config", *arguments], env=env)


def test_good_settings_are_shown_without_secrets() -> None:
    """check-config prints what serve would use; of secrets only that they are set."""
    result = check_config("--webhook-url", "https://x.example/", "--webhook-secret", "geheim", "--store", "memory:")
    assert result.exit_code == 0
    assert "https://x.example/" in result.output
    assert "geheim" not in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--store", "mysql://x"],
        ["--rest", "8080"],
        ["--ingest", "127.0.0.1:99999"],
        ["--webhook-url", "ftp://x"],
        ["--webhook-secret", "x"],
        ["--admin-key", "short"],
        ["--allow-address", "10.0.0.0/99"],
        ["--agora-contents", "some"],
        ["--store", "sqlite:/nowhere/at/all/x.db"],
        ["--store", "sqlite:/tmp"],
        ["--rest", "127.0.0.1:8080", "--ingest", "127.0.0.1:8080"],
        ["--rest", "127.0.0.1:8080", "--ingest", "0.0.0.0:8080", "--insecure"],
        ["--webhook-url", "https://x.example/", "--webhook-secret", "whsec_notbase64"],
        ["--store", "memory:", "--rest", "0.0.0.0:8080"],
        ["--llm-url", "http://u:hunter2@h/v1"],
        ["--llm-url", "http://h/v1", "--llm-api-key", "hunter2\n"],
        ["--llm-timeout", "0"],
    ],
    ids=" ".join,
)
def test_bad_settings_are_one_sentence_and_exit_code_1(arguments: list[str]) -> None:
    """Each setting that cannot be is refused before anything starts."""
    result = check_config(*arguments)
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert "hunter2" not in result.output


def test_a_password_in_an_url_is_not_shown() -> None:
    """A receiver may want one; nobody else is to see it."""
    result = check_config("--webhook-url", "https://u:hunter2@hooks.example/x")
    assert (result.exit_code, "hunter2" in result.output) == (0, False)
    assert "https://hooks.example/x" in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--rest", "0.0.0.0:8080"], True),
        (["--ingest", "[::]:8765"], True),
        (["--rest", "0.0.0.0:8080", "--insecure"], False),
        (["--rest", "0.0.0.0:8080", "--admin-key", "sixteen letters."], False),
        (["--rest", "127.0.0.1:0", "--ingest", "127.0.0.1:0"], False),
    ],
)
def test_what_only_serve_can_tell_is_said(arguments: list[str], told: bool) -> None:
    """Whether a key is in the store is not looked at; beyond loopback that is said."""
    result = check_config(*arguments)
    assert (result.exit_code, "only `serve` can tell" in result.output) == (0, told)


def test_environment_variables_set_what_flags_do_not() -> None:
    """VOICEMEM_… gives a setting; a flag goes before it."""
    env = {"VOICEMEM_REST": "127.0.0.1:1234", "VOICEMEM_ALLOW_ADDRESS": "10.0.0.0/8 192.168.0.0/16"}
    assert "127.0.0.1:1234" in check_config(env=env).output
    assert "10.0.0.0/8, 192.168.0.0/16" in check_config(env=env).output
    assert "standard" in check_config(env={"VOICEMEM_AGORA_CONTENTS": "standard"}).output
    assert "127.0.0.1:1234" not in check_config("--rest", "127.0.0.1:4321", env=env).output


def test_help_names_every_command() -> None:
    """`voicemem --help` shows where to begin."""
    output = CliRunner().invoke(main, ["--help"]).output
    assert "demo" in output.split("Commands:")[0]
    assert set(main.commands) <= set(re.findall(r"^  ([a-z-]+)", output, re.MULTILINE))


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
    lines = await first_lines(process, 6)
    assert [" ".join(line.split()) for line in lines[3:5]] == ["webhook none (--webhook-url)", "llm none (--llm-url)"]
    base = lines[2].split()[-1].removesuffix("/v1/sessions")
    async with aiohttp.ClientSession() as http, http.get(f"{base}/readyz") as response:
        assert response.status == 200
    process.send_signal(signal.SIGTERM)
    _, errors = await asyncio.wait_for(process.communicate(), 10)
    assert (process.returncode, errors) == (0, b"")


async def test_serve_says_which_llm_it_calls() -> None:
    """Its host, and nothing that may be secret."""
    process = await start("--store", "memory:", "--llm-url", "http://127.0.0.1:9/secret/v1?key=secret")
    try:
        assert (await first_lines(process, 5))[4] == "  llm      http://127.0.0.1:9\n"
    finally:
        process.terminate()
        await process.communicate()


async def test_a_second_server_on_one_file_is_refused(tmp_path: Path) -> None:
    """One server per file: the second exits with a sentence."""
    first = await start("--store", f"sqlite:{tmp_path}/calls.db")
    await first_lines(first, 5)
    second = await start("--store", f"sqlite:{tmp_path}/calls.db")
    _, errors = await asyncio.wait_for(second.communicate(), 20)
    assert (second.returncode, b"Another server holds" in errors) == (1, True)
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
