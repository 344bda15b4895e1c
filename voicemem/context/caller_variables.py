"""Variables about the caller for a platform at the start of a call, from memories and earlier calls.

The phone is ringing meanwhile, so nothing here waits long, and nothing is written.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from voicemem.context.policy_registry import Policies
from voicemem.context.recall import PREFERENCE, RecalledLine, dated, day_of, fitting, render
from voicemem.dialects.call_starts import Value, Variables
from voicemem.dialects.dialect import session_id_of
from voicemem.errors import StoreUnavailable
from voicemem.protocol.quoting import quoted
from voicemem.runtime import Clock
from voicemem.store.memory_filters import AnyOf, MemoryFilter, NoneOf
from voicemem.store.port import Store
from voicemem.store.scopes import scope_of
from voicemem.store.session_filters import SessionFilter
from voicemem.store.streams import Stream
from voicemem.store.transcript_search import FoundMessage

ANSWER_TIMEOUT_S = 0.2
"""How long an answer may take; the rest of 300 ms is for the network."""
INDEXING_S, HEARD_S = 0.1, 0.08
"""The shares of that for indexing the newest messages, and for reading messages."""
MAX_TOKENS = 300
CALLS, MESSAGES = 5, 20
"""The most earlier calls, and messages of each, that are read."""
MEMORIES = 40
KINDS = ("preference", "fact", "episode")
LONGEST_TEXT = 400
"""The most characters of a message that are shown."""
MINUTE_MS, MINUTES_OF_DAY = 60_000, 1_440
PLACEHOLDER = re.compile(r"\{(?=[{%#])")
"""The beginning of a placeholder in platforms' templates."""
NOTHING: Variables = {"memory": "", "last_call": "", "caller_known": "no"}


@dataclass(eq=False)
class CallerVariables:
    """Finds the variables of a caller.

    `index_first` indexes recently changed sessions at once, by their keys. `defaults` are the operator's further
    variables, `assistants` Vapi's by project.
    """

    store: Store
    policies: Policies
    clock: Clock
    index_first: Callable[[Collection[int]], Awaitable[None]]
    defaults: Mapping[str, Value]
    assistants: Mapping[str | None, str]

    @property
    def nothing(self) -> Variables:
        return {**self.defaults, **NOTHING}

    async def known(self, project: str, user_id: str, call_id: str | None) -> Variables:
        """Return the variables of a user whose call `call_id` begins. Raises `StoreUnavailable`."""
        own = None if call_id is None else session_id_of(call_id)
        calls, memories = await asyncio.gather(
            self.earlier_calls(project, user_id, own), self.memory_lines(project, user_id, own)
        )
        if not calls and not memories:
            return self.nothing
        heard = await self.newest_messages([one.key for one in calls])
        said = sorted((one for one in heard if one.role == "user"), key=lambda one: one.said_ms, reverse=True)
        count = self.policies.counter(None).count  # its table of 70 MB is loaded at the first count
        heard_lines = (RecalledLine(f"{day_of(one.said_ms)}, {said_by(one)}", one.said_ms) for one in said)
        lines = fitting([*memories, *heard_lines], MAX_TOKENS, count)
        last = {"memory": render(lines) if lines else "", "last_call": last_call(calls, heard), "caller_known": "yes"}
        return {**self.nothing, **{name: PLACEHOLDER.sub("{ ", value) for name, value in last.items()}}

    async def earlier_calls(self, project: str, user_id: str, own: str | None) -> list[Stream]:
        """Return the user's newest sessions without a namespace, the newest first."""
        calls = await self.store.journal.list_sessions(SessionFilter(project=project, user_id=user_id, limit=CALLS + 1))
        return [one for one in calls if one.id != own and scope_of(one).namespace is None][:CALLS]

    async def newest_messages(self, keys: Sequence[int]) -> list[FoundMessage]:
        """Return the messages heard last on these calls; none while the index is slow or unavailable."""
        with suppress(TimeoutError, StoreUnavailable):
            async with asyncio.timeout(INDEXING_S):
                await self.index_first(keys)
        with suppress(TimeoutError, StoreUnavailable):
            async with asyncio.timeout(HEARD_S):
                return await self.store.transcript_index.newest_messages(keys, MESSAGES, LONGEST_TEXT)
        return []

    async def memory_lines(self, project: str, user_id: str, own: str | None) -> list[RecalledLine]:
        """Return the user's memories without repeated texts: pinned ones, then preferences, then the newest."""
        memories = MemoryFilter(
            project=project,
            namespaces=AnyOf((None,)),
            user_ids=AnyOf((user_id,)),
            session_ids=None if own is None else NoneOf((own,)),
            kinds=AnyOf(KINDS),
            unexpired_at_ms=self.clock(),
            limit=MEMORIES,
        )
        rows = [row for some in await self.store.memories.find_leading(memories, PREFERENCE) for row in some]
        rows.sort(key=lambda row: (not row.pinned, row.kind != PREFERENCE))
        return [RecalledLine(f"{day}: {quoted(row.text)}", at, row.id) for row, day, at in dated(rows, set())]


def said_by(message: FoundMessage) -> str:
    """Return a message as data: the speaker, and the text as a JSON string on one line."""
    cut = message.text if len(message.text) < LONGEST_TEXT else f"{message.text}…"
    return f"{message.role}: {quoted(cut)}"


def last_call(calls: Sequence[Stream], heard: Sequence[FoundMessage]) -> str:
    """Return the time of the newest call, and the last message heard on it."""
    if not calls:
        return ""
    last = next((message for message in heard if message.key == calls[0].key), None)
    at = calls[0].started_ms if last is None else last.said_ms
    hour, minute = divmod(at // MINUTE_MS % MINUTES_OF_DAY, 60)
    shown = f"{day_of(at)}, {hour:02}:{minute:02} UTC"
    return shown if last is None else f"{shown}, {said_by(last)}"
