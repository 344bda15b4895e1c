"""One call of an agent, for the program that plays its replies."""

from __future__ import annotations

from voicemem.integrations.langgraph.threads import ThreadMemory, Threads


class Call:
    """What your player tells, from any thread; `item` is the id of an `AIMessage`, by default the newest that spoke.

    No method raises, and none but `aclose` and `close` waits.
    """

    def __init__(self, threads: Threads, session_id: str) -> None:
        self.threads = threads
        self.session_id = session_id

    def announced(self, text: str) -> None:
        """The agent says this without a model, such as a greeting."""

        def announce(memory: ThreadMemory) -> None:
            memory.reply = memory.new_item()
            said = {"role": "assistant", "source": "greeting", "text": text}
            memory.send({"type": "message", "item": memory.reply, **said})

        self.threads.soon(self.session_id, announce)

    def interrupted(
        self, heard_text: str | None = None, audio_end_ms: float | None = None, *, item: str | None = None
    ) -> None:
        """The user cut a reply short: they had heard this text, or this much of its audio.

        Give `audio_end_ms` after `played`, or else the length of the audio is not known.
        """
        self.threads.soon(self.session_id, lambda memory: memory.interrupted(heard_text, audio_end_ms, item=item))

    def played(
        self,
        audio_ms: float | None = None,
        total_audio_ms: float | None = None,
        done: bool = False,
        *,
        item: str | None = None,
    ) -> None:
        """How far a reply has been played, how long its audio is, and whether it was played to its end."""
        self.threads.soon(self.session_id, lambda memory: memory.played(audio_ms, total_audio_ms, done, item=item))

    def end(self, reason: str | None = None) -> None:
        """The call is over."""
        self.threads.soon(self.session_id, lambda memory: memory.end(reason))

    async def aclose(self) -> None:
        """Wait a few seconds until all of it is on disk."""
        await self.threads.ask(self.session_id, ThreadMemory.aclose)

    def close(self) -> None:
        """`aclose` for code that is not asynchronous."""
        self.threads.wait(self.session_id, ThreadMemory.aclose)
