"""Secrets of webhooks of other stacks: kept by project and dialect, changed, removed."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from tests.support.stores.contract import NOW
from voicemem.store.directory import InboundSecret
from voicemem.store.port import Store

Change = Callable[[InboundSecret | None], InboundSecret]
SECRET = InboundSecret("p", "vapi", "first", NOW)


def always(secret: InboundSecret) -> Change:
    """A change to a secret, whatever is there."""
    return lambda known: secret


async def test_secrets_are_kept(store: Store) -> None:
    """Each belongs to one project and one dialect; a project's are listed by dialect."""
    assert ([], None) == (
        await store.directory.list_inbound_secrets("p"),
        await store.directory.find_inbound_secret("p", "vapi"),
    )
    others = replace(SECRET, project="q", secret="other"), replace(SECRET, dialect="retell")
    for one in (SECRET, *others):
        assert one == await store.directory.change_inbound_secret(one.project, one.dialect, always(one))

    assert (SECRET, others[0]) == (
        await store.directory.find_inbound_secret("p", "vapi"),
        await store.directory.find_inbound_secret("q", "vapi"),
    )
    assert None is await store.directory.find_inbound_secret("q", "retell")
    assert [others[1], SECRET] == await store.directory.list_inbound_secrets("p")


async def test_a_change_is_seen_through_every_handle(two_handles: tuple[Store, Store]) -> None:
    """It gets what is there, on whichever node it was set."""
    one, other = two_handles
    await one.directory.change_inbound_secret("p", "vapi", always(SECRET))
    changed = replace(SECRET, secret="second", old_secret="first", old_secret_until_ms=NOW + 5)

    seen: list[InboundSecret | None] = []

    def change(known: InboundSecret | None) -> InboundSecret:
        seen.append(known)
        return changed

    assert changed == await other.directory.change_inbound_secret("p", "vapi", change)
    assert changed == await one.directory.find_inbound_secret("p", "vapi")
    assert {SECRET} == set(seen)


async def test_two_nodes_set_the_first_at_once(two_handles: tuple[Store, Store]) -> None:
    """One of them sets it, and the other changes what that has set."""

    def add(secret: str) -> Change:
        def change(known: InboundSecret | None) -> InboundSecret:
            return replace(SECRET, secret=secret, old_secret=None if known is None else known.secret)

        return change

    await asyncio.gather(
        two_handles[0].directory.change_inbound_secret("p", "vapi", add("a")),
        two_handles[1].directory.change_inbound_secret("p", "vapi", add("b")),
    )
    kept = await two_handles[0].directory.find_inbound_secret("p", "vapi")
    assert kept is not None
    assert {"a", "b"} == {kept.secret, kept.old_secret}


async def test_a_removed_secret_is_gone(store: Store) -> None:
    """Nothing of it is left, and nothing else goes with it."""
    other = replace(SECRET, project="q")
    for one in (SECRET, other):
        await store.directory.change_inbound_secret(one.project, one.dialect, always(one))

    assert await store.directory.remove_inbound_secret("p", "vapi")
    assert not await store.directory.remove_inbound_secret("p", "vapi")
    assert (None, other) == (
        await store.directory.find_inbound_secret("p", "vapi"),
        await store.directory.find_inbound_secret("q", "vapi"),
    )
