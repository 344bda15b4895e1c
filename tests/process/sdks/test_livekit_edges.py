"""Calls of a real LiveKit `AgentSession` that go as few do: what the events of the integration then say."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.needs import needs_module
from voicemem.protocol.types import JsonObject
from voicemem.transcript.messages import Message

needs_module("livekit.agents", "livekit")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework imports is not ours
    from livekit import rtc
    from livekit.agents import ChatContext, function_tool, llm
    from livekit.agents.voice import io

    from bench.harness.folding import memory_of
    from bench.harness.livekit.plugins import Chunk
    from bench.harness.livekit.scenarios import JOKE, SHORT, STORY, OwnNodes, answer
    from bench.harness.livekit.stage import PLAIN, UNSYNCED, Stage
    from bench.harness.livekit.voice import SAMPLE_RATE
    from voicemem.integrations.ledger import Ledger
    from voicemem.integrations.livekit import LiveKitCall
    from voicemem.integrations.livekit.nodes import Nodes
    from voicemem.integrations.livekit.remembering import rebuilt, text_of

EDGE = 2
"""Words that may be wrong: the device of a busy machine stops a little before or after it says so."""


class Followed:
    """A call whose events are kept."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.events: list[JsonObject] = []
        LiveKitCall(stage.session, self.events.append, "t-", None).listen()

    def messages(self) -> list[Message]:
        return memory_of(self.events)

    def said(self) -> list[tuple[str, str]]:
        return [(one.role, one.content.strip()) for one in self.messages()]

    def wrong(self, text: str) -> int:
        """Words that the memory of a reply is wrong by."""
        (content,) = [
            one.content
            for one in self.messages()
            if one.role == "assistant" and (one.metadata.get("original") or one.content).strip() in text
        ]
        return abs(self.stage.heard(text).wrong(content))


async def test_the_program_can_interrupt() -> None:
    """`session.interrupt()` cuts the reply where its audio stopped."""
    stage = Stage(PLAIN, answer)
    call = Followed(stage)
    await stage.start()
    await stage.caller.says("Tell me a joke")
    await stage.until_played("outstanding")
    await stage.session.interrupt()
    await stage.until_remembered(1)
    await stage.close()
    assert call.messages()[-1].metadata["interrupted"] is True
    assert call.wrong(JOKE) <= EDGE


async def test_an_answer_interrupted_before_its_first_frame_never_existed() -> None:
    """What was generated and never played is no message, and the answer after it is whole."""
    stage = Stage(PLAIN, answer)
    call = Followed(stage)
    await stage.start()
    handle = stage.session.generate_reply(user_input="Tell me a joke")
    await stage.until(lambda: any(one["type"] == "llm.delta" for one in call.events))
    handle.interrupt()
    await handle
    await stage.session.generate_reply(user_input="Something else")
    await stage.close()
    assert ("assistant", SHORT) in call.said()
    assert not any(role == "assistant" and text and text in JOKE for role, text in call.said())


async def test_what_the_program_asks_for_the_user_stands_before_its_answer() -> None:
    """An answer that is there at once comes before LiveKit tells of the message, and is remembered behind it."""
    stage = Stage(PLAIN, answer)
    call = Followed(stage)
    await stage.start(OwnNodes())
    first = stage.session.generate_reply(user_input="Tell me a joke")
    second = stage.session.generate_reply(user_input=message("user", "How about nothing"))
    for speech in (first, second):
        await speech
    await stage.close()
    said = [one for one in call.said() if one[0] == "user"]
    assert said == [("user", "Tell me a joke"), ("user", "How about nothing")]
    assert call.said()[0] == said[0]
    assert call.said()[-1][0] == "assistant"


def test_a_version_without_such_messages_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the memory cannot make of LiveKit's classes does not stop `generate_reply`."""
    monkeypatch.delattr("livekit.agents.llm.ChatMessage")
    nodes = Nodes(Ledger(lambda event: None), None)
    assert nodes.generate_reply(lambda **named: named["user_input"], user_input="Tell me a joke") == "Tell me a joke"
    assert nodes.ledger.misses == {"generate_reply"}


async def test_the_caller_speaks_while_the_program_asks() -> None:
    """A message of the program and the words of the caller are each remembered once."""
    stage = Stage(PLAIN, answer)
    call = Followed(stage)
    await stage.start()
    speaking = asyncio.create_task(stage.caller.says("Tell me a joke", speech_s=0.6))
    await stage.until(lambda: any(one["type"] == "asr" for one in call.events))
    stage.session.generate_reply(user_input="Something else")
    await speaking
    await stage.until(lambda: any(text.startswith("Why did") for text in stage.own_memory()))
    await stage.until_silent()
    await stage.close()
    spoken = " ".join(text for role, text in call.said() if role == "user")
    assert sorted(spoken.split()) == ["Something", "Tell", "a", "else", "joke", "me"]


async def test_a_text_with_audio_of_the_program_is_cut_where_it_stopped() -> None:
    """`say` with audio passes no TTS; the reply still ends near where the device stopped."""
    stage = Stage(UNSYNCED, answer)
    call = Followed(stage)
    await stage.start()

    async def frames() -> AsyncIterator[rtc.AudioFrame]:
        pcm, step = stage.voice.speak(STORY).pcm(), SAMPLE_RATE // 25
        for begin in range(0, len(pcm) - step + 1, step):
            yield rtc.AudioFrame(pcm[begin : begin + step], SAMPLE_RATE, 1, step // 2)

    stage.session.say(STORY, audio=frames())
    await stage.until_played("asked")
    await stage.session.interrupt()
    await stage.until_remembered(1)
    await stage.close()
    assert call.messages()[-1].metadata["original"].strip() == STORY
    assert call.wrong(STORY) <= EDGE


async def test_a_tool_that_the_caller_breaks_into() -> None:
    """The caller speaks while a tool runs: the tool leaves no reply, and the next answer is in the next turn."""

    @function_tool
    async def look_up(what: str) -> str:
        """Look something up."""
        await asyncio.sleep(1.0)
        return "12 crowns"

    stage = Stage(PLAIN, answer, tools=[look_up])
    call = Followed(stage)
    await stage.start()
    await stage.caller.says("How much are the tickets")
    await stage.until(lambda: stage.session.current_speech is not None)
    await stage.caller.says("No stop that please")
    await stage.until_remembered(1)
    await stage.until_silent()
    await stage.close()
    spoken = " ".join(text for role, text in call.said() if role == "user")
    assert spoken == "How much are the tickets No stop that please"
    assert call.said()[-1] == ("assistant", SHORT)
    tools = [one for one in call.events if one["type"].startswith("tool.")]
    assert {one["call_id"] for one in tools} <= {"c1"}
    assert [one["type"] for one in tools] in ([], ["tool.call"], ["tool.call", "tool.result"])


class Avatar(io.AudioOutput):
    """An output elsewhere: it tells only when a segment begins and ends, and how far it came."""

    def __init__(self) -> None:
        super().__init__(label="avatar", capabilities=io.AudioOutputCapabilities(pause=False), sample_rate=SAMPLE_RATE)
        self.began: float | None = None
        self.pushed_s = 0.0
        self.playing: asyncio.Task[None] | None = None

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if self.began is None:
            self.began = time.monotonic()
            self.on_playback_started(created_at=time.time())
        self.pushed_s += frame.duration

    def flush(self) -> None:
        super().flush()
        if self.began is not None and self.playing is None:
            self.playing = asyncio.create_task(self.play())

    async def play(self) -> None:
        await asyncio.sleep(self.pushed_s - self.position())
        self.finish(False)

    def position(self) -> float:
        return 0.0 if self.began is None else min(self.pushed_s, time.monotonic() - self.began)

    def clear_buffer(self) -> None:
        if self.began is not None:
            if self.playing is not None:
                self.playing.cancel()
            self.finish(True)

    def finish(self, interrupted: bool) -> None:
        position, self.began, self.pushed_s, self.playing = self.position(), None, 0.0, None
        self.on_playback_finished(playback_position=position, interrupted=interrupted)


async def test_an_avatar_that_tells_only_where_it_ended() -> None:
    """Without a word about its progress, the reply is cut where the avatar says, and the next one is whole."""
    stage = Stage(UNSYNCED, answer)
    stage.session.output.audio = Avatar()
    call = Followed(stage)
    await stage.start()
    await stage.caller.says("Tell me a joke")
    await stage.until(lambda: stage.session.agent_state == "speaking")
    await asyncio.sleep(1.5)
    await stage.session.interrupt()
    await stage.until_remembered(1)
    await stage.session.generate_reply(user_input="Something else")
    await stage.close()
    replies = [one for one in call.messages() if one.role == "assistant"]
    assert [one.metadata.get("interrupted", False) for one in replies] == [True, False]
    assert JOKE.startswith(replies[0].content.strip())
    assert 0 < len(replies[0].content) < len(JOKE)
    assert replies[1].content.strip() == SHORT


async def test_another_output_in_mid_call() -> None:
    """The output is replaced between two replies: both are followed."""
    stage = Stage(UNSYNCED, answer)
    call = Followed(stage)
    await stage.start()
    await stage.session.generate_reply(user_input="Something")
    stage.session.output.audio = Avatar()
    await stage.session.generate_reply(user_input="Something else")
    await stage.close()
    assert [text for role, text in call.said() if role == "assistant"] == [SHORT, SHORT]
    assert not any("interrupted" in one.metadata for one in call.messages())


async def test_written_answers_that_are_interrupted() -> None:
    """Where the agent writes, an interrupted answer has what LiveKit had sent of it."""

    def slow(context: ChatContext) -> list[Chunk]:
        return ["Once there was ", 3.0, "a river."]

    stage = Stage(UNSYNCED, slow)
    stage.session.output.set_audio_enabled(False)
    call = Followed(stage)
    await stage.start()
    handle = stage.session.generate_reply(user_input="Tell me a story")
    await stage.until(lambda: any(one["type"] == "llm.delta" and "was" in one["text"] for one in call.events))
    handle.interrupt()
    await handle
    await stage.close()
    assert all(text in "Once there was" for role, text in call.said() if role == "assistant")


async def test_a_session_that_fails_ends_the_call() -> None:
    """An LLM that cannot be used any more closes the session, and the memory says why."""

    def fails(context: ChatContext) -> list[Chunk]:
        raise RuntimeError("no such model")

    stage = Stage(PLAIN, fails)
    stage.session.conn_options.max_unrecoverable_errors = 0
    call = Followed(stage)
    await stage.start()
    stage.session.generate_reply(user_input="Tell me a joke")
    await stage.until(lambda: call.events and call.events[-1]["type"] == "session.end")
    await stage.close()
    assert [one["reason"] for one in call.events if one["type"] == "session.end"] == ["error"]
    assert call.said() == [("user", "Tell me a joke")]


def message(role: Any, text: str) -> llm.ChatMessage:
    return llm.ChatMessage(role=role, content=[text])


def said(role: str, text: str, at: float) -> JsonObject:
    """A message of the memory, with the time that counts of its fields."""
    return {"role": role, "content": text, "timestamp": round(at * 1000)}


def test_the_memory_instructs_in_the_program_s_system_message() -> None:
    """There is one, and LiveKit's own item stays as it was."""
    own, asked = message("system", "Be brief."), message("user", "A joke?")
    known = [{"role": "system", "content": "The caller is Ann."}, said("user", "A joke?", asked.created_at)]
    for items, instruction in (([own, asked], "Be brief.\n\nThe caller is Ann."), ([asked], "The caller is Ann.")):
        made = rebuilt(ChatContext([*items]), known, {asked.id: asked}, (), asked.created_at * 1000 - 100)
        assert [(one.role, text_of(one)) for one in made.messages()] == [("system", instruction), ("user", "A joke?")]
    assert text_of(own) == "Be brief."


def test_what_the_program_put_into_the_context_stays() -> None:
    """Messages from before the call stand before the memory, those for one request behind it; none is there twice."""
    before, asked, reply = message("assistant", "Welcome back."), message("user", "A joke?"), message("assistant", JOKE)
    added, now = message("assistant", "Opening hours: 9 to 5."), message("user", "When do you open?")
    own = ChatContext([message("system", "Be brief."), before, asked, reply, added, now])
    known = [said("user", "A joke?", asked.created_at), said("assistant", "Why did ", reply.created_at)]
    made = rebuilt(own, known, {one.id: one for one in (asked, reply, now)}, (), asked.created_at * 1000 - 100)
    assert [text_of(one) for one in made.messages()] == [
        "Be brief.",
        "Welcome back.",
        "A joke?",
        "Why did ",
        "Opening hours: 9 to 5.",
        "When do you open?",
    ]
