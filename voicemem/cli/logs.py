"""The log: lines of text, or of JSON for whoever collects them. What was said on a call never stands in it.

Messages and fields are ours and hold no payload. What an exception says may quote what it failed on, so of exceptions
there are the type and the place only, and the sentence where it comes from us or from the operating system.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

from voicemem.errors import VoicememError
from voicemem.security import audit
from voicemem.telemetry.tracing import Tracer

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", audit.FIELDS}
"""What a record has by itself; the rest are fields given with `extra`."""
LOG = logging.getLogger("voicemem")
FRAMES = 20
"""Of a traceback, the innermost."""


def configure_logging(form: str, level: str, stream: TextIO | None = None) -> logging.Handler:
    """Log to `stream` (stderr). Libraries tell warnings and worse only: below that some of them tell what is said."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
    LOG.setLevel(level.upper())
    return handler


def name_traces(handler: logging.Handler, tracer: Tracer) -> None:
    """Give what is logged inside a span the ids of its trace."""

    def name(record: logging.LogRecord) -> bool:
        vars(record).update(tracer.ids())
        return True

    handler.addFilter(name)


def log_lost_errors(loop: asyncio.AbstractEventLoop) -> None:
    """What nobody waited for is logged by us: asyncio quotes the error's text, and the arguments of callbacks."""

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        LOG.error("In the event loop: %s", "an error" if error else context.get("message"), exc_info=error)

    loop.set_exception_handler(handle)


class TextFormatter(logging.Formatter):
    """`2026-11-21T18:00:00.000Z WARNING voicemem: sentence key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in fields_of(record).items())
        line = f"{time_of(record)} {record.levelname} {record.name}: {record.getMessage()}{fields}"
        if record.exc_info and record.exc_info[1]:
            error = record.exc_info[1]
            line += "".join(f"\n  {said}" for said in [*frames_of(error), *sentences_of(error)])
        return line


class JsonFormatter(logging.Formatter):
    """One object a line: `time`, `level`, `logger`, `message`, fields by their names, `error` and `trace`."""

    def format(self, record: logging.LogRecord) -> str:
        audited = getattr(record, audit.FIELDS, None)
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


def sentences_of(error: BaseException) -> Iterator[str]:
    """The error and what it came from, each by its type, with its sentence where that quotes nobody."""
    seen: BaseException | None = error
    while seen is not None:
        name = type(seen).__qualname__
        if isinstance(seen, VoicememError):
            yield f"{name}: {seen.code}: {seen.detail}"
        else:
            yield f"{name}: {seen.strerror}" if isinstance(seen, OSError) and seen.strerror else name
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


def frames_of(error: BaseException) -> Iterator[str]:
    """Where it was, the innermost last; without the source lines' values."""
    for frame in traceback.extract_tb(error.__traceback__)[-FRAMES:]:
        yield f"{frame.filename}:{frame.lineno} {frame.name}"
