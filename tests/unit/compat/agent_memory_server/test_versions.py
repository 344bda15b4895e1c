"""Which state a time of a read stands for."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from voicemem.compat.agent_memory_server.records import format_time, from_ms, parse_time
from voicemem.compat.agent_memory_server.working_messages import encode_read_marker, may_be_read_at, possible_positions

NOW = 1_790_000_000_000


@examples(1)
@given(st.integers(0, 5000), st.integers(0, 3000), st.integers(0, 1000))
def test_a_read_is_found_again(position: int, later: int, ms: int) -> None:
    """Among the first candidates that fit, when entries came in between."""
    received = {number: NOW + number * 7 for number in range(position + later + 2)}
    stamped = parse_time(
        format_time(encode_read_marker(received[position] + ms % 7, received[position], position)), "last_accessed"
    )
    current = position + later
    found = [
        one
        for one in possible_positions(stamped, current)
        if may_be_read_at(stamped, received[one], received[one + 1] if one < current else None)
    ]
    assert position in found
    assert all(one % 1000 == position % 1000 for one in found)


def test_a_time_of_a_clients_own_fits_nothing() -> None:
    """Its microseconds are none of a position."""
    stamped = from_ms(NOW) + timedelta(microseconds=17)
    assert [] == [*possible_positions(stamped, 5)]
