"""The client's options: delays and addresses."""

from __future__ import annotations

from typing import Any

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


def test_a_delay_can_be_bounded_lower() -> None:
    """While a server is away the delays stop growing early, and grow on after that."""
    backoff = Backoff(Options(first_delay_s=1, longest_delay_s=64), random=lambda: 1.0)
    assert [backoff.next_s(longest_s=2) for _ in range(4)] == [1, 2, 2, 2]
    assert backoff.next_s() == 16


@pytest.mark.parametrize("option", ["max_events", "max_bytes", "read_attempts"])
def test_impossible_options_are_refused(option: str) -> None:
    """What would make every event or read fail is an error before the first call."""
    given: dict[str, Any] = {option: 0}
    with pytest.raises(ValueError, match=option):
        Options(**given)


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
