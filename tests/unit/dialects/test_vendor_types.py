"""The types of frames in the vendors' SDKs that no dialect knows: another version that brings new ones is noticed."""

from __future__ import annotations

import typing
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from voicemem.dialects import (
    deepgram_agent,
    livekit_agents,
    openai_live,
    pipecat_rtvi,
)
from voicemem.dialects.elevenlabs_agents import translation as elevenlabs_agents
from voicemem.dialects.gemini_live import frames as gemini
from voicemem.dialects.openai_realtime.frames import RENAMED
from voicemem.dialects.openai_realtime.translation import KINDS
from voicemem.dialects.retell import frames as retell_frames


def members(kind: Any) -> Iterator[Any]:
    """The members of a union, also of one in it."""
    inner = typing.get_args(kind)
    if not inner:
        yield kind
    for one in inner:
        if isinstance(one, type) or typing.get_args(one):
            yield from members(one)


def names(kinds: Iterable[Any], field: str = "type") -> set[str]:
    """What the models of frames say in their field for the type."""
    models = (one for kind in kinds for one in members(kind) if hasattr(one, "model_fields"))
    stated = (one.model_fields[field].annotation for one in models if field in one.model_fields)
    return {name for one in stated for name in typing.get_args(one) if isinstance(name, str)}


Types = tuple[set[str], set[str]]
"""Those of an SDK, and those that a dialect knows."""


def openai_realtime_types() -> Types:
    from openai.types import realtime

    sides = realtime.RealtimeServerEvent, realtime.RealtimeClientEvent
    translation = realtime.RealtimeTranslationServerEvent, realtime.RealtimeTranslationClientEvent
    return names([*sides, *translation]), {*KINDS, *RENAMED}


def azure_types() -> Types:
    from azure.ai.voicelive.models import ClientEventType, ServerEventType

    return {one.value for one in (*ServerEventType, *ClientEventType)}, {
        *KINDS,
        *RENAMED,
    }


def elevenlabs_types() -> Types:
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # it was written for pydantic 1
        from elevenlabs.types.client_event import ClientEvent

    inner = (typing.get_args(one) for one in typing.get_args(ClientEvent))
    return {name for names in inner for name in names}, {*elevenlabs_agents.KINDS}


def openai_live_types() -> Types:
    from openai.types.live.client_event import ClientEvent
    from openai.types.live.connect_server_event import ConnectServerEvent

    return names([ClientEvent, ConnectServerEvent]), {*openai_live.KINDS}


def gemini_types() -> Types:
    from google.genai import types

    messages = types.LiveServerMessage, types.LiveClientMessage
    fields = {one.alias or name for kind in messages for name, one in kind.model_fields.items()}
    said = {one.alias or name for name, one in types.LiveServerContent.model_fields.items()}
    said |= {one.alias or name for name, one in types.Transcription.model_fields.items()}
    kept = gemini.ServerContent, gemini.Heard
    known = {name for kind in kept for name in kind.__struct_fields__}
    return fields | said, known | gemini.VENDOR | gemini.APP


def deepgram_types() -> Types:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # it imports websockets.legacy
        from deepgram.agent.v1.socket_client import V1SocketClientResponse

    return names([V1SocketClientResponse]), {*deepgram_agent.KINDS}


def livekit_types() -> Types:
    from livekit.agents.llm import chat_context
    from livekit.agents.voice import events

    items = names([chat_context.ChatItem])
    return items | set(typing.get_args(events.EventTypes)), {*livekit_agents.KINDS}


def pipecat_types() -> Types:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # it imports audioop
        from pipecat.processors.frameworks.rtvi import models

    messages = [one for one in vars(models).values() if "label" in getattr(one, "model_fields", ())]
    return names(messages), {*pipecat_rtvi.KINDS}


def retell_types() -> Types:
    from retell.types import phone_call_response

    return names([phone_call_response.PostSessionTranscriptWithToolCall], "role"), {*retell_frames.KEPT}


@pytest.mark.long
@pytest.mark.parametrize(
    ("types_of", "expected"),
    [
        (openai_realtime_types, set()),
        (azure_types, set()),
        (elevenlabs_types, set()),
        (openai_live_types, set()),
        (gemini_types, {"groundingMetadata", "turnCompleteReason", "urlContextMetadata", "waitingForInput"}),
        (deepgram_types, set()),
        (livekit_types, set()),
        (pipecat_types, set()),
        (retell_types, {"injected", "node_transition"}),
    ],
)
def test_types_that_no_dialect_knows(types_of: Any, expected: set[str]) -> None:
    """What an SDK has, and no table names, is written down here; a type that is not must be looked at."""
    found, known = types_of()
    assert len(found) > 5
    assert found - known == expected
