"""The formats that a call can be exported in, by their names."""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, get_args

from voicemem.exports.call import Call
from voicemem.exports.markdown import markdown
from voicemem.exports.rows import HEAD as CSV_HEAD
from voicemem.exports.rows import csv, jsonl
from voicemem.exports.subtitles import srt, webvtt
from voicemem.exports.vcon import vcon

FormatName = Literal["vcon", "webvtt", "srt", "markdown", "csv", "jsonl"]
FORMAT_NAMES: tuple[FormatName, ...] = get_args(FormatName)


class ExportFormat(NamedTuple):
    """A format of an export: how a call is written, and what the result is called."""

    write: Callable[[Call], Iterator[str]]
    """Yields the document in parts, so that no more of a long call than one utterance is written at a time."""
    media_type: str
    suffix: str
    head: str = ""
    """With which each document begins; once is enough where several follow each other in one file."""
    is_joinable: bool = True
    separator: str = ""
    is_json: bool = False


FORMATS: dict[FormatName, ExportFormat] = {
    "vcon": ExportFormat(vcon, "application/vcon+json", ".vcon.json", is_json=True),
    "webvtt": ExportFormat(webvtt, "text/vtt; charset=utf-8", ".vtt", is_joinable=False),
    "srt": ExportFormat(srt, "application/x-subrip; charset=utf-8", ".srt", is_joinable=False),
    "markdown": ExportFormat(markdown, "text/markdown; charset=utf-8", ".md", separator="\n"),
    "csv": ExportFormat(csv, "text/csv; charset=utf-8; header=present", ".csv", head=CSV_HEAD),
    "jsonl": ExportFormat(jsonl, "application/x-ndjson", ".jsonl"),
}


def file_name(session_id: str, name: FormatName) -> str:
    """A name for the file of a call: no two sessions have the same, and every system takes it."""
    return session_id.replace(":", "%3A") + FORMATS[name].suffix
