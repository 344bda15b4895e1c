"""A caller who asks for the same memory in ever other ways."""

from __future__ import annotations

from itertools import chain

from tests.support.callers.rest import RestClient
from tests.support.events import final
from tests.support.services import Serve

TURNS = 30


async def test_many_queries_take_no_more_memory_than_a_few(serve: Serve) -> None:
    """What is kept of a memory for its readers is in the budget, and the same for all queries."""
    app = await serve()
    api, read_models = RestClient(app), app.services.read_models
    await api.create("call")
    await api.send(*(final(turn, f"Where is order {turn}?", turn) for turn in range(1, TURNS + 1)), session_id="call")
    for query in ("history", "history?fields=standard", "context?max_history=1000"):
        assert (await api.get(f"/v1/sessions/call/{query}")).status == 200
    (read_model,) = read_models.cached.values()
    kept = read_model.encoded_bytes
    assert kept > len((await api.get("/v1/sessions/call/history")).body)
    histories = (
        f"history?limit={number}&after_turn={number % TURNS}&fields={('full', 'standard')[number % 2]}"
        for number in range(1, 200)
    )
    contexts = (f"context?max_history={number}&max_messages={number + 1}" for number in range(1, 200))
    for query in chain(histories, contexts):
        assert (await api.get(f"/v1/sessions/call/{query}")).status == 200
    assert (read_model, kept) == (read_models.cached[next(iter(read_models.cached))], read_model.encoded_bytes)
    assert read_model.weight == read_model.charged == read_models.budget.memories > kept
