"""Requests to the LLM of real LiveKit calls with a service: each utterance once, as the program passed it on."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.support.callers.client_sessions import client_to
from tests.support.callers.rest import RestClient
from tests.support.needs import needs_module
from tests.support.services import Serve
from voicemem.app import App

needs_module("livekit.agents", "livekit")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework imports is not ours
    from livekit.agents import Agent, ChatContext, llm, stt, vad

    from bench.harness.livekit.scenarios import JOKE, SHORT, answer, look_up
    from bench.harness.livekit.stage import PLAIN, Stage
    from voicemem.integrations import livekit
    from voicemem.integrations.livekit.remembering import text_of

CHINESE = ("我想订一张", "去北京的票。")
THAI = ("ผมอยากจอง", "ตั๋วไปเชียงใหม่")
JAPANESE = ("東京行きの切符を", "二枚ください。")
AHEAD: dict[str, Any] = {"preemptive": True, "endpointing_s": 0.5}
ENGLISH = ("I would like", "a ticket", "to Oslo")


async def says(stage: Stage, *finals: str, interim: str = "…", apart_s: float = 0.0) -> None:
    """The caller says something in one turn, which the recogniser gives in so many finals."""
    stage.caller.voice(vad.VADEventType.START_OF_SPEECH)
    stage.caller.transcript(interim, final=False)
    await stage.caller.talks(0.3)
    for text in finals:
        await asyncio.sleep(apart_s)
        stage.caller.transcript(text, final=True)
    stage.caller.voice(vad.VADEventType.END_OF_SPEECH, 0.3, 0.05)


async def is_answered(stage: Stage, *finals: str, replies: int = 1, **given: Any) -> None:
    """The caller says something; LiveKit has so many replies more then, of which the last is played to its end."""
    count = len(stage.own_memory())
    await says(stage, *finals, **given)
    await stage.until_remembered(count + replies)
    await stage.until_silent()


async def requests(
    app: App, act: Callable[[Stage], Awaitable[None]], agent: Agent | None = None, **settings: Any
) -> list[list[tuple[str, str]]]:
    """What the LLM got in each request of a call: roles and texts."""
    async with client_to(app) as client:
        stage = Stage(PLAIN, answer, tools=[look_up], **settings)
        memory = livekit.attach(stage.session, client, session_id="call", context=True)
        await stage.start(agent or Agent(instructions="Be brief."))
        await act(stage)
        await stage.close()
        await memory.aclose()
    return [[(one.role, text_of(one).strip()) for one in context.messages()] for context in stage.llm.contexts]


def of_user(context: list[tuple[str, str]]) -> list[str]:
    return [text for role, text in context if role == "user"]


@pytest.mark.parametrize(
    "finals", [CHINESE, JAPANESE, THAI, ENGLISH], ids=["Chinese", "Japanese", "Thai", "three finals"]
)
async def test_several_finals(app: App, finals: tuple[str, ...]) -> None:
    """LiveKit joins them with spaces, also where the script has none; the next request has the memory's text."""

    async def act(stage: Stage) -> None:
        await is_answered(stage, *finals)
        await is_answered(stage, "Thank you")

    first, second = await requests(app, act)
    stored = await RestClient(app).contents("call")
    assert of_user(first) == [" ".join(finals)]
    assert of_user(second) == [stored[0]["content"], "Thank you"]


class Masking(Agent):
    """Hides digits from the LLM, and adds what it has looked up, in a message of the user."""

    def __init__(self, adds: bool = False) -> None:
        super().__init__(instructions="Be brief.")
        self.adds = adds

    async def on_user_turn_completed(self, turn_ctx: ChatContext, new_message: llm.ChatMessage) -> None:
        new_message.content = [text_of(new_message).replace("4111", "****")]
        if self.adds:
            turn_ctx.add_message(role="user", content="(A known caller.)")


@pytest.mark.parametrize("preemptive", [False, True], ids=["asked at the end", "asked ahead"])
@pytest.mark.parametrize("adds", [False, True], ids=["masks", "masks and adds"])
async def test_a_program_that_edits_the_turn(app: App, adds: bool, preemptive: bool) -> None:
    """The LLM gets the edited words, once, before what the program adds for this request."""

    async def act(stage: Stage) -> None:
        await is_answered(stage, "My number is 4111", "that is all")

    contexts = await requests(app, act, Masking(adds), preemptive=preemptive, endpointing_s=0.5)
    added = ["(A known caller.)"] if adds else []
    assert of_user(contexts[-1]) == ["My number is **** that is all", *added]
    assert all(len(of_user(one)) == 1 for one in contexts[:-1])


class Slow(Agent):
    """Takes its time with a turn."""

    async def on_user_turn_completed(self, turn_ctx: ChatContext, new_message: llm.ChatMessage) -> None:
        await asyncio.sleep(0.8)


async def test_a_caller_who_speaks_on_while_the_program_takes_its_time(app: App) -> None:
    """LiveKit ends both turns after all words have come: none of them was typed, and each is there once."""

    async def act(stage: Stage) -> None:
        await says(stage, "Meine Nummer ist 4111")
        await asyncio.sleep(0.5)
        await is_answered(stage, "Donaudampfschiff")

    contexts = await requests(app, act, Slow(instructions="Be brief."))
    stored = [one["content"] for one in await RestClient(app).contents("call") if one["role"] == "user"]
    said = "Meine Nummer ist 4111 Donaudampfschiff"
    assert " ".join(stored) == " ".join(of_user(contexts[-1])) == said


async def test_a_tool_in_a_turn_that_was_edited(app: App) -> None:
    """The request with the tool's result has the edited words as well, before the call."""

    async def act(stage: Stage) -> None:
        await is_answered(stage, "How much are the tickets for 4111")

    asked, returned = await requests(app, act, Masking())
    assert of_user(asked) == of_user(returned) == ["How much are the tickets for ****"]


class OwnRecogniser(Agent):
    """Has a recogniser node that spells a name right."""

    async def stt_node(self, audio: Any, model_settings: Any) -> AsyncIterator[Any]:
        async for event in Agent.default.stt_node(self, audio, model_settings):
            if isinstance(event, stt.SpeechEvent):
                for one in event.alternatives:
                    one.text = one.text.replace("Bellow", "Bello")
            yield event


async def test_a_recogniser_node(app: App) -> None:
    """What an agent's own node makes of a transcript is in the memory, and comes to the LLM once."""

    async def act(stage: Stage) -> None:
        await is_answered(stage, "My dog is called", "Bellow")

    (context,) = await requests(app, act, OwnRecogniser(instructions="Be brief."))
    assert of_user(context) == ["My dog is called Bello"]


async def test_keys_while_the_caller_speaks(app: App) -> None:
    """A message that the program gives in place of the user, and the words around it, are each there once."""

    async def act(stage: Stage) -> None:
        speaking = asyncio.create_task(says(stage, "My number is", "on the keys", interim="My"))
        await stage.until(lambda: stage.session.user_state == "speaking")
        stage.session.generate_reply(user_input="Keys: 12#")
        await speaking
        await stage.until_remembered(1)
        await stage.until_silent()
        await is_answered(stage, "Thank you")

    contexts = await requests(app, act)
    for context in contexts:
        words = " ".join(of_user(context)).split()
        assert sorted(words) == sorted(set(words))
    last = " ".join(of_user(contexts[-1])).split()
    assert sorted(last) == sorted(["Keys:", "12#", "My", "number", "is", "on", "the", "keys", "Thank", "you"])


async def test_an_answer_that_is_asked_for_ahead(app: App) -> None:
    """The LLM is asked after each final; every request has the words by then, once."""

    async def act(stage: Stage) -> None:
        await is_answered(stage, *CHINESE, apart_s=0.2)
        await is_answered(stage, *THAI, apart_s=0.2)

    contexts = await requests(app, act, **AHEAD)
    stored = await RestClient(app).contents("call")
    newest = [of_user(one)[-1] for one in contexts]
    assert set(newest) == {CHINESE[0], " ".join(CHINESE), THAI[0], " ".join(THAI)}
    assert all(len(of_user(one)) == 1 for one in contexts if of_user(one)[-1] in (CHINESE[0], " ".join(CHINESE)))
    assert of_user(contexts[-1]) == [stored[0]["content"], " ".join(THAI)]


async def test_after_an_interruption(app: App) -> None:
    """The heard part of the reply stands between the caller's words of both turns."""

    async def act(stage: Stage) -> None:
        await says(stage, "Tell me", "a joke")
        await stage.until_played("outstanding")
        await is_answered(stage, *CHINESE, replies=2)

    _, context = await requests(app, act)
    (_, instructions), (_, asked), (role, heard), (_, newest) = context
    assert (instructions, asked, newest) == ("Be brief.", "Tell me a joke", " ".join(CHINESE))
    assert role == "assistant"
    assert JOKE.startswith(heard)
    assert 0 < len(heard) < len(JOKE)


async def test_words_that_become_final_late(app: App) -> None:
    """A turn that the program ends has the partial; LiveKit makes another of the final that comes later."""

    async def act(stage: Stage) -> None:
        stage.caller.voice(vad.VADEventType.START_OF_SPEECH)
        stage.caller.transcript("Tell me a joke", final=False)
        await stage.caller.talks(0.3)
        stage.session.commit_user_turn(transcript_timeout=0.0, stt_flush_duration=0.0)
        stage.caller.voice(vad.VADEventType.END_OF_SPEECH, 0.3, 0.05)
        await stage.until_played("scarecrow")
        stage.caller.transcript("Tell me a joke.", final=True)
        await stage.until_remembered(2)
        await stage.until_silent()
        await is_answered(stage, "Thank you")

    contexts = await requests(app, act)
    said = ["Tell me a joke", "Tell me a joke.", "Thank you"]
    assert [of_user(one) for one in contexts] == [said[:1], said[:2], said]


async def test_a_transcript_behind_the_speech(app: App) -> None:
    """Each final is there once, and the partial is not, in as many messages as LiveKit makes of them."""

    async def act(stage: Stage) -> None:
        stage.caller.voice(vad.VADEventType.START_OF_SPEECH)
        stage.caller.transcript(CHINESE[0], final=False)
        await stage.caller.talks(0.3)
        stage.caller.voice(vad.VADEventType.END_OF_SPEECH, 0.3, 0.05)
        await asyncio.sleep(0.4)
        stage.caller.transcript(CHINESE[0], final=True)
        stage.caller.transcript(CHINESE[1], final=True)
        await stage.until_remembered(1)
        await stage.until_silent()

    contexts = await requests(app, act)
    assert " ".join(of_user(contexts[-1])) == " ".join(CHINESE)


async def test_what_the_memory_redacts(serve: Serve) -> None:
    """The turn under way has the program's words; later requests have what the memory keeps."""

    async def act(stage: Stage) -> None:
        await is_answered(stage, "My card is", "4111 1111 1111 1111")
        await is_answered(stage, "Thank you")

    first, second = await requests(await serve(redact=("cards",)), act)
    assert of_user(first) == ["My card is 4111 1111 1111 1111"]
    assert len(of_user(second)) == 2
    assert of_user(second)[0] != of_user(first)[0]
    assert "████" in of_user(second)[0]
    assert [text for role, text in second if role == "assistant"] == [SHORT]
