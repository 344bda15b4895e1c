"""Pipecat: one line makes a call remembered as it was heard.

    from voicemem.integrations import pipecat

    worker = PipelineWorker(pipeline)
    memory = pipecat.attach(worker, client, session_id="call-1", context=True)
    await runner.run()
    await memory.aclose()

See docs/pipecat.md. The framework is imported only here and only when it is used (`voicemem-core[pipecat]`).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from voicemem.client import Client
from voicemem.integrations.background_session import AttachedMemory, BackgroundSession, check_installed, config_of
from voicemem.integrations.ledger import Ledger
from voicemem.integrations.pipecat.frames import FrameListener
from voicemem.integrations.pipecat.remembering import Remembering, context_messages
from voicemem.protocol.types import JsonObject

if TYPE_CHECKING:
    from pipecat.observers.base_observer import BaseObserver
    from pipecat.pipeline.worker import PipelineWorker

LOG = logging.getLogger("voicemem.integrations")
__all__ = ["AttachedMemory", "attach", "context_messages", "observer"]


def attach(
    worker: PipelineWorker,
    client: Client,
    *,
    session_id: str | None = None,
    user_id: str | None = None,
    context: bool = False,
    config: Mapping[str, Any] | None = None,
    producer: str = "pipecat",
    client_buffer_ms: float = 0.0,
) -> AttachedMemory:
    """Remember a call. Use it in a running event loop, before the worker runs.

    With `context`, each request to the LLM gets the messages as they were heard, in place of Pipecat's own, and text
    from earlier calls of `user_id` if `config` has `{"memory_from": {"sessions": 3}}`; both are for a new session.
    While the memory is away, Pipecat's own messages are used; the read takes at most the client's
    `context_timeout_s`. `client_buffer_ms` is how much audio the caller's side buffers before it plays.

    Nothing else blocks the framework, or raises into it. Raises `ImportError` without `pipecat-ai`.
    """
    check_installed("pipecat", "Pipecat", "pipecat")
    background = BackgroundSession(client, session_id, producer, config_of(user_id, config))
    listener = new_listener(background.send, client_buffer_ms)
    worker.add_observer(observer_type()(listener))
    if context:
        remembering = Remembering(background, listener)
        llms = list(llm_services(worker.pipeline))
        if not llms:
            LOG.warning(
                "The pipeline has no LLMService, so no request to an LLM gets the memory: context=True needs one."
            )
        for llm in llms:
            llm.add_event_handler("on_before_process_frame", remembering.before)
    return AttachedMemory(background, listener.ledger, lambda reason: listener.end(reason=reason))


def observer(send: Callable[[JsonObject], object], *, client_buffer_ms: float = 0.0) -> BaseObserver:
    """Return only an observer: `send` gets the events of one call, and must return at once.

    Raises `ImportError` without `pipecat-ai`.
    """
    check_installed("pipecat", "Pipecat", "pipecat")
    made: BaseObserver = observer_type()(new_listener(send, client_buffer_ms))
    return made


def new_listener(send: Callable[[JsonObject], object], client_buffer_ms: float) -> FrameListener:
    return FrameListener(Ledger(send, f"{secrets.token_hex(4)}-"), client_buffer_ms)


def llm_services(processor: Any) -> Iterator[Any]:
    """Yield the LLM services in a pipeline and in pipelines inside it."""
    from pipecat.services.llm_service import LLMService

    if isinstance(processor, LLMService):
        yield processor
    for inner in processor.processors:
        yield from llm_services(inner)


@cache
def observer_type() -> type[Any]:
    """Return the class of observers, which needs Pipecat."""
    from pipecat.observers.base_observer import BaseObserver

    class VoicememObserver(BaseObserver):
        """Reports every frame to a listener."""

        def __init__(self, listener: FrameListener) -> None:
            super().__init__()
            self.listener = listener

        async def on_push_frame(self, data: Any) -> None:
            self.listener.on_push(data)

        async def cleanup(self) -> None:
            self.listener.end()
            await super().cleanup()  # type: ignore[no-untyped-call, unused-ignore]

    return VoicememObserver
