"""The figures that an operator asks for."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.stores.contract import NOW, attempt_of, claim_deliveries, close, closed_session, hang_up, open_key
from voicemem.config.session import validate_config
from voicemem.store.port import Store


async def test_figures_count_sessions_that_run_in_all_projects(store: Store) -> None:
    """Open and silent sessions are running, those of other projects too; ended and erased ones are not."""
    assert 0 == (await store.read_figures(NOW)).running
    open_one = await open_key(store, "open")
    await hang_up(store, await open_key(store, "silent"), NOW)
    await store.journal.open_producer("q", "never due", "main", validate_config({"idle_timeout": 0}), None, NOW)
    await store.retention.erase(await open_key(store, "erased"), NOW)
    await closed_session(store, "ended", hook=None)
    assert 3 == (await store.read_figures(NOW)).running
    await close(store, open_one)
    assert 2 == (await store.read_figures(NOW)).running


async def test_figures_tell_deliveries_that_wait_from_those_that_are_due(store: Store) -> None:
    """Leased ones and those of later wait, and are not due; delivered ones do neither. The oldest counts throughout."""
    await closed_session(store, "a", notice_id="a")
    await closed_session(store, "b", notice_id="b")
    figures = await store.read_figures(NOW + 7)
    assert (2, 2, NOW) == (figures.pending, figures.due, figures.oldest_pending_ms)
    first, second = await claim_deliveries(store)
    figures = await store.read_figures(NOW)
    assert (2, 0, NOW) == (figures.pending, figures.due, figures.oldest_pending_ms)
    await store.outbox.finish_delivery(first, attempt_of(), "delivered", None)
    await store.outbox.finish_delivery(second, attempt_of(500), "pending", NOW + 1_000)
    assert (1, 0) == ((await store.read_figures(NOW)).pending, (await store.read_figures(NOW)).due)
    assert NOW == (await store.read_figures(NOW + 2_000)).oldest_pending_ms
