"""What a copy of a store into another engine takes along: the tables that all engines have, row by row.

A row has the values of a table's columns, in their order. Texts of users are their UTF-8, so that no engine's text type
changes them; words of the service's own are `str`. What an engine repeats elsewhere (names, labels) it derives.
Keys stay what they are, so that cursors, tails and checksums of the journal hold in the copy.

What stays behind: snapshots, which are made again from journals; nodes, claims, observations and replies under way,
since no process serves a store that is copied; and the content of erased sessions that is not deleted yet.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from voicemem.protocol.types import JsonObject

Row = tuple[Any, ...]
NUMBER, TEXT, WORD, BLOB, FLAG = "number", "text", "word", "blob", "flag"


class CopiedTable(NamedTuple):
    """One table of a copy; it is read in the order of `key`, which is unique."""

    name: str
    key: tuple[str, ...]
    columns: dict[str, str]
    """The kind of each."""

    def place(self, row: Row) -> Row:
        """The key of a row."""
        return tuple(row[index] for index in self.key_indexes)

    @property
    def key_indexes(self) -> list[int]:
        return [list(self.columns).index(name) for name in self.key]


def table(name: str, key: str, **columns: str) -> CopiedTable:
    """A table; each keyword is a kind, with the names of its columns."""
    kinds = {column: kind for kind, names in columns.items() for column in names.split()}
    return CopiedTable(name, tuple(key.split()), kinds)


STREAMS = table(
    "streams",
    "key",
    number="key position started_ms ended_ms silent_since_ms ending_ms ending_ts due_ms interruptions slowest_ms",
    text="project id reason ending_reason key_id",
    word="kind state",
    blob="config",
    flag="provisional",
)
DELIVERIES = table(
    "deliveries",
    "key",
    number="key stream endpoint event_type position attempts due_ms lease leased_until_ms made_ms restarted_at",
    word="notice_id state node waiting_for",
    blob="header payload",
)
ATTEMPTS = table(
    "attempts", "delivery number", number="delivery number started_ms duration_ms status", word="error excerpt"
)
ENDPOINTS = table(
    "endpoints",
    "key",
    number="key stream disabled_ms created_ms old_secret_until_ms failing_since_ms",
    word="url secret id project description event_types old_secret contents disabled_reason",
    flag="public_only",
)
JOURNAL = table(
    "journal",
    "stream position",
    number="stream position seq received_ms count checksum",
    text="producer",
    blob="payload",
    flag="waypoint",
)
MEMORIES = table(
    "memories",
    "stream id",
    number="stream position said_ms created_ms updated_ms event_ms expires_ms removed_ms last_accessed_ms access_count",
    text="id project namespace user_id session_id text event_at topics entities",
    word="kind",
    blob="details supersedes",
    flag="pinned",
)
ARCHIVES = table("archives", "stream position", number="stream position last", blob="seqs runs")
TABLES = (
    table(
        "keys",
        "id",
        number="created_ms revoked_ms events_per_second bytes_per_second open_sessions sessions_per_day",
        word="id project name scopes",
        blob="hash",
    ),
    table("agora_apps", "app_id", number="created_ms", word="app_id project certificate old_certificate scopes"),
    table(
        "hook_secrets",
        "project dialect",
        number="set_ms old_secret_until_ms",
        word="project dialect secret old_secret",
    ),
    STREAMS,
    table(
        "producers",
        "stream name",
        number="stream epoch next_seq expected_until_ms",
        text="name",
        word="node",
        flag="unsequenced ended",
    ),
    table("secrets", "stream name", number="stream", text="name value"),
    ENDPOINTS,
    DELIVERIES,
    ATTEMPTS,
    table("retention", "stream", number="stream compact_ms expires_ms erased_ms leased_until_ms", word="node"),
    table("quarantined", "stream", number="stream since_ms", word="version reason"),
    table("overviews", "stream", number="stream position", text="name user_id labels", blob="figures"),
    MEMORIES,
    table("superseded", "stream by_id old_id", number="stream created_ms", text="by_id old_id project"),
    ARCHIVES,
    JOURNAL,
)
"""In the order of the copy: what says whose content a row is comes before it."""

COPIED_VALUES = ("incarnation", "cursor_secret")
"""What is copied of `meta`: clients go on with their positions and cursors."""

KEY, CONFIG, KIND, STATE, PROJECT, ID = (
    list(STREAMS.columns).index(name) for name in ("key", "config", "kind", "state", "project", "id")
)
"""Where these stand in a row of streams."""
STREAM, POSITION, COUNT, CHECKSUM, PAYLOAD = (
    list(JOURNAL.columns).index(name) for name in ("stream", "position", "count", "checksum", "payload")
)
"""Where these stand in a row of the journal."""
FIRST, LAST, RUNS = (list(ARCHIVES.columns).index(name) for name in ("position", "last", "runs"))
"""Where these stand in a row of the archives."""


def config_of(row: Row) -> JsonObject:
    """The configuration of a row of streams; empty where it is damaged, which is found when it is read."""
    try:
        return msgspec.json.decode(row[CONFIG], type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}


def events_in(of: CopiedTable, row: Row) -> int:
    """How many events a row holds."""
    if of is JOURNAL:
        return int(row[COUNT])
    return int(row[LAST] - row[FIRST] + 1) if of is ARCHIVES else 0


def bytes_in(row: Row) -> int:
    """About how much a row holds."""
    return 8 * len(row) + sum(len(value) for value in row if isinstance(value, (bytes, str)))
