"""An agent that keeps speaking from its own messages while the memory is away (docs/when-the-memory-is-away.md)."""

import asyncio
import sys
import time
from collections import deque
from typing import Any

from voicemem.client import Client, ClientError, ProducerSession, Unacknowledged, Unreachable

Event = dict[str, Any]


class CallMemory:
    """The memory of one call, and the agent's own messages for when it is away."""

    def __init__(self, client: Client, session_id: str) -> None:
        self.session: ProducerSession | None = None
        self.early: deque[Event] = deque(maxlen=10_000)  # events from before the session was open
        self.own_messages: deque[Event] = deque(maxlen=20)
        self.ask_again_at = 0.0
        self.opening = asyncio.create_task(self.open(client, session_id))

    async def open(self, client: Client, session_id: str) -> None:
        while self.session is None:
            try:
                self.session = await client.open(session_id)
            except Unreachable as error:
                print("not open yet:", error.detail)
            except ClientError as error:  # a wrong key, for instance: trying again is useless
                print("no memory on this call:", error.detail)
                return
        for event in self.early:
            self.session.send(event)

    def send(self, event: Event) -> None:
        event = {"ts": time.time_ns() // 1_000_000, **event}
        if self.session is None:
            self.early.append(event)
        else:
            self.session.send(event)

    def heard(self, role: str, text: str) -> None:
        self.own_messages.append({"role": role, "content": text})

    async def messages(self) -> list[Event]:
        """What the LLM gets: the memory's context, within a second, or else the agent's own messages."""
        if self.session is not None and time.monotonic() >= self.ask_again_at:
            try:
                await self.session.flush(timeout=0.5)  # the caller's last words are on disk
                return list((await self.session.context(timeout=0.5))["messages"])
            except ClientError as error:
                print("without the memory:", error.detail)
                self.ask_again_at = time.monotonic() + 5
        return list(self.own_messages)


async def ask_llm(messages: list[Event]) -> str:
    return f"You have said {sum(message['role'] == 'user' for message in messages)} things."  # your LLM


async def call(session_id: str) -> None:
    async with Client("ws://127.0.0.1:8765", "http://127.0.0.1:8080") as client:
        memory = CallMemory(client, session_id)
        turn = 0
        while words := (await asyncio.to_thread(sys.stdin.readline)).strip():  # an empty line hangs up
            turn += 1
            memory.send({"type": "asr", "turn_id": turn, "text": words, "final": True})
            memory.heard("user", words)
            reply = await ask_llm(await memory.messages())
            memory.send({"type": "llm.done", "turn_id": turn, "text": reply})
            memory.send({"type": "tts", "turn_id": turn, "done": True})
            memory.heard("assistant", reply)
            print(reply)
        memory.send({"type": "session.end", "reason": "hangup"})
        await asyncio.wait({memory.opening}, timeout=5)
        memory.opening.cancel()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m examples.agent_without_memory SESSION_ID")
    try:
        asyncio.run(call(sys.argv[1]))
    except Unacknowledged as error:
        print("not stored:", error.events)
