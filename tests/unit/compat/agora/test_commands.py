"""`keys agora`: registers apps of Agora's, and shows no certificate."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.samples.agora_tokens import APP_ID, CERTIFICATE, OTHER_CERTIFICATE
from tests.support.samples.audit_lines import acts
from voicemem.cli import main
from voicemem.store.directory import AgoraApp
from voicemem.store.engines import open_store
from voicemem.store.upkeep import no_store

OTHER_APP = "f" * 32


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/calls.db"


def agora(*arguments: str, typed: str | None = None, variable: str | None = None) -> tuple[int, str]:
    """Exit code and everything that the command says."""
    environment = {"AGORA_APP_CERTIFICATE": variable}
    result = CliRunner().invoke(main, ["keys", "agora", *arguments], input=typed, env=environment)
    assert CERTIFICATE not in result.output + result.stderr
    assert OTHER_CERTIFICATE not in result.output + result.stderr
    return result.exit_code, result.output


def apps(store: str) -> list[AgoraApp]:
    """The apps as they are stored."""

    async def read() -> list[AgoraApp]:
        opened = open_store(store, exclusive=False)
        try:
            return await opened.directory.list_agora_apps()
        finally:
            await opened.close_store()

    return asyncio.run(read())


def test_the_life_of_an_app(store: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is registered, rotated, retired and removed; each step is audited, and the list says how it stands."""

    def certificates() -> list[tuple[str, str | None]]:
        return [(app.certificate, app.old_certificate) for app in apps(store)]

    given = ("--store", store)
    assert 0 == agora("add", APP_ID, "--project", "shop", *given, typed=f"{CERTIFICATE}\n")[0]
    assert [(CERTIFICATE, None)] == certificates()
    assert [APP_ID, "1", "certificate", "shop", "ingest,read,admin"] == agora("list", *given)[1].split()
    assert 0 == agora("rotate", APP_ID, *given, variable=OTHER_CERTIFICATE)[0]
    assert [(OTHER_CERTIFICATE, CERTIFICATE)] == certificates()
    assert "2 certificates" in agora("list", *given)[1]
    assert 0 == agora("retire", APP_ID, *given)[0]
    assert [(OTHER_CERTIFICATE, None)] == certificates()
    assert 0 == agora("remove", APP_ID, *given)[0]
    assert [] == certificates()
    act = {"by": "command line", "project": "shop", "app": APP_ID}
    assert [
        {"act": "agora_app_added", **act, "scopes": ["ingest", "read", "admin"]},
        {"act": "agora_certificate_rotated", **act},
        {"act": "agora_certificate_retired", **act},
        {"act": "agora_app_removed", **act},
    ] == acts(caplog)


def test_what_an_app_may_do(store: str) -> None:
    """The scopes are those that are given; the certificate may be a flag."""
    code, _ = agora("add", APP_ID, "--store", store, "--scope", "read", "--certificate", CERTIFICATE)
    assert (0, [("read",)]) == (code, [app.scopes for app in apps(store)])


@pytest.mark.parametrize(
    ("app_id", "certificate"), [("shop", CERTIFICATE), (APP_ID, "hush"), (APP_ID, ""), (APP_ID + "0", CERTIFICATE)]
)
def test_what_is_no_app(store: str, app_id: str, certificate: str) -> None:
    """App ID and certificate have Agora's form; nothing else is stored."""
    code, output = agora("add", app_id, "--store", store, typed=f"{certificate}\n")
    assert (1, True) == (code, "32 hexadecimal digits" in output)
    assert [] == apps(store)


def test_apps_that_are_not_there(store: str) -> None:
    """The sentence says so, and a second registration is refused."""
    assert 0 == agora("add", APP_ID, "--store", store, typed=CERTIFICATE)[0]
    for arguments in (("rotate", OTHER_APP), ("retire", OTHER_APP), ("remove", OTHER_APP)):
        code, output = agora(*arguments, "--store", store, typed=CERTIFICATE)
        assert (1, True) == (code, "No app of Agora's is registered" in output)
    code, output = agora("add", APP_ID, "--store", store, "--project", "other", typed=CERTIFICATE)
    assert (1, True) == (code, "already registered" in output)


@pytest.mark.parametrize("arguments", [("list",), ("rotate", APP_ID), ("retire", APP_ID), ("remove", APP_ID)])
def test_the_apps_of_no_store_are_refused(tmp_path: Path, store: str, arguments: tuple[str, ...]) -> None:
    """A mistyped store is named, and not made."""
    code, output = agora(*arguments, "--store", store, typed=CERTIFICATE)
    assert (1, f"voicemem: {no_store(f'{tmp_path}/calls.db')}\n") == (code, output)
    assert [] == list(tmp_path.iterdir())
