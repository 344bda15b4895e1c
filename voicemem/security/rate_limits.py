"""Rate limits: token buckets, filled by the clock that is passed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple
from weakref import WeakValueDictionary

from voicemem.errors import RateLimited
from voicemem.store.directory import KeyLimits

MAX_PRINCIPALS = 10_000
"""The most principals with a bucket; the least recent one loses its bucket, and gets a full one when it returns."""
BURST_S = 2.0
"""The burst: an idle client may use this many seconds' worth of its rate at once."""
TOKEN_SHARE = 1 / 20
"""The share of a key's rate that all its tokens for one session have together."""
WRONG_KEYS_PER_S = 10.0
"""From one address, once its `WRONG_KEYS_BURST` is used up."""
WRONG_KEYS_BURST = 100.0


class Rate(NamedTuple):
    """The rate at which a bucket fills, and its size."""

    per_second: float
    burst: float

    @classmethod
    def with_burst(cls, per_second: float) -> Rate | None:
        """Return the rate with the usual burst; None, which means no limit, for 0."""
        return cls(per_second, max(1.0, BURST_S * per_second)) if per_second else None


class Charge(NamedTuple):
    """The result of a charge: how many more tokens were taken ahead, and the seconds to wait before the next charge."""

    prepaid: int
    wait_s: float


class NodeShare:
    """The part of every rate that this node grants: with n nodes, each grants 1/n."""

    __slots__ = ("nodes",)

    def __init__(self, nodes: int = 1) -> None:
        self.nodes = nodes

    def of(self, rate: Rate) -> Rate:
        """Return this part of a rate, with a burst of at least one token: with less, nothing would ever be granted."""
        return rate if self.nodes == 1 else Rate(rate.per_second / self.nodes, max(1.0, rate.burst / self.nodes))


WHOLE = NodeShare()
TOO_MANY_WRONG_KEYS = "Too many wrong keys were sent from this address."


class Bucket:
    """A token bucket. Its level may go below zero: events that have arrived are charged in full, and then it waits."""

    __slots__ = ("__weakref__", "filled_ms", "level", "rate", "share")

    def __init__(self, rate: Rate, now_ms: int, share: NodeShare = WHOLE) -> None:
        self.rate = rate
        """The rate of all nodes together; `share` says how much of it is granted here, and may change."""
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
        """Take this much, whatever the level, and up to `ahead` more of what is left.

        A connection takes tokens ahead so that it need not charge each event; if it is in debt, it waits.
        """
        self.wait_s(now_ms)
        more = max(0, min(ahead, int(self.level - amount)))
        self.level -= amount + more
        return Charge(more, self.wait_s(now_ms) if self.level < 0 else 0.0)


class Buckets:
    """A bucket for each principal, or for each address; without a rate there is no limit."""

    def __init__(self, rate: Rate | None, most: int = MAX_PRINCIPALS, share: NodeShare = WHOLE) -> None:
        self.rate = rate
        self.share = share
        self.most = most
        self.buckets: OrderedDict[Hashable, Bucket] = OrderedDict()
        self.held: WeakValueDictionary[Hashable, Bucket] = WeakValueDictionary()
        """Buckets that connections hold, even those evicted from `buckets`, so that no owner has two at a time."""

    def take(self, owner: Hashable, amount: float, now_ms: int) -> float:
        """Take from an owner's bucket, as `Bucket.take`; an amount of 0 only looks."""
        bucket = self.of(owner, now_ms)
        return 0.0 if bucket is None else bucket.take(amount, now_ms)

    def of(self, owner: Hashable, now_ms: int, own_rate: Rate | None = None) -> Bucket | None:
        """Return an owner's bucket, with the lower of the common rate and its own; None when there is no limit."""
        rate = self.rate if own_rate is None else min(own_rate, self.rate or own_rate)
        if rate is None:
            return None
        bucket = self.buckets.get(owner)
        if bucket is None:
            bucket = self.buckets[owner] = self.held.get(owner) or Bucket(rate, now_ms, self.share)
            self.held[owner] = bucket
            if len(self.buckets) > self.most:
                self.buckets.popitem(last=False)
        self.buckets.move_to_end(owner)
        return bucket


class Principal(NamedTuple):
    """A client, as limits count it: a key, or all tokens that the key signed for one session."""

    key_id: str
    session_id: str | None
    limits: KeyLimits = KeyLimits()


class EventBuckets(NamedTuple):
    """The buckets that a principal's events are charged to; None where there is no limit."""

    events: Bucket | None = None
    bytes: Bucket | None = None


class RateLimits:
    """The limits of a service. `clock` returns Unix ms. A principal of None has no key, and no limits."""

    def __init__(
        self, clock: Callable[[], int], request_rate: float, event_rate: float, byte_rate: float = 0.0
    ) -> None:
        self.clock = clock
        self.share = NodeShare()
        self.requests = self.of_keys_and_tokens(request_rate)
        self.events = self.of_keys_and_tokens(event_rate)
        self.bytes = self.of_keys_and_tokens(byte_rate)
        self.wrong_keys = Buckets(Rate(WRONG_KEYS_PER_S, WRONG_KEYS_BURST), share=self.share)

    def of_keys_and_tokens(self, per_second: float) -> tuple[Buckets, Buckets]:
        rates = Rate.with_burst(per_second), Rate.with_burst(per_second * TOKEN_SHARE)
        keys, tokens = (Buckets(rate, share=self.share) for rate in rates)
        return keys, tokens

    def divide(self, nodes: int) -> None:
        """Grant 1/`nodes` of every rate from now on; `nodes` is the number of nodes that clients connect to."""
        self.share.nodes = nodes

    def count_request(self, principal: Principal | None) -> None:
        """Count one request. Raises `RateLimited`."""
        if principal is not None:
            wait_s = self.requests[principal.session_id is not None].take(principal, 1, self.clock())
            if wait_s:
                raise RateLimited(wait_s)

    def count_events(self, principal: Principal | None, amount: int, size: int) -> None:
        """Count this many events, of `size` bytes. Raises `RateLimited`, in which case none is counted."""
        now, taken = self.clock(), self.event_buckets(principal)
        charges = [(bucket, cost) for bucket, cost in zip(taken, (amount, size), strict=True) if bucket is not None]
        wait_s = max((bucket.wait_s(now) for bucket, _ in charges), default=0.0)
        if wait_s:
            raise RateLimited(wait_s)
        for bucket, cost in charges:
            bucket.take(cost, now)

    def event_buckets(self, principal: Principal | None) -> EventBuckets:
        if principal is None:
            return EventBuckets()
        is_token, now, own = principal.session_id is not None, self.clock(), principal.limits
        share = TOKEN_SHARE if is_token else 1.0
        return EventBuckets(
            self.events[is_token].of(principal, now, Rate.with_burst(own.events_per_second * share)),
            self.bytes[is_token].of(principal, now, Rate.with_burst(own.bytes_per_second * share)),
        )

    def count_wrong_key(self, address: str | None) -> None:
        """Count one wrong key. Raises `RateLimited` for an address that has sent too many."""
        wait_s = self.wrong_keys.take(address, 1, self.clock())
        if wait_s:
            raise RateLimited(wait_s, TOO_MANY_WRONG_KEYS)
