"""A PostgreSQL database as an end of a copy."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from typing import Any

import msgspec
import psycopg

from voicemem.errors import CannotStart
from voicemem.store.copying import COPYING, TABLES, CopyEnd, CopyFailed, Volume
from voicemem.store.database import EPOCH_MS, RANDOM_BITS, Row
from voicemem.store.nodes import SELECT_LOST_NODES, retire
from voicemem.store.postgresql.connection import PostgresqlConnection, connect, reason, why
from voicemem.store.postgresql.driver import SELECT_NOW
from voicemem.store.postgresql.failover import LOCK_META
from voicemem.store.postgresql.schema import add_partitions, check_version, migrate
from voicemem.store.postgresql.words import PostgresqlMemoryWords
from voicemem.store.session_filters import label_digest
from voicemem.store.stream_changes import COUNT_ALL_STORED
from voicemem.store.streams import SESSION_KIND
from voicemem.store.upkeep import on_failure

SELECT_COLUMNS = """
    select column_name::text, data_type = 'boolean' from information_schema.columns
    where table_schema = current_schema() and table_name = :table
"""
INSERT_LOCK = "insert into stream_locks (stream, version) values (:key, 1)"
INSERT_LABEL = "insert into labels (stream, digest) values (:stream, :digest)"
SHORT_PLANS = """
    set enable_seqscan = off; set enable_hashjoin = off; set enable_mergejoin = off; set enable_sort = off;
    set idle_in_transaction_session_timeout = 0
"""
"""Rows are read along the primary keys. Without this the planner may sort the whole journal before the first row."""
FIRST_TIMED_KEY = 1 << 40
"""Lower keys are from a file, which counts up; a key of this engine begins with the time, and is higher."""
PARTITION_OF_COUNTED = f"""
    create table if not exists journal_copied partition of journal for values from (minvalue) to ({FIRST_TIMED_KEY})
"""
SELECT_LIVING_NODE = "select 1 from nodes where expires_ms > :now_ms limit 1"
HOLD_NODES = "select 1 from meta where name = 'schema' for share"
"""Keeps nodes from starting until the end of the transaction."""
TAKE_TARGET = "select pg_try_advisory_lock(hashtextextended('voicemem copy ' || current_schema(), 0))"
TAKING_S, PAUSE_S = 10.0, 0.2
"""How long the server may take to end the connection of a copy that was killed."""
ANALYZE = f"analyze {', '.join(one.name for one in TABLES)}"
"""Analyses the copy's tables only: a role may not analyse the server's."""
numbers = count(1)


class PostgresqlCopy(CopyEnd):
    """A database that no node serves; a target without a schema gets it, unless with `only_look`."""

    def __init__(self, url: str, is_target: bool, only_look: bool) -> None:
        self.url = url
        self.reader: PostgresqlConnection | None = None
        try:
            self.link = connect(url)
        except psycopg.Error as error:
            raise CannotStart(f"PostgreSQL cannot be used: {reason(error)}") from None
        try:
            with on_failure(self.close), self.guarded():
                if is_target and not only_look:
                    self.take_target()
                if check_version(self.link, exactly=True):
                    self.connection = self.link
                    with self.transaction():
                        now_ms = self.refuse_living()
                        for (token,) in () if only_look else self.link.rows(SELECT_LOST_NODES, now_ms=now_ms):
                            retire(self.link, token, now_ms)  # so that it does not come back
                elif not is_target:
                    raise CannotStart("The database is empty: there is nothing to copy.")
                if not is_target and not only_look:  # no node starts until the copy ends
                    self.reading.execute(HOLD_NODES)
                    if self.link.row("select 1 from nodes limit 1") is not None:
                        raise CannotStart("A node has just begun to serve this database; stop it for the copy.")
        except CopyFailed as error:
            raise CannotStart(str(error)) from None

    def take_target(self) -> None:
        """Keep other copies out, and make the schema."""
        deadline = time.monotonic() + TAKING_S
        while not self.link.one(TAKE_TARGET)[0]:
            if time.monotonic() > deadline:
                raise CannotStart("Another voicemem copy writes this database.")
            time.sleep(PAUSE_S)
        migrate(self.link, upgrade=False)
        add_partitions(self.link, *self.link.one(SELECT_NOW))

    def refuse_living(self) -> int:
        """Return the time, and let no node start until the end of the transaction. Raises `CannotStart`."""
        self.link.execute(LOCK_META)
        (now_ms,) = self.link.one(SELECT_NOW)
        if self.link.row(SELECT_LIVING_NODE, now_ms=now_ms) is not None:
            raise CannotStart("A node serves this database; voicemem nodes lists them. Stop them all for the copy.")
        return int(now_ms)

    def transaction(self) -> AbstractContextManager[None]:
        return self.link.transaction()

    @property
    def reading(self) -> PostgresqlConnection:
        """A connection in a transaction that sees one state of the database until it ends."""
        if self.reader is None:
            self.reader = connect(self.url)
            self.reader.raw.execute(SHORT_PLANS.encode(), prepare=False)
            self.reader.execute("begin isolation level repeatable read")
        return self.reader

    def schema_of(self, table: str) -> dict[str, bool]:
        return dict(self.link.rows(SELECT_COLUMNS, table=table))

    def scan(self, query: str, at_once: int, **values: Any) -> Iterator[Row]:
        with self.guarded():
            reading, name = self.reading, f"copied_{next(numbers)}"
            reading.send(query, values, f"declare {name} no scroll cursor for ".encode())
            try:
                while rows := reading.rows(f"fetch forward {at_once} from {name}"):
                    yield from rows
            finally:
                with suppress(psycopg.Error):
                    reading.execute(f"close {name}")

    def end_reading(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.reader = None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise CopyFailed(f"The copy was cut off: {why(error)}. Run the same command again to go on.") from None

    def make_room(self, volume: Volume, mark: bytes) -> None:
        """Make the partitions from the month of the first key on; those of the present exist."""
        with self.transaction():
            now_ms = self.refuse_living()
            self.save_value(COPYING, mark)
        if 0 < volume.first_key < FIRST_TIMED_KEY:
            self.link.execute(PARTITION_OF_COUNTED)
        if volume.last_key >= FIRST_TIMED_KEY:
            first = max(volume.first_key, FIRST_TIMED_KEY)
            add_partitions(self.link, now_ms, (first >> RANDOM_BITS) + EPOCH_MS, FIRST_TIMED_KEY)

    def repeat_streams(self, streams: Sequence[dict[str, Any]]) -> None:
        """Insert the labels that find streams, and the rows that appends lock."""
        self.opened.many(INSERT_LOCK, [{"key": stream["key"]} for stream in streams])
        labels = [
            {"stream": stream["key"], "digest": label_digest(*label)}
            for stream in streams
            if stream["kind"] == SESSION_KIND
            for label in labels_in(stream["config"]).items()
        ]
        self.opened.many(INSERT_LABEL, labels)

    def make_derived(self, cursor_secret: bytes) -> None:
        self.link.execute(ANALYZE)
        self.link.execute(COUNT_ALL_STORED)
        PostgresqlMemoryWords(cursor_secret).make_words(self.link)

    def close(self) -> None:
        self.end_reading()
        self.link.close()


def labels_in(config: bytes) -> dict[str, str]:
    """Return the labels of a configuration; none of a damaged one, which is reported when it is read."""
    try:
        return msgspec.json.decode(config).get("labels") or {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
