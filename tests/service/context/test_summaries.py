"""Running summaries, made in the background by a real LLM server, and shown instead of what they stand for."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.rest import RestClient
from tests.support.events import delta, done, final, interrupt
from tests.support.servers.llm_server import LlmServer, Script, llm_server
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.context import summaries
from voicemem.context.summary_policy import PROMPT
from voicemem.llm.background import MAX_CONCURRENT_PER_LLM
from voicemem.protocol.types import JsonObject
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.store.sqlite.store import SqliteStore

WORD = "word "
SMALL = {"policy": "summary", "max_tokens": 200, "keep_recent": 2}
HEAD = 'Summary of the first {} messages of this call:\n"{}"'


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and new attempts come sooner."""
    monkeypatch.setattr("voicemem.services.LOOK_INTERVAL_S", 0.01)
    monkeypatch.setattr(summaries, "QUIET_INTERVAL_S", 0.01)
    monkeypatch.setattr(summaries, "MIN_RETRY_S", 0.05)


def running_jobs(writer: summaries.Summaries) -> list[summaries.SummaryJob]:
    """The summaries that are being written."""
    return [job for job in writer.jobs.values() if job.task is not None]


async def talk(api: RestClient, first: int, last: int, session_id: str = "s") -> None:
    """Turns of 26 tokens each, journaled together."""
    await api.send(
        *(
            event
            for turn in range(first, last + 1)
            for event in (final(turn, f"Q{turn} " + WORD * 10), delta(turn, f"A{turn} " + WORD * 10), done(turn))
        ),
        session_id=session_id,
    )


async def state(api: RestClient) -> Any:
    return (await api.context("?usage=true"))["summary"]["state"]


async def summed_up(api: RestClient, *, session_id: str = "s", count: int = 1) -> list[JsonObject]:
    """The summaries in the journal, once there are so many."""

    async def events() -> list[JsonObject]:
        rows = await api.journal(session_id)
        return [row["event"] for row in rows if row["event"]["type"] == "memory.summary"]

    async def enough() -> bool:
        return len(await events()) >= count

    await eventually(True, enough)
    return await events()


def shown(body: JsonObject) -> list[str]:
    return [one["content"].split()[0] for one in body["messages"]]


async def test_a_summary_takes_the_place_of_the_first_turns(serve: Serve) -> None:
    """At 70 % of the budget what is older goes into a summary, which comes first, with how many it stands for."""
    async with llm_server(Script(["  They spoke of words. "])) as llm:
        api = RestClient(await serve(llm_url=llm.url, llm_model="small"))
        await api.create(memory=SMALL, system_messages=[{"role": "system", "content": "Be kind."}])
        await talk(api, 1, 5)
        assert ("none", []) == (await state(api), llm.requests)
        await talk(api, 6, 6)
        (summary,) = await summed_up(api)
        assert {
            "type": "memory.summary",
            "through_turn": 4,
            "text": "They spoke of words.",
            "messages": 8,
            "model": "m",
        } == summary
        body = await api.context("?usage=true&system=separate")
        assert ["Be", "Summary", "Q5", "A5", "Q6", "A6"] == shown(body)
        assert {"role": "system", "content": HEAD.format(8, "They spoke of words.")} == body["messages"][1]
        assert ({"summarized"}, 8) == ({one["reason"] for one in body["left_out"]}, len(body["left_out"]))
        assert ("current", 4, 8) == tuple(body["summary"][name] for name in ("state", "through_turn", "messages"))
        assert "small" == llm.last["model"]
        assert 12 == len(await api.contents())


async def test_summaries_go_on_from_the_one_before(serve: Serve) -> None:
    """The next is made of it, and of what came since; each message is told to the LLM once."""
    async with llm_server(Script(["First."]), Script(["Second."])) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await api.create(memory=SMALL)
        await talk(api, 1, 6)
        await summed_up(api)
        await talk(api, 7, 10)
        second = (await summed_up(api, count=2))[1]
        first_prompt, second_prompt = (request.body["messages"][0]["content"] for request in llm.requests)
        assert ("Second.", 16) == (second["text"], second["messages"])
        assert "(nothing yet)" in first_prompt
        assert "user: Q4 word" in first_prompt
        assert "First." in second_prompt
        assert "Q4" not in second_prompt
        assert "assistant: A5 word" in second_prompt


async def test_a_summary_tells_what_was_heard(serve: Serve) -> None:
    """What an interruption cut away is not in the prompt; a prompt of one's own is used."""
    async with llm_server(Script(["So."])) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await api.create(memory=SMALL | {"prompt": "Old: {prev_summary} New: {messages_joined}", "model": "mine"})
        await api.send(final(1, "A secret?", user="ann"), delta(1, "The code is 1234."), done(1))
        await api.send(interrupt(1, heard_text="The code "))
        await talk(api, 2, 7)
        await summed_up(api)
        prompt = llm.requests[0].body["messages"][0]["content"]
        assert prompt.startswith(
            "Old: (nothing yet) New: user (ann): A secret?\nassistant: The code  [interrupted here]"
        )
        assert "1234" not in prompt
        assert "mine" == llm.last["model"]


async def test_while_the_llm_is_down_the_window_takes_over(serve: Serve) -> None:
    """The state is visible, nothing is lost, and the summary comes when the LLM does."""
    async with llm_server(Script(status=503)) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await api.create(memory=SMALL)
        await talk(api, 1, 12)
        await eventually("failing", lambda: state(api))
        body = await api.context("?usage=true")
        assert body["tokens"] <= 200
        assert ["Q6", "A6"] == shown(body)[:2]
        assert ("max_tokens", "503") == (body["left_out"][0]["reason"], body["summary"]["error"])
        assert body["summary"]["failures"] >= 1
        llm.then(Script(["Up again."]))
        assert "Up again." == (await summed_up(api))[0]["text"]
        await eventually("current", lambda: state(api))
        assert 0 == (await api.context("?usage=true"))["summary"]["failures"]
        assert 24 == len(await api.contents())


async def test_an_llm_that_dies_in_the_middle(serve: Serve) -> None:
    """An answer that breaks off is none, and it is tried again."""
    async with llm_server(
        Script(raw=b'{"choices":[{"mess'), Script([""]), Script([WORD * 150]), Script(["Well."])
    ) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await api.create(memory=SMALL)
        await talk(api, 1, 8)
        assert ["Well."] == [one["text"] for one in await summed_up(api)]
        assert 4 == len(llm.requests)


async def test_a_context_never_waits_for_a_summary(serve: Serve) -> None:
    """While the LLM is slow the newest turns that fit are shown at once."""
    async with llm_server(Script(["Late."], hold_after=0)) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await api.create(memory=SMALL)
        await talk(api, 1, 12)
        await eventually("running", lambda: state(api))
        assert "Q6" == shown(await api.context())[0]
        llm.go_on.set()
        await summed_up(api)


async def test_it_is_appended_while_the_call_goes_on(serve: Serve) -> None:
    """Events that come between question and answer do not keep a summary away."""
    async with llm_server(Script(["In between."], hold_after=0)) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await api.create(memory=SMALL)
        await talk(api, 1, 8)
        await eventually("running", lambda: state(api))
        going = asyncio.create_task(talk(api, 9, 30))
        llm.go_on.set()
        await summed_up(api)
        await going
        assert 60 == len(await api.contents())


async def test_what_has_changed_meanwhile_is_summarised_anew(serve: Serve) -> None:
    """A correction of what was sent to the LLM is not lost: its answer is thrown away."""
    async with llm_server(Script(["Old."], hold_after=0), Script(["New."])) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await api.create(memory=SMALL)
        await api.send(final(1, "Monday.", item="u1"))
        await talk(api, 2, 8)
        await eventually("running", lambda: state(api))
        await api.send(final(1, "Tuesday.", item="u1"))
        llm.go_on.set()
        assert ["New."] == [one["text"] for one in await summed_up(api)]
        assert "Tuesday." in llm.last["messages"][0]["content"]


async def test_two_services_never_race(serve: Serve, tmp_path: Path) -> None:
    """The one that notices first asks an LLM; the other leaves the session to it."""
    async with llm_server(Script(["One."], hold_after=0)) as llm:
        app = await serve(store=f"sqlite:{tmp_path}/v.db", llm_url=llm.url)
        api = RestClient(app)
        await api.create(memory=SMALL)
        await talk(api, 1, 8)
        await eventually(1, lambda: count_of(llm))  # so the session is claimed too
        beside = SqliteStore(str(tmp_path / "v.db"), exclusive=False)
        try:
            other = summaries.Summaries(
                beside,
                ReadModelCache(beside),
                app.services.summaries.policies,
                app.services.summaries.llm,
                app.services.runtime._replace(random=float),
            )
            stream = await beside.journal.find_session("default", "s")
            assert stream is not None
            await other.check_session(stream)
            await eventually([], lambda: asyncio.sleep(0, running_jobs(other)))
            assert 1 == len(llm.requests)
            llm.go_on.set()
            await eventually([], lambda: asyncio.sleep(0, running_jobs(app.services.summaries)))
        finally:
            await other.stop()
            await beside.close_store()
        assert 1 == len(await summed_up(api))


async def count_of(llm: LlmServer) -> int:
    return len(llm.requests)


async def test_a_restart_shows_the_same(serve: Serve, tmp_path: Path) -> None:
    """A summary is an event of the journal: another process gives the same context, byte for byte."""
    async with llm_server(Script(["Kept."])) as llm:
        app = await serve(store=f"sqlite:{tmp_path}/v.db", llm_url=llm.url)
        api = RestClient(app)
        await api.create(memory=SMALL)
        await talk(api, 1, 8)
        await summed_up(api)
        before = (await api.get("/v1/sessions/s/context")).body
        await app.stop()
        await app.services.store.close_store()
    again = RestClient(await serve(store=f"sqlite:{tmp_path}/v.db"))
    assert before == (await again.get("/v1/sessions/s/context")).body


async def test_without_an_llm_it_says_so(serve: Serve) -> None:
    """The window is shown, and the state tells why there is no summary."""
    api = RestClient(await serve())
    await api.create(memory=SMALL)
    await talk(api, 1, 8)
    await eventually("failing", lambda: state(api))
    assert "llm_not_configured" == (await api.context("?usage=true"))["summary"]["error"]


async def test_the_summary_is_written_by_the_model_of_the_chat(serve: Serve) -> None:
    """A model in `llm.params` alone comes before the operator's, for the chat and for summaries."""
    async with llm_server(Script(["They spoke of words."]), Script(["Hi."])) as llm:
        api = RestClient(await serve(llm_url=llm.url, llm_model="the-operators"))
        await api.create(memory=SMALL, llm={"params": {"model": "the-sessions"}})
        await talk(api, 1, 6)
        await summed_up(api)
        await api.post("/v1/sessions/s/chat/completions", {"messages": [{"role": "user", "content": "Hello."}]})
        assert ["the-sessions", "the-sessions"] == [request.body["model"] for request in llm.requests]


async def test_an_llm_that_never_answers_is_left_alone(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """After twelve failures no context has it asked again, until more is said."""
    monkeypatch.setattr(summaries, "MIN_RETRY_S", 0.001)
    monkeypatch.setattr(summaries, "MAX_RETRY_S", 0.001)
    async with llm_server(Script(status=500)) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await api.create(memory=SMALL)
        await talk(api, 1, 8)
        await eventually(summaries.MAX_FAILURES, lambda: asyncio.sleep(0, len(llm.requests)))
        for _ in range(5):
            assert "failing" == await state(api)
            await asyncio.sleep(0.05)
        assert summaries.MAX_FAILURES == len(llm.requests)
        llm.then(Script(["They spoke of words."]))
        await talk(api, 9, 9)
        assert ["They spoke of words."] == [one["text"] for one in await summed_up(api)]


async def test_requests_begin_alike(serve: Serve) -> None:
    """What a provider has cached of one request is the beginning of the next one, of the chat and of summaries."""
    async with llm_server(Script(["Summary."])) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await api.create(memory=SMALL)
        for last in (8, 16):
            await talk(api, last - 7, last)
            await summed_up(api, count=last // 8)
        one, other = (request.body["messages"][0]["content"] for request in llm.requests[:2])
        head = PROMPT.partition("{prev_summary}")[0]
        assert one.startswith(head)
        assert other.startswith(head)


async def test_the_pause_is_bounded_after_any_number_of_failures(serve: Serve) -> None:
    """An LLM that has been away for days is still asked once a minute."""
    app = await serve()
    await RestClient(app).create()
    stream = await app.services.store.journal.find_session("default", "s")
    assert stream is not None
    job = summaries.SummaryJob(stream, failures=5_000)
    app.services.summaries.schedule_retry(job, "refused")
    assert job.failures == 5_001
    assert 0 < job.not_before - asyncio.get_running_loop().time() <= 1.5 * summaries.MAX_RETRY_S


async def test_nothing_is_done_for_other_policies(serve: Serve) -> None:
    """No LLM is asked where no summary is wanted."""
    async with llm_server() as llm:
        app: App = await serve(llm_url=llm.url)
        api = RestClient(app)
        await api.create(memory={"policy": "window", "max_tokens": 50})
        await talk(api, 1, 8)
        await app.services.summaries.check_changed()
        assert ([], {}) == (llm.requests, app.services.summaries.jobs)


async def test_tools_are_summarised(serve: Serve) -> None:
    """What tools answered calls for a summary, and is told in its prompt."""
    async with llm_server(Script(["So."])) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await api.create(memory=SMALL)
        for turn in range(1, 9):
            call: JsonObject = {"turn_id": turn, "call_id": f"c{turn}", "name": "find"}
            await api.send(
                final(turn, f"Q{turn}"),
                {"type": "tool.call", **call, "arguments": {"n": turn}},
                {"type": "tool.result", **call, "result": WORD * 20},
                delta(turn, f"A{turn}"),
                done(turn),
            )
        await summed_up(api)
        assert 'tool find {"n": 1}: word word' in llm.requests[0].body["messages"][0]["content"]


async def test_a_backlog_is_summarised_in_portions(serve: Serve) -> None:
    """No prompt is larger than what the model takes, however long its LLM was away."""
    async with llm_server(Script(["Part of it."])) as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await api.create(memory={"policy": "summary", "context_window": 600, "keep_recent": 2})
        await talk(api, 1, 60)
        await eventually("current", lambda: state(api))
        assert len(llm.requests) > 3
        assert all(len(request.body["messages"][0]["content"]) < 4 * 600 for request in llm.requests)
        told = "".join(request.body["messages"][0]["content"] for request in llm.requests)
        assert all(told.count(f"user: Q{turn} ") == 1 for turn in range(1, 50))


async def test_an_llm_that_hangs_holds_up_nobody_else(serve: Serve) -> None:
    """So many calls of one URL are under way at once, and others go on."""
    async with llm_server(Script(["Late."], hold_after=0)) as slow, llm_server(Script(["Quick."])) as quick:
        app = await serve(llm_url=quick.url, allow_addresses=("127.0.0.1",))
        api = RestClient(app)
        for number in range(MAX_CONCURRENT_PER_LLM + 4):
            await api.create(f"slow{number}", memory=SMALL, llm={"url": slow.url})
            await talk(api, 1, 8, f"slow{number}")
        await api.create(memory=SMALL)
        await talk(api, 1, 8)
        assert "Quick." == (await summed_up(api))[0]["text"]
        await eventually(MAX_CONCURRENT_PER_LLM, lambda: count_of(slow))
        assert MAX_CONCURRENT_PER_LLM == len(running_jobs(app.services.summaries))


async def test_no_summary_is_promised_where_none_is_made(serve: Serve) -> None:
    """A call that wishes for summaries in a session without them is told that there is none."""
    async with llm_server() as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await api.create()
        await talk(api, 1, 8)
        assert "none" == (await api.context("?policy=summary&max_tokens=100&usage=true"))["summary"]["state"]
