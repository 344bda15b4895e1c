"""The ADK's memory service over a service's sessions and long-term memories.

An added session becomes a session of the memory, of its user and in the namespace of its app. If the plugin or another
producer records it already, only user and namespace are set. A search finds heard messages and memories.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from voicemem.client import Client, ClientError, RequestRefused, SyncClient
from voicemem.client.memories import memory_path
from voicemem.client.transport.rest import required, session_path
from voicemem.dialects.dialect import session_id_of
from voicemem.integrations.conversation import LOG, ClientCalls
from voicemem.integrations.google_adk.session import text_of
from voicemem.protocol.memories import time_ms
from voicemem.protocol.types import JsonObject

SENT_TOGETHER = 100
MAX_QUERY = 4_000
MONTH_S = 30 * 86_400
"""How long an added session may continue, since sessions of the ADK do not end with a call."""
HEARD = "asr,llm.delta,llm.done,frame"
"""Events of producers that heard a call themselves; additions here are whole messages."""
TRACES = "tool.call,tool.result"


class UserMemory:
    """The memory of users, joined with `BaseMemoryService`."""

    def __init__(self, client: Client | SyncClient, limit: int) -> None:
        from google.adk.memory.base_memory_service import SearchMemoryResponse

        self.response: Any = SearchMemoryResponse
        self.calls = ClientCalls(client)
        self.client = self.calls.client
        self.rest = required(self.client.rest)
        self.limit = limit

    # Adding

    async def add_session_to_memory(self, session: Any) -> None:
        """Add a session; messages added before are not added twice."""
        await self.calls.run(self.add(session.app_name, session.user_id, session.id, session.events, None))

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Any],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Add events with metadata to a session, by default to one session of the user."""
        name = session_id or f"{app_name}.{user_id}"
        await self.calls.run(self.add(app_name, user_id, name, events, custom_metadata))

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[Any],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Keep memories of a user, each a text of at most 1,000 bytes. Raises `ValueError` for other contents."""
        bodies = [memory_of(one, app_name, user_id, custom_metadata) for one in memories]
        for first in range(0, len(bodies), SENT_TOGETHER):
            body = {"memories": bodies[first : first + SENT_TOGETHER]}
            await self.calls.run(self.rest.send("POST", "/v1/memories", body))

    async def add(
        self,
        app_name: str,
        user_id: str,
        session_id: str,
        events: Sequence[Any],
        metadata: Mapping[str, object] | None,
    ) -> None:
        is_recorded = any(open_id == session_id for open_id, _ in self.client._producers)
        if is_recorded:
            await self.client.flush(session_id)
        name = session_id_of(session_id)
        await self.ensure_session(name, app_name, user_id)
        if is_recorded or await self.was_heard(name):
            return
        messages = [one for event in events for one in messages_of(event, metadata)]
        if any("call_id" in one for one in messages):  # a trace has no id by which a repeat is known
            lines = self.rest.lines(session_path(name, "/events"), {"types": TRACES})
            known = {(row["event"]["type"], row["event"]["call_id"]) async for row in lines}
            messages = [one for one in messages if (one.get("type"), one.get("call_id")) not in known]
        for first in range(0, len(messages), SENT_TOGETHER):
            await self.rest.send("POST", session_path(name, "/messages"), messages[first : first + SENT_TOGETHER])

    async def ensure_session(self, name: str, app_name: str, user_id: str) -> None:
        """Create a session of a user and an app, or add those of the two that an existing session lacks."""
        own = {"user_id": user_id, "labels": {"namespace": app_name}}
        try:
            await self.rest.send("POST", "/v1/sessions", {"session_id": name, "reopen_window": MONTH_S, **own})
            return
        except RequestRefused as refused:
            if refused.code != "session_exists":
                raise
        config = (await self.rest.get(session_path(name)))["config"]
        lacks: JsonObject = {} if config.get("user_id") else {"user_id": user_id}
        if not (config.get("labels") or {}).get("namespace"):
            lacks["labels"] = own["labels"]
        if lacks:
            await self.rest.send("PATCH", session_path(name), lacks)

    async def was_heard(self, name: str) -> bool:
        """Return whether a producer has recorded a session live."""
        async for _ in self.rest.lines(session_path(name, "/events"), {"types": HEARD, "limit": 1}):
            return True
        return False

    # Searching

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> Any:
        """Search the messages and memories of the user; return nothing while the memory is away."""
        if not query.strip():
            return self.response()
        where: Any = {"user_id": user_id, "namespace": app_name, "limit": self.limit}
        try:
            answer = await self.calls.run(self.client.search(query[:MAX_QUERY], **where))
        except ClientError as error:
            LOG.warning("The agent continues without its memory: %s", error)
            return self.response()
        return self.response.model_validate({"memories": [entry_of(one) for one in answer["memories"]]})

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Delete a memory. Raises `ValueError` if this user and app have no such memory; messages are none."""
        memory = None if memory_id is None else await self.calls.run(self.find(memory_id))
        if memory is None or (memory["user_id"], memory["namespace"]) != (user_id, app_name):
            raise ValueError(
                "memory_id names no memory of this user and app; what was said goes with its session: DELETE"
                " /v1/sessions/{id}."
            )
        await self.calls.run(self.client.memories.remove(memory["id"]))

    async def find(self, memory_id: str) -> JsonObject | None:
        try:
            return await self.rest.get(memory_path(memory_id))
        except RequestRefused as refused:
            if refused.code == "unknown_memory":
                return None
            raise


def messages_of(event: Any, metadata: Mapping[str, object] | None) -> list[JsonObject]:
    """Return the messages and tool traces of an event, with ids from it, so that repeats change nothing."""
    if event.partial:
        return []
    at, made = round(event.timestamp * 1000), list[JsonObject]()
    heard, spoken = getattr(event, "input_transcription", None), getattr(event, "output_transcription", None)
    text = text_of(event.content) or next((one.text for one in (heard, spoken) if one is not None and one.text), "")
    if text.strip():
        by_user = event.author == "user" or heard is not None
        about = dict(metadata or {}) if by_user else {"agent": event.author, **(metadata or {})}
        message = {"role": "user" if by_user else "assistant", "content": text, "timestamp": at, "id": event.id}
        made.append(message | ({"metadata": about} if about else {}))
    for part in (event.content.parts if event.content is not None else None) or []:
        if (call := part.function_call) is not None and call.id:
            trace = {"type": "tool.call", "call_id": call.id, "name": call.name, "arguments": call.args or {}}
            made.append(trace | {"timestamp": at})
        elif (result := part.function_response) is not None and result.id:
            trace = {"type": "tool.result", "call_id": result.id, "result": result.response}
            made.append(trace | {"timestamp": at})
    return made


def memory_of(entry: Any, app_name: str, user_id: str, metadata: Mapping[str, object] | None) -> JsonObject:
    """Return the memory of an entry. Raises `ValueError` for one that is not a text."""
    text = text_of(entry.content)
    if not text.strip() or any(part.text is None for part in entry.content.parts or []):
        raise ValueError("A memory is a text: the parts of its content are texts alone.")
    own = getattr(entry, "custom_metadata", None) or {}  # the ADK's first versions have neither this nor the id
    about = {**own, **(metadata or {}), **({"author": entry.author} if entry.author else {})}
    memory: JsonObject = {"text": text, "user_id": user_id, "namespace": app_name, "metadata": about or None}
    if getattr(entry, "id", None) is not None:
        memory["id"] = entry.id
    if entry.timestamp is not None:
        memory["said_at"] = time_ms(entry.timestamp)
    return memory


def entry_of(memory: JsonObject) -> JsonObject:
    """Return the ADK's entry for a search result."""
    role = memory.get("role")
    content = {"role": "model" if role == "assistant" else "user", "parts": [{"text": memory["text"]}]}
    said_at, metadata = memory["said_at"], memory.get("metadata") or {}
    author = role or metadata.get("author")
    about = {name: memory[name] for name in ("kind", "session_id", "score")} | metadata
    at = None if said_at is None else datetime.fromtimestamp(said_at / 1000, UTC).isoformat()
    return {"content": content, "custom_metadata": about, "id": memory["id"], "author": author, "timestamp": at}
