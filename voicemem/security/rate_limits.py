"""Rate limits: token buckets, filled by the clock that is passed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple
from weakref import WeakValueDictionary

from voicemem.errors import RateLimited
from voicemem.store.directory import KeyLimits

MAX_CALLERS = 10_000
"""Callers with a bucket, at most; the least recent one loses it, and starts with a full one when it returns."""
BURST_S = 2.0
"""A caller that has been idle may do at once what its rate allows in this time."""
TOKEN_SHARE = 1 / 20
"""The share of its key's rate that all tokens of one session have together."""
WRONG_KEYS_PER_S = 10.0
"""From one address, once `WRONG_KEYS_AT_ONCE` are used up."""
WRONG_KEYS_BURST = 100.0


class Rate(NamedTuple):
    """The rate at which a bucket fills, and its size."""

    per_second: float
    burst: float

    @classmethod
    def with_burst(cls, per_second: float) -> Rate | None:
        """The rate with the usual burst; None, which means no limit, for 0."""
        return cls(per_second, max(1.0, BURST_S * per_second)) if per_second else None


class Charge(NamedTuple):
    """The result of a charge: how many more tokens were taken ahead, and the seconds to wait before the next charge."""

    prepaid: int
    wait_s: float


class Share:
    """The part of every rate that this process gives: with several nodes, each gives one of as many parts."""

    __slots__ = ("nodes",)

    def __init__(self, nodes: int = 1) -> None:
        self.nodes = nodes

    def of(self, rate: Rate) -> Rate:
        """This part of a rate, whose burst is at least one token: with less, nothing would ever be given."""
        return rate if self.nodes == 1 else Rate(rate.per_second / self.nodes, max(1.0, rate.burst / self.nodes))


WHOLE = Share()
TOO_MANY_WRONG_KEYS = "Too many wrong keys were sent from this address."


class Bucket:
    """One caller's tokens. The level may go below zero: what has arrived is charged in full, and the wait follows."""

    __slots__ = ("__weakref__", "filled_ms", "level", "rate", "share")

    def __init__(self, rate: Rate, now_ms: int, share: Share = WHOLE) -> None:
        self.rate = rate
        """That of all nodes together; `share` says how much of it is given here, and may change."""
        self.share = share
        self.level = share.of(rate).burst
        self.filled_ms = now_ms

    def wait_s(self, now_ms: int) -> float:
        """Fill the bucket up to now (a clock set back fills nothing); return the seconds until it has a token."""
        per_second, burst = self.share.of(self.rate)
        filled = max(0, now_ms - self.filled_ms) * per_second / 1000
        self.level = min(burst, self.level + filled)
        self.filled_ms = now_ms
        return max(0.0, (1 - self.level) / per_second)

    def take(self, amount: float, now_ms: int) -> float:
        """Take this much and return 0.0; or take nothing, and return the seconds to wait."""
        wait_s = self.wait_s(now_ms)
        if not wait_s:
            self.level -= amount
        return wait_s

    def charge(self, amount: float, ahead: int, now_ms: int) -> Charge:
        """Take this much, whatever the level, and up to `prepaid` more of what is left then.

        A connection takes tokens ahead so that it need not come here for each event; a debt is a wait for it.
        """
        self.wait_s(now_ms)
        more = max(0, min(ahead, int(self.level - amount)))
        self.level -= amount + more
        return Charge(more, self.wait_s(now_ms) if self.level < 0 else 0.0)


class Buckets:
    """A bucket for each caller; without a rate there is no limit."""

    def __init__(self, rate: Rate | None, most: int = MAX_CALLERS, share: Share = WHOLE) -> None:
        self.rate = rate
        self.share = share
        self.max_callers = most
        self.buckets: OrderedDict[Hashable, Bucket] = OrderedDict()
        self.held: WeakValueDictionary[Hashable, Bucket] = WeakValueDictionary()
        """Buckets that connections hold, also when pushed out of `buckets`, so that no caller has two at a time."""

    def take(self, caller: Hashable, amount: float, now_ms: int) -> float:
        """Take from a caller's bucket, as `Bucket.take`; an amount of 0 only looks."""
        bucket = self.of(caller, now_ms)
        return 0.0 if bucket is None else bucket.take(amount, now_ms)

    def of(self, caller: Hashable, now_ms: int, own_rate: Rate | None = None) -> Bucket | None:
        """A caller's bucket, by the lower of the common rate and its own; None when there is no limit."""
        rate = self.rate if own_rate is None else min(own_rate, self.rate or own_rate)
        if rate is None:
            return None
        bucket = self.buckets.get(caller)
        if bucket is None:
            bucket = self.buckets[caller] = self.held.get(caller) or Bucket(rate, now_ms, self.share)
            self.held[caller] = bucket
            if len(self.buckets) > self.max_callers:
                self.buckets.popitem(last=False)
        self.buckets.move_to_end(caller)
        return bucket


class Caller(NamedTuple):
    """One caller for the limits: a key, or all tokens that it signed for one session."""

    key_id: str
    session_id: str | None
    limits: KeyLimits = KeyLimits()


class EventBuckets(NamedTuple):
    """Buckets that a caller's events are charged to; None where there is no limit."""

    events: Bucket | None = None
    bytes: Bucket | None = None


class RateLimits:
    """The limits of a service. `clock` returns Unix ms. A caller of None has no key, and no limits."""

    def __init__(
        self, clock: Callable[[], int], request_rate: float, event_rate: float, byte_rate: float = 0.0
    ) -> None:
        self.clock = clock
        self.share = Share()
        self.requests = self.of_keys_and_tokens(request_rate)
        self.events = self.of_keys_and_tokens(event_rate)
        self.bytes = self.of_keys_and_tokens(byte_rate)
        self.wrong_keys = Buckets(Rate(WRONG_KEYS_PER_S, WRONG_KEYS_BURST), share=self.share)

    def of_keys_and_tokens(self, per_second: float) -> tuple[Buckets, Buckets]:
        rates = Rate.with_burst(per_second), Rate.with_burst(per_second * TOKEN_SHARE)
        keys, tokens = (Buckets(rate, share=self.share) for rate in rates)
        return keys, tokens

    def divide(self, nodes: int) -> None:
        """Give an equal part of every rate from now on, for the number of nodes that have callers."""
        self.share.nodes = nodes

    def count_request(self, caller: Caller | None) -> None:
        """Count one request. Raises `RateLimited`."""
        if caller is not None:
            wait_s = self.requests[caller.session_id is not None].take(caller, 1, self.clock())
            if wait_s:
                raise RateLimited(wait_s)

    def count_events(self, caller: Caller | None, amount: int, size: int) -> None:
        """Count this many events, of `size` bytes. Raises `RateLimited`, and counts none then."""
        now, taken = self.clock(), self.event_buckets(caller)
        charges = [(bucket, cost) for bucket, cost in zip(taken, (amount, size), strict=True) if bucket is not None]
        wait_s = max((bucket.wait_s(now) for bucket, _ in charges), default=0.0)
        if wait_s:
            raise RateLimited(wait_s)
        for bucket, cost in charges:
            bucket.take(cost, now)

    def event_buckets(self, caller: Caller | None) -> EventBuckets:
        if caller is None:
            return EventBuckets()
        is_token, now, own = caller.session_id is not None, self.clock(), caller.limits
        share = TOKEN_SHARE if is_token else 1.0
        return EventBuckets(
            self.events[is_token].of(caller, now, Rate.with_burst(own.events_per_second * share)),
            self.bytes[is_token].of(caller, now, Rate.with_burst(own.bytes_per_second * share)),
        )

    def count_wrong_key(self, address: str | None) -> None:
        """Count one wrong key. Raises `RateLimited` for an address that has sent too many."""
        wait_s = self.wrong_keys.take(address, 1, self.clock())
        if wait_s:
            raise RateLimited(wait_s, TOO_MANY_WRONG_KEYS)
