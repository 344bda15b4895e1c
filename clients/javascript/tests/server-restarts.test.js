/** The client while its server stops, is killed, comes back with an older store, or ends the connection for a reason. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { ClientError, RequestRefused } from "../source/index.js";
import {
  clientFor,
  clientTo,
  newId,
  numbers,
  recordTranscripts,
  seqs,
  service,
  stored,
  thrown,
  transcript,
  transcriptsUpTo,
} from "./clients.js";
import { proxyOf } from "./network.js";
import { saying } from "./scripted-server.js";
import { PYTHON, serve, until } from "./service.js";

let restarting;
/** A service whose process is killed by the tests that follow each other. */
function restarted() {
  restarting ??= serve();
  return restarting;
}

/** A backup of a database that is in use. */
function copyOf(one, store, copy) {
  const path = (name) => join(one.folder, name);
  const code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('vacuum into ?', (sys.argv[2],))";
  execFileSync(PYTHON, ["-c", code, path(store), path(copy)]);
}

/** A session goes on after a server that was killed, and after one that has taken its leave. */
test("a_session_goes_on_after_a_restart", async (t) => {
  const one = await restarted();
  const session = clientTo(t, one).session(newId());
  await seqs(recordTranscripts(session, 1, 3));
  await one.kill();
  recordTranscripts(session, 4, 6);
  await one.start();
  await session.flush();
  recordTranscripts(session, 7, 9);
  await one.stop();
  recordTranscripts(session, 10, 12);
  await one.start();
  await session.flush();
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(12));
  assert.equal(session.epoch, 3);
});

/** What the older store has lost is a gap that it can see; all that the client still holds follows it. */
test("a_store_restored_from_a_backup", async (t) => {
  const one = await restarted();
  const session = await clientTo(t, one).open(newId(), { config: { name: "Call" } });
  await seqs(recordTranscripts(session, 1, 5));
  copyOf(one, "calls.db", "copy.db");
  await seqs(recordTranscripts(session, 6, 8));
  await one.kill();
  const acks = recordTranscripts(session, 9, 11);
  await one.start({ store: "copy.db" });
  assert.deepEqual(await seqs(acks), [9, 10, 11]);
  assert.deepEqual(await seqs(recordTranscripts(session, 12, 12)), [12]);
  const rows = await one.journal(session.sessionId);
  const [gap] = rows.filter((row) => row.event.type === "session.gap");
  assert.deepEqual([gap.event.producer, gap.event.from_seq, gap.event.to_seq], ["main", 6, 8]);
  const kept = rows.filter((row) => row.seq !== null).map((row) => row.seq);
  assert.deepEqual(kept, [1, 2, 3, 4, 5, 9, 10, 11, 12]);
});

/** A store that knows nothing of the session gets it again, with its configuration; what is lost is a gap. */
test("an_empty_store", async (t) => {
  const one = await restarted();
  const session = await clientTo(t, one).open(newId(), { config: { name: "Call" } });
  await seqs(recordTranscripts(session, 1, 3));
  const before = session.incarnation;
  await one.kill();
  await one.start({ store: "empty.db" });
  assert.deepEqual(await seqs(recordTranscripts(session, 4, 5)), [4, 5]);
  assert.notEqual(session.incarnation, before);
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(5).slice(3));
  assert.deepEqual((await one.session(session.sessionId)).config, { name: "Call" });
});

/** Over HTTP a session is made again too, and what is lost is a gap, as over a websocket. */
test("an_empty_store_over_http", async (t) => {
  const one = await restarted();
  const proxy = await proxyOf(t, one.ingest);
  const client = clientFor(t, proxy.url, { restUrl: one.restUrl, fallbackAfter: 1 });
  const [session, fresh] = [await client.open(newId()), await client.open(newId())];
  await seqs(recordTranscripts(session, 1, 3));
  await proxy.down();
  await one.kill();
  await one.start({ store: "another.db" });
  assert.deepEqual(await seqs(recordTranscripts(fresh, 1, 2)), [1, 2]);
  assert.deepEqual(await seqs(recordTranscripts(session, 4, 5)), [4, 5]);
  assert.equal(client.transport, "http");
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(5).slice(3));
  const gap = (await one.journal(session.sessionId)).map((row) => row.event).find((event) => event.type === "session.gap");
  assert.deepEqual([gap.from_seq, gap.to_seq], [1, 3]);
  await proxy.up();
  assert.deepEqual(await seqs(recordTranscripts(session, 6, 6)), [6]);
  assert.deepEqual(await stored(one, fresh.sessionId), transcriptsUpTo(2));
});

// What no server of today's says to this client

const ready = (more = {}) => {
  const fields = { session_id: "s", producer: "main", state: "running", epoch: 1, next_seq: 1, next_turn: 1 };
  return JSON.stringify({ type: "session.ready", ...fields, incarnation: "a", window: 1, ...more });
};
const about = { session_id: "s", producer: "main" };

/** A connection that is closed for what the client is or sends is not made again. */
test("a_fatal_close_is_raised", async (t) => {
  for (const close of [1003, 1007, 1008, 1009]) {
    let connections = 0;
    const url = await saying(t, async (socket) => {
      connections += 1;
      await socket.receive();
      socket.send(ready());
      await socket.receive();
      socket.send(JSON.stringify({ type: "error", code: "some_code", detail: "Some reason." }));
      socket.close(close, "some_code");
    });
    const session = await clientFor(t, url).open("s");
    const refused = await thrown(session.record(transcript(1)));
    assert.deepEqual([refused.constructor, refused.code, refused.detail], [RequestRefused, "some_code", "Some reason."]);
    assert.ok((await thrown(session.record(transcript(2)))) instanceof RequestRefused);
    await sleep(100);
    assert.equal(connections, 1);
  }
});

/** After any other close the client comes back, and sends again what was not acknowledged. */
test("a_passing_close_is_tried_again", async (t) => {
  const cases = [[1008, "flood"], [1011, "internal"], [1012, ""], [1013, "store_unavailable"], [4000, ""]];
  for (const [close, code] of cases) {
    let connections = 0;
    const url = await saying(t, async (socket) => {
      connections += 1;
      const isLast = connections === 4;
      await socket.receive();
      socket.send(ready({ epoch: connections }));
      const { seq } = JSON.parse(await socket.receive());
      if (isLast) socket.send(JSON.stringify({ type: "ack", ...about, seq }));
      else socket.close(close, code);
    });
    const session = await clientFor(t, url).open("s");
    assert.deepEqual(await seqs([session.record(transcript(1))]), [1]);
    assert.deepEqual([connections, session.epoch], [4, 4]);
  }
});

/** New kinds of frames and new fields change nothing, and frames about others are not minded. */
test("what_is_not_known_is_passed_over", async (t) => {
  const url = await saying(t, async (socket) => {
    socket.send(JSON.stringify({ type: "hello", more: [1] }));
    await socket.receive();
    socket.send(JSON.stringify({ type: "ack", session_id: "other", producer: "main", seq: 9 }));
    socket.send(ready({ more: { a: 1 } }));
    await socket.receive();
    socket.send(JSON.stringify({ type: "news", ...about, seq: 9 }));
    socket.send(JSON.stringify({ type: "ack", ...about, seq: 1, more: 1 }));
  });
  const session = await clientFor(t, url).open("s");
  assert.deepEqual(await seqs([session.record(transcript(1))]), [1]);
});

/** Answers that are not of this protocol are a lost connection, tried again and not for ever hidden. */
test("what_is_no_frame_ends_the_connection", async (t) => {
  let connections = 0;
  const url = await saying(t, (socket) => {
    connections += 1;
    socket.send(connections < 3 ? "hello" : ready());
  });
  await clientFor(t, url).open("s");
  assert.equal(connections, 3);
});

/** A server that says `not_open` about an open session gets a new connection, and the session again. */
test("a_server_that_forgot_what_was_opened", async (t) => {
  let connections = 0;
  const url = await saying(t, async (socket) => {
    connections += 1;
    const answer = connections === 1 ? { type: "error", code: "not_open", detail: "" } : { type: "ack" };
    await socket.receive();
    socket.send(ready({ epoch: connections }));
    const { seq } = JSON.parse(await socket.receive());
    socket.send(JSON.stringify({ ...answer, ...about, seq }));
  });
  const session = await clientFor(t, url).open("s");
  assert.deepEqual(await seqs([session.record(transcript(1))]), [1]);
  assert.equal(connections, 2);
});

/** When the server expects what the client no longer has, the client opens again with the lowest that it has. */
test("a_hole_that_cannot_be_filled_is_told_on_the_same_connection", async (t) => {
  const opens = [];
  const url = await saying(t, async (socket) => {
    opens.push(JSON.parse(await socket.receive()));
    socket.send(ready({ next_seq: 5 }));
    let { seq } = JSON.parse(await socket.receive());
    socket.send(JSON.stringify({ type: "error", code: "seq_gap", detail: "", expected: 3, ...about, seq }));
    opens.push(JSON.parse(await socket.receive()));
    socket.send(ready({ epoch: 2, next_seq: 5 }));
    ({ seq } = JSON.parse(await socket.receive()));
    socket.send(JSON.stringify({ type: "ack", ...about, seq }));
  });
  const session = await clientFor(t, url).open("s");
  assert.deepEqual(await seqs([session.record(transcript(1))]), [5]);
  assert.deepEqual(opens.map((frame) => frame.from_seq), [undefined, 5]);
});

/** A defect of the client's own ends it with an error for everybody who waits, never with silence. */
test("the_client_says_when_it_has_failed", async (t) => {
  const client = clientTo(t, await service());
  const session = await client.open(newId());
  client._reconnector.pauseAfter = () => {
    throw new Error("mine");
  };
  client._reconnector.transport.end(1006, "");
  await until(() => client.error !== null, "the failure");
  for (const number of numbers(1, 2)) {
    const failed = await thrown(session.record(transcript(number)));
    assert.deepEqual([failed.constructor, failed.code], [ClientError, "internal"]);
  }
});
