"""History over REST: what it shows, while a call runs and after."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.producer import send_over_websocket
from tests.support.callers.rest import RestClient, wait_until_closed
from tests.support.events import delta, done, event, final, interrupt, message, partial, tts
from tests.support.paths import FIXTURES
from tests.support.rows import every_row
from tests.support.services import Serve, running_service
from voicemem.protocol.types import JsonObject


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    """A caller of a service with one empty session."""
    caller = RestClient(await serve())
    await caller.create()
    return caller


def seed(name: str) -> Any:
    """A document beside the seed call."""
    return json.loads((FIXTURES / f"seed_call.{name}.json").read_bytes())


def seed_call() -> list[JsonObject]:
    """The events of the seed call."""
    return [json.loads(line) for line in (FIXTURES / "seed_call.jsonl").read_text().splitlines()]


async def history(api: RestClient, query: str = "") -> JsonObject:
    """The whole answer."""
    answered = await api.get(f"/v1/sessions/s/history{query}")
    assert (200, "application/json") == (answered.status, answered.headers["Content-Type"])
    return dict(answered.json)


def texts(contents: list[JsonObject]) -> list[str]:
    return [one["content"] for one in contents]


async def three_turns(api: RestClient) -> None:
    """A greeting, two answered turns, and one that is in progress."""
    await api.send(message(0, "Hello."), final(1, "One?"), delta(1, "One."), done(1), final(2, "Two?"))
    await api.send(delta(2, "Two."), done(2), tts(2, done=True), partial(3, "Three"))


@pytest.fixture
async def in_three_turns(api: RestClient) -> RestClient:
    await three_turns(api)
    return api


async def test_the_seed_call(serve: Serve) -> None:
    """The joke-and-story call, streamed as it happened, gives the documented memory."""
    app = await serve()
    await send_over_websocket(app, seed_call())
    await wait_until_closed(app)
    answer = await history(RestClient(app))
    assert seed("contents")["contents"] == answer["contents"]
    assert ("ended", 28) == (answer["state"], answer["position"])


async def test_the_seed_call_while_it_runs(api: RestClient) -> None:
    """Before its end the same call gives the same memory, event by event over HTTP."""
    for one in seed_call()[:-1]:
        await api.send(one)
    assert seed("contents")["contents"] == await api.contents()


async def test_keys_stand_in_their_order(api: RestClient) -> None:
    """The JSON is written in the documented order, custom metadata last."""
    await api.send(delta(1, "One two.", item="a", metadata={"zeta": 1, "alpha": 2}), done(1, item="a"))
    await api.send(interrupt(1, heard_text="One "))
    (shown,) = await api.contents()
    assert ["role", "content", "turn_id", "timestamp", "metadata"] == list(shown)
    order = ["interrupted", "interrupt_timestamp", "original", "source", "zeta", "alpha"]
    assert order == list(shown["metadata"])


async def test_an_empty_session(api: RestClient) -> None:
    """Before the first event the history is there, and empty."""
    session = await api.session()
    answer = {key: session[key] for key in ("session_id", "state", "started_at", "ended_at", "position")}
    assert answer | {"contents": []} == await history(api)


async def test_state_and_times_follow_the_session(api: RestClient) -> None:
    """After the end the history says so, and stays."""
    await three_turns(api)
    before = await history(api)
    ended = await api.end()
    after = await history(api)
    assert ("running", None) == (before["state"], before["ended_at"])
    assert ("ended", ended["ended_at"]) == (after["state"], after["ended_at"])
    assert texts(before["contents"]) == texts(after["contents"])[:5]


async def test_open_adds_what_is_in_progress(api: RestClient) -> None:
    """Partials and growing replies are shown only to who asks for them."""
    await api.send(final(1, "Hi."), delta(1, "Good "), partial(2, "And"))
    assert ["Hi."] == texts(await api.contents()) == texts(await api.contents(query="?open=false"))
    assert ["Hi.", "Good ", "And"] == texts(await api.contents(query="?open=true"))


async def test_the_close_finishes_what_was_in_progress(api: RestClient) -> None:
    """The last words of a call are in its history after the end."""
    await api.send(final(1, "Hi."), delta(1, "Good day "), partial(2, "And"))
    await api.end()
    contents = await api.contents()
    assert ["Hi.", "Good day ", "And"] == texts(contents)
    assert [None, True, None] == [one["metadata"].get("interrupted") for one in contents]
    assert contents[2]["metadata"]["partial"] is True


async def test_standard_fields_are_role_and_content(api: RestClient) -> None:
    """With fields=standard nothing else is shown, and nothing is left out."""
    await three_turns(api)
    full, standard = await api.contents(query="?fields=full"), await api.contents(query="?fields=standard")
    assert full == await api.contents()
    assert [{"role": one["role"], "content": one["content"]} for one in full] == standard


@every_row(
    ("query", "expected"),
    [
        ("after_turn=-1", ["Hello.", "One?", "One.", "Two?", "Two."]),
        ("after_turn=0", ["One?", "One.", "Two?", "Two."]),
        ("after_turn=1", ["Two?", "Two."]),
        ("after_turn=2", []),
        ("after_turn=9007199254740992", []),
        ("limit=1", ["Two."]),
        ("limit=3", ["One.", "Two?", "Two."]),
        ("limit=100", ["Hello.", "One?", "One.", "Two?", "Two."]),
        ("limit=1&after_turn=0", ["Two."]),
        ("limit=2&open=true", ["Two.", "Three"]),
        ("after_turn=2&open=true", ["Three"]),
    ],
)
async def test_a_part_of_a_history(in_three_turns: RestClient, query: str, expected: list[str]) -> None:
    """after_turn leaves out older turns, limit takes the newest messages, and they go together."""
    assert expected == texts(await in_three_turns.contents(query=f"?{query}"))


async def test_without_a_limit_all_of_a_long_call_is_shown(api: RestClient) -> None:
    """History is not bounded by max_history."""
    await api.send(*(final(turn, f"{turn}") for turn in range(1, 1501)))
    assert [str(turn) for turn in range(1, 1501)] == texts(await api.contents())


async def test_a_history_does_not_change_by_being_read(api: RestClient) -> None:
    """Two reads with nothing between are the same to the byte."""
    await three_turns(api)
    first, second = [await api.get("/v1/sessions/s/history?open=true") for _ in range(2)]
    assert (first.body, first.headers["ETag"]) == (second.body, second.headers["ETag"])


# ETag


async def etag(api: RestClient, query: str = "") -> str:
    return str((await api.get(f"/v1/sessions/s/history{query}")).headers["ETag"])


async def test_nothing_is_sent_twice_to_who_has_it(api: RestClient) -> None:
    """With the ETag of what is still so, the answer is an empty 304 that carries it again."""
    await three_turns(api)
    tag = await etag(api)
    answered = await api.get("/v1/sessions/s/history", {"If-None-Match": tag})
    assert (304, b"", tag) == (answered.status, answered.body, answered.headers["ETag"])


@every_row("form", ["{}", "W/{}", '"x", {}', '{},"x"', '  W/"y" ,W/{}  ', "*"])
async def test_every_form_of_if_none_match(api: RestClient, form: str) -> None:
    """Weak tags, lists, and the star that means any are understood."""
    tag = await etag(api)
    assert 304 == (await api.get("/v1/sessions/s/history", {"If-None-Match": form.replace("{}", tag)})).status


@every_row("given", ["", '"', '"x"', "x", 'W/"x"', "W/", ",,,", '"' + "x" * 4000 + '"', "é", "'; drop table journal"])
async def test_garbage_in_if_none_match_is_no_match(api: RestClient, given: str) -> None:
    """What is no tag of ours is answered in full."""
    assert 200 == (await api.get("/v1/sessions/s/history", {"If-None-Match": given})).status


async def test_the_etag_changes_with_every_event_and_at_the_end(api: RestClient) -> None:
    """Whatever is journaled makes a new tag: an event, a patch, the close."""
    tags = [await etag(api)]
    await api.send(final(1, "Hi."))
    tags.append(await etag(api))
    await api.patch("/v1/sessions/s", {"name": "x"})
    tags.append(await etag(api))
    await api.end()
    tags.append(await etag(api))
    assert 4 == len(set(tags))
    answered = await api.get("/v1/sessions/s/history", {"If-None-Match": tags[2]})
    assert (200, "ended") == (answered.status, answered.json["state"])


async def test_each_question_has_an_etag_of_its_own(api: RestClient) -> None:
    """A tag for one set of parameters does not hold for another, nor for another session."""
    queries = ["", "?open=true", "?fields=standard", "?limit=1", "?limit=2", "?after_turn=1", "?limit=1&after_turn=1"]
    tags = {await etag(api, query) for query in queries}
    await api.create("other")
    tags.add((await api.get("/v1/sessions/other/history")).headers["ETag"])
    assert len(queries) + 1 == len(tags)


async def test_an_etag_does_not_outlive_its_session(api: RestClient) -> None:
    """After an erase the tag is worth nothing."""
    tag = await etag(api)
    await api.delete("/v1/sessions/s")
    assert (404, "unknown_session") == (await api.get("/v1/sessions/s/history", {"If-None-Match": tag})).problem


# What was acknowledged is shown


async def test_a_read_shows_what_was_acknowledged_before_it(api: RestClient) -> None:
    """After every acknowledged event the history has it at once."""
    for turn in range(1, 31):
        await api.send(final(turn, f"{turn}", seq=turn))
        answer = await history(api, "?limit=1")
        assert (turn, [f"{turn}"]) == (answer["position"], texts(answer["contents"]))


async def test_reads_and_writes_at_once(api: RestClient) -> None:
    """However many producers write and readers read, each reader sees at least what was acknowledged before."""
    acked = 0

    async def write(producer: int) -> None:
        nonlocal acked
        for number in range(1, 16):
            turn = producer * 100 + number
            await api.send(final(turn, f"{turn}", seq=number), query=f"?producer=p{producer}")
            acked += 1

    async def read() -> None:
        while acked < 60:
            at_least = acked
            answer = await history(api)
            assert at_least <= answer["position"]
            assert at_least <= len(answer["contents"])

    await asyncio.gather(*(write(producer) for producer in range(4)), *(read() for _ in range(4)))
    assert 60 == len(await api.contents())


async def test_a_message_shows_by_the_moment_its_websocket_ack_comes(serve: Serve) -> None:
    """Both ways in are read alike: what the websocket acknowledged is in the next history."""
    app = await serve()
    for turn in range(1, 6):
        name = f"s{turn}"
        await send_over_websocket(app, [final(turn, "Hi."), delta(turn, "Yes."), done(turn)], name)
        assert ["Hi.", "Yes."] == texts(await RestClient(app).contents(name))


async def test_history_after_a_restart_is_the_same(tmp_path: Path) -> None:
    """Another process on the same file gives the same bytes."""
    store = f"sqlite:{tmp_path}/v.db"
    async with running_service(store=store) as app:
        await send_over_websocket(app, seed_call())
        await wait_until_closed(app)
        before = await RestClient(app).get("/v1/sessions/s/history")
    async with running_service(store=store) as app:
        assert before.body == (await RestClient(app).get("/v1/sessions/s/history")).body


# Parameters

BAD = ["fields=all", "fields=", "open=maybe", "open=", "after_turn=-2", "after_turn=x", "after_turn=1.5"]
BAD += ["limit=0", "limit=-1", "limit=x", "limit=99999999999999999999", "turn=1", "Limit=1", "limit=1&limit=1"]
BAD += ["after_turn=null", "limit=null", "open=null"]


@every_row("query", BAD)
async def test_bad_parameters_are_refused(api: RestClient, query: str) -> None:
    """A parameter that is unknown, doubled or has a value that it cannot have is never passed over."""
    assert (400, "invalid_query") == (await api.get(f"/v1/sessions/s/history?{query}")).problem


def metric(name: str, latency_ms: float, turn: int = 1) -> JsonObject:
    return event("metric", turn, name=name, latency_ms=latency_ms)


async def test_turns_over_rest(serve: Serve) -> None:
    """The service shows the turns of a session while it runs and after, and takes no parameters."""
    api = RestClient(await serve())
    await api.create()
    assert {"turns": []} == (await api.get("/v1/sessions/s/turns")).json
    await api.send(final(1, "Hi.", 1000), metric("e2e", 337), delta(1, "Yes.", 1500))
    (turn,) = (await api.get("/v1/sessions/s/turns")).json["turns"]
    assert (1, 337, None) == (turn["turn_id"], turn["metrics"]["e2e_latency_ms"], turn["end"])
    await api.end()
    assert "interrupted" == (await api.get("/v1/sessions/s/turns")).json["turns"][0]["end"]["type"]
    assert (400, "invalid_query") == (await api.get("/v1/sessions/s/turns?page_index=1")).problem


async def test_a_latency_stays_a_number_that_json_readers_hold(serve: Serve) -> None:
    """A latency beyond all measure is refused or shown as it came, never as an integer of hundreds of digits."""
    api = RestClient(await serve())
    await api.create()
    await api.send(metric("e2e", 1e300))
    answered = await api.get("/v1/sessions/s/turns")
    assert 200 == answered.status
    assert len(answered.body) < 300
