/** Recorded calls over real connections with a tee give the memory that they should (docs/tee.md). */
import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { WebSocket } from "ws";

import { DIALECTS } from "../../source/dialects/registry.js";
import { TIMES } from "../../source/tee/memory.js";
import { memoryOf, tee } from "../../source/tee/tee.js";
import { clientTo, newId, service } from "../clients.js";
import { until } from "../service.js";
import { realtimeCall } from "./realtime.js";
import { call, endsOf, memoryAfter, play, recordedClock, recordingsOf, reply, texts } from "./vendors.js";

const one = await service();
const REALTIME = recordingsOf("openai-realtime");
const OTHERS = recordingsOf(...[...DIALECTS.keys()].filter((name) => name !== "openai-realtime"));

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

for (const recording of REALTIME) {
  /** Server events and everything that the SDK sends are remembered, and its events go on as before. */
  test(`openai_sdk ${recording.name}`, async (t) => {
    const id = newId();
    const { connection, ends } = await realtimeCall(t);
    assert.equal(tee(connection, clientTo(t, one, { WebSocket }), { sessionId: id }), connection);
    await play(recording, recordedClock(t), ends);
    await memoryAfter(one, connection, recording, id);
  });
}

for (const recording of recordingsOf("conversation-relay")) {
  /** A server to which the vendor connects: it receives what is the vendor's. */
  test(`ws_server ${recording.name}`, async (t) => {
    const id = newId();
    const [vendor, socket] = await call(t);
    tee(socket, clientTo(t, one, { WebSocket }), { sessionId: id, dialect: "conversation-relay" });
    await play(recording, recordedClock(t), endsOf(socket, vendor));
    await memoryAfter(one, socket, recording, id);
  });
}

/** A connection of openai's that was lost and is made again is the same call; giving up after a loss ends it. */
test("the_sdk_connects_again", async (t) => {
  const before = { ...TIMES };
  t.after(() => Object.assign(TIMES, before));
  const id = newId();
  const recovery = { reconnect: true, maxReconnectAttempts: 5, reconnectInitialDelay: 10 };
  const { connection, other, vendor, ends } = await realtimeCall(t, recovery);
  tee(connection, clientTo(t, one, { WebSocket }), { sessionId: id });
  const memory = memoryOf(connection);
  other.send(JSON.stringify(reply(1)));
  await ends.appGets();
  const lost = once(connection.socket, "close");
  other.terminate();
  await lost;
  const again = await vendor.next();
  again.send(JSON.stringify(reply(2)));
  await ends.appGets();
  connection.send({ type: "conversation.item.truncate", item_id: "r", content_index: 0, audio_end_ms: 1 });
  await until(() => memory.counts.taken === 3);
  assert.equal(memory.leftAt, null);
  await memory.close();
  assert.deepEqual(await texts(one, id), ["1 2 "]);
});
