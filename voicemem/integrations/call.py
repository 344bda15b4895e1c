"""One call of an agent, for the program that plays its replies."""

from __future__ import annotations

from typing import Any

from voicemem.integrations.conversation import Conversation
from voicemem.integrations.sessions import Sessions


class Call:
    """What your player tells, from any thread; `item` names a reply, by default the newest.

    No method raises, and none but `aclose` and `close` waits.
    """

    def __init__(self, sessions: Sessions[Any], session_id: str) -> None:
        self.sessions = sessions
        self.session_id = session_id

    def announced(self, text: str) -> None:
        """The agent says this without a model, such as a greeting."""
        self.sessions.soon(self.session_id, lambda memory: memory.announced(text))

    def interrupted(
        self, heard_text: str | None = None, audio_end_ms: float | None = None, *, item: str | None = None
    ) -> None:
        """The user cut a reply short: they had heard this text, or this much of its audio.

        Give `audio_end_ms` after `played`, or else the length of the audio is not known.
        """
        self.sessions.soon(self.session_id, lambda memory: memory.interrupted(heard_text, audio_end_ms, item=item))

    def played(
        self,
        audio_ms: float | None = None,
        total_audio_ms: float | None = None,
        done: bool = False,
        *,
        item: str | None = None,
    ) -> None:
        """How far a reply has been played, how long its audio is, and whether it was played to its end."""
        self.sessions.soon(self.session_id, lambda memory: memory.played(audio_ms, total_audio_ms, done, item=item))

    def end(self, reason: str | None = None) -> None:
        """The call is over."""
        self.sessions.soon(self.session_id, lambda memory: memory.end(reason))

    async def aclose(self) -> None:
        """Wait a few seconds until all of it is on disk."""
        await self.sessions.ask(self.session_id, Conversation.aclose)

    def close(self) -> None:
        """`aclose` for code that is not asynchronous."""
        self.sessions.wait(self.session_id, Conversation.aclose)
