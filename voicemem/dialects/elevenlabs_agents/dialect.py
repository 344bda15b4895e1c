"""The dialect `elevenlabs-agents`."""

from __future__ import annotations

from voicemem.dialects.dialect import Dialect, Hook
from voicemem.dialects.elevenlabs_agents.frames import reduce
from voicemem.dialects.elevenlabs_agents.translation import closed, translate
from voicemem.dialects.elevenlabs_agents.webhook import frames, verify

ELEVENLABS_AGENTS = Dialect(
    name="elevenlabs-agents",
    version=1,
    reduce=reduce,
    translate=translate,
    closed=closed,
    hook=Hook(verify=verify, frames=frames),
)
