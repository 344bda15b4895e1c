"""The dialect `conversation-relay`: Twilio's ConversationRelay, and Telnyx's, which is spoken alike.

| frame | in events |
|---|---|
| `setup` | the session's id, `callSid`; nothing else of it is kept |
| `prompt` `voicePrompt`, `last` | `asr`, a final unless `last` is false; a final ends the reply that is still open |
| app `text` `token`, `last` | `llm.delta`, `llm.done` of `~rN`; N grows with the token after a `last`, prompt or key |
| `interrupt` `utteranceUntilInterrupt` | `interrupt` of what plays, with that heard text; before any token, greeting |
| `interrupt` `durationUntilInterruptMs` | the position, where the text is missing |
| `dtmf` `digit` | a `message` of the user, with `dtmf` in its metadata |
| `info` `agentSpeaking` `on`, `off` | whether a reply is being played when the call is closed, and since when |
| app `end` | `session.end` |
| `error`, other `info`, app `play`, `sendDigits`, `language` | nothing |

Tokens that are still sent after an interruption belong to the reply that was cut. Frames have no ids and no times; the
`ts` of some `info` is another clock than that of the frames around it, and is left out.
"""

from __future__ import annotations

from voicemem.dialects.conversation_relay.frames import reduce
from voicemem.dialects.conversation_relay.texts import texts
from voicemem.dialects.conversation_relay.translation import closed, translate
from voicemem.dialects.dialect import Dialect

CONVERSATION_RELAY = Dialect(
    name="conversation-relay", version=1, reduce=reduce, translate=translate, closed=closed, texts=texts
)
