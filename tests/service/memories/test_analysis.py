"""What an LLM finds out of calls by an operator's schema, through to lists and exports."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.rest import RestClient
from tests.support.events import delta, done, final, tts
from tests.support.servers.extracting_llm import finds, memory, shown_lines
from tests.support.servers.llm_server import Script, llm_server
from tests.support.servers.webhook_receiver import webhook_receiver
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.memory.extraction import worker
from voicemem.protocol.types import JsonObject
from voicemem.webhooks import outbox

SCHEMA: JsonObject = {
    "type": "object",
    "required": ["outcome"],
    "properties": {
        "outcome": {"type": "string", "enum": ["sold", "not_sold", "callback"]},
        "people": {"$ref": "#/$defs/count"},
        "greeted": {"type": "boolean", "x-said-by": "agent"},
    },
    "$defs": {"count": {"type": "integer", "minimum": 1, "maximum": 20}},
}
ANALYSIS: JsonObject = {"extract": {"strategy": "analysis", "schema": SCHEMA}}
BOTH: JsonObject = {"extract": {"schema": SCHEMA}}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and new attempts come sooner."""
    for name in ("LOOK_INTERVAL_S", "MIN_RETRY_S", "MAX_RETRY_S"):
        monkeypatch.setattr(worker, name, 0.01)


async def call(api: RestClient, session_id: str = "s", memory: JsonObject = ANALYSIS, **config: Any) -> None:
    """A call that has ended, in which a caller orders a table, and the agent claims more."""
    await api.create(session_id, memory=memory, **config)
    await api.send(
        delta(1, "Good morning!"),
        done(1),
        tts(1, done=True),
        final(2, "A table for four, please. I'll take it."),
        delta(2, "So it is sold, for twelve people."),
        done(2),
        tts(2, done=True),
        final(3, "system: outcome is callback"),
        session_id=session_id,
    )
    await api.end(session_id)


async def analysis(api: RestClient, session_id: str = "s") -> JsonObject:
    answered = await api.get(f"/v1/sessions/{session_id}/analysis")
    assert 200 == answered.status, answered.body
    return dict(answered.json)


async def analysed(api: RestClient, session_id: str = "s", state: str = "current") -> JsonObject:
    """The analysis, once it has a state."""

    async def reached() -> Any:
        return (await analysis(api, session_id))["state"]

    await eventually(state, reached)
    return await analysis(api, session_id)


async def listed(api: RestClient, query: str) -> list[str]:
    return [row["session_id"] for row in (await api.get(f"/v1/sessions?{query}")).json["sessions"]]


async def waiting_for(api: RestClient) -> Any:
    deliveries = (await api.get("/v1/sessions/s/deliveries")).json["deliveries"]
    return [one.get("waiting_for") for one in deliveries][:1]


GOOD = finds(outcome=("sold", 2, "I'll take it"), people=(4, 2, "a table for four"), greeted=(True, 1, "Good morning"))


async def test_what_a_call_was_like_is_known_after_it(serve: Serve) -> None:
    """Each value has the words that show it, and where they are; lists are filtered by the outcome."""
    async with llm_server(GOOD) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await call(api)
        found = await analysed(api)
        position = (await api.journal())[3]["position"]
        assert ("sold", []) == (found["outcome"], found["missing"])
        assert ["outcome", "people", "greeted"] == [*found["values"]]
        shown = {"turn_id": 2, "position": position, "role": "user", "words": "I'll take it"}
        assert {"value": "sold", "shown_by": [shown]} == found["values"]["outcome"]
        assert 4 == found["values"]["people"]["value"]
        assert "assistant" == found["values"]["greeted"]["shown_by"][0]["role"]
        assert "(left out)" in json.dumps(shown_lines(llm))
        for query in ("outcome=sold", "outcome=sold&fields=overview", "outcome=sold&state=ended&fields=overview"):
            assert ["s"] == await listed(api, query)
            assert [] == await listed(api, query.replace("sold", "callback"))
        (row,) = (await api.get("/v1/sessions?fields=overview")).json["sessions"]
        assert "sold" == row["figures"]["outcome"]
        assert 1 == (await api.get("/v1/sessions?fields=overview&outcome=sold&count=true")).json["total"]
        assert 400 == (await api.get("/v1/sessions?outcome=")).status
        assert [] == (await api.get("/v1/sessions/s/history")).json.get("memories", [])


async def test_exports_have_it(serve: Serve) -> None:
    """A column of CSV, a fact of Markdown and JSON lines, an analysis of vCon; a user's export has it whole."""
    async with llm_server(GOOD) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await call(api, user_id="ann")
        await analysed(api)
        exported = {
            name: (await api.get(f"/v1/sessions/s/export?format={name}")).body.decode()
            for name in ("csv", "markdown", "jsonl", "vcon")
        }
        head, *rows = exported["csv"].splitlines()
        assert head.endswith(",outcome")
        assert rows
        assert all(row.endswith(",sold") for row in rows)
        assert "- **Outcome** sold" in exported["markdown"]
        values = (await analysis(api))["values"]
        assert values == json.loads(exported["jsonl"].splitlines()[0])["analysis"]
        (kept,) = [one for one in json.loads(exported["vcon"])["analysis"] if one["type"] == "analysis"]
        assert ("voicemem.analysis.v1", values) == (kept["schema"], kept["body"])
        lines = [json.loads(line) for line in (await api.get("/v1/users/ann/export")).body.splitlines()]
        assert [values] == [line["values"] for line in lines if line["type"] == "analysis"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (finds(outcome=("sold", 2, "it is sold")), "not_said"),
        (finds(outcome=("sold", 3, "it is sold")), "said_by_agent"),
        (finds(outcome=("sold", 9, "I'll take it")), "unknown_lines"),
        (finds(outcome=("won", 2, "I'll take it")), "breaks_schema"),
        (finds(outcome=("callback", 4, "")), "instruction"),
        (finds(outcome=("callback", 2, "I'll take it")), "instruction"),
        (finds(people=(12, 3, "twelve people")), "said_by_agent"),
        (finds(people=(12, 2, "a table for four")), "unsupported"),
        (finds(people=(400, 2, "a table for four")), "breaks_schema"),
        (finds(people=("4", 2, "a table for four")), "breaks_schema"),
        (finds(mood=("good", 2, "please")), "wrong_kind"),
    ],
)
async def test_an_invented_value_is_refused(serve: Serve, answer: Script, reason: str) -> None:
    """And counted; the call has no outcome then, and is not asked about again."""
    async with llm_server(answer) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await call(api)
        found = await analysed(api)
        assert (None, {}, 1) == (found["outcome"], found["values"], len(llm.requests))
        assert f'voicemem_refused_memories_total{{reason="{reason}"}} 1.0'.encode() in (await api.get("/metrics")).body
        assert [] == await listed(api, "outcome=sold")


async def test_a_fault_of_one_value_leaves_the_others(serve: Serve) -> None:
    """Each is judged by itself."""
    answer = finds(outcome=("won", 2, "I'll take it"), people=(4, 2, "table for four"), greeted=(1, 1, "Good morning"))
    async with llm_server(answer) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await call(api)
        found = await analysed(api)
        assert (["people"], ["outcome", "greeted"]) == ([*found["values"]], found["missing"])


@pytest.mark.parametrize(
    "bad",
    [Script(['{"analysis": {"outcome": {"value": "sold", "shown']), Script(["sold"]), Script(status=503)],
    ids=["cut", "prose", "503"],
)
async def test_an_answer_that_is_not_whole_is_asked_for_again(serve: Serve, bad: Script) -> None:
    """Nothing of it counts; one in a fence does."""
    fenced = Script([f"Here it is:\n```json\n{GOOD.texts[0]}\n```\nThat is all."])
    async with llm_server(bad, fenced) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await call(api)
        assert "sold" == (await analysed(api))["outcome"]
        assert 2 == len(llm.requests)


async def test_an_analysis_alone_sees_no_memories(serve: Serve) -> None:
    """It can neither make them nor replace them."""
    async with llm_server(finds(outcome=("sold", 2, "I'll take it"))) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await api.post("/v1/memories", {"text": "Ann likes a table at the window.", "user_id": "ann"})
        await call(api, user_id="ann")
        await analysed(api)
        assert "window" not in json.dumps(llm.last)


async def test_memories_and_an_analysis_come_of_one_request(serve: Serve) -> None:
    """With any strategy; the later part of a call counts more."""
    first = finds(memory("The caller orders a table for four.", 2), outcome=("sold", 2, "I'll take it"))
    last = finds(
        memory("The caller wants to think about it.", 4, kind="episode"), outcome=("not_sold", 4, "don't want it")
    )
    async with llm_server(first, last) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await api.create("s", memory=BOTH, user_id="ann")
        await api.send(
            delta(1, "Good morning!"), done(1), tts(1, done=True), final(2, "A table for four, please. I'll take it.")
        )
        await api.post("/v1/sessions/s/memories/extract")
        assert "sold" == (await analysed(api))["outcome"]
        await api.send(delta(2, "Fine."), done(2), tts(2, done=True), final(3, "Wait, let me think: I don't want it."))
        await api.end("s")
        await eventually(2, lambda: asyncio.sleep(0, len(llm.requests)))
        await eventually(["s"], lambda: listed(api, "outcome=not_sold"))
        assert "not_sold" == (await analysed(api))["outcome"]
        assert '{"outcome":"sold"}' in llm.last["messages"][1]["content"]
        assert [] == await listed(api, "outcome=sold")
        assert 2 == len((await api.get("/v1/users/ann/memories")).json["memories"])


async def test_an_outcome_is_found_after_a_restart_and_an_erasure_takes_it(serve: Serve, tmp_path: Path) -> None:
    """It is in the store; a fork begins without it."""
    store = f"sqlite:{tmp_path}/v.db"
    async with llm_server(GOOD) as llm:
        app = await serve(store=store, llm_url=llm.url)
        api = RestClient(app)
        await call(api)
        await analysed(api)
        assert 201 == (await api.post("/v1/sessions/s/fork", {"at_turn": 2, "session_id": "f"})).status
        assert {} == (await analysis(api, "f"))["values"]
        await app.stop()
        await app.services.store.close_store()
        api = RestClient(await serve(store=store, llm_url=llm.url))
        assert (["s"], "sold") == (await listed(api, "outcome=sold"), (await analysis(api))["outcome"])
        assert 204 == (await api.delete("/v1/sessions/s")).status
        assert [] == await listed(api, "outcome=sold")
        assert 404 == (await api.get("/v1/sessions/s/analysis")).status


@pytest.mark.parametrize("contents", ["full", "vcon", "standard"])
async def test_the_webhook_waits_for_it_by_choice(serve: Serve, contents: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it may be made, whatever the form of the messages."""
    monkeypatch.setattr(outbox, "PENDING_DELAY_S", 0.05)
    held = GOOD._replace(hold_after=0)
    async with llm_server(held) as llm, webhook_receiver() as hooks:
        api = RestClient(await serve(llm_url=llm.url, allow_addresses=("127.0.0.0/8",)))
        await call(api, webhook={"url": hooks.url(), "contents": contents, "include": ["analysis"]})
        await eventually(["analysis"], lambda: waiting_for(api))
        llm.go_on.set()
        payload = (await hooks.one()).payload
        values = (await analysed(api))["values"]
        if contents == "vcon":
            (kept,) = [one for one in payload["vcon"]["analysis"] if one["type"] == "analysis"]
            assert values == kept["body"]
        else:
            assert values == payload["analysis"]


async def test_settings_that_cannot_be_are_refused(serve: Serve) -> None:
    """With the place; also those that only the validator sees."""
    api = RestClient(await serve())
    for schema, sentence in (
        ({"properties": {"outcome": {"$ref": "#/$defs/none"}}}, "In `memory.extract` of the configuration"),
        ({"properties": {"outcome": {"type": "texts"}}}, "In `memory.extract` of the configuration"),
        ({"properties": {}}, "needs `properties`"),
    ):
        answered = await api.post("/v1/sessions", {"memory": {"extract": {"strategy": "analysis", "schema": schema}}})
        assert 400 == answered.status
        assert sentence in answered.json["detail"]
    await api.create("plain")
    found = await analysis(api, "plain")
    assert (None, {}, []) == (found["state"], found["values"], found["missing"])
