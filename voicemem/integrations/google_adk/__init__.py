"""Google's Agent Development Kit: a plugin with which models get what was heard, and runs and live calls are recorded.

    from voicemem.integrations import google_adk

    memory = google_adk.plugin(client)
    runner = Runner(agent=agent, app_name="app", session_service=sessions, plugins=[memory])
    async for event in runner.run_live(user_id="ann", session_id="call-1", live_request_queue=queue):
        ...
    memory.call("call-1").end()

See docs/google-adk.md. The ADK is imported only here and only when it is used (`voicemem-core[google-adk]`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from voicemem.client import Client, SyncClient
from voicemem.integrations.call import Call
from voicemem.integrations.google_adk.hooks import plugin_type
from voicemem.integrations.google_adk.session import AdkSession
from voicemem.integrations.sessions import Sessions

if TYPE_CHECKING:
    from voicemem.integrations.google_adk.hooks import VoicememPlugin

__all__ = ["Call", "plugin", "session_id"]


def session_id(invocation_context: Any) -> str | None:
    """The id of a run's session."""
    return str(invocation_context.session.id)


def plugin(
    client: Client | SyncClient,
    *,
    session_id: Callable[[Any], str | None] = session_id,
    context: bool = True,
    config: Mapping[str, Any] | None = None,
    producer: str = "google-adk",
) -> VoicememPlugin:
    """A plugin for `Runner(…, plugins=[…])` or `App(…, plugins=[…])`; one serves any number of sessions at once.

    `session_id` finds the memory's session by the invocation context of a run; a run without one is not remembered.
    Without `context`, models get the ADK's own contents. `config` is that of a new session, such as `{"user_id": "ann",
    "memory_from": {"sessions": 3}}`, which brings earlier calls along.

    Nothing raises into a run, and only the read before each model call of a run of texts holds it up, for at most the
    client's `context_timeout_s`. Raises `ImportError` without `google-adk`.
    """
    if find_spec("google") is None or find_spec("google.adk") is None:
        raise ImportError("Google's ADK is not installed: pip install 'voicemem-core[google-adk]'")
    return plugin_type()(Sessions(client, AdkSession, config, producer), session_id, context)
