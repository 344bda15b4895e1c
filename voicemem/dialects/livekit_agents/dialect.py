"""The dialect `livekit-agents`."""

from __future__ import annotations

from voicemem.dialects.dialect import Dialect
from voicemem.dialects.livekit_agents.frames import reduce
from voicemem.dialects.livekit_agents.texts import texts
from voicemem.dialects.livekit_agents.translation import translate

LIVEKIT_AGENTS = Dialect(name="livekit-agents", version=2, reduce=reduce, translate=translate, texts=texts)
