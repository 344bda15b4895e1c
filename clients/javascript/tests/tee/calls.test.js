/** Recorded calls over real connections with a tee give the memory that they should (docs/tee.md). */
import { test } from "node:test";
import { WebSocket } from "ws";

import { tee } from "../../source/tee/tee.js";
import { clientTo, newId, service } from "../clients.js";
import { call, endsOf, memoryAfter, play, recordedClock, recordingsOf } from "./vendors.js";

const one = await service();
const REALTIME = recordingsOf("openai-realtime");
const OTHERS = recordingsOf("conversation-relay", "gemini-live", "elevenlabs-agents", "agora-ten", "pipecat-rtvi");

for (const recording of [...REALTIME, ...OTHERS]) {
  /** A client's connection, in every dialect whose frames cross a websocket. */
  test(`websockets ${recording.dialect} ${recording.name}`, async (t) => {
    const id = newId();
    const [socket, other] = await call(t);
    tee(socket, clientTo(t, one, { WebSocket }), { sessionId: id, dialect: recording.dialect });
    await play(recording, recordedClock(t), endsOf(socket, other));
    await memoryAfter(one, socket, recording, id);
  });
}
