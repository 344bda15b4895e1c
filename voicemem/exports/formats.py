"""The formats of exported calls, by name."""

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
    """A format of an export: how a call is written, and how the file is named."""

    write: Callable[[Call], Iterator[str]]
    """Yields the document in parts of one utterance at most, even of a long call."""
    media_type: str
    suffix: str
    head: str = ""
    """The beginning of each document, which several documents in one file need only once."""
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
    """Return a name for the file of a call, which is unique for each session and valid on every system."""
    return session_id.replace(":", "%3A") + FORMATS[name].suffix
