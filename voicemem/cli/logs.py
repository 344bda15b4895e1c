"""The log: lines of text, or of JSON for log collectors. It never contains what was said on a call.

Messages and fields are voicemem's own, without payloads. The text of an exception may quote the data that it failed on,
so an exception is logged by type and place, with its text only if that comes from voicemem or the operating system.
"""

import asyncio
import json
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

from voicemem.errors import VoicememError
from voicemem.security import audit

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", audit.LINE_ATTRIBUTE}
"""Attributes that every record has; all others are fields passed as `extra`."""
LOG = logging.getLogger("voicemem")
PLAIN = re.compile(r"[!#-~]+")
FRAMES = 20
"""How many frames of a traceback are logged, the innermost ones."""


def configure_logging(form: str, level: str, stream: TextIO | None = None) -> logging.Handler:
    """Log to `stream` (stderr). Libraries log only warnings and errors: below that, some log what was said."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
    LOG.setLevel(level.upper())
    return handler


def add_fields(handler: logging.Handler, fields: Callable[[], dict[str, Any]]) -> None:
    """Add fields to all log records: the ids of the trace in a span, the node's token while it has one."""

    def add(record: logging.LogRecord) -> bool:
        vars(record).update(fields())
        return True

    handler.addFilter(add)


def log_lost_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Log errors of tasks that were not awaited, in place of asyncio, which quotes texts and arguments."""

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        LOG.error("In the event loop: %s", "an error" if error else context.get("message"), exc_info=error)

    loop.set_exception_handler(handle)


class TextFormatter(logging.Formatter):
    """`2026-11-21T18:00:00.000Z WARNING voicemem: sentence key=value`; a value with spaces is in quotes."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={quoted(value)}" for name, value in fields_of(record).items())
        line = f"{time_of(record)} {record.levelname} {record.name}: {record.getMessage()}{fields}"
        if record.exc_info and record.exc_info[1]:
            error = record.exc_info[1]
            line += "".join(f"\n  {part}" for part in [*frames_of(error), *sentences_of(error)])
        return line


class JsonFormatter(logging.Formatter):
    """One object per line: `time`, `level`, `logger`, `message`, fields by their names, `error` and `trace`."""

    def format(self, record: logging.LogRecord) -> str:
        audited = getattr(record, audit.LINE_ATTRIBUTE, None)
        line: dict[str, Any] = {
            "time": time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": audited["act"] if audited else record.getMessage(),
            **fields_of(record),
            **(audited or {}),
        }
        if record.exc_info and record.exc_info[1]:
            line["error"] = " from ".join(sentences_of(record.exc_info[1]))
            line["trace"] = list(frames_of(record.exc_info[1]))
        return json.dumps(line, ensure_ascii=False, default=str)


def time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in STANDARD}


def quoted(value: object) -> str:
    """Return a value as it is, or as JSON if it could be read as several: names of producers may hold line breaks."""
    text = str(value)
    return text if PLAIN.fullmatch(text) else json.dumps(text)


def sentences_of(error: BaseException) -> Iterator[str]:
    seen: BaseException | None = error
    while seen is not None:
        name = type(seen).__qualname__
        if isinstance(seen, VoicememError):
            yield f"{name}: {seen.code}: {seen.detail}"
        else:
            yield f"{name}: {seen.strerror}" if isinstance(seen, OSError) and seen.strerror else name
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


def frames_of(error: BaseException) -> Iterator[str]:
    """Yield where an error was raised: file, line and function of each frame, the innermost last."""
    for frame in traceback.extract_tb(error.__traceback__)[-FRAMES:]:
        yield f"{frame.filename}:{frame.lineno} {frame.name}"
