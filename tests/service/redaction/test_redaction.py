"""A service that redacts: nothing that was cut off is anywhere but in what was sent to it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import copy
import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from websockets.asyncio.client import connect

from tests.support.callers.producer import open_producer
from tests.support.callers.rest import RestClient, wait_until_closed
from tests.support.dialects import RECORDINGS, Recording, reduced
from tests.support.rows import all_rows
from tests.support.servers.webhook_receiver import webhook_receiver
from tests.support.services import Serve, node_on, running_service
from tests.support.waiting import all_connections_handled
from voicemem.dialects.registry import DIALECTS
from voicemem.protocol.types import JsonObject
from voicemem.store.sqlite.store import InMemoryStore

CARD = "4929123456789012"
TAIL = CARD[6:]
"""What is never kept."""
CARDS = ("cards",)
CALLS = {str(one): one for one in RECORDINGS}


def bytes_in(folder: Path) -> bytes:
    """Everything in the files of a folder."""
    return b"\0".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def planted(recording: Recording) -> list[JsonObject]:
    """The envelopes of a call, with a card's number in each of their texts."""
    dialect = DIALECTS[recording.dialect]
    envelopes = []
    for envelope, frame in reduced(recording):
        content = copy.deepcopy(json.loads(json.dumps(frame.content)))
        for text in dialect.texts(content):
            if text.form == "value":
                text.holder[text.key] = json.dumps({"number": CARD, "other": int(CARD)})
            elif text.form != "end":
                text.holder[text.key] += f" card {CARD} or 4929 1234 5678 9012 then"
        envelopes.append({**envelope, "frame": content})
    return envelopes


def check_nothing_planted(place: bytes) -> None:
    """Of a planted number nothing is left but its beginning."""
    assert TAIL.encode() not in place
    assert b"1234 5678" not in place
    assert b"12345678" not in place


async def test_events_that_came_together_are_redacted_one_by_one(serve: Serve) -> None:
    """A number that goes on from one event of an array to the next is found, and the others stay as they were."""
    app = await serve(redact=CARDS)
    texts = ["My card is ", CARD[:9], CARD[9:], ", and that is all."]
    deltas = [{"type": "llm.delta", "turn_id": 1, "seq": seq, "text": text} for seq, text in enumerate(texts, 1)]
    async with open_producer(app) as producer:
        await producer.send_together(*deltas)
        await producer.expect_ack(len(deltas))
    journal = await RestClient(app).journal()
    assert [1, 2, 3, 4] == [row["seq"] for row in journal]
    assert [deltas[0], deltas[3]] == [journal[0]["event"], journal[3]["event"]]
    check_nothing_planted(json.dumps(journal).encode())
    assert CARD[:6] in "".join(row["event"]["text"] for row in journal)


@pytest.mark.long
async def test_no_file_holds_a_planted_number(serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each recorded call through its dialect's own door, with numbers in all of its texts: files, log and webhook."""
    caplog.set_level("DEBUG", "voicemem")
    async with webhook_receiver() as hook:
        app = await serve(store=f"sqlite:{tmp_path / 'v.db'}", redact=CARDS, webhook_url=hook.url())
        api = RestClient(app)
        with all_rows() as row:
            for name, recording in sorted(CALLS.items()):
                with row(name):
                    session_id = name.replace("/", ":")
                    path = f"ws://{app.ingest_address}/v1/ingest/{recording.dialect}?session_id={session_id}"
                    async with connect(path) as socket:
                        for envelope in planted(recording):
                            await socket.send(json.dumps(envelope))
                    await all_connections_handled()
                    everything = json.dumps(await api.journal(session_id))
                    everything += json.dumps(await api.contents(session_id, "?open=true"))
                    everything += (await api.get(f"/v1/sessions/{session_id}/events?native=true")).body.decode()
                    assert CARD[:6] in everything
                    check_nothing_planted(everything.encode())
                    await api.end(session_id)
                    check_nothing_planted(caplog.text.encode())
                    caplog.clear()
        for delivered in await hook.wait(len(CALLS)):
            check_nothing_planted(json.dumps(delivered.json).encode())
    check_nothing_planted(caplog.text.encode())
    stored = bytes_in(tmp_path)
    assert stored.count(CARD[:6].encode()) >= len(CALLS)
    check_nothing_planted(stored)


DELTAS = ["It is ", "4929", " 12", "34 56", "78", " 9012", "."]
KEPT = "It is 4929 12██ ████ ████."


def delta(seq: int) -> JsonObject:
    return {"type": "llm.delta", "seq": seq, "turn_id": 1, "ts": 1000 + seq, "text": DELTAS[seq - 1]}


async def generated(api: RestClient) -> str:
    """The reply, as it is kept."""
    (message,) = await api.contents(query="?open=true")
    return str(message["content"])


@pytest.mark.parametrize("place", range(1, len(DELTAS)))
async def test_a_run_goes_on_after_a_restart(tmp_path: Path, place: int) -> None:
    """A number in deltas between any two of which the service starts again; what is sent again is the same."""
    store = f"sqlite:{tmp_path / 'v.db'}"
    for first, last in ((1, place), (max(1, place - 2), len(DELTAS))):
        async with running_service(store=store, redact=CARDS) as app:
            async with open_producer(app) as producer:
                for seq in range(first, last + 1):
                    await producer.send(delta(seq))
                await producer.expect_ack(last)
            api = RestClient(app)
            text = await generated(api)
    assert KEPT == text
    assert b"34 56" not in bytes_in(tmp_path)


async def test_a_run_goes_on_over_http(serve: Serve) -> None:
    """One request an event, some of them twice."""
    app = await serve(redact=CARDS)
    api = RestClient(app)
    await api.create()
    for seq in range(1, len(DELTAS) + 1):
        for _ in range(2):
            assert {"next_seq": seq + 1, "errors": []} == await api.send(delta(seq))
    assert {"next_seq": 8, "errors": []} == await api.send(*map(delta, range(1, 8)))
    assert KEPT == await generated(api)
    assert "seq_conflict" == (await api.send({**delta(2), "text": "other words"}))["errors"][0]["code"]


@pytest.mark.parametrize("numbered", [True, False])
async def test_a_run_goes_on_on_another_node(numbered: bool) -> None:
    """Two nodes on one store take turns with the deltas of one reply."""
    store = InMemoryStore(exclusive=False)
    async with node_on(store, redact=CARDS) as one, node_on(store, redact=CARDS) as other:
        apis = RestClient(one), RestClient(other)
        await apis[0].create()
        for seq in range(1, len(DELTAS) + 1):
            event = delta(seq)
            if not numbered:
                del event["seq"]
            assert [] == (await apis[(seq // 2) % 2].send(event))["errors"]
        assert [KEPT, KEPT] == [await generated(api) for api in apis]
    await store.close_store()


async def test_a_run_goes_on_over_the_connections_of_two_nodes() -> None:
    """A producer connects to one node and the other in turn, and again to the first, which knew it before."""
    store = InMemoryStore(exclusive=False)
    async with node_on(store, redact=CARDS) as one, node_on(store, redact=CARDS) as other:
        for seq in range(1, len(DELTAS) + 1):
            async with open_producer((one, other)[(seq // 2) % 2]) as producer:
                await producer.send(delta(seq))
                await producer.expect_ack(seq)
        assert KEPT == await generated(RestClient(other))
    await store.close_store()


async def test_a_user_dictates_a_number_in_several_turns(serve: Serve) -> None:
    """The agent's answers in between end no run, and the next words of the user do."""
    app = await serve(redact=CARDS)
    api = RestClient(app)
    await api.create()
    said = ["It is 4929", "12 34", "five six seven eight", "9012.", "I have 2 others: 4929 12"]
    for turn, text in enumerate(said, 1):
        await api.send({"type": "asr", "turn_id": turn, "text": text, "final": True})
        await api.send({"type": "llm.done", "turn_id": turn, "text": "Go on."})
    users = [one["content"] for one in await api.contents() if one["role"] == "user"]
    assert ["It is 4929", "12 ██", "████ ████ ████ ████", "████.", "I have 2 others: 4929 12"] == users


async def test_what_was_heard_of_a_redacted_reply_is_found(serve: Serve) -> None:
    """Heard text, words with a position, and a number of characters cut it where they cut the original."""
    app = await serve(redact=CARDS)
    api = RestClient(app)
    await api.create()
    text = "Your card 4929 1234 5678 9012 is fine. Anything else?"
    words = [{"text": word, "start_ms": 100 * n, "end_ms": 100 * n + 90} for n, word in enumerate(text.split())]
    evidence: list[list[JsonObject]] = [
        [{"type": "interrupt", "heard_text": "Your card 4929 1234 5678"}],
        [{"type": "tts", "words": words}, {"type": "interrupt", "audio_end_ms": 495}],
        [{"type": "interrupt", "heard_chars": 24}],
    ]
    for turn, events in enumerate(evidence, 1):
        first = {"type": "llm.done", "turn_id": turn, "ts": 1000 * turn, "text": text}
        await api.send(first, *({**event, "turn_id": turn, "ts": 1000 * turn + 600} for event in events))
    kept = [(one["content"].strip(), one["metadata"].get("heard")) for one in await api.contents()]
    cut = "Your card 4929 12██ ████"
    assert [(cut, None), (cut, "aligned"), (cut, "aligned")] == kept


async def test_without_the_setting_everything_is_kept(serve: Serve) -> None:
    """Redaction is off by default."""
    app = await serve()
    api = RestClient(app)
    await api.create()
    await api.send({"type": "asr", "turn_id": 1, "text": CARD, "final": True})
    assert [CARD] == [one["content"] for one in await api.contents()]


async def test_large_batches_are_redacted_too(serve: Serve) -> None:
    """A body of many long texts, which is looked through beside other work."""
    app = await serve(redact=CARDS)
    api = RestClient(app)
    await api.create()
    text = "one two we go " * 5_000 + CARD
    await api.send(*({"type": "asr", "turn_id": turn, "text": text, "final": True} for turn in range(1, 6)))
    contents = await api.contents()
    assert 5 == len(contents)
    assert all(one["content"].endswith("492912██████████") for one in contents)
    await api.end()
    await wait_until_closed(app)


async def test_nobody_waits_for_what_takes_long(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a large batch is looked through, others are stored; what comes after it in its session waits for it."""
    released = threading.Event()

    def look(text: str) -> list[tuple[int, int]]:
        assert len(text) < 20_000 or released.wait(60)
        return []

    monkeypatch.setitem(sys.modules, "slow_redaction", SimpleNamespace(look=look))
    app = await serve(redact=("cards", "slow_redaction:look"))
    api = RestClient(app)
    for name in ("slow", "fast"):
        await api.create(name)
    async with open_producer(app, "slow") as slow, open_producer(app, "fast") as fast:
        await slow.send({**delta(1), "text": "word " * 5_000})
        await slow.send({**delta(2), "text": CARD})
        for seq in range(1, 4):
            await fast.send(delta(seq))
            await fast.expect_ack(seq)
        assert [] == await api.journal("slow")
        released.set()
        await slow.expect_ack(2)
    assert ["word " * 5_000, "492912██████████"] == [one["event"]["text"] for one in await api.journal("slow")]


async def test_other_ways_into_a_journal_are_redacted(serve: Serve) -> None:
    """Messages over REST, documents, and checkpoints that a service without redaction wrote."""
    open_api = RestClient(await serve())
    await open_api.create()
    await open_api.send({"type": "asr", "turn_id": 1, "text": f"It is {CARD}.", "final": True})
    checkpoint = (await open_api.get("/v1/sessions/s/checkpoint")).json
    api = RestClient(await serve(redact=CARDS))
    assert 201 == (await api.post("/v1/restore", {"session_id": "s", "checkpoint": checkpoint})).status
    assert 200 == (await api.post("/v1/sessions/s/messages", {"role": "user", "content": f"Or {CARD}?"})).status
    document = await api.call("PUT", "/v1/sessions/s/working-memory", json={"content": f"Card {CARD}"})
    assert 200 == document.status, document.body
    assert ["It is 492912██████████.", "Or 492912██████████?"] == [one["content"] for one in await api.contents()]
    assert TAIL not in json.dumps(await api.journal())
