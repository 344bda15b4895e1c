"""The dialect `pipecat-rtvi`."""

from __future__ import annotations

from voicemem.dialects.dialect import Dialect
from voicemem.dialects.pipecat_rtvi.frames import reduce
from voicemem.dialects.pipecat_rtvi.texts import texts
from voicemem.dialects.pipecat_rtvi.translation import closed, translate

PIPECAT_RTVI = Dialect(name="pipecat-rtvi", version=2, reduce=reduce, translate=translate, closed=closed, texts=texts)
