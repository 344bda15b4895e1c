"""Where a body is decoded: a large one in a thread."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator

import pytest

from voicemem.server.http.decoding import LARGE_BYTES, Decoding


@pytest.fixture
async def decoding() -> AsyncIterator[Decoding]:
    decoding = Decoding()
    yield decoding
    decoding.close()


async def test_a_large_body_is_decoded_in_a_thread(decoding: Decoding) -> None:
    """Up to 256 KiB it is decoded at once; more than that is decoded where the event loop is not held up."""
    loop = threading.get_ident()
    assert await decoding.decode(LARGE_BYTES, threading.get_ident) == loop
    assert await decoding.decode(LARGE_BYTES + 1, threading.get_ident) != loop


async def test_what_decoding_raises_is_raised(decoding: Decoding) -> None:
    """A refusal comes through from the thread."""

    def refuse() -> None:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        await decoding.decode(LARGE_BYTES + 1, refuse)
