"""`voicemem ui`: the address of the page, in a browser, on a terminal and in a pipe."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.support.processes.terminal import in_terminal


@pytest.fixture
async def page() -> AsyncIterator[tuple[list[int], str]]:
    """Something that answers as a service with a page does, with the status that the list holds; and its address."""
    app, status = web.Application(), [200]

    async def answer(request: web.Request) -> web.Response:
        if status == [200]:
            return web.Response(text="<!doctype html>", content_type="text/html")
        return web.json_response({"detail": "Not here."}, status=status[0])

    app.router.add_get("/ui/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield status, f"http://{host}:{port}"
    await runner.cleanup()


async def ui(*arguments: str, browser: str = "/nowhere/at/all") -> tuple[int, str, str]:
    """Exit code, output and errors of the command in a pipe."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", "ui", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "BROWSER": browser},
    )
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, output.decode(), errors.decode()


@pytest.fixture
def browser(tmp_path: Path) -> Path:
    """A browser that writes down what it was to open."""
    program = tmp_path / "browser"
    program.write_text(f"#!/bin/sh\necho \"$1\" > '{tmp_path}/opened'\n")
    program.chmod(0o755)
    return program


async def test_the_page_opens_in_the_browser(page: tuple[list[int], str], browser: Path) -> None:
    """The address is printed, and opened."""
    url = page[1]
    assert (0, f"{url}/ui/\n", "") == await ui("--url", url, browser=f"{browser} %s")
    assert f"{url}/ui/\n" == browser.with_name("opened").read_text()


async def test_nothing_is_opened_with_no_open(page: tuple[list[int], str], browser: Path) -> None:
    """The address alone is printed."""
    url = page[1]
    assert (0, f"{url}/ui/\n", "") == await ui("--url", url + "/", "--no-open", browser=f"{browser} %s")
    assert not browser.with_name("opened").exists()


async def test_without_a_browser_one_is_told_what_to_do(page: tuple[list[int], str]) -> None:
    """On a machine without a desktop the address is what one needs."""
    async with in_terminal("ui", "--url", page[1], env={"BROWSER": "/nowhere/at/all", "PATH": "", "DISPLAY": ""}) as it:
        assert 0 == await it.ended()
        assert [f"{page[1]}/ui/", "No browser could be opened here; open this address in yours."] == it.shown


async def test_a_service_without_the_page_is_named(page: tuple[list[int], str]) -> None:
    """Whoever turned it off reads how; other answers are told as they are."""
    status, url = page
    status[0] = 404
    code, output, errors = await ui("--url", url)
    assert (1, "", True) == (code, output, "`--ui off`" in errors)
    status[0] = 403
    assert (1, "", True) == ((await ui("--url", url))[0], "", "answers 403: Not here." in (await ui("--url", url))[2])


async def test_where_nothing_runs_the_next_command_is_named() -> None:
    """A page needs a service."""
    code, output, errors = await ui("--url", "http://127.0.0.1:1")
    assert (1, "", 1) == (code, output, errors.count("\n"))
    assert "voicemem serve" in errors
