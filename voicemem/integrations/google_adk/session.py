"""A session of the ADK, recorded in runs of texts and in live runs; contents of Gemini's form, and the memory's."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from voicemem.integrations.background_session import BackgroundSession, Newest
from voicemem.integrations.conversation import Conversation, as_object, parsed
from voicemem.integrations.google_adk.live import LiveListener
from voicemem.integrations.ledger import Ledger, now_ms
from voicemem.protocol.types import JsonObject

OF_OTHERS = "For context:"
"""The beginning of what the ADK quotes to one agent from another, in the user's role."""
SAID_BY_ANOTHER = re.compile(
    r"(?P<before>\[[^\]]+\] said:\s(?:<<<\w+>>>\s)?)(?P<text>.*?)(?P<after>(?:\s<<<\w+>>>)?)", re.DOTALL
)
"""One of its parts: the text alone, or, since version 2.13, between two marks."""


class AdkSession(Conversation):
    """One session. Its replies have ids of their own, since the ADK gives each piece of a stream another one."""

    def __init__(self, session: BackgroundSession) -> None:
        super().__init__(session)
        self.ledger = Ledger(session.send, self.prefix)
        self.live: LiveListener | None = None
        """Hears of live runs, once there was one."""
        self.growing: dict[tuple[str, str | None], str] = {}
        """Replies that are being streamed, by their agents and branches."""
        self.texts: Newest[str, str] = Newest(100)

    # Runs of texts

    def on_user_message(self, message: Any, item: str) -> None:
        """A run begins. What another has left unfinished will not grow."""
        for unfinished in self.growing.values():
            self.replied(None, unfinished)
        self.growing.clear()
        if text := text_of(message):
            self.user_said(text, item)
        self.on_tools(message)

    def on_event(self, event: Any) -> None:
        """Record what an agent said, in parts and whole, and its tools."""
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
            self.replied(text, item)
            self.texts[item] = text
        self.on_tools(event.content)

    def on_tools(self, content: Any) -> None:
        for part in (None if content is None else content.parts) or []:
            if part.function_call is not None:
                self.tool_called(part.function_call.id, part.function_call.name, part.function_call.args or {})
            elif part.function_response is not None:
                self.tool_returned(part.function_response.id, part.function_response.response)

    def heard_texts(self) -> dict[str, str]:
        """Return what was heard of replies that were cut, by their texts."""
        return {self.texts[item]: heard for item, heard in self.heard.items() if item in self.texts}

    # Live runs

    def on_live_event(self, event: Any) -> None:
        if self.live is None:
            self.live = LiveListener(self.ledger)
        self.live.on_event(event, now_ms())

    # What your player calls

    def cut(self, item: str | None, heard_text: str | None, audio_end_ms: float | None) -> None:
        """Report that the user cut a reply short; in a live run the newest."""
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
        """Report how far a reply was played; in a live run the newest, and its `audio_ms` alone."""
        if self.live is None or item is not None:
            super().played(audio_ms, total_audio_ms, done, item=item)
        elif audio_ms is not None:
            self.live.played(audio_ms, now_ms())

    def end(self, reason: str | None = None) -> None:
        """The call is over; what plays in a live run is cut where it is."""
        if self.live is None:
            super().end(reason)
        else:
            self.live.end(now_ms(), reason)


class RunContent(NamedTuple):
    """A content as `voicemem.integrations.runs` takes it."""

    type: str
    content: str
    tool_calls: Sequence[JsonObject]
    id: str
    source: Any
    """The content itself, or its JSON."""


def text_of(content: Any) -> str:
    """The text of a content, without the model's thoughts."""
    parts = (None if content is None else content.parts) or []
    return "".join(part.text for part in parts if part.text and not part.thought)


def own_contents(contents: Iterable[Any]) -> list[RunContent]:
    """Those of a request that the ADK has made. Their ids are their places."""
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
    """Those of a memory's messages in OpenAI's form; instructions are left out."""
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
    """One of the ADK's own contents; a reply that was cut has the text that was heard, also where another is quoted."""
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
