"""What a memory was heard from is never more than what was heard."""

from __future__ import annotations

from hypothesis import given

from tests.support.callers.rest import RestClient
from tests.support.plain_fold.calls import call_closed
from tests.support.profiles import examples
from tests.support.random_calls.strategies import calls
from tests.support.stores.contract import example_numbers
from voicemem.app import App
from voicemem.memory.long_term.records import MemoryDraft
from voicemem.protocol.events import MemoriesExtracted
from voicemem.protocol.memories import Evidence
from voicemem.protocol.types import JsonObject

SERVERS_OWN = (call_closed(0)["type"], "session.reopened", "session.end")
TURNS = tuple(range(200))


async def lines_of(app: App, api: RestClient, session_id: str) -> list[str]:
    """The lines of a memory that cites the whole call as it is."""
    stream = await app.services.store.journal.find_session("default", session_id)
    assert stream is not None
    evidence = Evidence(session_id, 1, stream.position + 1, TURNS)
    draft = MemoryDraft(text=f"All up to {stream.position}.", source="extracted", evidence=(evidence,))
    mark = MemoriesExtracted(through=stream.position, strategy="discrete", version="1")
    added = await app.services.long_term.add_extracted(stream, [draft], mark)
    assert added is not None
    shown = (await api.get(f"/v1/memories/{added[0].id}?evidence=true")).json
    return [line["text"] for line in shown["evidence"]]


@examples(0.2)
@given(calls())
async def test_no_unheard_word_is_evidence(app: App, events: list[JsonObject]) -> None:
    """Whatever a call reports, at each moment: messages as the history has them, and of replies only what was heard."""
    api, session_id = RestClient(app), f"s{next(example_numbers)}"
    await api.create(session_id)
    sent = [{k: v for k, v in event.items() if k != "producer"} for event in events if event["type"] not in SERVERS_OWN]
    for first in range(0, len(sent), 10):
        await api.send(*sent[first : first + 10], session_id=session_id)
        history = {message["content"] for message in await api.contents(session_id)}
        assert set(await lines_of(app, api, session_id)) <= history
    await api.end(session_id)
    contents = await api.contents(session_id)
    lines = await lines_of(app, api, session_id)
    assert [message["content"] for message in contents if message["content"].strip()] == lines
    unheard = {message["metadata"].get("original") for message in contents} - {m["content"] for m in contents}
    assert set() == unheard & set(lines)
