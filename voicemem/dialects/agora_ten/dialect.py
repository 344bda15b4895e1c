"""The dialect `agora-ten`.

| frame | events |
|---|---|
| text `MESSAGE_ID|PART|PARTS|BASE64` (RTC data stream) | the object in it, once all parts are there |
| `user.transcription` | `asr` of the item `uTURN` |
| `assistant.transcription` | `llm.delta` of `aTURN`, `tts` with new words; status 1 `llm.done`, 2 `interrupt` |
| `message.interrupt` | `interrupt` at `start_ms`, which counts on the clock of the words |
| `message.metrics` | `metric` |
| TEN's `transcribe`, of the user | `asr` of `~uN`; `interrupt` of a reply that is not final |
| TEN's `transcribe`, of the assistant | `llm.delta`, all so far, and `llm.done` of `~aN` |
"""

from __future__ import annotations

from voicemem.dialects.agora_ten.frames import reduce
from voicemem.dialects.agora_ten.texts import joined, part_of, texts
from voicemem.dialects.agora_ten.translation import closed, translate
from voicemem.dialects.dialect import Dialect, Parts

AGORA_TEN = Dialect(
    name="agora-ten",
    version=2,
    reduce=reduce,
    translate=translate,
    closed=closed,
    texts=texts,
    parts=Parts(part=part_of, join=joined),
)
