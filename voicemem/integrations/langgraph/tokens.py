"""The tokens of one model call, as LangChain tells them to callbacks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from voicemem.integrations.runs import text_of


class StreamedTexts:
    """What the LLM runs of one model call have said so far. `grew` gets each piece and the item of its reply."""

    def __init__(self, grew: Callable[[str, str], None]) -> None:
        self.grew = grew
        self.items: dict[Any, str] = {}
        """The item of each run: the id of its message, as it is first told."""
        self.grown: set[str] = set()
        """The items of which something was said."""
        self.names: dict[str, str] = {}
        """The item of each id that a run's message has had; vendors may give another on the way."""
        self.others: set[Any] = set()
        """Runs of other middleware, whose texts nobody hears."""

    def said(self, run: Any, message_id: str | None, text: str) -> None:
        if run in self.others:
            return
        if message_id and run not in self.items:
            self.items[run] = message_id
        if run in self.items:
            self.names[message_id or self.items[run]] = self.items[run]
            if text:
                self.grown.add(self.items[run])
                self.grew(text, self.items[run])

    def item_of(self, message_id: str) -> str:
        """The item that a message was streamed as; its id if it was not."""
        return self.names.get(message_id, message_id)


@cache
def listener_type() -> type[Any]:
    """The class of callbacks; it can be made only where LangChain is installed."""
    from langchain_core.callbacks import BaseCallbackHandler

    class TokenListener(BaseCallbackHandler):
        """Tells of each token. It asks for no stream: without one there are no tokens."""

        run_inline = True  # also in asynchronous runs, so that tokens keep their order

        def __init__(self, texts: StreamedTexts) -> None:
            self.texts = texts

        def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: Any, **more: Any) -> None:
            if (more.get("metadata") or {}).get("lc_source"):
                self.texts.others.add(run_id)

        def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: Any, **more: Any) -> None:
            message = getattr(chunk, "message", None)
            if message is not None:
                self.texts.said(run_id, message.id, text_of(message.content))

        def on_stream_event(self, event: Any, *, run_id: Any, **more: Any) -> None:
            """Streams in LangChain's own protocol have these instead of tokens."""
            delta = event.get("delta") or {}
            if event.get("event") == "message-start":
                self.texts.said(run_id, event.get("id") or event.get("message_id"), "")
            elif delta.get("type") == "text-delta":
                self.texts.said(run_id, None, delta["text"])

    return TokenListener
