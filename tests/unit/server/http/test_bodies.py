"""How many large bodies of a project are received at a time."""

from __future__ import annotations

import gc

from voicemem.server.http.request import BodySlots


async def test_a_project_has_some_slots_and_no_others() -> None:
    """Who finds none waits, and nobody of another project; nothing is kept of a project that holds none."""
    slots = BodySlots(at_once=2)
    one, other = slots.of("one"), slots.of("other")
    for _ in range(2):
        await one.acquire()
    assert slots.of("one").locked()
    assert not other.locked()
    one.release()
    assert not one.locked()
    del one, other
    gc.collect()
    assert not slots.slots
