"""A session of the ADK, recorded in text runs and in live runs, and the memory's messages as contents of Gemini's form.

The playback position of a live run is known by the clock or the player.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from voicemem.integrations.background_session import BackgroundSession, NewestEntries
from voicemem.integrations.conversation import Conversation, as_object, parsed
from voicemem.integrations.ledger import PLAYED_OUT_MS, Ledger, now_ms
from voicemem.protocol.types import JsonObject

SAMPLE_BYTES = 2
DEFAULT_RATE = 24_000


@dataclass
class LiveReply:
    """One turn of the model."""

    name: str
    made_ms: float = 0.0
    begun_at: float | None = None
    """When its first audio came, which plays at once."""
    stated_ms: float | None = None
    """The player's position, if there is one that reports it."""
    has_text: bool = False
    complete: bool = False
    is_cut: bool = False

    def position(self, at: float) -> float:
        if self.stated_ms is not None:
            return self.stated_ms
        return 0.0 if self.begun_at is None else max(1.0, min(self.made_ms, at - self.begun_at))  # 0 would be certain

    def is_played_out(self, at: float) -> bool:
        return self.complete and self.position(at) >= self.made_ms - PLAYED_OUT_MS


class LiveListener:
    """Reports the events of a live run to a ledger. Times are Unix ms."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.replies = 0
        self.utterances = 1
        self.words = ""
        self.is_new = True
        self.is_place = False
        """True if only its place was sent, for words that come after the answer to them."""
        self.has_spoken = False
        self.playing: LiveReply | None = None
        self.after_tools = 0.0

    def on_event(self, event: Any, at: float) -> None:
        at = max(at, self.after_tools)
        self.follow_clock(at)
        if event.input_transcription is not None:
            self.on_user_words(event.input_transcription, at)
        if event.output_transcription is not None:
            self.on_model_words(event.output_transcription.text or "", bool(event.partial), at)
        for part in (event.content.parts if event.content is not None else None) or []:
            self.on_part(part, event, at)
        if event.interrupted:
            self.on_interrupted(at)
        if event.turn_complete:
            self.on_turn_complete(at)
        if (event.interrupted or event.turn_complete) and self.is_place:
            self.next_utterance()

    # The caller

    def on_user_words(self, transcription: Any, at: float) -> None:
        """Report words of the user: parts of a transcript add up, and the finished one is whole."""
        text = transcription.text or ""
        self.has_spoken = self.has_spoken or bool(text)
        if transcription.finished:
            self.hear(text.strip() or self.words.strip(), True, at)
            self.next_utterance()
        elif text:
            self.words += text
            self.hear(self.words.strip(), False, at)

    def hear(self, text: str, final: bool, at: float) -> None:
        self.is_new, self.is_place = False, not text
        self.ledger.transcribed(f"u{self.utterances}", text, at, final)

    def next_utterance(self) -> None:
        self.utterances += 1
        self.words, self.is_new, self.is_place = "", True, False

    # The model

    def reply(self, at: float) -> LiveReply:
        """Return the reply that is being generated. The words that it answers get their place, if they come later."""
        if self.playing is None or self.playing.complete:
            if self.playing is not None:
                self.ledger.finished(self.playing.name, at)
            self.replies += 1
            if not self.has_spoken:
                self.hear("", False, at)
            self.has_spoken = False
            self.playing = LiveReply(f"r{self.replies}")
        return self.playing

    def on_model_words(self, text: str, partial: bool, at: float) -> None:
        reply = self.reply(at)
        if text and (partial or not reply.has_text):
            reply.has_text = True
            self.ledger.said(reply.name, text, at)

    def on_part(self, part: Any, event: Any, at: float) -> None:
        if part.function_call is not None:
            call = part.function_call
            self.trace({"type": "tool.call", "call_id": call.id, "name": call.name, "arguments": call.args or {}}, at)
        elif part.function_response is not None:
            result = part.function_response
            self.trace({"type": "tool.result", "call_id": result.id, "result": result.response}, at)
        elif part.inline_data is not None and (part.inline_data.mime_type or "").startswith("audio/"):
            if event.author != "user":
                self.on_audio(part.inline_data, at)
        elif part.text and not part.thought and event.author != "user":
            self.on_model_words(part.text, bool(event.partial), at)

    def trace(self, event: dict[str, Any], at: float) -> None:
        """Report a tool's call or result, in the turn of the words that it is about."""
        self.after_tools = at + 1.0
        newest = self.utterances - 1 if self.is_new else self.utterances
        self.ledger.emit(event, at, self.ledger.item_of(f"u{newest}") if newest else None)

    def on_audio(self, blob: Any, at: float) -> None:
        reply = self.reply(at)
        stated = re.search(r"rate=(\d+)", blob.mime_type)
        audio_ms = 1000.0 * len(blob.data or b"") / (SAMPLE_BYTES * (int(stated[1]) if stated else DEFAULT_RATE))
        reply.made_ms += audio_ms
        self.ledger.audio_made(reply.name, audio_ms)
        if reply.begun_at is None:
            reply.begun_at = at
            self.ledger.played(reply.name, 0.0, at)

    def on_turn_complete(self, at: float) -> None:
        """Report that the reply is generated; it may play for long. It does not answer later words."""
        reply = self.playing
        if reply is not None and not reply.complete:
            reply.complete = True
            self.ledger.said_all(reply.name, at)
            self.ledger.span_made(reply.name, at)
            self.follow_clock(at)

    def on_interrupted(self, at: float) -> None:
        """Report that the caller broke in; the model generates no more of the reply."""
        reply = self.playing
        if reply is not None and not reply.is_cut and not reply.is_played_out(at):
            position = None if reply.begun_at is None and reply.stated_ms is None else reply.position(at)
            self.cut_reply(reply, position, None, at)

    def cut_reply(self, reply: LiveReply, position: float | None, heard_text: str | None, at: float) -> None:
        reply.complete = reply.is_cut = True
        reply.stated_ms = reply.stated_ms if position is None else position
        if position is not None:
            self.ledger.cut(reply.name, position, at, cause="user_speech")
        if heard_text is not None or position is None:
            item = self.ledger.item_of(reply.name)
            self.ledger.emit({"type": "interrupt", "heard_text": heard_text}, at, item, cause="user_speech")

    # Playback

    def follow_clock(self, at: float) -> None:
        """Report the position of playback, or its end."""
        reply = self.playing
        if reply is None or reply.is_cut or (reply.begun_at is None and not reply.complete):
            return
        if reply.is_played_out(at):
            self.ledger.finished(reply.name, at)
            self.playing = None
        else:
            self.ledger.played(reply.name, reply.position(at), at)

    def played(self, audio_ms: float, at: float) -> None:
        """Take the player's position of the newest reply; the clock no longer counts."""
        if self.playing is not None and self.playing.is_cut:
            self.cut_reply(self.playing, audio_ms, None, at)
        elif self.playing is not None:
            self.playing.stated_ms = audio_ms
            self.follow_clock(at)

    def cut(self, audio_ms: float | None, heard_text: str | None, at: float) -> None:
        """Take the player's position of the cut of the newest reply, before or after the model knows of it."""
        if self.playing is not None:
            self.cut_reply(self.playing, audio_ms, heard_text, at)

    def end(self, at: float, reason: str | None = None) -> None:
        """End the call: audio not played by now is not heard."""
        self.follow_clock(at)
        self.ledger.end(at, reason)


OF_OTHERS = "For context:"
"""The beginning of the ADK's quotes of one agent to another, in the user's role."""
SAID_BY_ANOTHER = re.compile(
    r"(?P<before>\[[^\]]+\] said:\s(?:<<<\w+>>>\s)?)(?P<text>.*?)(?P<after>(?:\s<<<\w+>>>)?)", re.DOTALL
)
"""One part of a quote: the text alone, or, since version 2.13, between two marks."""


class AdkSession(Conversation):
    """One session. Its replies have their own ids, since the ADK gives each piece of a stream another one."""

    def __init__(self, session: BackgroundSession) -> None:
        super().__init__(session)
        self.ledger = Ledger(session.send, self.prefix)
        self.live: LiveListener | None = None
        self.growing: dict[tuple[str, str | None], str] = {}
        """Replies that are being streamed, by agent and branch."""
        self.texts: NewestEntries[str, str] = NewestEntries(100)

    # Text runs

    def on_user_message(self, message: Any, item: str) -> None:
        """Begin a run. Unfinished replies of earlier runs are complete."""
        for unfinished in self.growing.values():
            self.replied(None, unfinished)
        self.growing.clear()
        if text := text_of(message):
            self.user_said(text, item)
        self.on_tools(message)

    def on_event(self, event: Any) -> None:
        if event.author == "user":
            return
        agent, text = (event.author, getattr(event, "branch", None)), text_of(event.content)
        if event.partial:
            if text:
                item = self.growing.get(agent) or self.growing.setdefault(agent, self.new_item())
                self.reply_grew(text, item)
            return
        if text:
            item = self.growing.pop(agent, "") or self.new_item()
            self.replied(text, item, event.author)
            self.texts[item] = text
        self.on_tools(event.content)

    def on_tools(self, content: Any) -> None:
        for part in (None if content is None else content.parts) or []:
            if part.function_call is not None:
                self.tool_called(part.function_call.id, part.function_call.name, part.function_call.args or {})
            elif part.function_response is not None:
                self.tool_returned(part.function_response.id, part.function_response.response)

    def heard_texts(self) -> dict[str, str]:
        """Return the heard texts of cut replies, by their whole texts."""
        return {self.texts[item]: heard for item, heard in self.heard.items() if item in self.texts}

    # Live runs

    def on_live_event(self, event: Any) -> None:
        if self.live is None:
            self.live = LiveListener(self.ledger)
        self.live.on_event(event, now_ms())

    # What your player calls

    def cut(self, item: str | None, heard_text: str | None, audio_end_ms: float | None) -> None:
        if self.live is None or item is not None:
            super().cut(item, heard_text, audio_end_ms)
        else:
            self.live.cut(audio_end_ms, heard_text, now_ms())

    def played(
        self,
        audio_ms: float | None = None,
        total_audio_ms: float | None = None,
        done: bool = False,
        *,
        item: str | None = None,
    ) -> None:
        """Report how far a reply was played; in a live run the newest, and only its `audio_ms`."""
        if self.live is None or item is not None:
            super().played(audio_ms, total_audio_ms, done, item=item)
        elif audio_ms is not None:
            self.live.played(audio_ms, now_ms())

    def end(self, reason: str | None = None) -> None:
        """End the call: a reply that plays in a live run is cut."""
        if self.live is None:
            super().end(reason)
        else:
            self.live.end(now_ms(), reason)


class RunContent(NamedTuple):
    """A content in the form of `voicemem.integrations.runs`."""

    type: str
    content: str
    tool_calls: Sequence[JsonObject]
    id: str
    source: Any
    """The content itself, or its JSON."""


def text_of(content: Any) -> str:
    """Return the text of a content, without the model's thoughts."""
    parts = (None if content is None else content.parts) or []
    return "".join(part.text for part in parts if part.text and not part.thought)


def own_contents(contents: Iterable[Any]) -> list[RunContent]:
    """Return the contents of a request by the ADK, with their places as ids."""
    own = []
    for at, content in enumerate(contents):
        parts, text = content.parts or [], text_of(content)
        if content.role == "model":
            calls = [{"id": part.function_call.id} for part in parts if part.function_call]
            own.append(RunContent("ai", text, calls, str(at), content))
        else:
            kind = "other" if text.startswith(OF_OTHERS) else "human"
            kind = "tool" if any(part.function_response for part in parts) else kind
            own.append(RunContent(kind, text, (), str(at), content))
    return own


def known_contents(messages: Iterable[JsonObject]) -> Iterator[RunContent]:
    """Yield the contents for a memory's messages in OpenAI's form; instructions are left out."""
    names: dict[str, str] = {}
    for message in messages:
        role, text = message["role"], message.get("content") or ""
        if role == "user":
            yield RunContent("human", text, (), "", {"role": "user", "parts": [{"text": text}]})
        elif role == "assistant":
            calls = message.get("tool_calls") or []
            names |= {call["id"]: call["function"]["name"] for call in calls}
            parts = [{"text": text}] if text else []
            for call in calls:
                arguments = as_object(parsed(call["function"]["arguments"]), "arguments")
                made = {"id": call["id"], "name": call["function"]["name"], "args": arguments}
                parts.append({"function_call": made})
            yield RunContent("ai", text, calls, "", {"role": "model", "parts": parts})
        elif role == "tool":
            call_id, response = message["tool_call_id"], as_object(parsed(text), "result")
            part = {"id": call_id, "name": names.get(call_id, "tool"), "response": response}
            yield RunContent("tool", text, (), "", {"role": "user", "parts": [{"function_response": part}]})


def as_heard(content: Any, texts: dict[str, str]) -> Any:
    """Return one of the ADK's own contents, with the heard text of a cut reply, also in quotes."""
    text = text_of(content)
    if content.role == "model" and text in texts:
        made = type(content).model_validate({"role": "model", "parts": [{"text": texts[text]}]})
        return made.model_copy(update={"parts": [*made.parts, *(part for part in content.parts if not part.text)]})
    if content.role == "model" or not text.startswith(OF_OTHERS):
        return content
    parts = []
    for part in content.parts:
        said = SAID_BY_ANOTHER.fullmatch(part.text or "")
        if said is not None and said["text"] in texts:
            part = part.model_copy(update={"text": said["before"] + texts[said["text"]] + said["after"]})
        parts.append(part)
    return content.model_copy(update={"parts": parts})
