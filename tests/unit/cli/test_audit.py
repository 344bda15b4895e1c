"""The audit lines of the command line."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.samples.audit_lines import acts
from voicemem.cli import main


async def test_acts_of_the_command_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Keys, backups and restores by the commands; the line names the files and no key's text."""
    path = f"{tmp_path}/v.db"
    store = ("--store", f"sqlite:{path}")

    async def command(*arguments: str) -> str:
        result = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, *store])
        assert 0 == result.exit_code, result.output
        return result.stdout.split()[-1]

    text = await command("keys", "create", "--project", "shop")
    key_id = text.split("_")[1]
    await command("keys", "revoke", key_id)
    await command("backup", f"{tmp_path}/b")
    await command("restore", f"{tmp_path}/b", "--force")
    by = {"by": "command line"}
    files = {"store": path, "file": f"{tmp_path}/b"}
    assert [
        {"act": "key_created", **by, "project": "shop", "key": key_id, "scopes": ["ingest", "read"]},
        {"act": "key_revoked", **by, "project": "shop", "key": key_id},
        {"act": "backup", **by, **files},
        {"act": "restore", **by, **files},
    ] == acts(caplog)
    assert text not in caplog.text


def test_a_command_shows_its_audit_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On standard error, so that the key alone is on standard output."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger("voicemem.audit"), "handlers", [])
    result = CliRunner().invoke(main, ["keys", "create", "--store", f"sqlite:{tmp_path}/v.db"])
    assert '"act":"key_created"' in result.stderr
    assert result.stdout.startswith("vm_")
    assert result.stdout.strip() not in result.stderr
