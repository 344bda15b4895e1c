"""`users`: finds the ids of a number, and shows the number nowhere."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.samples.audit_lines import acts
from voicemem.cli import main


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store that a server has made."""
    path = f"sqlite:{tmp_path}/calls.db"
    CliRunner().invoke(main, ["keys", "create", "--store", path])
    return path


def users(*arguments: str, typed: str | None = None) -> Result:
    """What the command does."""
    return CliRunner().invoke(main, ["users", *arguments], input=typed)


def ids(store: str, typed: str, *more: str) -> list[str]:
    result = users("id", "--number", "--store", store, *more, typed=typed)
    assert 0 == result.exit_code, result.output
    assert "171" not in result.stderr
    return result.stdout.split()


def test_the_id_of_a_number(store: str) -> None:
    """It is the same in every spelling, and another in each project."""
    [id] = ids(store, "+49 171 1234567\n")
    assert [id] == ids(store, "0049 (0)171 1234567") == ids(store, "0171 1234567", "--phone-region", "DE")
    assert [id] != ids(store, "+49 171 1234567", "--project", "shop")


def test_ids_after_a_rotation(store: str, caplog: pytest.LogCaptureFixture) -> None:
    """The newest comes first, then that under which the caller was known before."""
    [before] = ids(store, "+49 171 1234567")
    assert 0 == users("rotate-secret", "--store", store).exit_code
    newest, old = ids(store, "+49 171 1234567")
    assert before == old != newest
    assert {"act": "caller_secret_rotated", "by": "command line", "project": "default"} == acts(caplog)[-1]


@pytest.mark.parametrize("typed", ["anonymous", "0171 1234567", "", "+266696687", "9" * 10_000])
def test_what_is_no_number(store: str, typed: str) -> None:
    """The sentence says what would be right, and quotes nothing."""
    result = users("id", "--number", "--store", store, typed=typed)
    assert 1 == result.exit_code
    assert "write +49" in result.stderr
    assert not typed or typed not in result.output


def test_a_number_is_no_argument(store: str) -> None:
    """Other users of the machine could see it."""
    assert 2 == users("id", "--number", "+491711234567", "--store", store).exit_code
    assert 2 == users("id", "+491711234567", "--store", store).exit_code
