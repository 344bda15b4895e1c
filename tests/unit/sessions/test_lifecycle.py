"""A close wakes the outbox; bad settings make no session."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.support.lifecycle import ended, opened
from voicemem.config.session import SessionPatch
from voicemem.errors import Refused
from voicemem.sessions.lifecycle import Presence


async def test_a_close_wakes_the_outbox(presence: Presence) -> None:
    """Whoever waits for deliveries hears of every kind of close."""
    line = await opened(presence)
    await ended(presence, line)
    await presence.close_when_ended(line)
    assert presence.sessions.webhooks_due.is_set()
    presence.sessions.webhooks_due.clear()
    await opened(presence, "t")
    await presence.sessions.end(await presence.sessions.store.journal.get_session("p", "t"), None)
    assert presence.sessions.webhooks_due.is_set()


async def test_settings_that_may_not_be_set_make_no_session(presence: Presence) -> None:
    """Create and change ask first, and leave nothing when the answer is no."""

    def refuse(session_patch: SessionPatch) -> None:
        raise Refused("address_not_allowed")

    stream, _ = await presence.sessions.create("p", "s", {})
    presence.sessions.check_settings = refuse
    with pytest.raises(Refused):
        await presence.sessions.create("p", "t", {})
    with pytest.raises(Refused):
        await presence.sessions.change(stream, {"name": "x"})
    with pytest.raises(Refused, match="unknown_session"):
        await presence.sessions.store.journal.get_session("p", "t")
    assert 0 == (await presence.sessions.store.journal.get_session("p", "s")).position
