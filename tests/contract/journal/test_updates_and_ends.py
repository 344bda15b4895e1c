"""What an append changes beside the journal: the configuration, and the end."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.support.stores.contract import (
    HOOK,
    NOW,
    append_batch,
    append_offers,
    claim_one_delivery,
    close,
    end_offer,
    event_types,
    hang_up,
    journal_events,
    offer,
    open_key,
    open_session,
    reload,
    update_offer,
)
from voicemem.config.session import MAX_LABELS, SessionPatch, validate_config
from voicemem.errors import QuotaExceeded, Refused
from voicemem.store.append_rules import Outcome
from voicemem.store.port import Store
from voicemem.store.records import Quotas
from voicemem.store.streams import SessionEnding

DAY_MS = 86_400_000


async def test_an_update_changes_the_configuration(store: Store) -> None:
    """A `session.update` is merged when it is stored: what it does not name stays, null takes away."""
    key = await open_key(store, given={"name": "n", "labels": {"a": "1", "b": "2"}})
    appended = await append_batch(
        store.journal, key, "main", 1, [update_offer(1, {"name": None, "labels": {"b": None, "c": "3"}})], NOW
    )

    assert {"labels": {"a": "1", "c": "3"}} == appended.stream.config
    assert appended.stream == await reload(store, key)


async def test_updates_of_one_batch_follow_each_other(store: Store) -> None:
    """Several updates of one batch take effect in their order, and an event that is refused has none."""
    key = await open_key(store)
    late = update_offer(3, {"name": "refused"})._replace(refusal="invalid_field")
    await append_offers(
        store, key, update_offer(1, {"name": "a", "channel": "c"}), update_offer(2, {"name": "b"}), late
    )

    assert {"name": "b", "channel": "c"} == (await reload(store, key)).config


async def test_a_producer_that_has_ended_need_not_leave(store: Store) -> None:
    """Its connection counts no more: one that ends later writes nothing, and the other producers are as they were."""
    key = await open_key(store)
    await open_session(store, producer="llm")
    await append_offers(store, key, end_offer(1))
    assert None is await hang_up(store, key)
    assert (await reload(store, key)).silent_since_ms is None
    await hang_up(store, key, producer="llm")
    assert NOW == (await reload(store, key)).silent_since_ms


async def test_an_update_takes_effect_once(store: Store) -> None:
    """A resent update is acknowledged and changes nothing, however much came after it."""
    key = await open_key(store)
    old, new = update_offer(1, {"name": "old"}), update_offer(2, {"name": "new"})
    await append_offers(store, key, old, new)

    assert [Outcome(duplicate=True)] == await append_offers(store, key, old)
    assert {"name": "new"} == (await reload(store, key)).config


async def test_too_many_labels_become_a_refusal(store: Store) -> None:
    """An update after which a session had too many labels is refused whole, and stays refused."""
    labels = {str(number): "x" for number in range(MAX_LABELS)}
    key = await open_key(store, given={"labels": labels})
    much = update_offer(1, {"name": "n", "labels": {"one more": "x"}})

    assert [Outcome(1, "invalid_field"), Outcome(2)] == await append_offers(store, key, much, offer(2))
    assert [Outcome(code="invalid_field", duplicate=True)] == await append_offers(store, key, much)
    assert {"type": "refused", "code": "invalid_field"} == (await journal_events(store, key))[0]
    assert {"labels": labels} == (await reload(store, key)).config


async def test_taking_a_section_away_takes_its_secret(store: Store) -> None:
    """A receiver that was taken away with its whole section does not give its secret to the next one."""
    key = await open_key(store, given={"webhook": {"url": HOOK, "secret": "old"}})
    await append_offers(
        store, key, update_offer(1, {"webhook": None}), update_offer(2, {"webhook": {"url": "https://next.example/"}})
    )
    await close(store, key)
    receiver = (await claim_one_delivery(store)).endpoint

    assert ("https://next.example/", None) == (receiver.url, receiver.secret)


async def test_the_first_end_counts(store: Store) -> None:
    """Time and reason of the end are those of the first `session.end`, whoever sends others, and when."""
    key = await open_key(store)
    await append_offers(store, key, end_offer(1, NOW - 7, "hang_up"), now_ms=NOW + 1)
    await append_offers(store, key, end_offer(1, NOW - 9, "late"), producer="asr", now_ms=NOW + 2)
    await append_offers(store, key, end_offer(1, NOW - 7, "hang_up"), now_ms=NOW + 3)
    stream = await reload(store, key)

    assert (SessionEnding(NOW - 7, "hang_up"), NOW + 1, "running") == (stream.ending, stream.ending_ms, stream.state)


async def test_a_refused_end_ends_nothing(store: Store) -> None:
    """A `session.end` that cannot be taken leaves the session and its producer running."""
    key = await open_key(store)
    wrong = end_offer(1)._replace(refusal="last_seq_mismatch")

    assert [Outcome(1, "last_seq_mismatch"), Outcome(2)] == await append_offers(store, key, wrong, offer(2))
    assert (await reload(store, key)).ending is None


async def test_a_change_by_the_server(store: Store) -> None:
    """A change of the configuration is merged and journaled as the server's own event, at once."""
    key = await open_key(store, given={"labels": {"a": "1"}})
    payload = b'{"type":"session.update","labels":{"b":"2"}}'
    stream = await store.journal.change_config(key, validate_config({"labels": {"b": "2"}}), payload, NOW + 1)

    assert {"labels": {"a": "1", "b": "2"}} == stream.config
    assert stream == await reload(store, key)
    assert [(1, None, None, NOW + 1, payload)] == await store.journal.read_rows(key, 0, 10)


async def test_a_change_may_be_refused(store: Store) -> None:
    """A change is refused with too many labels, after the end, and for a session that is not there."""
    labels = {str(number): "x" for number in range(MAX_LABELS + 1)}
    key = await open_key(store, given={"labels": {"a": "1"}})
    with pytest.raises(Refused, match="invalid_field"):
        await store.journal.change_config(key, SessionPatch({"labels": labels}, {}), b"{}", NOW)
    with pytest.raises(Refused, match="unknown_session"):
        await store.journal.change_config(key + 1, validate_config({}), b"{}", NOW)
    await close(store, key)
    with pytest.raises(Refused, match="session_ended"):
        await store.journal.change_config(key, validate_config({}), b"{}", NOW)

    assert ["session.closed"] == await event_types(store, key)
    assert {"labels": {"a": "1"}} == (await reload(store, key)).config


async def test_an_end_that_says_when_the_call_was(store: Store) -> None:
    """Both times are the session's, also long after the call, and a quota of the day counts it all the same."""
    began, ended = NOW - 90 * DAY_MS, NOW - 90 * DAY_MS + 60_000
    times = ((began, ended), (began, NOW + 60_000), (5, ended), (ended, began), (None, ended))
    for number, (begin, end) in enumerate(times):
        key = await open_key(store, session_id=f"s{number}")
        ending = SessionEnding(end, "hang_up", began_ms=begin)
        await append_offers(store, key, end_offer(1)._replace(ending=ending))
        closed = await close(store, key, notice_id=f"n{number}", now_ms=NOW + 9)
        is_own = number == 0
        assert (closed.started_ms, closed.ended_ms) == ((began, ended) if is_own else (NOW, NOW + 9)), number
        assert closed == await reload(store, key)
    store.set_quotas(Quotas(per_day=len(times)))
    with pytest.raises(QuotaExceeded):
        await open_key(store, session_id="one more")
