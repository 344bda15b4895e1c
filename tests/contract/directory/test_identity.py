"""A store knows who it is."""

from __future__ import annotations

from voicemem.store.port import Store


async def test_a_store_knows_itself(two_handles: tuple[Store, Store]) -> None:
    """Incarnation and cursor secret are the store's, the same through every handle, and it begins healthy."""
    one, other = two_handles

    assert (one.incarnation, one.cursor_secret) == (other.incarnation, other.cursor_secret)
    assert one.incarnation
    assert len(one.cursor_secret) >= 16
    assert one.healthy
