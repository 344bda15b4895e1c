"""Agora's paths: speak, interrupt, turns and history."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

from tests.support.callers.agora_rest import AGENTS, agora_problem, joined
from tests.support.callers.producer import send_over_websocket
from tests.support.callers.rest import RestClient
from tests.support.services import ANY_PORT, Serve
from voicemem.app import running
from voicemem.config.service import Settings


async def test_what_is_said_in_the_newest_turn_interrupts_nothing(serve: Serve) -> None:
    """A spoken command stands in the newest turn, whatever its priority, and the reply before it stays whole."""
    app = await serve()
    api = RestClient(app)
    agent = await joined(api)
    events = [
        {"type": "message", "turn_id": 3, "role": "assistant", "text": "Welcome.", "source": "greeting"},
        {"type": "llm.delta", "turn_id": 3, "text": "Once upon a time "},
    ]
    await send_over_websocket(app, events, agent)
    spoken = await api.post(f"{AGENTS}/{agent}/speak", {"text": "Hold on.", "priority": "INTERRUPT"})
    assert {"agent_id", "channel", "start_ts"} == set(spoken.json)
    assert (agent, "lobby") == (spoken.json["agent_id"], spoken.json["channel"])
    await api.post(f"{AGENTS}/{agent}/think", {"text": "Go on."})
    contents = (await api.get(f"{AGENTS}/{agent}/history")).json["contents"]
    assert [("Welcome.", 3), ("Hold on.", 3), ("Go on.", 4)] == [(one["content"], one["turn_id"]) for one in contents]
    assert not any("interrupted" in one["metadata"] for one in contents)
    assert {"agora.rest", "main"} == {row["producer"] for row in await api.journal(agent)}


async def test_whom_an_engines_interrupt_marks_after_speak(serve: Serve) -> None:
    """With a turn alone it is about what was spoken, the turn's newest reply; an item leads to the reply before it."""
    app = await serve()
    api = RestClient(app)
    for number, named in enumerate(({}, {"item": "r1"})):
        agent = await joined(api, {"name": f"n{number}", "properties": {"channel": "c"}})
        reply = {"turn_id": 1, "item": "r1", "text": "Once upon a time."}
        await api.send({"type": "llm.delta", **reply, "ts": 1000}, session_id=agent)
        await api.post(f"{AGENTS}/{agent}/speak", {"text": "Hold on."})
        cut = {"type": "interrupt", "turn_id": 1, "heard_text": "", "ts": 2**53 - 1, **named}
        await api.send(cut, {"type": "llm.done", **reply, "ts": 2000}, session_id=agent)
        contents = (await api.get(f"{AGENTS}/{agent}/history")).json["contents"]
        marked = [one["metadata"]["original"] for one in contents if "interrupted" in one["metadata"]]
        assert [["Hold on."], ["Once upon a time."]][number] == marked


async def test_an_interrupt_of_nothing_marks_nothing(serve: Serve) -> None:
    """Where no reply plays, the interruption only stands in the journal."""
    api = RestClient(await serve())
    agent = await joined(api)
    await api.post(f"{AGENTS}/{agent}/speak", {"text": "Welcome."})
    assert 200 == (await api.post(f"{AGENTS}/{agent}/interrupt")).status
    (said,) = (await api.get(f"{AGENTS}/{agent}/history")).json["contents"]
    assert {"source": "command"} == said["metadata"]
    assert "api_interrupt" == (await api.journal(agent))[-1]["event"]["cause"]


async def test_what_leaving_cuts_short_is_told_in_the_turns(serve: Serve) -> None:
    """A reply that plays when the agent leaves is interrupted by that, and the history stays readable under /v1."""
    app = await serve()
    api = RestClient(app)
    agent = await joined(api)
    await send_over_websocket(app, [{"type": "llm.delta", "turn_id": 1, "text": "Once upon a time"}], agent)
    assert 200 == (await api.post(f"{AGENTS}/{agent}/leave")).status
    for call in ("leave", "interrupt", "speak", "think", "update"):
        assert (404, "TaskNotFound") == agora_problem(await api.post(f"{AGENTS}/{agent}/{call}", {}))
    answered = await api.get(f"{AGENTS}/{agent}/history")
    assert (404, "TaskNotFound") == agora_problem(answered)
    assert "The session was not found, has already ended, or failed to start." == answered.json["detail"]
    (turn,) = (await api.get(f"{AGENTS}/{agent}/turns")).json["turns"]
    assert ("interrupted", "api_leave") == (turn["end"]["type"], turn["end"]["metadata"]["caused_by"])
    assert ["agent_id", "channel", "turn_id", "start", "end", "metrics"] == list(turn)
    assert "Once upon a time" == (await api.contents(agent))[0]["metadata"]["original"]


TIMED = [
    {"type": "asr", "turn_id": 1, "text": "Hello", "segment": 0, "start_ms": 1_715_000_005_200, "ts": 1},
    {"type": "asr", "turn_id": 1, "text": "Hello.", "segment": 0, "final": True, "end_ms": 1_715_000_006_000, "ts": 2},
    {
        "type": "asr",
        "turn_id": 1,
        "text": "My package?",
        "segment": 1,
        "final": True,
        "start_ms": 1_715_000_006_500,
        "end_ms": 1_715_000_007_600,
        "metadata": {"speech_algorithmic_delay": 120},
        "ts": 3,
    },
    {"type": "llm.done", "turn_id": 1, "text": "It is on its way.", "ts": 1_715_000_009_000},
    {"type": "tts", "turn_id": 1, "audio_ms": 100, "ts": 1_715_000_009_600},
    {"type": "tts", "turn_id": 1, "audio_ms": 3600, "done": True, "ts": 1_715_000_013_200},
    {"type": "message", "turn_id": 2, "role": "user", "text": "Thanks.", "source": "message", "ts": 4},
]


async def test_times_of_speech_stand_where_events_gave_them(serve: Serve) -> None:
    """A user's are the recogniser's, a reply's those of its playback; what was typed has none."""
    app = await serve()
    api = RestClient(app)
    agent = await joined(api)
    await send_over_websocket(app, TIMED, agent)
    user, reply, typed = (await api.get(f"{AGENTS}/{agent}/history")).json["contents"]
    assert (1_715_000_005_200, 1_715_000_007_600, 120) == (
        user["speech_start_ms"],
        user["speech_end_ms"],
        user["speech_algorithmic_delay"],
    )
    assert (1_715_000_009_500, 1_715_000_013_200) == (reply["speech_start_ms"], reply["speech_end_ms"])
    assert ["role", "content", "turn_id", "timestamp", "metadata"] == list(typed)


async def test_a_setting_strips_the_contents(serve: Serve) -> None:
    """With `standard` a message is role and content alone, for readers that refuse other keys."""
    app = await serve(agora_contents="standard")
    api = RestClient(app)
    agent = await joined(api)
    await send_over_websocket(app, TIMED, agent)
    assert [
        {"role": "user", "content": "Hello. My package?"},
        {"role": "assistant", "content": "It is on its way."},
        {"role": "user", "content": "Thanks."},
    ] == (await api.get(f"{AGENTS}/{agent}/history")).json["contents"]
    assert "turn_id" in (await api.contents(agent))[0]


async def test_history_shows_the_times_after_a_restart(tmp_path: Any) -> None:
    """Times of speech come from the journal, like everything else."""
    settings = Settings(store=f"sqlite:{tmp_path / 'calls.db'}", rest=ANY_PORT, ingest=ANY_PORT)
    shown = []
    agent = ""
    for _ in range(2):
        async with running(settings) as app:
            api = RestClient(app)
            if not agent:
                agent = await joined(api)
                await send_over_websocket(app, TIMED, agent)
            shown.append((await api.get(f"{AGENTS}/{agent}/history")).json)
    assert shown[0] == shown[1]
