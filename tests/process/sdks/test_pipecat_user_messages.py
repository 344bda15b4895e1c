"""Requests to the LLM of real Pipecat bots over a running service: each utterance once, as the program passed it on."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from tests.support.callers.client_sessions import client_to
from tests.support.callers.rest import RestClient
from tests.support.needs import needs_module
from tests.support.services import Serve
from voicemem.app import App

needs_module("pipecat", "pipecat")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework imports is not ours
    from pipecat.audio.dtmf.types import KeypadEntry
    from pipecat.frames.frames import (
        Frame,
        InputDTMFFrame,
        InterimTranscriptionFrame,
        LLMMessagesAppendFrame,
        TranscriptionFrame,
    )
    from pipecat.processors.aggregators.dtmf_aggregator import DTMFAggregator
    from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

    from bench.harness.pipecat.call import MODES, Call, Scenario
    from bench.harness.pipecat.scenarios import CAB, CAR, OKAY
    from bench.harness.pipecat.services import Answer
    from voicemem.integrations import pipecat

pytestmark = pytest.mark.filterwarnings("default")  # the framework's own are not ours
CHINESE = ("我想订一张", "去北京的票。")
THAI = ("ผมอยากจอง", "ตั๋วไปเชียงใหม่")
JAPANESE = ("東京行きの切符を", "二枚ください。")
ENGLISH = ("I would like", "a ticket", "to Oslo")
SHORT = [CAR, OKAY, CAR, OKAY]


Script = Callable[[Any], Awaitable[None]]


async def asked(
    app: App,
    script: Script,
    kind: type[Call] = Call,
    answers: list[Answer] | None = None,
    session_id: str = "call",
    **config: Any,
) -> list[list[dict[str, Any]]]:
    """What the LLM got in each request of a call; a call takes as long as a real one, so tests have several at once."""
    answers = answers or [Answer(one.text) for one in SHORT]
    call = kind(Scenario("asked", script, answers, [CAB, CAR, OKAY]), MODES["inline"])  # type: ignore[arg-type]
    async with client_to(app) as client:
        memory = pipecat.attach(call.worker, client, session_id=session_id, context=True, **config)
        await call.run()
        await memory.aclose()
    return call.llm.requests


def of_user(request: list[dict[str, Any]]) -> list[str]:
    return [one["content"] for one in request if one["role"] == "user"]


async def stored_words(app: App, session_id: str = "call") -> list[str]:
    return [one["content"] for one in await RestClient(app).contents(session_id) if one["role"] == "user"]


async def is_answered(call: Call, *finals: str) -> None:
    await call.say(*finals)
    await call.wait(1)
    await call.until_silent()


async def test_several_finals(app: App) -> None:
    """Pipecat joins them with spaces, also where the script has none; later requests have the memory's text."""

    async def are_joined(name: str, finals: tuple[str, ...]) -> None:
        async def script(call: Call) -> None:
            await is_answered(call, *finals)
            await is_answered(call, "Thank you.")
            await is_answered(call, *finals)

        first, second, third = await asked(app, script, session_id=name)
        stored = await stored_words(app, name)
        joined = " ".join(finals)
        assert [of_user(one) for one in (first, second, third)] == [
            [joined],
            [stored[0], "Thank you."],
            [stored[0], "Thank you.", joined],
        ], name

    calls = {"chinese": CHINESE, "japanese": JAPANESE, "thai": THAI, "three-finals": ENGLISH}
    await asyncio.gather(*(are_joined(name, finals) for name, finals in calls.items()))


class InPlace(FrameProcessor):
    """Hides a number in the transcript."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame):
            frame.text = frame.text.replace("4111", "****")
        await self.push_frame(frame, direction)


class InNewFrame(FrameProcessor):
    """Hides a number in a transcript of its own."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame):
            frame = TranscriptionFrame(frame.text.replace("4111", "****"), frame.user_id, frame.timestamp)
        await self.push_frame(frame, direction)


class AtTheEnd(FrameProcessor):
    """Holds all transcripts back, and makes one of them."""

    held = ""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame):
            self.held += frame.text.replace("4111", "****") + " "
            if not frame.text.endswith("."):
                return
            frame = TranscriptionFrame(self.held.strip(), frame.user_id, frame.timestamp)
            self.held = ""
        await self.push_frame(frame, direction)


async def test_a_processor_that_edits(app: App) -> None:
    """In place, in a frame of its own, or in one for several: the memory has the edited words as well."""

    async def script(call: Call) -> None:
        await is_answered(call, "My number is 4111", "and that is all.")
        await is_answered(call, "Thank you.")

    async def is_remembered(editor: type[FrameProcessor]) -> None:
        class Edited(Call):
            def editors(self) -> list[FrameProcessor]:
                return [editor()]

        first, second = await asked(app, script, Edited, session_id=editor.__name__)
        assert of_user(first) == ["My number is **** and that is all."], editor
        assert of_user(second) == ["My number is **** and that is all.", "Thank you."], editor
        assert await stored_words(app, editor.__name__) == of_user(second), editor

    await asyncio.gather(*(is_remembered(editor) for editor in (InPlace, InNewFrame, AtTheEnd)))


class WithKeys(Call):
    def editors(self) -> list[FrameProcessor]:
        return [DTMFAggregator()]


async def test_keys_while_the_caller_speaks(app: App) -> None:
    """Pipecat makes a transcript of them, which has no speaker, among those of the speech, by name or without."""

    async def script(user: str, call: Call) -> None:
        await call.caller.begin("My")
        await call.caller.push_frame(TranscriptionFrame("My number is", user, "now"))
        await call.wait(0.1)  # the first key interrupts, and Pipecat drops what has not arrived
        for key in (KeypadEntry.ONE, KeypadEntry.TWO, KeypadEntry.POUND):
            await call.caller.push_frame(InputDTMFFrame(key))
        await call.wait(0.2)
        await call.caller.push_frame(TranscriptionFrame("on the keys.", user, "now"))
        await call.caller.finish()
        await call.wait(1)
        await call.until_silent()
        await is_answered(call, "Thank you.")

    async def are_kept(user: str, session_id: str) -> None:
        requests = await asked(app, partial(script, user), WithKeys, session_id=session_id)
        for request in requests:
            words = " ".join(of_user(request)).split()
            assert sorted(words) == sorted(set(words))
        assert of_user(requests[-2]) == ["My number is DTMF: 12# on the keys."]
        assert {"DTMF:", "12#", "My", "keys.", "Thank"} <= set(" ".join(of_user(requests[-1])).split())

    await asyncio.gather(are_kept("", "no-name"), are_kept("ann", "name"))


async def test_a_message_of_the_program_while_the_caller_speaks(app: App) -> None:
    """It is there once, as are the words around it."""

    async def script(call: Call) -> None:
        await call.caller.begin("My")
        await call.caller.push_frame(TranscriptionFrame("My number is", "", "now"))
        await call.queue(LLMMessagesAppendFrame([{"role": "user", "content": "Keys: 12#"}], run_llm=True))
        await call.wait(0.3)
        await call.caller.finish("on the keys.")
        await call.wait(1)
        await call.until_silent()
        await is_answered(call, "Thank you.")

    requests = await asked(app, script)
    last = " ".join(of_user(requests[-1])).split()
    assert sorted(last) == sorted(["Keys:", "12#", "My", "number", "is", "on", "the", "keys.", "Thank", "you."])


class EditsContext(Call):
    """The program changes what the aggregator has put into the context, before the LLM gets it."""

    copies = False

    def agent(self) -> list[FrameProcessor]:
        call = self

        class Editor(FrameProcessor):
            async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
                await super().process_frame(frame, direction)
                if type(frame).__name__ == "LLMContextFrame":
                    call.edit()
                await self.push_frame(frame, direction)

        return [Editor(), *super().agent()]

    def edit(self) -> None:
        messages: list[Any] = list(self.context.messages)
        text = messages[-1]["content"].replace("4111", "****")
        if self.copies:
            messages[-1] = {**messages[-1], "content": text}
            self.context.set_messages(messages)
        else:
            messages[-1]["content"] = text


class CopiesContext(EditsContext):
    copies = True


async def test_a_program_that_edits_the_context(app: App) -> None:
    """The LLM gets the edited message in the place of the memory's, also as another object."""

    async def script(call: Call) -> None:
        await is_answered(call, "My number is 4111.")
        await is_answered(call, "4111, as I said.")

    async def is_used(kind: type[Call]) -> None:
        first, second = await asked(app, script, kind, session_id=kind.__name__)
        assert of_user(first) == ["My number is ****."], kind
        assert of_user(second) == ["My number is 4111.", "****, as I said."], kind

    await asyncio.gather(is_used(EditsContext), is_used(CopiesContext))


async def test_a_tool_between(app: App) -> None:
    """Both requests of the turn have the words as the program passed them on, before the call."""

    async def script(call: Call) -> None:
        await is_answered(call, *CHINESE)
        await is_answered(call, "Thank you.")

    answers = [Answer("", ("call-1", "order", {"item": "pizza"})), Answer(CAR.text), Answer(OKAY.text)]
    first, second, third = await asked(app, script, answers=answers)
    assert of_user(first) == of_user(second) == [" ".join(CHINESE)]
    assert [one["role"] for one in second] == ["system", "user", "assistant", "tool"]
    assert of_user(third) == [(await stored_words(app))[0], "Thank you."]


async def test_after_an_interruption(app: App) -> None:
    """The heard part of the reply stands between the caller's words of both turns."""

    async def script(call: Call) -> None:
        await call.say("Where is", "my cab?")
        await call.until_heard(0, 8)
        await call.say(*CHINESE)
        await call.until_silent()

    _, request = await asked(app, script, answers=[Answer(CAB.text), Answer(CAR.text)])
    _, where, heard, newest = request
    assert (where["content"], newest["content"]) == ("Where is my cab?", " ".join(CHINESE))
    assert CAB.text.startswith(heard["content"])
    assert 0 < len(heard["content"]) < len(CAB.text)


async def test_a_question_that_was_not_answered(app: App) -> None:
    """The caller goes on before the reply is heard: both messages are there once, in a script without spaces too."""

    async def script(call: Call) -> None:
        await call.say(*CHINESE)
        await call.wait(0.4)
        await is_answered(call, *THAI)
        await is_answered(call, "Thank you.")

    requests = await asked(app, script)
    assert of_user(requests[-2]) == [" ".join(CHINESE), " ".join(THAI)]
    assert "".join(of_user(requests[-1])).replace(" ", "") == "".join((*CHINESE, *THAI, "Thankyou."))


async def test_words_that_become_final_late(app: App) -> None:
    """A final behind the end of the turn is of the next message; the words are there once."""

    async def script(call: Call) -> None:
        await call.caller.begin("Where")
        await call.caller.push_frame(TranscriptionFrame("Where is", "", "now"))
        await call.caller.push_frame(InterimTranscriptionFrame("my cab", "", "now"))
        await call.caller.finish()
        await call.wait(0.1)
        await call.caller.push_frame(TranscriptionFrame("my cab?", "", "now"))
        await call.wait(1)
        await call.until_silent()
        await is_answered(call, "Thank you.")

    requests = await asked(app, script)
    assert " ".join(of_user(requests[-1])).split() == ["Where", "is", "my", "cab?", "Thank", "you."]


async def test_a_memory_that_comes_back(serve: Serve) -> None:
    """While it is away the LLM gets Pipecat's messages; what was in the context before the call stays once."""
    app = await serve()

    class Opened(Call):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.context.add_message({"role": "user", "content": "Please greet me."})

    async def script(call: Call) -> None:
        await is_answered(call, *CHINESE)
        memory.session.quiet_until = asyncio.get_running_loop().time() + 60
        await is_answered(call, *THAI)
        memory.session.quiet_until = 0.0
        await is_answered(call, "Thank you.")

    call = Opened(Scenario("away", script, [Answer(one.text) for one in SHORT], [CAR, OKAY]), MODES["inline"])
    async with client_to(app) as client:
        memory = pipecat.attach(call.worker, client, session_id="call", context=True)
        await call.run()
        await memory.aclose()
    stored = await stored_words(app)
    chinese, thai = " ".join(CHINESE), " ".join(THAI)
    assert [of_user(one) for one in call.llm.requests] == [
        ["Please greet me.", chinese],
        ["Please greet me.", chinese, thai],
        ["Please greet me.", *stored],
    ]
