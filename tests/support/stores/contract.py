"""What tests of a store begin with: offers, sessions, deliveries, and short ways to read them back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from tests.support.profiles import examples
from voicemem.config.session import validate_config
from voicemem.store.append_rules import AppendResult, Batch, Offer, Outcome
from voicemem.store.deliveries import DeliveryFilter, EndpointDelivery
from voicemem.store.journal import Journal
from voicemem.store.outbox import ANY_NUMBER, Attempt, ClaimedDelivery, Endpoint, FrozenPayload
from voicemem.store.port import Store
from voicemem.store.records import DisconnectedProducer, Node, OpenResult
from voicemem.store.session_filters import SessionFilter
from voicemem.store.streams import SessionEnding, Stream


async def append_batch(
    store: Journal, key: int, producer: str, epoch: int | None, offers: Sequence[Offer], now_ms: int
) -> AppendResult:
    """One batch, as plain payloads where it can be one, with the outcome of each event."""
    seqs = [offer.seq for offer in offers if offer == Offer(offer.seq, now_ms, offer.payload)]
    first = next(iter(seqs), None) or 0
    if first and seqs == [*range(first, first + len(offers))]:
        batch = Batch(key, producer, epoch, now_ms, [offer.payload for offer in offers], first)
    else:
        batch = Batch(key, producer, epoch, now_ms, offers=offers)
    (appended,) = await store.append([batch], now_ms)
    if appended.position is None:
        return appended
    positions = range(appended.position, appended.position + len(offers))
    return replace(appended, outcomes=[Outcome(position) for position in positions])


NOW = 1_778_390_400_000
IDLE_MS = 60_000
REOPEN_MS = 3_600_000
LEASE_MS = 30_000
NODE_LEASE_MS = 10_000
HOOK = "https://own.example/hook"
OPERATOR = "https://operator.example/hook"
END = SessionEnding(NOW + 5, "left")

ODD_NAMES = [
    "a.b",
    "a.b[0]",
    'say "hi"',
    '"',
    "it's",
    "back\\slash",
    "\\",
    '\\"',
    "ключ",
    "🦩",
    "e\u0301",
    "$",
    "[0]",
    "#-1",
    "",
    " ",
    "%_",
    "/",
    "line\nbreak",
    "\x7f",
    "nul\x01",
]

example_numbers = itertools.count(1)
"""For names that no other example of a property test uses."""
on_one_store = examples(0.4)


def event_fields(seq: int | None, **more: Any) -> dict[str, Any]:
    return {"type": "llm.delta", "turn_id": 1, "text": "word ", **({} if seq is None else {"seq": seq}), **more}


def offer(seq: int | None, received_ms: int = NOW, **more: Any) -> Offer:
    return Offer(seq, received_ms, msgspec.json.encode(event_fields(seq, **more)))


def offers(first: int, last: int) -> list[Offer]:
    return [offer(seq) for seq in range(first, last + 1)]


def refused_offer(seq: int | None, code: str = "invalid_field") -> Offer:
    return offer(seq, text="never to be stored")._replace(refusal=code)


def update_offer(seq: int, patch: dict[str, Any]) -> Offer:
    return Offer(seq, NOW, msgspec.json.encode({"type": "session.update", "seq": seq}), update=validate_config(patch))


def end_offer(seq: int, ts: int = END.ts, reason: str = END.reason) -> Offer:
    return Offer(seq, NOW, msgspec.json.encode({"type": "session.end", "seq": seq}), ending=SessionEnding(ts, reason))


def stored_at(*positions: int) -> list[Outcome]:
    return [Outcome(position) for position in positions]


async def open_session(
    store: Store,
    session_id: str = "s",
    given: dict[str, Any] | None = None,
    *,
    producer: str = "main",
    from_seq: int | None = None,
    now_ms: int = NOW,
    node: str = "",
) -> OpenResult:
    return await store.journal.open_producer(
        "p", session_id, producer, validate_config(given or {}), from_seq, now_ms, None, node
    )


async def open_key(store: Store, session_id: str = "s", given: dict[str, Any] | None = None, now_ms: int = NOW) -> int:
    """The key of a session that is open."""
    return (await open_session(store, session_id, given, now_ms=now_ms)).stream.key


async def hang_up(
    store: Store, key: int, now_ms: int = NOW, *, producer: str = "main", epoch: int = 1
) -> Stream | None:
    """The connection of a producer ends on purpose: the only one of its session, unless a test opened others."""
    return next(iter(await store.journal.leave([DisconnectedProducer(key, producer, epoch)], now_ms)), None)


async def begin_node(
    store: Store, token: str, now_ms: int = NOW, lease_ms: int = NODE_LEASE_MS, version: int = 0
) -> None:
    """Register a node; `version` is that of the snapshots that it reads."""
    node = Node(token=token, snapshot_version=version, started_ms=now_ms, expires_ms=now_ms + lease_ms)
    await store.nodes.start_node(node, now_ms)


async def start_alone(store: Store, now_ms: int = NOW) -> None:
    """A service starts, where no other one lives."""
    await begin_node(store, f"alone at {now_ms}", now_ms, lease_ms=0)


async def append_offers(
    store: Store, key: int, *batch: Offer, producer: str = "main", epoch: int | None = None, now_ms: int = NOW
) -> list[Outcome]:
    return [*(await append_batch(store.journal, key, producer, epoch, batch, now_ms)).outcomes]


async def close(
    store: Store, key: int, ending: SessionEnding | None = END, notice_id: str = "n", now_ms: int = NOW
) -> Stream:
    """The session as this closes it, which it must."""
    closed = await store.journal.close_session(key, ending, notice_id, now_ms)
    assert closed is not None
    return closed.stream


async def close_idle(store: Store, key: int, notice_id: str = "n") -> Stream:
    """A session that is closed for its silence, as a sweep closes it."""
    return await close(store, key, SessionEnding(NOW, "idle", provisional=True), notice_id)


async def closed_session(
    store: Store, session_id: str = "s", hook: str | None = HOOK, notice_id: str = "n", now_ms: int = NOW
) -> Stream:
    """A session that is closed, with a delivery for its own receiver."""
    key = await open_key(store, session_id, {"webhook": {"url": hook}} if hook else {}, now_ms)
    return await close(store, key, END, notice_id, now_ms)


async def claim_deliveries(
    store: Store, now_ms: int = NOW, busy: Sequence[str] = (), limit: int = 100, lease_ms: int = LEASE_MS
) -> list[ClaimedDelivery]:
    return await store.outbox.claim_deliveries(now_ms, lease_ms, dict.fromkeys(busy, ANY_NUMBER), limit)


async def claim_one_delivery(store: Store, now_ms: int = NOW) -> ClaimedDelivery:
    (delivery,) = await claim_deliveries(store, now_ms)
    return delivery


def attempt_of(status: int | None = 200, error: str | None = None, started_ms: int = NOW) -> Attempt:
    return Attempt(started_ms, 12, status, error, "ok")


async def journal_events(store: Store, key: int) -> list[dict[str, Any]]:
    return [msgspec.json.decode(row.payload) for row in await store.journal.read_rows(key, 0, 100_000)]


async def event_types(store: Store, key: int) -> list[str]:
    return [event["type"] for event in await journal_events(store, key)]


async def seqs_by_producer(store: Store, key: int) -> dict[str | None, list[int | None]]:
    """The seqs of each producer, in the order of the journal."""
    seqs: dict[str | None, list[int | None]] = {}
    for row in await store.journal.read_rows(key, 0, 100_000):
        seqs.setdefault(row.producer, []).append(row.seq)
    return seqs


def is_acknowledged(outcome: Outcome) -> bool:
    """Whether the event is on disk, as a refused one or a duplicate counts too."""
    return outcome.position is not None or outcome.duplicate


async def reload(store: Store, key: int) -> Stream:
    """The session's row as it is now."""
    return next(
        one for one in await store.journal.list_sessions(SessionFilter(project="p", limit=1000)) if one.key == key
    )


async def listed_ids(store: Store, **conditions: Any) -> list[str]:
    return [stream.id for stream in await store.journal.list_sessions(SessionFilter(**{"project": "p", **conditions}))]


def endpoint_of(endpoint_id: str = "e1", *event_types: int, project: str = "p", **more: Any) -> Endpoint:
    """An endpoint that is to be added; its key is the store's."""
    endpoint = Endpoint(
        0, None, f"https://{endpoint_id}.example/", "whsec_AAAA", "full", True, None, endpoint_id, project
    )
    return replace(endpoint, event_types=event_types or (103,), created_ms=NOW, **more)


async def add_endpoint(store: Store, endpoint: Endpoint) -> Endpoint:
    added = await store.endpoints.add_endpoint(endpoint, 100)
    assert added is not None
    return added


async def fail_deliveries(store: Store, key: int, count: int = 1, now_ms: int = NOW) -> None:
    """Let what is due for an endpoint fail for good."""
    deliveries = [delivery for delivery in await claim_deliveries(store, now_ms) if delivery.endpoint.key == key]
    assert count == len(deliveries)
    for delivery in deliveries:
        assert await store.outbox.finish_delivery(delivery, attempt_of(500, started_ms=now_ms), "failed", None)


async def delivery_states(store: Store, endpoint: Endpoint, **wanted: Any) -> list[EndpointDelivery]:
    return await store.deliveries.list_endpoint_deliveries(endpoint.key, DeliveryFilter(**wanted))


async def mixed_call(store: Store, session_id: str = "s", given: dict[str, Any] | None = None) -> int:
    """A closed session of two producers, with runs and single events, a refused one, a declared gap, and large ones."""
    key = await open_key(store, session_id, given)
    await append_offers(store, key, *offers(1, 40))
    await open_session(store, session_id, producer="asr")
    for first in (1, 3, 5):
        await append_offers(store, key, *offers(first, first + 1), producer="asr")
        await append_offers(store, key, offer(40 + first, text="x" * 500_000), offer(41 + first, NOW + 1))
    await append_offers(store, key, refused_offer(47, "text_too_long"))
    await open_session(store, session_id, from_seq=61)
    await append_offers(store, key, *offers(61, 70))
    await close(store, key)
    return key


async def kept_payload(store: Store, payload: FrozenPayload | None) -> bytes | None:
    """The payload of a delivery's body, as it is kept."""
    return None if payload is None else b"".join([part async for part in store.outbox.parts_of(payload)])


async def freeze_payload(store: Store, delivery: ClaimedDelivery, *parts: bytes) -> bytes | None:
    """Freeze a payload in parts; what is kept then."""
    for number, part in enumerate(parts):
        before = sum(map(len, parts[:number]))
        is_last = number == len(parts) - 1
        frozen = await store.outbox.freeze_payload(delivery, part, before=before, is_last=is_last)
    return await kept_payload(store, frozen)
