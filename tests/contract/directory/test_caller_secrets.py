"""Secrets of callers' ids: made on first use, replaced, and kept for reading."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio

from tests.support.stores.contract import NOW
from voicemem.config.session import SessionPatch
from voicemem.security.caller_ids import Callers, caller_id
from voicemem.store.port import Store

NUMBER = "+15551234567"


def now() -> int:
    return NOW


async def test_the_first_use_makes_a_secret(store: Store) -> None:
    """One for each project; what is no number makes none."""
    callers = Callers(store, now)
    assert [] == await callers.ids("p", "anonymous")
    assert [] == await store.directory.list_caller_secrets("p")
    [id] = await callers.ids("p", NUMBER)
    [secret] = await store.directory.list_caller_secrets("p")
    assert caller_id(NUMBER, secret) == id
    assert [id] == await callers.ids("p", "001 (555) 123-4567")
    assert [id] != await callers.ids("q", NUMBER)


async def test_two_nodes_make_the_first_at_once(two_handles: tuple[Store, Store]) -> None:
    """Both use the one that was made."""
    ids = await asyncio.gather(*(Callers(one, now).ids("p", NUMBER) for one in two_handles for _ in range(4)))
    assert 1 == len({*map(tuple, ids)})
    assert 1 == len(await two_handles[0].directory.list_caller_secrets("p"))


async def test_two_nodes_replace_it_at_once(two_handles: tuple[Store, Store]) -> None:
    """Each of the secrets is kept, the newest first."""
    one, other = two_handles
    await Callers(one, now).ids("p", NUMBER)
    [first] = await one.directory.list_caller_secrets("p")
    await asyncio.gather(*(Callers(handle, now).add_secret("p") for handle in two_handles))
    assert 3 == len({*await other.directory.list_caller_secrets("p")})
    assert first == (await other.directory.list_caller_secrets("p"))[-1]


async def test_a_known_caller_keeps_the_id(store: Store) -> None:
    """After a rotation only those who are new get an id of the new secret."""
    callers = Callers(store, now)
    known, of_user = await callers.find("p", NUMBER), await callers.find("p", "+442079460958")
    assert known is not None
    assert of_user is not None
    await store.journal.create_session("p", "call-1", SessionPatch({"user_id": known}, {}), NOW)
    await store.journal.ensure_user("p", of_user, NOW)
    await callers.add_secret("p")
    assert (known, of_user) == (await callers.find("p", NUMBER), await callers.find("p", "+442079460958"))
    newest, old = await callers.ids("p", NUMBER)
    assert (known, known) == (old, await callers.find("p", NUMBER))
    stranger = "+33612345678"
    assert (await callers.ids("p", stranger))[0] == await callers.find("p", stranger)
    assert newest == (await callers.ids("p", NUMBER))[0]
