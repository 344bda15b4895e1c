"""`hooks`: sets what signs webhooks of other stacks, and shows no secret but one that it makes."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.samples.audit_lines import acts
from voicemem.cli import main
from voicemem.store.directory import InboundSecret
from voicemem.store.engines import open_store

DIALECT = "elevenlabs-agents"
FIRST, SECOND = "wsec_first", "wsec_second"


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/calls.db"


def hooks(*arguments: str, typed: str | None = None) -> Result:
    """What the command does; it never says a secret that it was given."""
    result = CliRunner().invoke(main, ["hooks", *arguments], input=typed)
    assert FIRST not in result.output + result.stderr
    assert SECOND not in result.output + result.stderr
    return result


def kept(store: str, project: str) -> list[InboundSecret]:
    """The secrets as they are stored."""

    async def read() -> list[InboundSecret]:
        opened = open_store(store, exclusive=False)
        try:
            return await opened.directory.list_inbound_secrets(project)
        finally:
            await opened.close_store()

    return asyncio.run(read())


def test_the_life_of_a_secret(store: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is set, rotated and removed in its project; each step is audited."""
    given = ("--store", store, "--project", "shop")

    def secrets() -> list[tuple[str, str | None]]:
        return [(one.secret, one.old_secret) for one in kept(store, "shop")]

    assert 0 == hooks("set", DIALECT, *given, typed=f"{FIRST}\n").exit_code
    assert [(FIRST, None)] == secrets()
    assert 0 == hooks("set", DIALECT, *given, typed=f"{SECOND}\n").exit_code
    assert [(SECOND, FIRST)] == secrets()
    assert "the one before verifies until" in hooks("list", *given).output
    assert "" == hooks("list", "--store", store).output
    assert 0 == hooks("set", DIALECT, *given, "--overlap", "0", typed=FIRST).exit_code
    assert [(FIRST, None)] == secrets()
    assert 0 == hooks("remove", DIALECT, *given).exit_code
    assert [] == secrets()
    by = {"by": "command line", "project": "shop", "dialect": DIALECT}
    assert [{"act": act, **by} for act in (*["hook_secret_set"] * 3, "hook_secret_removed")] == acts(caplog)


def test_a_secret_is_made(store: str) -> None:
    """It alone stands on standard output."""
    result = hooks("set", DIALECT, "--store", store, "--generate")
    assert [result.stdout.strip()] == [one.secret for one in kept(store, "default")]


@pytest.mark.parametrize(
    ("arguments", "typed", "said"),
    [
        (("set", "openai-realtime"), "a-secret", "Dialects with webhooks"),
        (("set", DIALECT), "short", "8 to 256 printable"),
        (("set", DIALECT, "--project", "no project"), "a-secret", "A project must be"),
        (("remove", DIALECT), None, "no secret"),
    ],
)
def test_what_cannot_be_done(store: str, arguments: tuple[str, ...], typed: str | None, said: str) -> None:
    """One sentence says why, and nothing is stored."""
    hooks("set", DIALECT, "--store", store, "--project", "other", typed=FIRST)
    result = hooks(*arguments, "--store", store, typed=typed)
    assert (1, True, []) == (result.exit_code, said in result.output, kept(store, "default"))
