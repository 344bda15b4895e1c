"""Apps of Agora's: kept with their certificates, changed, removed."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from msgspec.structs import replace

from tests.support.stores.contract import NOW
from voicemem.store.directory import AgoraApp
from voicemem.store.port import Store

APP = AgoraApp("a1", "p", "first", ("ingest", "read"), NOW)


async def test_apps_are_kept(store: Store) -> None:
    """Apps are found by their id and listed by age; the first one counts as a key."""
    assert ([], None, False) == (
        await store.directory.list_agora_apps(),
        await store.directory.find_agora_app("a1"),
        await store.directory.has_keys(),
    )
    assert await store.directory.add_agora_app(APP)
    assert await store.directory.add_agora_app(replace(APP, app_id="a0", created_ms=NOW + 1, scopes=()))

    assert (APP, None) == (await store.directory.find_agora_app("a1"), await store.directory.find_agora_app("A1"))
    assert [("a1", ("ingest", "read")), ("a0", ())] == [
        (app.app_id, app.scopes) for app in await store.directory.list_agora_apps()
    ]
    assert (True, []) == (await store.directory.has_keys(), await store.directory.list_keys())


async def test_an_id_belongs_to_one_project(store: Store) -> None:
    """A second app of the same id is not stored, in whatever project, and changes nothing."""
    await store.directory.add_agora_app(APP)

    assert not await store.directory.add_agora_app(replace(APP, project="q", certificate="second"))
    assert [APP] == await store.directory.list_agora_apps()


async def test_certificates_change(two_handles: tuple[Store, Store]) -> None:
    """A change of the certificates is seen through every handle; an unknown app has none to change."""
    one, other = two_handles
    await one.directory.add_agora_app(APP)
    changed = replace(APP, certificate="second", old_certificate="first")

    assert changed == await other.directory.change_agora_app("a1", lambda app: changed)
    assert changed == await one.directory.find_agora_app("a1")
    assert await one.directory.change_agora_app("a2", lambda app: changed) is None


async def test_a_removed_app_is_gone(store: Store) -> None:
    """It is neither found, listed, changed nor removed again; keys are needed as before, and its id is free."""
    await store.directory.add_agora_app(APP)

    assert await store.directory.remove_agora_app("a1")
    assert not await store.directory.remove_agora_app("a1")
    assert (None, []) == (await store.directory.find_agora_app("a1"), await store.directory.list_agora_apps())
    assert await store.directory.change_agora_app("a1", lambda app: app) is None
    assert await store.directory.has_keys()
    again = replace(APP, project="q", certificate="third")
    assert await store.directory.add_agora_app(again)
    assert [again] == await store.directory.list_agora_apps()
