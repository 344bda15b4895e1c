"""Where a body is decoded: a large one in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from voicemem.server.http.request import LARGE_BYTES, Decoding


@pytest.fixture
async def decoding() -> AsyncIterator[Decoding]:
    decoding = Decoding()
    yield decoding
    decoding.close()


async def test_a_large_body_is_decoded_in_a_thread(decoding: Decoding) -> None:
    """Up to 16 KiB it is decoded at once; more than that is decoded where the event loop is not held up."""
    loop = threading.get_ident()
    assert await decoding.decode(LARGE_BYTES, threading.get_ident, None) == loop
    assert await decoding.decode(LARGE_BYTES + 1, threading.get_ident, None) != loop


async def test_what_decoding_raises_is_raised(decoding: Decoding) -> None:
    """A refusal comes through from the thread."""

    def refuse() -> None:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        await decoding.decode(LARGE_BYTES + 1, refuse, None)


async def test_large_bodies_go_on_one_at_a_time(decoding: Decoding) -> None:
    """What is done with each, once it is decoded, is done in a round of the event loop of its own."""
    rounds, seen = 0, []
    loop = asyncio.get_running_loop()

    def count_round() -> None:
        nonlocal rounds
        rounds += 1
        loop.call_soon(count_round)

    async def take() -> None:
        await decoding.decode(LARGE_BYTES + 1, threading.get_ident, None)
        seen.append(rounds)

    count_round()
    await asyncio.gather(*(take() for _ in range(20)))
    assert len({*seen}) == 20
