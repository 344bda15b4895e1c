"""A scripted vendor of the Realtime API: what callers say comes when the audio of theirs is committed."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from websockets.asyncio.server import ServerConnection, serve

WORD_MS = 300
"""How long each word is spoken."""
PCM_BYTES_PER_MS, MULAW_BYTES_PER_MS = 48, 8


class RealtimeVendor:
    """Speaks the replies in turn, one for each `response.create`, and hangs up after the last."""

    def __init__(self, caller: Sequence[str], replies: Sequence[str], is_phone: bool = False) -> None:
        self.caller = iter(caller)
        self.is_phone = is_phone
        """True if the audio is mu-law at 8 kHz."""
        self.replies = list(replies)
        self.requests: list[dict[str, Any]] = []
        """What each `response.create` asked for."""
        self.numbers = count(1)
        self.last_item: str | None = None
        self.connection: ServerConnection | None = None

    async def handle(self, connection: ServerConnection) -> None:
        self.connection = connection
        await self.say("session.created", session=self.session(id(connection)))
        await self.caller_speaks()
        async for message in connection:
            event = json.loads(message)
            if event["type"] == "response.create":
                self.requests.append(event.get("response") or {})
                await self.reply(self.replies[len(self.requests) - 1])
            elif event["type"] == "conversation.item.truncate":
                said = {name: event[name] for name in ("item_id", "content_index", "audio_end_ms")}
                await self.say("conversation.item.truncated", **said)

    def session(self, number: int) -> dict[str, Any]:
        output = {"audio": {"output": {"format": {"type": "audio/pcmu"}}}} if self.is_phone else {}
        return {"type": "realtime", "id": f"sess_{number}", **output}

    async def say(self, kind: str, **fields: Any) -> None:
        assert self.connection is not None
        await self.connection.send(json.dumps({"type": kind, "event_id": f"event_{next(self.numbers)}", **fields}))

    async def caller_speaks(self) -> None:
        """The caller says the next thing, whatever the agent does."""
        item = f"item_{next(self.numbers)}"
        await self.say("input_audio_buffer.speech_started", item_id=item, audio_start_ms=0)
        await self.say("input_audio_buffer.committed", item_id=item, previous_item_id=self.last_item)
        await self.add_item(item, "user", [{"type": "input_audio"}])
        transcribed = "conversation.item.input_audio_transcription.completed"
        await self.say(transcribed, item_id=item, content_index=0, transcript=next(self.caller), usage={})

    async def add_item(self, item: str, role: str, content: list[dict[str, str]], status: str = "completed") -> None:
        previous, self.last_item = self.last_item, item
        whole = {"id": item, "type": "message", "role": role, "status": status, "content": content}
        await self.say("conversation.item.added", item=whole, previous_item_id=previous)

    async def reply(self, text: str) -> None:
        """Make a reply: a word and its audio at a time, faster than they can be played."""
        response, item = f"resp_{next(self.numbers)}", f"item_{next(self.numbers)}"
        about = {"response_id": response, "item_id": item, "output_index": 0, "content_index": 0}
        await self.say("response.created", response={"id": response, "conversation_id": "conv_1", "output": []})
        await self.add_item(item, "assistant", [], "in_progress")
        audio = base64.b64encode(bytes(WORD_MS * (MULAW_BYTES_PER_MS if self.is_phone else PCM_BYTES_PER_MS))).decode()
        for word in text.split():
            await self.say("response.output_audio_transcript.delta", delta=f"{word} ", **about)
            await self.say("response.output_audio.delta", delta=audio, **about)
        content = [{"type": "output_audio", "transcript": text}]
        whole = {"id": item, "type": "message", "role": "assistant", "status": "completed", "content": content}
        await self.say("response.output_item.done", response_id=response, output_index=0, item=whole)
        done = {"id": response, "conversation_id": "conv_1", "status": "completed", "output": [whole]}
        await self.say("response.done", response=done)

    async def hang_up(self) -> None:
        assert self.connection is not None
        await self.connection.close()


@asynccontextmanager
async def realtime_vendor(
    caller: Sequence[str], replies: Sequence[str], is_phone: bool = False
) -> AsyncIterator[tuple[RealtimeVendor, str]]:
    """A vendor on loopback, and the URL of its websocket."""
    vendor = RealtimeVendor(caller, replies, is_phone)
    async with serve(vendor.handle, "127.0.0.1", 0) as server:
        yield vendor, f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
