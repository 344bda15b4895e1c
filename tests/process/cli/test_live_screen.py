"""`voicemem tail --messages` on a terminal: messages change where they stand."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import signal

from tests.support.callers.rest import RestClient
from tests.support.events import delta, done, final, interrupt
from tests.support.processes.terminal import in_terminal
from tests.support.services import Serve


async def test_a_message_that_changes_is_drawn_again_where_it_stands(serve: Serve) -> None:
    """Deltas and a cut make one line longer and then shorter; at the end each message is there once."""
    api = RestClient(await serve())
    await api.create()
    async with in_terminal("tail", "--url", api.base, "s", "--messages", "--open") as terminal:
        await api.send(final(1, "Tell me a joke.", 1))
        await terminal.until(lambda: "Tell me a joke." in terminal.text)
        await api.send(delta(1, "Why did ", 2))
        await terminal.until(lambda: "Why did" in terminal.text)
        await api.send(delta(1, "the scarecrow", 3))
        await terminal.until(lambda: "Why did the scarecrow" in terminal.text)
        assert (1, 1) == (terminal.text.count("Why did"), terminal.text.count("a joke"))
        await api.send(interrupt(1, 4, heard_text="Why "), done(1))
        await terminal.until(lambda: "interrupted" in terminal.text)
        await api.end(reason="hangup")
        assert 0 == await terminal.ended()
        assert (1, 1, 2) == (terminal.text.count("Why did"), terminal.text.count("a joke"), terminal.text.count("turn"))
        assert "s ended (hangup)" == terminal.shown[-1]


async def test_a_long_call_scrolls_up_in_order(serve: Serve) -> None:
    """What no longer fits is in the terminal's own memory, each message once; one that changes there is shown again."""
    api = RestClient(await serve())
    await api.create()
    await api.send(*(final(turn, f"This is turn number {turn}.", turn) for turn in range(1, 251)))
    async with in_terminal("tail", "--url", api.base, "s", "--messages", rows=10) as terminal:
        await terminal.until(lambda: "number 250." in terminal.text)
        await api.send(final(251, "And one more.", 251))
        await terminal.until(lambda: "one more" in terminal.text)
        numbers = [line.split("number ")[1] for line in terminal.text.splitlines() if "number" in line]
        assert [f"{turn}." for turn in range(1, 251)] == numbers
        terminal.process.send_signal(signal.SIGINT)
        assert 0 == await terminal.ended()
        assert (251, 0) == (terminal.text.count("turn ") - 250, terminal.text.count("Traceback"))


async def test_a_reply_longer_than_the_screen_shows_its_end(serve: Serve) -> None:
    """Its newest words are what one wants to see, and afterwards all of it is there."""
    api = RestClient(await serve())
    await api.create()
    words = [f"word{number}" for number in range(400)]
    await api.send(final(1, "Tell me everything.", 1), delta(1, " ".join(words), 2))
    async with in_terminal("tail", "--url", api.base, "s", "--messages", "--open", rows=8, columns=60) as terminal:
        await terminal.until(lambda: "word399" in "".join(terminal.shown))
        await api.end()
        assert 0 == await terminal.ended()
        assert " ".join(words).replace(" ", "") in terminal.text.replace("\n", "").replace(" ", "")


async def test_calls_at_the_same_time_keep_apart(serve: Serve) -> None:
    """Without a session each line begins with its session, and a call that has ended stays as it was."""
    api = RestClient(await serve())
    async with in_terminal("tail", "--url", api.base, "--messages", "--open") as terminal:
        await terminal.until(lambda: "waiting for calls" in terminal.text)
        for name in ("first", "second"):
            await api.create(name)
            await api.send(final(1, f"I am the {name}.", 1), session_id=name)
            await terminal.until(lambda name=name: f"I am the {name}." in terminal.text)  # type: ignore[misc]
        await api.send(delta(1, "Hello, ", 2), session_id="first")
        await api.send(delta(1, "you.", 3), session_id="first")
        await terminal.until(lambda: "Hello, you." in terminal.text)
        lines = [line for line in terminal.shown if "turn" in line]
        assert ["first", "first", "second"] == [line.split()[0] for line in lines]
