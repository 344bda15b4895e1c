"""API keys: kept, listed, revoked."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.stores.contract import NOW
from voicemem.store.directory import ApiKey, KeyLimits
from voicemem.store.port import Store


def api_key(key_id: str, scopes: tuple[str, ...] = ("ingest", "read"), created_ms: int = NOW) -> ApiKey:
    return ApiKey(key_id, "p", "name", bytes(range(32)), scopes, created_ms)


async def test_keys_are_kept(store: Store) -> None:
    """Keys are found by their id."""
    key = api_key("k1")
    assert ([], None, False) == (
        await store.directory.list_keys(),
        await store.directory.find_key("k1"),
        await store.directory.has_keys(),
    )
    await store.directory.add_key(key)
    await store.directory.add_key(api_key("k0", created_ms=NOW + 1))

    assert (key, None, True) == (
        await store.directory.find_key("k1"),
        await store.directory.find_key("K1"),
        await store.directory.has_keys(),
    )
    assert ["k1", "k0"] == [each.id for each in await store.directory.list_keys()]


@pytest.mark.parametrize("scopes", [("ingest", "read", "admin"), ("read",), ()])
async def test_keys_keep_their_scopes(store: Store, scopes: tuple[str, ...]) -> None:
    """A key has the scopes that it was made with, none included."""
    key = api_key("k", scopes)
    await store.directory.add_key(key)

    assert key == await store.directory.find_key("k")


async def test_keys_keep_their_limits(store: Store) -> None:
    """Each limit is its own, and a key without any has none."""
    key = replace(api_key("k"), limits=KeyLimits(1, 2, 3, 2**53))
    await store.directory.add_key(key)
    await store.directory.add_key(api_key("other"))

    assert key == await store.directory.find_key("k")
    assert [KeyLimits(), KeyLimits(1, 2, 3, 2**53)] == sorted(each.limits for each in await store.directory.list_keys())


async def test_limits_of_a_key_are_replaced(store: Store) -> None:
    """All of them at once, of one key only; an unknown key has none to change, and a revoked one keeps its own."""
    for name in ("k", "other", "revoked"):
        await store.directory.add_key(replace(api_key(name), limits=KeyLimits(1, 2, 3, 4)))
    await store.directory.revoke_key("revoked", NOW)

    assert await store.directory.set_key_limits("k", KeyLimits(5, 0, 7, 8))
    assert not await store.directory.set_key_limits("nobody", KeyLimits(5))
    assert not await store.directory.set_key_limits("revoked", KeyLimits(5))
    found = {each.id: each.limits for each in await store.directory.list_keys()}
    unchanged = KeyLimits(1, 2, 3, 4)
    assert {"k": KeyLimits(5, 0, 7, 8), "other": unchanged, "revoked": unchanged} == found


async def test_a_key_is_revoked_once(store: Store) -> None:
    """A revoked key keeps the time when it was revoked first, and still counts as made."""
    await store.directory.add_key(api_key("k"))

    assert await store.directory.revoke_key("k", NOW + 1)
    assert not await store.directory.revoke_key("k", NOW + 2)
    assert not await store.directory.revoke_key("other", NOW + 2)
    assert [replace(api_key("k"), revoked_ms=NOW + 1)] == await store.directory.list_keys()
    assert await store.directory.has_keys()


async def test_revoked_keys_are_found_among_others(two_handles: tuple[Store, Store]) -> None:
    """Of these ids those that are revoked, also through another handle; one that is unknown is not revoked."""
    one, other = two_handles
    for key_id in ("k1", "k2", "k3"):
        await one.directory.add_key(api_key(key_id))
    assert frozenset() == await one.directory.revoked_keys(["k1", "k2", "k3"])
    await other.directory.revoke_key("k2", NOW)
    await other.directory.revoke_key("k3", NOW)
    assert {"k2"} == await one.directory.revoked_keys(["k1", "k2", "k4", "' or 1=1"])
    assert {"k2", "k3"} == await one.directory.revoked_keys({f"k{number}" for number in range(20_000)})
    assert frozenset() == await one.directory.revoked_keys([])
