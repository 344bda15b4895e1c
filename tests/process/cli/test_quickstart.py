"""`voicemem quickstart`: on a terminal and in a pipe; what it writes is what `serve` takes."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

from tests.support.processes.terminal import in_terminal
from voicemem.cli import main
from voicemem.cli.quickstart import chosen, settings_text


async def voicemem(*arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command whose input is no terminal."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, output.decode(), errors.decode()


def valid(file: Path) -> bool:
    """Whether `serve` would take it."""
    result = CliRunner().invoke(main, ["check-config", "--config", str(file)])
    return (0, True) == (result.exit_code, "The settings are valid." in result.output)


def test_what_stands_in_comments_is_valid_too(tmp_path: Path) -> None:
    """Whoever takes the mark of a comment away gets a setting that the service knows."""
    file = tmp_path / "own.toml"
    for reach, hook in (("local", "none"), ("network", "https://example.com/")):
        settings = chosen("memory:", reach, hook)
        lines = settings_text(file, settings).splitlines()
        file.write_text("\n".join(line.removeprefix("# ") for line in lines if re.match(r"(# )?[a-z-]+ = ", line)))
        assert 10 <= len(tomllib.loads(file.read_text()))
        assert valid(file)


async def test_three_questions_are_asked_on_a_terminal(tmp_path: Path) -> None:
    """The answers are in the file, which only its owner reads, and the next command is said."""
    file = tmp_path / "own.toml"
    async with in_terminal("quickstart", "--file", str(file), columns=200) as terminal:
        await terminal.until(lambda: "1/3" in terminal.text)
        terminal.press(f"sqlite:{tmp_path}/calls.db\n")
        await terminal.until(lambda: "2/3" in terminal.text)
        terminal.press("network\n")
        await terminal.until(lambda: "3/3" in terminal.text)
        terminal.press("https://example.com/calls\n")
        assert 0 == await terminal.ended()
        assert f"voicemem serve --config {file}" in terminal.text
        assert "voicemem ui" in terminal.text
    settings = tomllib.loads(file.read_text())
    assert (f"sqlite:{tmp_path}/calls.db", "0.0.0.0:8080") == (settings["store"], settings["rest"])
    assert ("https://example.com/calls", "whsec_") == (settings["webhook-url"], settings["webhook-secret"][:6])
    assert (True, 0o600) == (len(settings["admin-key"]) >= 32, file.stat().st_mode & 0o777)
    assert settings["admin-key"] not in terminal.text
    assert valid(file)


async def test_without_a_terminal_nothing_is_asked(tmp_path: Path) -> None:
    """The usual answers are taken where no flag gives one."""
    file = tmp_path / "own.toml"
    code, output, errors = await voicemem("quickstart", "--file", str(file), "--store", f"sqlite:{tmp_path}/x.db")
    assert (0, "") == (code, errors)
    assert f"Next:  voicemem serve --config {file}" in output
    settings = tomllib.loads(file.read_text())
    assert {"store": f"sqlite:{tmp_path}/x.db", "rest": "127.0.0.1:8080", "ingest": "127.0.0.1:8765"} == settings
    assert valid(file)


async def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    """Unless it is to be replaced."""
    file = tmp_path / "own.toml"
    file.write_text("# mine")
    arguments = ("quickstart", "--yes", "--store", "memory:", "--file", str(file))
    code, _, errors = await voicemem(*arguments)
    assert (1, True, "# mine") == (code, "--force replaces it" in errors, file.read_text())
    assert 0 == (await voicemem(*arguments, "--force"))[0]
    assert valid(file)


async def test_answers_that_serve_would_refuse_are_refused(tmp_path: Path) -> None:
    """Nothing is written then."""
    file = tmp_path / "own.toml"
    code, _, errors = await voicemem("quickstart", "--file", str(file), "--store", "mysql://x")
    assert (1, 1, False) == (code, errors.count("\n"), file.exists())
    code, _, errors = await voicemem("quickstart", "--file", str(file), "--webhook-url", "example.com")
    assert (1, True, False) == (code, "must begin with http" in errors, file.exists())
    (tmp_path / "taken").write_text("")
    code, _, errors = await voicemem("quickstart", "--yes", "--file", str(tmp_path / "taken" / "own.toml"))
    assert (1, 1, True) == (code, errors.count("\n"), "taken" in errors)


async def test_folders_are_made_and_hints_name_the_store(tmp_path: Path) -> None:
    """Those of the file and of the store; `serve` can start from the next command as it is."""
    file, store = tmp_path / "etc" / "my own.toml", f"sqlite:{tmp_path}/var/lib/calls.db"
    code, output, _ = await voicemem("quickstart", "--yes", "--reach", "network", "--store", store, "--file", str(file))
    assert (0, True) == (code, f"voicemem serve --config '{file}'" in output)
    assert f"voicemem keys create --store {store}\n" in file.read_text()
    assert (True, True) == ((tmp_path / "var" / "lib").is_dir(), valid(file))


async def test_a_wrong_answer_is_asked_for_again(tmp_path: Path) -> None:
    """With the reason, and without the answers before it."""
    file = tmp_path / "own.toml"
    async with in_terminal("quickstart", "--file", str(file), columns=200) as terminal:

        def shows(text: str) -> Callable[[], bool]:
            return lambda: text in terminal.text

        for question, wrong, why, right in (
            ("1/3", "calls.db", "sqlite:PATH", "memory:"),
            ("2/3", "everyone", "local or network", "local"),
            ("3/3", "example.com", "must begin with http", "none"),
        ):
            await terminal.until(shows(question))
            terminal.press(f"{wrong}\n")
            await terminal.until(shows(why))
            terminal.press(f"{right}\n")
        assert 0 == await terminal.ended()
    assert {"store": "memory:", "rest": "127.0.0.1:8080", "ingest": "127.0.0.1:8765"} == tomllib.loads(file.read_text())
