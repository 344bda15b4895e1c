"""Google's Agent Development Kit: a plugin that gives models the heard memory, and records runs and live calls.

    from voicemem.integrations import google_adk

    memory = google_adk.plugin(client)
    runner = Runner(agent=agent, app_name="app", session_service=sessions, plugins=[memory])
    async for event in runner.run_live(user_id="ann", session_id="call-1", live_request_queue=queue):
        ...
    memory.call("call-1").end()

A memory service, `Runner(memory_service=google_adk.memory_service(client))`, lets agents search earlier calls.

See docs/google-adk.md. The ADK is imported only here and only when it is used (`voicemem-core[google-adk]`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from voicemem.client import Client, SyncClient
from voicemem.integrations.background_session import NewestEntries, check_installed, joined_type
from voicemem.integrations.conversation import Call, Sessions
from voicemem.integrations.google_adk.session import AdkSession, as_heard, known_contents, own_contents
from voicemem.integrations.google_adk.user_memory import UserMemory
from voicemem.integrations.runs import instructions_apart, rebuilt

__all__ = ["Call", "memory_service", "plugin", "session_id"]


class Run(NamedTuple):
    """One invocation, with its session, and whether it is live."""

    session_id: str
    is_live: bool


class Plugin:
    """The memory of a runner's sessions, joined with `BasePlugin`."""

    def __init__(
        self, sessions: Sessions[AdkSession], session_id: Callable[[Any], str | None], gives_context: bool
    ) -> None:
        super().__init__(name="voicemem")  # type: ignore[call-arg]  # that of BasePlugin
        self.sessions = sessions
        self.session_id = session_id
        self.gives_context = gives_context
        self.runs: NewestEntries[str, Run | None] = NewestEntries(1000)
        self.alone: set[tuple[str, str]] = set()
        """Agents without history, by run and name."""
        sessions.find_loop()

    def call(self, session_id: str) -> Call:
        """Return one call, for the program that plays the agent's replies."""
        return Call(self.sessions, session_id)

    # What the ADK calls

    async def on_user_message_callback(self, *, invocation_context: Any, user_message: Any) -> None:
        run, item = self.run(invocation_context), f"{invocation_context.invocation_id}.user"
        if run is not None and not run.is_live:
            self.sessions.soon(run.session_id, lambda memory: memory.on_user_message(user_message, item))

    async def on_event_callback(self, *, invocation_context: Any, event: Any) -> None:
        run = self.run(invocation_context)
        if run is not None:
            report = AdkSession.on_live_event if run.is_live else AdkSession.on_event
            self.sessions.soon(run.session_id, lambda memory: report(memory, event))

    async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
        """Note whether an agent gets the conversation."""
        if getattr(agent, "include_contents", "default") == "none":
            self.alone.add((callback_context.invocation_id, agent.name))

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        """Give the model the heard memory. A live model keeps its own conversation."""
        run = self.runs.get(callback_context.invocation_id)
        if run is None or run.is_live or not self.gives_context or not llm_request.contents:
            return
        if (callback_context.invocation_id, callback_context.agent_name) in self.alone:
            return
        if getattr(llm_request, "previous_interaction_id", None):  # Google has the conversation
            return
        own = own_contents(llm_request.contents)
        known = await self.sessions.ask(run.session_id, lambda memory: memory.known_messages(own))
        with self.sessions.guarded():  # a version with other contents
            self.remember(run, llm_request, own, known)

    async def after_run_callback(self, *, invocation_context: Any) -> None:
        name = invocation_context.invocation_id
        self.runs.pop(name, None)
        self.alone = {one for one in self.alone if one[0] != name}

    # Helpers

    def remember(self, run: Run, llm_request: Any, own: list[Any], known: list[Any] | None) -> None:
        memory = self.sessions.open.get(run.session_id)
        if known is None or memory is None:
            heard = {} if memory is None else memory.heard_texts()
            llm_request.contents = [as_heard(content, heard) for content in llm_request.contents]
            return
        made = type(llm_request.contents[0])
        contents = rebuilt(own, list(known_contents(known)), memory.opening or frozenset(), user_is_recorded=True)
        sources = [one.source for one in contents]
        llm_request.contents = [made.model_validate(one) if isinstance(one, dict) else one for one in sources]
        instructions, _ = instructions_apart(known)
        if instructions:
            llm_request.append_instructions(instructions)

    def run(self, invocation_context: Any) -> Run | None:
        """Return the run of an event; None if it has no session of the memory."""
        name = invocation_context.invocation_id
        if name not in self.runs:
            session_id = None
            with self.sessions.guarded("A run is not remembered"):  # it is the program's own function
                session_id = self.session_id(invocation_context)
            is_live = invocation_context.live_request_queue is not None
            self.runs[name] = Run(session_id, is_live) if session_id else None
        return self.runs[name]


if TYPE_CHECKING:
    from google.adk.memory.base_memory_service import BaseMemoryService
    from google.adk.plugins.base_plugin import BasePlugin

    class VoicememMemoryService(UserMemory, BaseMemoryService):
        """The service that `voicemem.integrations.google_adk.memory_service` returns."""

    class VoicememPlugin(Plugin, BasePlugin):
        """The plugin that `voicemem.integrations.google_adk.plugin` returns."""


def session_id(invocation_context: Any) -> str | None:
    """Return the id of a run's session."""
    return str(invocation_context.session.id)


def plugin(
    client: Client | SyncClient,
    *,
    session_id: Callable[[Any], str | None] = session_id,
    context: bool = True,
    config: Mapping[str, Any] | None = None,
    producer: str = "google-adk",
) -> VoicememPlugin:
    """Return a plugin for `Runner(…, plugins=[…])` or `App(…, plugins=[…])`; one serves any number of sessions.

    `session_id` finds the memory's session by the invocation context of a run; a run without one is not remembered.
    Without `context`, models get the ADK's own contents. `config` is for a new session, such as `{"user_id": "ann",
    "memory_from": {"sessions": 3}}`, which carries earlier calls over.

    Nothing raises into a run, and only the read before each model call of a text run blocks it, for at most the
    client's `context_timeout_s`. Raises `ImportError` without `google-adk`.
    """
    check_installed("google.adk", "Google's ADK", "google-adk")
    kind = joined_type("VoicememPlugin", Plugin, "google.adk.plugins.base_plugin", "BasePlugin")
    made: VoicememPlugin = kind(Sessions(client, AdkSession, config, producer), session_id, context)
    return made


def memory_service(client: Client | SyncClient, *, limit: int = 10) -> VoicememMemoryService:
    """Return a memory service for `Runner(…, memory_service=…)`, which `load_memory` and `preload_memory` search.

    `add_session_to_memory` adds a session to its user and app; one that the plugin records is not added twice. A search
    finds up to `limit` messages and memories of the user and the app, and nothing while the memory is away. Raises
    `ImportError` without `google-adk`, `ClientError` for a client without a `rest_url`.
    """
    check_installed("google.adk", "Google's ADK", "google-adk")
    module, base = "google.adk.memory.base_memory_service", "BaseMemoryService"
    made: VoicememMemoryService = joined_type("VoicememMemoryService", UserMemory, module, base)(client, limit)
    return made
