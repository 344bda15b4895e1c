"""`voicemem import`: calls of the past, as the webhooks of vendors would have brought them."""

from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import click

from voicemem.cli import past_calls
from voicemem.cli.common import CommandFailed, Server, ask_again, counting, number_of, progress, rest_options, run
from voicemem.client.errors import RequestRefused, is_transient
from voicemem.client.transport.rest import RestClient, session_path
from voicemem.dialects.dialect import MalformedFrame, session_id_of
from voicemem.protocol.memories import time_ms
from voicemem.transcript.fold import CLOSED

MAY_REOPEN = (CLOSED, "idle")
"""Reasons of ends after which a call may still be completed."""


class Backfill:
    """Imports calls into a service, and counts the results. A call that is sent twice is stored once."""

    def __init__(self, vendor: past_calls.Vendor, service: RestClient, on_step: Callable[[int], None]) -> None:
        self.dialect = vendor.dialect
        self.service = service
        self.on_step = on_step
        """Called with the number of calls processed since the last time."""
        self.may_read = True
        self.imported: set[str] = set()
        self.known: set[str] = set()
        self.without = 0
        """Calls that are not over, or have no words, and webhooks that say nothing of one."""
        self.refused: list[tuple[str, str]] = []

    async def take(self, call: past_calls.PastCall) -> None:
        """Import one call, unless the memory has it. Raises an error that every call would get."""
        try:
            if call.id is not None and await self.is_known(session_id_of(call.id)):
                self.known.add(session_id_of(call.id))
            else:
                await self.send(await call.read())
        except past_calls.Unreadable as unreadable:
            self.refused.append((call.name, str(unreadable)))
        except RequestRefused as refused:
            if refused.status in (401, 403) or is_transient(refused.code, refused.status):
                raise
            is_other = refused.code == "malformed_frame"
            what = f"It is not a call of {self.dialect.name}: " if is_other else ""
            self.refused.append((call.name, f"{what}{refused.detail} ({refused.code})"))
        self.on_step(1)

    async def is_known(self, session_id: str) -> bool:
        """Return whether the memory has a call, so that it need not be read; False if the key may not read."""
        if not self.may_read:
            return False
        try:
            session = await ask_again(self.service, "GET", session_path(session_id), None)
        except RequestRefused as refused:
            self.may_read = refused.status != 403
            if refused.status == 401:
                raise
            return refused.code == "session_erased"
        return session["state"] == "ended" and session["reason"] not in MAY_REOPEN

    async def send(self, saved: Any) -> None:
        if not isinstance(saved, dict):
            raise past_calls.Unreadable("A call or a webhook is a JSON object.")
        assert self.dialect.hook is not None
        try:
            webhook = self.dialect.hook.webhook_of(saved)
        except MalformedFrame as malformed:
            raise past_calls.Unreadable(str(malformed)) from None
        if webhook is None:
            self.without += 1
            return
        taken = await ask_again(self.service, "POST", f"/v1/hooks/{self.dialect.name}/import", None, webhook)
        session_id = taken["session_id"]
        if session_id is None:
            self.without += 1
        elif taken["stored"]:
            self.imported.add(session_id)
        else:
            self.known.add(session_id)

    def summary(self) -> str:
        counts = {
            "imported": len(self.imported),
            "known already": len(self.known - self.imported),
            "skipped (not over, or without words)": self.without,
            "refused": len(self.refused),
        }
        return ", ".join(f"{count:,} {what}" for what, count in counts.items())


def check_since(_: click.Context, __: click.Parameter, since: str | None) -> int | None:
    try:
        return None if since is None else time_ms(since)
    except ValueError:
        raise click.BadParameter(
            "write a day such as 2026-05-03, or an instant such as 2026-05-03T14:30:00Z."
        ) from None


@click.command("import", short_help="Import calls of the past from a vendor.")
@click.argument("vendor", type=click.Choice(sorted(past_calls.VENDORS)))
@click.argument("folder", required=False, type=click.Path(exists=True, path_type=Path))
@rest_options
@click.option("--since", callback=check_since, help="Ask the vendor's API for the calls from this day (UTC) on.")
@click.option("--base-url", help="Another address of the vendor's API, such as that of its region.")
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the vendor's key; by default RETELL_API_KEY, VAPI_API_KEY or ELEVENLABS_API_KEY has it.",
)
def import_calls(
    vendor: str, folder: Path | None, server: Server, since: int | None, base_url: str | None, key_file: Path | None
) -> None:
    """Import calls that are over: those saved in FOLDER, or with --since those that the VENDOR's API has.

    FOLDER has saved bodies of webhooks, or what the vendor's API answers about a call: files .json, .jsonl or .ndjson,
    one call or webhook each, a list of them, or one a line. FOLDER may be one file.

    Calls get the sessions that the vendor's webhooks would give them, and their own times; nothing is stored twice,
    whether a webhook came before or comes later. So an import that was stopped is simply started again. Each call that
    is new is announced to your webhooks. The key needs the scope ingest; with read too, calls that the memory has are
    not fetched again.

    \b
    Examples:
      voicemem import retell saved-webhooks/
      voicemem import elevenlabs --since 2026-05-01 --base-url https://api.eu.residency.elevenlabs.io
      VAPI_API_KEY=$(pass vapi) voicemem import vapi --since 2026-05-03T14:30:00Z
    """
    if (folder is None) == (since is None):
        raise click.UsageError("Name a FOLDER of saved calls, or a day with --since.")
    if folder is not None and (base_url is not None or key_file is not None):
        raise click.UsageError("--base-url and --key-file are for --since: a folder is read as it is.")
    chosen = past_calls.VENDORS[vendor]
    if folder is not None:
        run(import_files(chosen, server, folder))
    elif since is not None:
        address = base_url or chosen.url
        past_calls.check_base_url(address)
        run(import_since(chosen, server, address, past_calls.read_key(chosen, key_file), since))


@contextmanager
def reported(backfill: Backfill) -> Iterator[None]:
    """Print a summary at the end. Raises `CommandFailed` if any call is refused."""
    try:
        yield
    finally:
        click.echo(backfill.summary())
        for name, why in backfill.refused:
            click.secho(f"{name}: {why}", fg="yellow", err=True)
    if backfill.refused:
        raise CommandFailed(f"{len(backfill.refused):,} could not be imported.")


async def import_files(vendor: past_calls.Vendor, server: Server, folder: Path) -> None:
    """Import the calls of files. Raises `CommandFailed` if any is refused."""
    files = past_calls.find_files(folder)
    async with server.client() as service:
        backfill = Backfill(vendor, service, lambda steps: None)
        with reported(backfill), progress(len(files), f"importing {number_of(len(files), 'file')}") as bar:
            for file, name in files:
                for call in past_calls.calls_in(file, name):
                    await backfill.take(call)
                bar.update(1)


async def import_since(
    vendor: past_calls.Vendor,
    server: Server,
    url: str,
    key: str,
    since_ms: int,
    pause_s: float = past_calls.FIRST_PAUSE_S,
) -> None:
    """Import the calls that the vendor's API has. Raises `CommandFailed` if any is refused."""
    async with server.client() as service, past_calls.vendor_api(vendor, url, key, pause_s) as api:
        backfill = Backfill(vendor, service, lambda steps: None)
        with reported(backfill), counting("importing calls") as backfill.on_step:
            async with aclosing(api.calls(since_ms)) as pages:
                async for page in pages:
                    for call in page:
                        await backfill.take(call)
