"""Replies of a pipeline, from the LLM to the output, as its parts report them."""

from __future__ import annotations

import pytest

from tests.support.transcripts import messages_after
from voicemem.integrations.ledger import Ledger
from voicemem.integrations.pipecat.audio import NS_PER_MS
from voicemem.integrations.pipecat.replies import Audio, ReplyTracker
from voicemem.protocol.types import JsonObject

RATE = 16_000
FIRST, SECOND = "Why did the scarecrow win an award?", "Because he was outstanding in his field!"
TEXT = f"{FIRST} {SECOND}"


class Bot:
    """A pipeline of which each sentence takes two seconds."""

    def __init__(self, delay_ms: float = 0.0) -> None:
        self.events: list[JsonObject] = []
        self.replies = ReplyTracker(Ledger(self.events.append), delay_ms)
        self.replies.speaks = True
        self.frame = 0
        self.now = 1000.0

    def generate(self, text: str = TEXT) -> int:
        """The LLM answers; returns the frame that began it."""
        self.frame += 1
        self.replies.response_started(self.frame, False)
        if text:
            self.replies.generated(text, False, self.now)
        self.replies.response_ended(self.now)
        return self.frame

    def speak(self, context: str, *sentences: str, frame: int | None = None) -> None:
        """The TTS speaks sentences, each with its audio between its announcement and its report."""
        if frame is not None:
            self.replies.voicing_started(frame)
        for sentence in sentences:
            self.replies.announced(context, sentence, self.now)
            sound = (9000).to_bytes(2, "little") * (2 * RATE)
            self.replies.audio_made(context, Audio(sound, RATE, 1), True, self.now, round(self.now * NS_PER_MS))
            self.replies.text_made(context, sentence, None, self.now, 0)
        if frame is not None:
            self.replies.voicing_ended(self.now)
        self.replies.context_stopped(context, self.now)

    def play(self, ms: int, done: str | None = None) -> None:
        """The output hands out audio in chunks, at its pace."""
        for _ in range(0, ms, 40):
            self.replies.played(40, self.now)
            self.now += 40
        if done:
            self.replies.context_played(done, self.now)

    def interrupt(self) -> None:
        self.frame += 1
        self.replies.interruption_seen(self.frame)
        self.replies.interrupted(self.frame, self.now)

    def end(self) -> list[tuple[str, bool]]:
        """The call is over: what the memory has, and whether it was cut."""
        self.replies.end(self.now, None)
        return [(one["content"], one["metadata"].get("interrupted", False)) for one in messages_after(*self.events)]


@pytest.fixture
def bot() -> Bot:
    return Bot()


def test_a_reply_that_was_handed_out_is_heard_to_its_end(bot: Bot) -> None:
    """The output has done with its only context, and what was on its way has been heard."""
    bot.speak("c", FIRST, SECOND, frame=bot.generate())
    bot.play(4000, "c")
    assert bot.end() == [(TEXT, False)]


def test_an_interruption_cuts_where_the_output_is(bot: Bot) -> None:
    """In the second sentence, by that sentence's own length."""
    bot.speak("c", FIRST, SECOND, frame=bot.generate())
    bot.play(2520)
    bot.interrupt()
    assert bot.end() == [(f"{FIRST} Because he ", True)]


def test_what_the_client_still_holds_is_not_heard() -> None:
    """Also when the output has done with the reply."""
    bot = Bot(delay_ms=1000)
    bot.speak("c", FIRST, SECOND, frame=bot.generate())
    bot.play(4000, "c")
    bot.interrupt()
    ((content, was_cut),) = bot.end()
    assert was_cut
    assert content.startswith(f"{FIRST} Because ")
    assert content != TEXT


def test_replies_are_kept_apart(bot: Bot) -> None:
    """The next one may be made while the first is played; each has its own audio."""
    first, second = bot.generate("Hello there my friend."), bot.generate()
    bot.speak("a", "Hello there my friend.", frame=first)
    bot.speak("b", FIRST, SECOND, frame=second)
    bot.play(2000, "a")
    bot.play(1000)
    bot.interrupt()
    assert [was_cut for _, was_cut in bot.end()] == [False, True]


def test_a_reply_that_begins_behind_an_interruption_is_not_cut(bot: Bot) -> None:
    """The interruption takes its time to the output."""
    bot.speak("a", FIRST, SECOND, frame=bot.generate())
    bot.play(400)
    bot.replies.interruption_seen(77)
    bot.replies.response_started(78, False)
    bot.replies.generated("Yes, of course.", False, bot.now)
    bot.replies.interrupted(77, bot.now)
    bot.replies.response_ended(bot.now)
    bot.speak("b", "Yes, of course.", frame=78)
    bot.play(2000, "b")
    assert [was_cut for _, was_cut in bot.end()] == [True, False]


def test_audio_that_nobody_took_was_not_heard(bot: Bot) -> None:
    """The output is done with a context, although its client took only a part."""
    bot.speak("c", FIRST, SECOND, frame=bot.generate())
    bot.play(2520, "c")
    assert bot.end() == [(f"{FIRST} Because he ", True)]


def test_a_text_without_audio_was_not_heard(bot: Bot) -> None:
    """The TTS has failed; a bot without any voice is read."""
    bot.replies.voicing_started(bot.generate())
    bot.replies.voicing_ended(bot.now)
    assert bot.end() == []
    written = Bot()
    written.replies.speaks = False
    written.replies.voicing_started(written.generate())
    written.replies.voicing_ended(written.now)
    assert written.end() == [(TEXT, False)]


def test_an_answer_that_only_calls_tools_is_no_reply(bot: Bot) -> None:
    """It leaves no event."""
    frame = bot.generate("")
    bot.replies.voicing_started(frame)
    bot.replies.voicing_ended(bot.now)
    bot.interrupt()
    assert bot.events == []


def test_a_text_to_say_may_be_uninterruptible(bot: Bot) -> None:
    """It is played on, and is a message of its own."""
    bot.replies.speeches.append((FIRST, False))
    bot.replies.announced("c", FIRST, bot.now)
    bot.replies.audio_made("c", Audio(bytes(4 * RATE), RATE, 1), False, bot.now, 1)
    bot.replies.context_stopped("c", bot.now)
    bot.play(400)
    bot.interrupt()
    bot.play(1600, "c")
    assert bot.end() == [(FIRST, False)]
    assert bot.events[0]["source"] == "greeting"
