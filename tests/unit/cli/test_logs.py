"""The log: its two forms, and that nothing of a call, no key and no secret ever stands in it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from voicemem.cli import logs
from voicemem.errors import StoreUnavailable

SECRET = "hush-hush-hush-hush"


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger with no handlers, as it is before a command sets it up, and put back afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("voicemem")
    before, levels = root.handlers[:], (root.level, ours.level)
    root.handlers[:] = []
    yield root
    root.handlers[:] = before
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def logged(form: str, level: str = "debug") -> tuple[logging.Logger, io.StringIO]:
    """Our logger, and what it writes."""
    stream = io.StringIO()
    logs.configure_logging(form, level, stream)
    return logging.getLogger("voicemem.test"), stream


def test_a_line_of_json_has_the_fields_by_name(root: logging.Logger) -> None:
    """Time, level, logger and message, then what was given beside the message."""
    log, stream = logged("json")
    log.warning("Webhook to %s failed", "a.example", extra={"status": 500, "host": "a.example"})
    (line,) = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    expected = {"level": "warning", "logger": "voicemem.test", "message": "Webhook to a.example failed"}
    assert {**expected, "status": 500, "host": "a.example"} == line


def test_a_line_of_text_has_the_fields_behind_the_sentence(root: logging.Logger) -> None:
    """The same for people."""
    log, stream = logged("text")
    log.info("Started", extra={"version": "1"})
    assert stream.getvalue().endswith("Z INFO voicemem.test: Started version=1\n")


@pytest.mark.parametrize("form", logs.FORMATS)
def test_an_error_is_its_type_and_place_and_never_its_text(root: logging.Logger, form: str) -> None:
    """What an exception quotes is not logged; where it was is, and so are sentences of ours and of the system."""
    log, stream = logged(form)
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise StoreUnavailable("The store is full.") from error
    except StoreUnavailable as error:
        log.error("A commit failed", exc_info=error)
    try:
        raise OSError(28, "No space left on device", SECRET)
    except OSError as error:
        log.error("No room", exc_info=error)
    written = stream.getvalue()
    assert SECRET not in written
    for said in ("KeyError", "The store is full.", "No space left on device", "test_logs.py"):
        assert said in written


def test_a_message_over_lines_is_one_line_of_json(root: logging.Logger) -> None:
    """No one forges a line."""
    log, stream = logged("json")
    log.warning("one\ntwo")
    assert 1 == len(stream.getvalue().splitlines())


def test_the_level_is_for_ours_and_libraries_only_warn(root: logging.Logger) -> None:
    """At `debug` our lines are all there, and those of libraries below a warning are not."""
    log, stream = logged("text", "debug")
    log.debug("ours")
    logging.getLogger("aiohttp.client").info(SECRET)
    logging.getLogger("websockets").debug(SECRET)
    assert ("ours" in stream.getvalue(), SECRET in stream.getvalue()) == (True, False)
    log.setLevel(logging.NOTSET)
    logs.LOG.setLevel("ERROR")
    log.warning("below")
    assert "below" not in stream.getvalue()


async def test_an_error_that_nobody_waited_for_is_not_quoted(root: logging.Logger) -> None:
    """asyncio would print the error's text; ours is the type."""
    _, stream = logged("json")
    loop = asyncio.get_running_loop()
    logs.log_lost_errors(loop)
    try:
        loop.call_soon(lambda: dict[str, str]()[SECRET])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(None)
    assert ("KeyError" in stream.getvalue(), SECRET in stream.getvalue()) == (True, False)


def test_a_value_with_spaces_is_in_quotes(root: logging.Logger) -> None:
    """So that no one's name can look like another field, or begin another line."""
    log, stream = logged("text")
    log.info("Session superseded", extra={"session_id": "s", "producer": "asr\nForged x=1", "count": 2, "none": ""})
    assert stream.getvalue().endswith('Session superseded session_id=s producer="asr\\nForged x=1" count=2 none=""\n')
