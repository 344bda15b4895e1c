"""`keys create`, `list` and `revoke`, also beside a running service."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from voicemem.cli import main
from voicemem.store.upkeep import no_store


def keys(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["keys", *arguments])
    return result.exit_code, result.output


def test_a_key_is_shown_once_and_listed_without_its_secret(tmp_path: Path) -> None:
    """create prints the key; list prints its id, project, scopes, name and when it was made only."""
    store = f"sqlite:{tmp_path}/calls.db"
    code, output = keys("create", "--store", store, "--project", "shop", "--scope", "read", "--name", "backend")
    key = output.split()[-1]
    assert (code, key.startswith("vm_")) == (0, True)
    _, listed = keys("list", "--store", store)
    words = listed.split()
    assert [key.split("_")[1], "active", "shop", "read", "made", "backend"] == [*words[:5], words[-1]]
    assert keys("list", "--store", store, "--project", "other")[1] == ""
    assert key.split("_")[2] not in listed


def test_the_limits_of_a_key_are_listed(tmp_path: Path) -> None:
    """Those that it has; what is no number is refused."""
    store = f"sqlite:{tmp_path}/calls.db"
    assert keys("create", "--store", store, "--events-per-second", "50", "--open-sessions", "3")[0] == 0
    assert keys("list", "--store", store)[1].split()[-2:] == ["events_per_second=50", "open_sessions=3"]
    assert keys("create", "--store", store, "--bytes-per-second", "-1")[0] == 2


def test_a_revoked_key_is_listed_as_such_and_cannot_be_revoked_twice(tmp_path: Path) -> None:
    """revoke takes the id; the second time there is no active key of that id."""
    store = f"sqlite:{tmp_path}/calls.db"
    key_id = keys("create", "--store", store)[1].split()[-1].split("_")[1]
    assert keys("revoke", key_id, "--store", store)[0] == 0
    assert "revoked" in keys("list", "--store", store)[1]
    assert keys("revoke", key_id, "--store", store)[0] == 1


def test_a_store_in_memory_has_no_keys_to_manage() -> None:
    """The command says what to do instead."""
    code, output = keys("list", "--store", "memory:")
    assert (code, "VOICEMEM_ADMIN_KEY" in output) == (1, True)


@pytest.mark.parametrize("arguments", [("list",), ("revoke", "000000000000")])
def test_the_keys_of_no_store_are_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """A mistyped store is named, and not made."""
    code, output = keys(*arguments, "--store", f"sqlite:{tmp_path}/cals.db")
    assert (code, f"voicemem: {no_store(f'{tmp_path}/cals.db')}\n") == (1, output)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("create",), ("list",), ("revoke", "000000000000")])
@pytest.mark.parametrize("store", ["calls.db", "sqlite:", "mysql://calls"])
def test_what_is_no_store_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], store: str
) -> None:
    """As `serve` does; nothing is made of it."""
    monkeypatch.chdir(tmp_path)
    code, output = keys(*arguments, "--store", store)
    assert (code, "write sqlite:PATH" in output, list(tmp_path.iterdir())) == (1, True, [])


def test_a_new_store_is_announced_and_private(tmp_path: Path) -> None:
    """`create` says that it makes a store, once, whatever the umask only for its owner; the key stands alone."""
    store, before = f"sqlite:{tmp_path}/calls.db", os.umask(0)
    try:
        made, again = (CliRunner().invoke(main, ["keys", "create", "--store", store]) for _ in range(2))
    finally:
        os.umask(before)
    new = f"{tmp_path}/calls.db does not exist yet; it is created, as a new store."
    assert (new in made.stderr, new in again.stderr, made.stdout.count("\n")) == (True, False, 1)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
