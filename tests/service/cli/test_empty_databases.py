"""Commands that only look make no schema in an empty PostgreSQL database; those that make one say so."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from tests.support.needs import needs_postgresql
from voicemem.store.upkeep import migrations_of

needs_postgresql()

from tests.support import postgresql  # noqa: E402
from voicemem.cli import main  # noqa: E402
from voicemem.config.service import shown_store  # noqa: E402
from voicemem.store.postgresql import schema  # noqa: E402
from voicemem.store.upkeep import Migration, no_store  # noqa: E402

pytestmark = pytest.mark.postgresql
COUNT_TABLES = "select count(*) from pg_tables where schemaname = 'public'"
NEWEST = migrations_of("voicemem.store.postgresql")[-1].version
KEY, APP = "0" * 12, "0" * 32
LOOKING = [
    ("nodes",),
    ("restored",),
    ("reindex",),
    ("keys", "list"),
    ("keys", "limits", KEY, "--open-sessions", "1"),
    ("keys", "revoke", KEY),
    ("keys", "agora", "list"),
    ("keys", "agora", "remove", APP),
    ("hooks", "list"),
    ("hooks", "remove", "vapi"),
]
MAKING = [("keys", "create"), ("hooks", "set", "--generate", "vapi")]
numbers = itertools.count(1)


@pytest.fixture
def empty() -> Iterator[str]:
    """The name of a database without any table."""
    name = f"empty_{next(numbers)}"
    postgresql.server().execute(f"create database {name}")
    yield name
    postgresql.server().execute(postgresql.END_CONNECTIONS.format(name))
    postgresql.server().execute(f"drop database {name}")


def run(database: str, *arguments: str) -> tuple[int, str]:
    """The exit code of a command on a database, and what it says."""
    result = CliRunner().invoke(main, [*arguments, "--store", postgresql.server().url(database)])
    return result.exit_code, result.output


def tables(database: str) -> object:
    return postgresql.server().execute(COUNT_TABLES, database)[0][0]


def test_looking_makes_no_schema(empty: str) -> None:
    """Each command fails with a sentence that says what would have been right, and leaves the database empty."""
    refusal = no_store(shown_store(postgresql.server().url(empty)))
    for arguments in LOOKING:
        assert (1, f"voicemem: {refusal}\n") == run(empty, *arguments), arguments
        assert 0 == tables(empty), arguments


@pytest.mark.parametrize("arguments", MAKING)
def test_what_is_to_be_kept_makes_the_schema(empty: str, arguments: tuple[str, ...]) -> None:
    """A service can start with keys and secrets, as on a file."""
    assert 0 == run(empty, *arguments)[0]
    assert 0 == run(empty, "keys", "list")[0]


def test_migrate_says_what_it_did(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it made the schema, brought it from one version to another, or had nothing to do."""
    assert (0, f"the database was empty: its schema is made, of version {NEWEST}\n") == run(empty, "migrate")
    assert (0, f"the schema has version {NEWEST} already; nothing was changed\n") == run(empty, "migrate")
    newer = [*migrations_of("voicemem.store.postgresql"), Migration(NEWEST + 1, "create table added (name text)")]
    monkeypatch.setattr(schema, "migrations_of", lambda engine: newer)
    brought = f"the schema is brought from version {NEWEST} to version {NEWEST + 1}\n"
    assert (0, brought) == run(empty, "migrate")
    assert (0, "no node serves this store\n") == run(empty, "nodes")
