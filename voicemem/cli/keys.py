"""`voicemem keys create`, `list` and `revoke`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from voicemem.cli.common import CommandFailed, audit_to_terminal, run, setting, sqlite_path
from voicemem.config.service import SQLITE_PREFIX, Settings
from voicemem.runtime import now_ms
from voicemem.security.access import ASK_AGAIN_MS, DEFAULT_PROJECT, SCOPES, Access
from voicemem.security.audit import COMMAND_LINE, audit
from voicemem.store.engines import open_store
from voicemem.store.port import Store
from voicemem.store.records import Key

T = TypeVar("T")


@click.group()
def keys() -> None:
    """Make, list and revoke API keys; may be used while the server runs.

    With the first key the service stops answering to callers without one.
    """


STORE = setting("--store", "The server's store, sqlite:PATH.", default=Settings().store, show_default=True)


@keys.command("create")
@STORE
@click.option("--project", default=DEFAULT_PROJECT, show_default=True, help="Projects do not see each other.")
@click.option("--name", default="", help="What it is for, to find it again.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(SCOPES),
    default=("ingest", "read"),
    show_default=True,
    help="May be repeated; admin includes the others.",
)
def create_key(store: str, project: str, name: str, scopes: tuple[str, ...]) -> None:
    """Make a key. It is shown this once, and kept only as a hash.

    A store that does not exist is made, for a service that is to start with keys.
    """
    path = store_path(store)
    if not os.path.exists(path):
        click.echo(f"{path} does not exist yet; it is made, as a new store.", err=True)

    async def work(opened: Store) -> str:
        key, text = await Access(opened).create_key(project, name, scopes)
        await asyncio.sleep(ASK_AGAIN_MS / 1000)  # a service beside this knows of a first key when it is shown
        audit("key_created", COMMAND_LINE, project, key=key.id, scopes=key.scopes)
        click.echo(f"key {key.id} of project {key.project}, scopes {', '.join(key.scopes)}; shown only now:", err=True)
        return text

    click.echo(run(with_store(path, work)))


@keys.command("list")
@STORE
def list_keys(store: str) -> None:
    """List keys: id, project, scopes, name; never the keys themselves."""

    async def work(opened: Store) -> list[Key]:
        return await opened.keys()

    for key in run(with_store(existing_path(store), work)):
        state = "revoked" if key.revoked_ms is not None else "active"
        click.echo(f"{key.id}  {state:8}{key.project}  {','.join(key.scopes)}  {key.name}".rstrip())


@keys.command("revoke")
@STORE
@click.argument("key_id")
def revoke_key(store: str, key_id: str) -> None:
    """Revoke a key by its id (the middle part of vm_ID_…).

    It opens nothing more from then on, nor do its session tokens; connections that are open with it are closed within
    a second.
    """

    async def work(opened: Store) -> bool:
        key = await opened.key(key_id)
        revoked = key is not None and await opened.revoke_key(key_id, now_ms())
        if key is not None and revoked:
            audit("key_revoked", COMMAND_LINE, key.project, key=key_id)
        return revoked

    if not run(with_store(existing_path(store), work)):
        raise CommandFailed(f"There is no active key with the id {key_id}.")
    click.echo(f"key {key_id} is revoked")


def store_path(store: str) -> str:
    return sqlite_path(store, "A store in memory belongs to its server; set VOICEMEM_ADMIN_KEY there instead.")


def existing_path(store: str) -> str:
    """The path of a store that is there: a mistyped one must not be made by asking for its keys."""
    path = store_path(store)
    if not os.path.exists(path):
        raise CommandFailed(f"There is no store {path}.")
    return path


async def with_store(path: str, work: Callable[[Store], Awaitable[T]]) -> T:
    """Do something with the store of a server that may be running."""
    audit_to_terminal()
    store = open_store(f"{SQLITE_PREFIX}{path}", exclusive=False)
    try:
        return await work(store)
    finally:
        await store.close_store()
