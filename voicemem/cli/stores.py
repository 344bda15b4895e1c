"""Commands that open the store of a server: `keys`, `hooks`, and for PostgreSQL `nodes`, `restored` and `migrate`."""

import os
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import urlencode

import click

from voicemem.cli import common
from voicemem.cli.service_settings import store_option
from voicemem.config.service import POSTGRESQL_PREFIXES
from voicemem.protocol.arguments import converted
from voicemem.protocol.types import MAX_INTEGER
from voicemem.runtime import now_ms
from voicemem.security import hook_secrets
from voicemem.security.access import ASK_AGAIN_MS, DEFAULT_PROJECT, SCOPES, Access, check_project
from voicemem.security.audit import COMMAND_LINE, Act, audit
from voicemem.security.caller_ids import parse_facts
from voicemem.store.directory import ApiKey, KeyLimits
from voicemem.store.engines import migrate_store, open_store
from voicemem.store.port import Store
from voicemem.store.records import Node
from voicemem.store.upkeep import no_store

T = TypeVar("T")


LIMITS = {
    "--events-per-second": "Events per second.",
    "--bytes-per-second": "Bytes of events per second.",
    "--open-sessions": "Sessions begun with the key that may run at a time.",
    "--sessions-per-day": "Sessions that may be begun with the key in a day (UTC).",
}


def limit_options(default: int | None) -> Callable[[common.Command], common.Command]:
    """Return the options for the limits of a key; without one, the service's limit applies."""
    kind = click.IntRange(0, MAX_INTEGER)
    return common.options(*(click.option(flag, type=kind, default=default, help=text) for flag, text in LIMITS.items()))


def project_option(text: str) -> Callable[[common.Command], common.Command]:
    return click.option("--project", default=DEFAULT_PROJECT, show_default=True, help=text)


def scope_option(default: tuple[str, ...], text: str) -> Callable[[common.Command], common.Command]:
    kind = click.Choice(SCOPES)
    return click.option("--scope", "scopes", multiple=True, type=kind, default=default, show_default=True, help=text)


def checked_store(store: str, make: bool = False) -> str:
    """Return the store of a --store. Unless with `make`, a file must exist, so that a mistyped one is not created."""
    if not store.startswith(POSTGRESQL_PREFIXES):
        path = common.sqlite_path(
            store, "A store in memory belongs to its server; set VOICEMEM_ADMIN_KEY there instead."
        )
        if not os.path.exists(path):
            if not make:
                raise common.CommandFailed(no_store(path))
            click.echo(f"{path} does not exist yet; it is created, as a new store.", err=True)
    return store


def in_store(store: str, work: Callable[[Store], Awaitable[T]], make: bool = False) -> T:
    """Run `work` on the store of a --store, on which a server may be running."""
    url = checked_store(store, make)

    async def work_there() -> T:
        common.audit_to_terminal()
        opened = open_store(url, exclusive=False, make=make)
        try:
            return await work(opened)
        finally:
            await opened.close_store()

    return common.run(work_there())


def wait_for_services() -> None:
    """Wait until a service on the same store requires keys, if this is the first: it looks for one this often."""
    time.sleep(ASK_AGAIN_MS / 1000)


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
@project_option("Its project; keys see only sessions of their own.")
@click.option("--name", default="", help="What the key is for, as `keys list` shows it.")
@scope_option(("ingest", "read"), "What the key may do; may be repeated. admin includes the others.")
@limit_options(0)
def create_key(store: str, project: str, name: str, scopes: tuple[str, ...], **limits: int) -> None:
    """Create a key and show it, this one time: the store keeps only a hash.

    A store that does not exist is created, so that a service can start with keys. The limits of a key hold
    besides those of the service and of its project, and 0 is no limit.

    \b
    Example:
      voicemem keys create --store sqlite:calls.db --scope read --name dashboard
    """
    key, text = in_store(
        store, lambda opened: Access(opened.directory).create_key(project, name, scopes, KeyLimits(**limits)), make=True
    )
    wait_for_services()
    audit("key_created", COMMAND_LINE, project, key=key.id, scopes=key.scopes)
    click.echo(f"key {key.id} of project {key.project}, scopes {', '.join(key.scopes)}; shown only now:", err=True)
    click.echo(text)


@keys.command("list", short_help="List keys.")
@store_option
@click.option("--project", help="Only keys of this project.")
def list_keys(store: str, project: str | None) -> None:
    """List keys: id, state, project, scopes, when it was made, name and limits, but never the keys themselves.

    \b
    Example:
      voicemem keys list --store sqlite:calls.db
    """
    for key in in_store(store, lambda opened: opened.directory.list_keys()):
        if project not in (None, key.project):
            continue
        state = "revoked" if key.revoked_ms is not None else "active"
        limits = "".join(f"  {name}={limit}" for name, limit in key.limits._asdict().items() if limit)
        made = f"{','.join(key.scopes)}  made {shown_time(key.created_ms)}"
        click.echo(f"{key.id}  {state:8}{key.project}  {made}  {key.name}".rstrip() + limits)


@keys.command("limits", short_help="Change the limits of a key.")
@store_option
@click.argument("key_id")
@limit_options(None)
def change_limits(store: str, key_id: str, **limits: int | None) -> None:
    """Change the limits of the key with the id KEY_ID; those that are not given stay, and 0 is no limit.

    They hold for what comes from then on; connections that are open keep their rates until they end.

    \b
    Example:
      voicemem keys limits --store sqlite:calls.db 3f9a0c1d2e4b --events-per-second 50
    """
    changes = common.filled(limits)

    async def change(opened: Store) -> bool:
        key = await opened.directory.find_key(key_id)
        return key is not None and await opened.directory.set_key_limits(key_id, key.limits._replace(**changes))

    audit_change(store, key_id, change, "key_limits_changed", limits=changes)
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
    audit_change(store, key_id, lambda opened: opened.directory.revoke_key(key_id, now_ms()), "key_revoked")
    click.echo(f"key {key_id} is revoked")


def audit_change(store: str, key_id: str, change: Callable[[Store], Awaitable[bool]], act: Act, **fields: Any) -> None:
    """Change a key; `change` returns False for one that is not active. Raises `CommandFailed`."""

    async def work(opened: Store) -> ApiKey | None:
        key = await opened.directory.find_key(key_id)
        return key if key is not None and await change(opened) else None

    key = in_store(store, work)
    if key is None:
        raise common.CommandFailed(f"There is no active key with the id {key_id}.")
    audit(act, COMMAND_LINE, key.project, key=key_id, **fields)


of_project = project_option("The project whose webhooks it signs.")


@click.group(short_help="Manage signing secrets of inbound webhooks.")
def hooks() -> None:
    """Manage the signing secrets of inbound webhooks, those of other stacks, even while the server runs.

    Every node uses what is set from then on. A secret counts for one project and one dialect. Those of the setting
    hook-secret of `serve` verify beside it.

    \b
    Examples:
      voicemem hooks set --store sqlite:calls.db elevenlabs-agents
      voicemem hooks list --store sqlite:calls.db
    """


def secrets_in(store: Store) -> hook_secrets.HookSecrets:
    return hook_secrets.HookSecrets(store.directory, {}, now_ms)


@hooks.command("set", short_help="Set a secret, or rotate it.")
@store_option
@of_project
@click.option("--generate", is_flag=True, help="Make a secret and print it, for platforms that let you choose it.")
@click.option(
    "--overlap",
    type=click.IntRange(0, hook_secrets.MAX_OVERLAP_S),
    default=hook_secrets.OVERLAP_S,
    show_default=True,
    help="For how many seconds the secret before it verifies too.",
)
@click.option(
    "--identify",
    type=click.Choice(["user", "number", "user,number", "off"]),
    help="What may say who calls: the vendor's user id, the number as a keyed hash, or both in that order.",
)
@click.argument("dialect")
def set_secret(store: str, project: str, generate: bool, overlap: int, identify: str | None, dialect: str) -> None:
    """Set the secret that signs the webhooks of DIALECT. It is asked for, or read from standard input.

    The secret before it verifies too until the overlap is over.

    \b
    Examples:
      voicemem hooks set --store sqlite:calls.db --project shop elevenlabs-agents
      voicemem hooks set --store sqlite:calls.db --generate --overlap 0 elevenlabs-agents
    """
    check_project(project)
    hook_secrets.check_hooked(dialect)  # before its secret is asked for
    secret = hook_secrets.new_hook_secret() if generate else common.read_secret("Secret")
    hook_secrets.check_hook_secret(secret, dialect)
    facts = None if identify is None else parse_facts(identify)
    in_store(store, lambda opened: secrets_in(opened).set(project, dialect, secret, overlap, facts), make=True)
    audit("hook_secret_set", COMMAND_LINE, project, dialect=dialect)
    click.echo(f"webhooks of {dialect} in the project {project} are signed with the new secret", err=generate)
    if generate:
        click.echo(secret)


@hooks.command("list", short_help="List the dialects of a project that have a secret.")
@store_option
@of_project
def list_secrets(store: str, project: str) -> None:
    """List the dialects that have a secret in a project, and until when the one before verifies; never the secrets.

    Secrets in the settings of `serve` are not listed.

    \b
    Example:
      voicemem hooks list --store sqlite:calls.db --project shop
    """
    for one in in_store(store, lambda opened: secrets_in(opened).list(project)):
        until = one.old_secret_until
        old = "" if until is None else f"  the one before verifies until {shown_time(until)}"
        facts = "" if one.identify is None else f"  identify {','.join(one.identify) or 'off'}"
        click.echo(f"{one.dialect}  set {shown_time(one.set_at or 0)}{old}{facts}")


@hooks.command("remove", short_help="Remove a secret.")
@store_option
@of_project
@click.argument("dialect")
def remove_secret(store: str, project: str, dialect: str) -> None:
    """Remove the secret that signs the webhooks of DIALECT in a project, and the one before it.

    Without another one, in the settings of `serve`, these webhooks need a key from then on.

    \b
    Example:
      voicemem hooks remove --store sqlite:calls.db elevenlabs-agents
    """
    in_store(store, lambda opened: secrets_in(opened).remove(project, dialect))
    audit("hook_secret_removed", COMMAND_LINE, project, dialect=dialect)
    click.echo(f"webhooks of {dialect} in the project {project} have no secret in the store any more")


@hooks.command("url", short_help="Print the URL for the webhooks of a dialect.")
@store_option
@of_project
@click.option(
    "--base",
    default="https://HOST",
    show_default=True,
    callback=common.check_rest_url,
    help="Where the platform reaches the REST port.",
)
@click.option("--session-id", help="The session of these webhooks, for a URL that is used for one call.")
@click.option("--user-id", help="The user of the sessions that these webhooks begin.")
@click.argument("dialect")
def print_url(store: str, project: str, base: str, session_id: str | None, user_id: str | None, dialect: str) -> None:
    """Print the URL that a platform is given for its webhooks of DIALECT.

    A session and a user are in it signed, since the signature of a webhook does not cover its URL.

    \b
    Examples:
      voicemem hooks url --store sqlite:calls.db --base https://calls.example.com vapi
      voicemem hooks url --store sqlite:calls.db --session-id call-1 --user-id ann vapi
    """
    hook_secrets.check_hooked(dialect)
    check_project(project)
    ids = {name: one for name, one in (("session_id", session_id), ("user_id", user_id)) if one is not None}
    target = converted({"project": project, "dialect": dialect} | ids, hook_secrets.HookTarget)

    async def sign(opened: Store) -> str:
        return hook_secrets.sign_target(target, opened.directory.cursor_secret)

    query = ({} if project == DEFAULT_PROJECT else {"project": project}) | ({"t": in_store(store, sign)} if ids else {})
    click.echo(f"{base.rstrip('/')}/v1/hooks/{dialect}{'?' if query else ''}{urlencode(query)}")


def shown_time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


@click.command(short_help="List the nodes that serve a store.")
@store_option
def nodes(store: str) -> None:
    """List the nodes that serve a store: token, state, where it listens, version, and since when it runs (UTC).

    A node whose lease is over is lost: within a second, another node frees what it held, and forgets it.

    \b
    Example:
      voicemem nodes --store postgresql://voicemem@db.example/voicemem
    """
    check_postgresql(store, "A file has one node, the server that has it open; only a PostgreSQL store has several.")

    async def work(opened: Store) -> tuple[int, list[Node]]:
        return await clock_of(opened), await opened.nodes.list_nodes()

    time_ms, known = in_store(store, work)
    for node in known:
        state = "alive" if node.expires_ms > time_ms else "lost"
        since = datetime.fromtimestamp(node.started_ms / 1000, UTC).isoformat(timespec="seconds")
        click.echo(f"{node.token}  {state:5}  {node.address}  {node.version}  {since}")
    if not known:
        click.echo("no node serves this store")


@click.command(short_help="Record that a PostgreSQL database was restored.")
@store_option
def restored(store: str) -> None:
    """Record that a PostgreSQL database was restored from a backup, or may have lost events in a failover.

    Nodes notice most of that by themselves. The store gets a new incarnation: all nodes let their producers connect
    again, who send what is missing, or leave a visible gap. Nothing is lost by doing it once too often.

    \b
    Example:
      voicemem restored --store postgresql://voicemem@db.example/voicemem
    """
    check_postgresql(store, "voicemem restore records this for a file; the command is for a PostgreSQL database.")

    async def work(opened: Store) -> int:
        nodes = await opened.nodes.list_nodes()
        await opened.nodes.renew_incarnation(await clock_of(opened))
        return len(nodes)

    count = in_store(store, work)
    click.echo(f"the store has a new incarnation; nodes that reconnect their producers: {count}")


@click.command(short_help="Bring a PostgreSQL database to this version's schema.")
@store_option
def migrate(store: str) -> None:
    """Make the schema in a PostgreSQL database, or bring that of an older version to this one; it says what it did.

    Nodes make it in an empty database by themselves; they refuse an older one, on which nodes of the older version may
    still run. A file of SQLite needs none of this: the server that opens it brings it to its version.

    \b
    Example:
      voicemem migrate --store postgresql://voicemem@db.example/voicemem
    """
    check_postgresql(store, "Only a PostgreSQL store is migrated by a command; a file is by the server that opens it.")
    before, now = migrate_store(store)
    if not before:
        click.echo(f"the database was empty: its schema is made, of version {now}")
    elif before == now:
        click.echo(f"the schema has version {now} already; nothing was changed")
    else:
        click.echo(f"the schema is brought from version {before} to version {now}")


def check_postgresql(store: str, otherwise: str) -> None:
    if not store.startswith(POSTGRESQL_PREFIXES):
        raise common.CommandFailed(otherwise)


async def clock_of(opened: Store) -> int:
    """Return the time, Unix ms, by the clock that leases use."""
    store_ms = await opened.read_clock()
    return now_ms() if store_ms is None else store_ms
