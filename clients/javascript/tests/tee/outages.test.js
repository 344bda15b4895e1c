/** Tees whose service is killed, stopped or frozen in the middle of a call, with openai's SDK among them. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { WebSocket } from "ws";

import { memoryOf, tee } from "../../source/tee/tee.js";
import { clientTo, newId } from "../clients.js";
import { serve, until } from "../service.js";
import { realtimeCall } from "./realtime.js";
import { call, endsOf, ended, play, recordedClock, recordingsOf } from "./vendors.js";

const CALLS = recordingsOf("openai-realtime", "conversation-relay").filter(({ name }) => name.startsWith("barge_in"));

/** The service has the memory of the recording, once the session is closed. */
async function check(one, recording, id) {
  await ended(one, id);
  assert.deepEqual(await one.contents(id), recording.contents);
}

for (const recording of CALLS) {
  /** Before the first frame, and twice later, the service is killed: the call goes on, and the memory is the same. */
  test(`a_service_that_is_killed_in_between ${recording.dialect}`, async (t) => {
    const one = await serve();
    await one.kill();
    const id = newId();
    const count = recording.envelopes.length;
    const [socket, other] = await call(t);
    tee(socket, clientTo(t, one, { WebSocket }), { sessionId: id, dialect: recording.dialect });
    const memory = memoryOf(socket);
    await play(recording, recordedClock(t), endsOf(socket, other), async (number) => {
      if ([0, Math.floor(count / 3), Math.floor((2 * count) / 3)].includes(number)) {
        await one.start();
        await memory.reduced();
        if (number > 0) await memory.session.flush();
        await one.kill();
      }
    });
    await one.start();
    await memory.close();
    assert.equal(memory.dropped, 0);
    await check(one, recording, id);
  });
}

for (const when of ["before", "after"]) {
  /** With SIGSTOP, before or after the session is open, the call goes on; after SIGCONT all of it is delivered. */
  test(`a_service_that_is_stopped ${when}`, async (t) => {
    const [recording] = CALLS;
    const one = await serve();
    const id = newId();
    const client = clientTo(t, one, { WebSocket, contextTimeoutMs: 100 });
    if (when === "before") one.process.kill("SIGSTOP");
    const { connection, ends } = await realtimeCall(t);
    tee(connection, client, { sessionId: id });
    const memory = memoryOf(connection);
    if (when === "after") {
      await until(() => memory.session.isOpen);
      one.process.kill("SIGSTOP");
    }
    await play(recording, recordedClock(t), ends);
    assert.equal(await memory.context(), null);
    one.process.kill("SIGCONT");
    await memory.close();
    assert.equal(memory.dropped, 0);
    await check(one, recording, id);
  });
}
