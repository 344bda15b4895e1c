"""Which server a store was last seen on, and what is noticed without any failover."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import sys

import pytest

from tests.support.needs import needs_postgresql

needs_postgresql()

from tests.support import postgresql  # noqa: E402
from tests.support.stores.contract import (  # noqa: E402
    NODE_LEASE_MS,
    NOW,
    append_offers,
    begin_node,
    offer,
    open_session,
    reload,
)
from tests.support.stores.engines import OpenHandle  # noqa: E402
from tests.support.stores.postgresql import opened  # noqa: E402
from voicemem.errors import CannotStart, StoreUnavailable  # noqa: E402
from voicemem.store.postgresql.connection import PostgresqlConnection, Server, connect, parse_options  # noqa: E402
from voicemem.store.postgresql.store import PostgresqlStore  # noqa: E402
from voicemem.store.stream_changes import Conflict  # noqa: E402

pytestmark = pytest.mark.postgresql


async def database_of(store: PostgresqlStore) -> str:
    (name,) = await store.database.read(lambda session: session.one("select current_database()"))
    return str(name)


@pytest.mark.parametrize("elsewhere", ["1 00000001", "{system} 0000000F"])
async def test_a_start_on_another_server_is_another_incarnation(open_handle: OpenHandle, elsewhere: str) -> None:
    """A dump that was restored, a standby that was promoted, an older timeline: no one is connected any more."""
    one, other = await opened(open_handle), await opened(open_handle)
    await begin_node(one, "a")
    key = (await open_session(one, node="a")).stream.key
    before, server = one.directory.incarnation, one.database.server
    assert server is not None
    name, said = await database_of(one), elsewhere.format(system=server.system)
    postgresql.server().execute(f"update meta set value = '{said}' where name = 'server'", name)
    await begin_node(other, "b")
    assert before != other.directory.incarnation
    assert ["b"] == [node.token for node in await other.nodes.list_nodes()]
    assert NOW == (await reload(other, key)).silent_since_ms
    again = await opened(open_handle)
    await begin_node(again, "c")
    assert other.directory.incarnation == again.directory.incarnation


async def test_a_restored_copy_of_the_disk_is_noticed(open_handle: OpenHandle) -> None:
    """It is of the same server and timeline, but lacks what this node has seen committed."""
    store = await opened(open_handle)
    await begin_node(store, "a")
    key = (await open_session(store, node="a")).stream.key
    await append_offers(store, key, offer(1))
    await append_offers(store, key, offer(2))
    name, before = await database_of(store), store.directory.incarnation
    postgresql.server().execute("delete from journal where position > 1", name)
    postgresql.server().execute(postgresql.END_CONNECTIONS.format(name))
    with pytest.raises(StoreUnavailable):
        await append_offers(store, key, offer(3))
    assert store.nodes.is_displaced
    assert store.trouble is not None
    await store.nodes.settle(NOW)
    assert before != store.directory.incarnation
    assert not await store.nodes.renew_node("a", NOW + NODE_LEASE_MS)


async def test_connections_that_are_lost_change_nothing(open_handle: OpenHandle) -> None:
    """Where everything is there, a node goes on; also beside a session that was erased meanwhile."""
    store = await opened(open_handle)
    await begin_node(store, "a")
    key = (await open_session(store, node="a")).stream.key
    gone = (await open_session(store, session_id="gone", node="a")).stream.key
    for each in (key, gone):
        await append_offers(store, each, offer(1))
    other = await opened(open_handle)
    await other.retention.erase(gone, NOW)
    before = store.directory.incarnation
    postgresql.server().execute(postgresql.END_CONNECTIONS.format(await database_of(store)))
    await append_offers(store, key, offer(2))
    assert not store.nodes.is_displaced
    assert before == store.directory.incarnation


async def test_an_engine_that_does_not_say_which_server_it_is(open_handle: OpenHandle) -> None:
    """It is believed to be the same one, until `voicemem restored` says otherwise."""
    store = await opened(open_handle)
    name, server = await database_of(store), postgresql.server()
    server.execute("drop role if exists quiet; create role quiet login")
    server.execute("grant all on all tables in schema public to quiet; grant all on schema public to quiet", name)
    server.execute("revoke execute on function pg_control_system() from public", name)
    session = connect(server.url(name).replace("user=voicemem", "user=quiet"))
    assert None is session.server
    session.close()


async def test_voicemem_restored(open_handle: OpenHandle) -> None:
    """The command gives the store a new incarnation, and says how many nodes start again."""
    store = await opened(open_handle)
    await begin_node(store, "a")
    before, url = store.directory.incarnation, postgresql.server().url(await database_of(store))
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "voicemem", "restored", "--store", url, stdout=asyncio.subprocess.PIPE
    )
    shown, _ = await command.communicate()
    assert (0, b": 1") == (command.returncode, shown.strip()[-3:])
    assert not await store.nodes.renew_node("a", NOW + NODE_LEASE_MS)
    await begin_node(store, "b")
    assert before != store.directory.incarnation


def test_options_of_a_url() -> None:
    """Those of the store's own are taken out; a value or an option that means nothing is refused."""
    url = "postgresql://role@host/name"
    assert ({"user": "role", "host": "host", "dbname": "name"}, True, True) == parse_options(
        f"{url}?failover=trusted&pooled=1"
    )
    assert not parse_options(f"{url}?sslmode=require").trusted
    for wrong, said in (
        ("failover=yes", "can only be failover=trusted"),
        ("pooled=0", "can only be pooled=1"),
        ("failovr=trusted", "the option failovr, which"),
        ("application_name=%zz", "write postgresql://ROLE@HOST:PORT/DATABASE"),
    ):
        with pytest.raises(CannotStart) as refused:
            parse_options(f"{url}?{wrong}")
        assert said in refused.value.detail


def test_timelines_are_compared_within_a_system() -> None:
    """A server is after another if it is of a later timeline of the same system."""
    one = Server.parse(b"7 0000000A")
    assert (Server("7", 10), "7 0000000A") == (one, one.text)
    assert Server("7", 11).is_after(one)
    assert not one.is_after(one)
    assert not Server("8", 11).is_after(one)


async def test_a_job_of_before_a_failover_is_not_run_again(open_handle: OpenHandle) -> None:
    """It was made by what was known before, such as a snapshot of a memory that holds what was lost."""
    store, runs = await opened(open_handle), list[int]()

    def job(connection: PostgresqlConnection) -> None:
        runs.append(1)
        store.database.follow(store.database.server, store.database.identity)
        raise Conflict

    with pytest.raises(StoreUnavailable, match="another server has taken over"):
        await store.database.write(job)
    assert [1] == runs
    await begin_node(store, "a")
