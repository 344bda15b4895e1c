"""Token buckets: arithmetic with a clock that is given."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from voicemem.errors import RateLimited
from voicemem.security.rate_limits import TOKEN_SHARE, WRONG_KEYS_BURST, Bucket, Buckets, Principal, Rate, RateLimits
from voicemem.store.directory import KeyLimits

RATE = Rate(per_second=10, burst=5)
KEY = Principal("k" * 12, None)
TOKEN = Principal("k" * 12, "s")


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def wait_of(limits: RateLimits, caller: Principal | None, amount: int, size: int) -> float | None:
    """How long a caller must wait for these events; 0.0 if they are counted."""
    try:
        limits.count_events(caller, amount, size)
    except RateLimited as limited:
        return limited.retry_after_s
    return 0.0


def served(limits: RateLimits, caller: Principal | None, most: int) -> int:
    """How many requests of a caller are taken at once, of so many."""
    for count in range(most):
        try:
            limits.count_request(caller)
        except RateLimited:
            return count
    return most


def test_a_full_bucket_gives_what_it_holds_at_once_and_then_says_how_long_to_wait() -> None:
    """Five at once, then one every tenth of a second."""
    bucket = Bucket(RATE, 0)
    assert [0.0] * 5 == [bucket.take(1, 0) for _ in range(5)]
    assert pytest.approx(0.1) == bucket.take(1, 0)
    assert pytest.approx(0.04) == bucket.take(1, 60)
    assert [0.0, pytest.approx(0.1)] == [bucket.take(1, 100), bucket.take(1, 100)]


def test_what_has_come_is_charged_whatever_is_left_and_its_debt_waited_for() -> None:
    """What was taken ahead needs no asking; a debt of 15 takes a second and a half and the next one's tenth."""
    bucket = Bucket(RATE, 0)
    assert (3, 0.0) == bucket.charge(1, 3, 0)
    assert (1, 0.0) == bucket.charge(0, 7, 0)  # no more than there is
    assert (0, 0.0) == bucket.charge(0, 7, 0)
    assert pytest.approx((0, 1.1)) == bucket.charge(10, 7, 0)
    assert pytest.approx((0, 1.6)) == bucket.charge(5, 7, 0)
    assert (1, 0.0) == bucket.charge(0, 7, 1600)


def test_it_fills_no_further_than_its_brim() -> None:
    """A day of rest gives no more than a second."""
    bucket = Bucket(RATE, 0)
    bucket.take(5, 0)
    assert [0.0] * 5 == [bucket.take(1, 86_400_000) for _ in range(5)]
    assert bucket.take(1, 86_400_000) > 0


def test_more_than_is_there_is_taken_whole_and_waited_for_afterwards() -> None:
    """What has come cannot be half taken: a debt of 15 takes a second and a half and the next one's tenth."""
    bucket = Bucket(RATE, 0)
    assert 0.0 == bucket.take(20, 0)
    assert pytest.approx(1.6) == bucket.take(1, 0)
    assert pytest.approx(0.1) == bucket.take(1, 1500)
    assert 0.0 == bucket.take(1, 1600)


def test_who_is_refused_pays_nothing() -> None:
    """Asking often does not make the wait longer."""
    bucket = Bucket(RATE, 0)
    bucket.take(5, 0)
    assert {0.1} == {round(bucket.take(1, 0), 6) for _ in range(1000)}


def test_a_clock_that_goes_back_fills_nothing_and_stops_nothing() -> None:
    """After a step back of an hour the wait is as it was, and time counts on from there."""
    bucket = Bucket(RATE, 3_600_000)
    bucket.take(5, 3_600_000)
    assert pytest.approx(0.1) == bucket.take(1, 0)
    assert 0.0 == bucket.take(1, 100)


def test_in_the_long_run_it_is_the_rate() -> None:
    """Who asks every millisecond for 100 s gets ten a second, and the first five."""
    bucket = Bucket(RATE, 0)
    assert 1005 == sum(bucket.take(1, now) == 0.0 for now in range(100_001))


def test_callers_do_not_use_up_each_others() -> None:
    """Each has a bucket; a number of them is kept, and who was not heard of for the longest time begins again."""
    buckets = Buckets(RATE, most=2)
    assert [0.0, 0.0] == [buckets.take("a", 5, 0), buckets.take("b", 5, 0)]
    assert buckets.take("a", 1, 0) > 0
    buckets.take("c", 1, 0)
    assert ["a", "c"] == list(buckets.buckets)


def test_a_bucket_that_is_held_is_the_callers_only_one() -> None:
    """A connection holds its bucket for as long as it lasts, however many others come and go meanwhile."""
    buckets = Buckets(RATE, most=1)
    held = buckets.of("a", 0)
    buckets.of("b", 0)
    assert ["b"] == list(buckets.buckets)
    assert held is buckets.of("a", 0)


def test_the_tokens_of_a_session_have_a_share_of_their_own() -> None:
    """They get a twentieth, together, and use up nothing of their key's or of another session's."""
    limits = RateLimits(Clock(), request_rate=100, event_rate=100)
    assert 200 * TOKEN_SHARE == served(limits, TOKEN, 1000)
    assert 200 * TOKEN_SHARE == served(limits, TOKEN._replace(session_id="other"), 1000)
    assert 200 == served(limits, KEY, 1000)


def test_0_is_no_limit_and_without_keys_there_is_none() -> None:
    """Neither a rate of 0 nor a caller without key is ever refused."""
    assert 5000 == served(RateLimits(Clock(), 0, 0), KEY, 5000)
    limits = RateLimits(Clock(), 1, 1)
    assert 5000 == served(limits, None, 5000)
    assert 0.0 == wait_of(limits, None, 1_000_000, 1) == wait_of(limits, None, 1, 1)


def test_events_are_taken_or_told_when_to_come_back() -> None:
    """Events over the rate take nothing, and may come when the time is over."""
    clock = Clock()
    limits = RateLimits(clock, 1, 100)
    assert 0.0 == wait_of(limits, KEY, 300, 0)
    wait_s = wait_of(limits, KEY, 1, 0)
    assert pytest.approx(1.01) == wait_s
    clock.now += 1010
    assert 0.0 == wait_of(limits, KEY, 1, 0)


def test_bytes_have_a_rate_of_their_own() -> None:
    """Whichever is used up makes the caller wait, and then neither is charged."""
    clock = Clock()
    limits = RateLimits(clock, 0, 100, byte_rate=1000)
    assert 0.0 == wait_of(limits, KEY, 1, 3000)
    assert pytest.approx(1.001) == wait_of(limits, KEY, 1, 1)
    clock.now += 1001
    assert 0.0 == wait_of(limits, KEY, 199, 0)
    assert 0.0 == wait_of(RateLimits(clock, 0, 0), KEY, 1_000_000, 10**9)


@pytest.mark.parametrize(("service", "own", "rate"), [(100, 10, 10), (10, 100, 10), (0, 10, 10), (10, 0, 10)])
def test_the_lower_rate_of_service_and_key_counts(service: float, own: int, rate: float) -> None:
    """A key's own rate cannot exceed the service's, and its tokens have their share of it."""
    key = KEY._replace(limits=KeyLimits(events_per_second=own, bytes_per_second=own))
    limits = RateLimits(Clock(), 0, service, byte_rate=service)
    for caller, expected in ((key, rate), (key._replace(session_id="s"), rate * TOKEN_SHARE)):
        for bucket in limits.event_buckets(caller):
            assert bucket is not None
            assert expected == bucket.rate.per_second


def test_wrong_keys_are_counted_by_address() -> None:
    """After a hundred at once an address is told to wait; another is not."""
    limits = RateLimits(Clock(), 1, 1)
    for _ in range(int(WRONG_KEYS_BURST)):
        limits.count_wrong_key("192.0.2.1")
    with pytest.raises(RateLimited) as caught:
        limits.count_wrong_key("192.0.2.1")
    assert pytest.approx(0.1) == caught.value.retry_after_s
    limits.count_wrong_key("192.0.2.2")


def test_nodes_share_every_rate() -> None:
    """Each gives an equal part, whatever the buckets held before; with the others gone it gives all again."""
    clock = Clock()
    limits = RateLimits(clock, request_rate=100, event_rate=100)
    caller = Principal("own", None, KeyLimits(events_per_second=20))
    own = limits.event_buckets(caller).events
    assert own is not None
    assert 200 == served(limits, KEY, 1000)
    limits.divide(4)
    clock.now += 1_000
    assert 25 == served(limits, KEY, 1000)
    assert 0.0 == own.take(10, clock.now)
    assert pytest.approx(0.2) == own.take(1, clock.now)
    clock.now += 60_000
    assert 50 == served(limits, KEY, 1000)
    assert 25 == served_wrong_keys(limits)
    limits.divide(1)
    clock.now += 60_000
    assert 200 == served(limits, KEY, 1000)
    assert 100 == served_wrong_keys(limits)


def test_a_small_part_still_gives_something() -> None:
    """A rate of one request in two seconds is one in eight on each of four nodes, not none."""
    clock = Clock()
    limits = RateLimits(clock, request_rate=0.5, event_rate=0)
    limits.divide(4)
    assert 1 == served(limits, KEY, 10)
    clock.now += 7_000
    assert 0 == served(limits, KEY, 10)
    clock.now += 1_000
    assert 1 == served(limits, KEY, 10)


def served_wrong_keys(limits: RateLimits) -> int:
    """How many wrong keys of an address are taken at once."""
    for count in range(1_000):
        try:
            limits.count_wrong_key("192.0.2.1")
        except RateLimited:
            return count
    return 1_000
