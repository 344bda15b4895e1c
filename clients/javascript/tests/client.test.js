/** The client against a running service: open, record, acknowledge, refuse, end, read, close. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { EventRefused, SessionEnded } from "../source/index.js";
import { clientTo, newId, recordTranscripts, service, storedTranscripts, thrown, transcriptsUpTo } from "./clients.js";

// Opening

/** After an open everything that a producer needs to know is there. */
test("a_new_session_begins_at_its_beginning", async (t) => {
  const one = await service();
  const client = clientTo(t, one);
  const id = newId();
  const session = await client.open(id, { producer: "asr", config: { name: "Call" } });
  assert.deepEqual([session.sessionId, session.producer, session.state], [id, "asr", "running"]);
  assert.deepEqual([session.epoch, session.nextSeq, session.nextTurn, session.unacknowledged], [1, 1, 1, 0]);
  assert.equal(client.transport, "websocket");
  assert.deepEqual((await one.session(id)).config, { name: "Call" });
});

/** What is recorded before the server has answered gets its numbers then, after those of an earlier process. */
test("what_is_recorded_before_the_answer_is_numbered_then", async (t) => {
  const one = await service();
  const id = newId();
  const first = clientTo(t, one);
  await Promise.all(recordTranscripts(first.session(id), 1, 3));
  await first.close();
  const session = clientTo(t, one).session(id);
  const acks = recordTranscripts(session, 4, 5);
  assert.deepEqual(await Promise.all(acks), [4, 5]);
  assert.equal(await session.end(), 6);
  assert.deepEqual(await storedTranscripts(one, id), transcriptsUpTo(5));
});

/** Frames of another stack go next to events, under the same numbers. */
test("frames_of_another_stack_are_recorded", async (t) => {
  const one = await service();
  const id = newId();
  const session = clientTo(t, one).session(id, { dialect: "conversation-relay" });
  session.recordFrame({ type: "setup", callSid: "CA1" }, { from: "vendor", ts: 1_790_000_000_000 });
  session.recordFrame({ type: "prompt", voicePrompt: "Hello?", last: true }, { from: "vendor" });
  assert.equal(await session.record({ type: "metric", name: "e2e", latency_ms: 5, turn_id: 1 }), 3);
  assert.equal((await one.contents(id))[0].content, "Hello?");
  const bare = clientTo(t, one).session(newId());
  assert.equal((await thrown(bare.recordFrame({ type: "setup" }))).code, "unknown_dialect");
});

/** After a restart of the server a session goes on where it stood. */
test("a_session_goes_on_after_a_restart", async (t) => {
  const one = await service();
  const id = newId();
  const session = clientTo(t, one).session(id);
  await Promise.all(recordTranscripts(session, 1, 3));
  await one.kill();
  recordTranscripts(session, 4, 6);
  await one.start();
  await session.end();
  assert.deepEqual(await storedTranscripts(one, id), transcriptsUpTo(6));
  assert.equal(session.epoch, 2);
});

// Events

/** A refused event has its own error, and those around it are stored. */
test("a_refused_event_says_why", async (t) => {
  const session = clientTo(t, await service()).session(newId());
  const [before, refused, behind] = ["asr", "aser", "asr"].map((type) =>
    session.record({ type, turn_id: 1, text: "Hello?", final: true }),
  );
  assert.deepEqual([await before, await behind], [1, 3]);
  const error = await thrown(refused);
  assert.ok(error instanceof EventRefused);
  assert.deepEqual([error.code, error.seq], ["unknown_type", 2]);
  await session.end();
  assert.ok((await thrown(session.record({ type: "asr" }))) instanceof SessionEnded);
});
