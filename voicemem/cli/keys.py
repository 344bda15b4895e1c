"""`voicemem keys create`, `list`, `limits` and `revoke`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from voicemem.cli.common import CommandFailed, audit_to_terminal, run, sqlite_path
from voicemem.cli.service_settings import store_option
from voicemem.config.service import POSTGRESQL_PREFIXES, SQLITE_PREFIX
from voicemem.protocol.types import MAX_INTEGER
from voicemem.runtime import now_ms
from voicemem.security.access import ASK_AGAIN_MS, DEFAULT_PROJECT, SCOPES, Access
from voicemem.security.audit import COMMAND_LINE, audit
from voicemem.store.directory import ApiKey, KeyLimits
from voicemem.store.engines import open_store
from voicemem.store.port import Store
from voicemem.store.upkeep import no_store

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def limit_option(name: str, text: str, default: int | None = 0) -> Callable[[F], F]:
    """A limit of a key; without a limit of its own it has those of the service."""
    return click.option(name, type=click.IntRange(0, MAX_INTEGER), default=default, help=text)


@click.group(short_help="Create, list and revoke API keys; register apps of Agora's.")
def keys() -> None:
    """Create, list and revoke API keys, and register apps of Agora's, even while the server runs.

    Once there is a key, the service answers only requests with one.

    \b
    Examples:
      voicemem keys create --store sqlite:calls.db --scope ingest --name engine
      voicemem keys list --store sqlite:calls.db
    """


@keys.command("create", short_help="Create a key and show it, this one time.")
@store_option
@click.option(
    "--project", default=DEFAULT_PROJECT, show_default=True, help="Its project; keys see only sessions of their own."
)
@click.option("--name", default="", help="What the key is for, as `keys list` shows it.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(SCOPES),
    default=("ingest", "read"),
    show_default=True,
    help="What the key may do; may be repeated. admin includes the others.",
)
@limit_option("--events-per-second", "Events per second.")
@limit_option("--bytes-per-second", "Bytes of events per second.")
@limit_option("--open-sessions", "Sessions begun with the key that may run at a time.")
@limit_option("--sessions-per-day", "Sessions that may be begun with the key in a day (UTC).")
def create_key(store: str, project: str, name: str, scopes: tuple[str, ...], **limits: int) -> None:
    """Create a key and show it, this one time: the store keeps only a hash.

    A store that does not exist is created, so that a service can start with keys. The limits of a key hold
    besides those of the service and of its project, and 0 is no limit.

    \b
    Example:
      voicemem keys create --store sqlite:calls.db --scope read --name dashboard
    """
    path = new_or_existing(store)

    async def work(opened: Store) -> str:
        key, text = await Access(opened.directory).create_key(project, name, scopes, KeyLimits(**limits))
        await wait_for_services()
        audit("key_created", COMMAND_LINE, project, key=key.id, scopes=key.scopes)
        click.echo(f"key {key.id} of project {key.project}, scopes {', '.join(key.scopes)}; shown only now:", err=True)
        return text

    click.echo(run(with_store(path, work, make=True)))


@keys.command("list", short_help="List the keys of all projects.")
@store_option
def list_keys(store: str) -> None:
    """List the keys of all projects: id, state, project, scopes, name and limits, but never the keys themselves.

    \b
    Example:
      voicemem keys list --store sqlite:calls.db
    """

    async def work(opened: Store) -> list[ApiKey]:
        return await opened.directory.list_keys()

    for key in run(with_store(existing(store), work)):
        state = "revoked" if key.revoked_ms is not None else "active"
        limits = "".join(f"  {name}={limit}" for name, limit in key.limits._asdict().items() if limit)
        click.echo(f"{key.id}  {state:8}{key.project}  {','.join(key.scopes)}  {key.name}".rstrip() + limits)


@keys.command("limits", short_help="Change the limits of a key.")
@store_option
@click.argument("key_id")
@limit_option("--events-per-second", "Events per second.", default=None)
@limit_option("--bytes-per-second", "Bytes of events per second.", default=None)
@limit_option("--open-sessions", "Sessions begun with the key that may run at a time.", default=None)
@limit_option("--sessions-per-day", "Sessions that may be begun with the key in a day (UTC).", default=None)
def change_limits(store: str, key_id: str, **limits: int | None) -> None:
    """Change the limits of the key with the id KEY_ID; those that are not given stay, and 0 is no limit.

    They hold for what comes from then on; connections that are open keep their rates until they end.

    \b
    Example:
      voicemem keys limits --store sqlite:calls.db 3f9a0c1d2e4b --events-per-second 50
    """
    given: dict[str, Any] = {name: limit for name, limit in limits.items() if limit is not None}

    async def work(opened: Store) -> bool:
        key = await opened.directory.find_key(key_id)
        if key is None or not await opened.directory.set_key_limits(key_id, key.limits._replace(**given)):
            return False
        audit("key_limits_changed", COMMAND_LINE, key.project, key=key_id, limits=given)
        return True

    if not run(with_store(existing(store), work)):
        raise CommandFailed(f"There is no active key with the id {key_id}.")
    click.echo(f"the limits of key {key_id} are changed")


@keys.command("revoke", short_help="Revoke a key.")
@store_option
@click.argument("key_id")
def revoke_key(store: str, key_id: str) -> None:
    """Revoke the key with the id KEY_ID, the middle part of vm_ID_…

    It is refused from then on, and so are its session tokens. Connections that use it are closed within a second.

    \b
    Example:
      voicemem keys revoke --store sqlite:calls.db 3f9a0c1d2e4b
    """

    async def work(opened: Store) -> bool:
        key = await opened.directory.find_key(key_id)
        revoked = key is not None and await opened.directory.revoke_key(key_id, now_ms())
        if key is not None and revoked:
            audit("key_revoked", COMMAND_LINE, key.project, key=key_id)
        return revoked

    if not run(with_store(existing(store), work)):
        raise CommandFailed(f"There is no active key with the id {key_id}.")
    click.echo(f"key {key_id} is revoked")


def keys_store_path(store: str) -> str:
    return sqlite_path(store, "A store in memory belongs to its server; set VOICEMEM_ADMIN_KEY there instead.")


def new_or_existing(store: str) -> str:
    """The store of a --store; a file is announced if it does not exist yet."""
    if store.startswith(POSTGRESQL_PREFIXES):
        return store
    path = keys_store_path(store)
    if not os.path.exists(path):
        click.echo(f"{path} does not exist yet; it is created, as a new store.", err=True)
    return f"{SQLITE_PREFIX}{path}"


async def wait_for_services() -> None:
    """Wait until a service on the same store requires keys, if this is the first: it looks for one this often."""
    await asyncio.sleep(ASK_AGAIN_MS / 1000)


def existing(store: str) -> str:
    """The store of a --store, which must exist if it is a file: opening a mistyped one would create it."""
    if store.startswith(POSTGRESQL_PREFIXES):
        return store
    path = keys_store_path(store)
    if not os.path.exists(path):
        raise CommandFailed(no_store(path))
    return f"{SQLITE_PREFIX}{path}"


async def with_store(url: str, work: Callable[[Store], Awaitable[T]], make: bool = False) -> T:
    """Work with a store on which a server may be running; without `make` it must exist."""
    audit_to_terminal()
    store = open_store(url, exclusive=False, make=make)
    try:
        return await work(store)
    finally:
        await store.close_store()
