"""What a tail of one call sends besides its messages: turns, the rest of its memory, and whether it runs."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from voicemem.protocol.types import JsonObject
from voicemem.sessions.tails.followed_turns import TurnReader
from voicemem.store.streams import Stream


class AccountReader(Protocol):
    """Reads what a memory has besides its messages."""

    async def version(self, stream: Stream) -> Any:
        """Something that differs when that does."""

    async def read(self, stream: Stream) -> Any:
        """All of it, to be sent as it is."""


class TurnChange(NamedTuple):
    """A turn as it is now, in place of what was sent of it before."""

    stream: Stream
    row: JsonObject


class AccountChange(NamedTuple):
    """What the memory has besides its messages."""

    account: Any


class StateChange(NamedTuple):
    """Whether the session runs, as its row says."""

    stream: Stream


CallContent = TurnChange | AccountChange | StateChange


class CallReader:
    """What one tail was sent of a call. It is never resumed: a reader that returns is sent all of it again."""

    def __init__(self, turns: TurnReader, accounts: AccountReader) -> None:
        self.turns = turns
        self.accounts = accounts
        self.position = -1
        self.account_version: Any = None
        self.state: tuple[str, str | None, int | None] | None = None

    async def read_changes(self, stream: Stream) -> list[CallContent]:
        """What has changed since the last time, the first time everything. Raises as `ReadModelCache.get`."""
        found: list[CallContent] = []
        if stream.position != self.position or shares_document(stream):
            found += [TurnChange(stream, row) for row in await self.turns.read_changes(stream)]
            version = await self.accounts.version(stream)
            if self.account_version is None or version != self.account_version:
                found.append(AccountChange(await self.accounts.read(stream)))
                self.account_version = version
            self.position = stream.position
        state = stream.state, stream.reason, stream.ended_ms
        if state != self.state:
            found.append(StateChange(stream))
            self.state = state
        return found


def shares_document(stream: Stream) -> bool:
    """Whether the session works on its user's document, which other sessions change too."""
    section = stream.config.get("working_memory")
    return isinstance(section, dict) and section.get("scope") == "user"
