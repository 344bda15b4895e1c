"""The dialects by name. A new one adds its import and its line here."""

from __future__ import annotations

from voicemem.dialects.dialect import Dialect
from voicemem.dialects.livekit_agents.dialect import LIVEKIT_AGENTS
from voicemem.dialects.openai_realtime.dialect import OPENAI_REALTIME
from voicemem.dialects.pipecat_rtvi.dialect import PIPECAT_RTVI

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        LIVEKIT_AGENTS,
        OPENAI_REALTIME,
        PIPECAT_RTVI,
    )
}  # fmt: skip
DIALECTS_VERSION = sum(dialect.version for dialect in DIALECTS.values())
"""Grows with every change of any dialect; a part of the version of fold states."""
