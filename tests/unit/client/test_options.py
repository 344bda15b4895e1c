"""The client's options: delays and addresses."""

from __future__ import annotations

import pytest

from voicemem.client.client import Client
from voicemem.client.options import Backoff, Options


def test_delays_grow_are_bounded_and_jump() -> None:
    """Delays lie between nothing and a ceiling that doubles up to a bound."""
    backoff = Backoff(Options(first_delay_s=1, longest_delay_s=8))
    rounds = []
    for _ in range(300):
        backoff.reset()
        rounds.append([backoff.next_s() for _ in range(6)])
    for ceiling, delays in zip((1, 2, 4, 8, 8, 8), zip(*rounds, strict=True), strict=True):
        assert 0 <= min(delays) < 0.2 * ceiling
        assert 0.8 * ceiling < max(delays) <= ceiling


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("ws://h:1", "ws://h:1/v1/ingest"),
        ("ws://h:1/", "ws://h:1/v1/ingest"),
        ("wss://h/v1/ingest", "wss://h/v1/ingest"),
        ("wss://h/prefix/v1/ingest", "wss://h/prefix/v1/ingest"),
    ],
)
def test_the_path_is_added_when_absent(given: str, url: str) -> None:
    """The ingest's URL may be given with its path or without."""
    assert url == Client(given).ingest_url
