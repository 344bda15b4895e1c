"""The dialects by name. A new one adds its import and its line here."""

from __future__ import annotations

from voicemem.dialects.agora_ten import AGORA_TEN
from voicemem.dialects.conversation_relay import CONVERSATION_RELAY
from voicemem.dialects.deepgram_agent import DEEPGRAM_AGENT
from voicemem.dialects.dialect import Dialect
from voicemem.dialects.elevenlabs_agents.translation import ELEVENLABS_AGENTS
from voicemem.dialects.gemini_live import GEMINI_LIVE
from voicemem.dialects.livekit_agents import LIVEKIT_AGENTS
from voicemem.dialects.nova_sonic import NOVA_SONIC
from voicemem.dialects.openai_live import OPENAI_LIVE
from voicemem.dialects.openai_realtime import OPENAI_REALTIME
from voicemem.dialects.pipecat_rtvi import PIPECAT_RTVI
from voicemem.dialects.retell import RETELL
from voicemem.dialects.ultravox import ULTRAVOX
from voicemem.dialects.vapi.translation import VAPI
from voicemem.protocol.checks import did_you_mean

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        LIVEKIT_AGENTS,
        OPENAI_REALTIME,
        ELEVENLABS_AGENTS,
        AGORA_TEN,
        CONVERSATION_RELAY,
        GEMINI_LIVE,
        PIPECAT_RTVI,
        DEEPGRAM_AGENT,
        NOVA_SONIC,
        VAPI,
        ULTRAVOX,
        RETELL,
        OPENAI_LIVE,
    )
}  # fmt: skip
DIALECTS_VERSION = sum(dialect.version for dialect in DIALECTS.values())
"""Grows with every change of any dialect; a part of the version of fold states."""
WITH_WEBHOOKS = tuple(name for name, dialect in DIALECTS.items() if dialect.hook is not None)


def no_such_dialect(name: str) -> str:
    """The sentence for a name that is not that of a dialect: the nearest, and all."""
    return f"There is no such dialect{did_you_mean(name, DIALECTS)}; known: {', '.join(sorted(DIALECTS))}."
