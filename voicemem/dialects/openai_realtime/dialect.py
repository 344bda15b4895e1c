"""The dialect `openai-realtime`."""

from __future__ import annotations

from voicemem.dialects.dialect import Dialect
from voicemem.dialects.openai_realtime.frames import reduce
from voicemem.dialects.openai_realtime.texts import texts
from voicemem.dialects.openai_realtime.translation import closed, translate

OPENAI_REALTIME = Dialect(
    name="openai-realtime", version=2, reduce=reduce, translate=translate, closed=closed, texts=texts
)
