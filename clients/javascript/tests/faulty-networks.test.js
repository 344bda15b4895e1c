/**
 * The client on networks that misbehave: the faults A 1 to 16 (but 13) of a producer's way to the service.
 *
 * Whatever happens on the way, what was acknowledged is stored exactly once and in order, and everything that was
 * recorded is acknowledged in the end.
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { BufferFull, EventRefused, Superseded } from "../source/index.js";
import {
  behindProxy,
  clientFor,
  newId,
  numbers,
  recordTranscripts,
  seqs,
  service,
  stored,
  stranger,
  thrown,
  transcript,
  transcriptsUpTo,
} from "./clients.js";
import { Toxics, proxyOf } from "./network.js";
import { until } from "./service.js";

/** A client that waits longer for answers than a busy machine lets it wait for anything. */
const PATIENT = { silenceMs: 30_000 };

/** Record lines one after the other, as a call does, and wait until all are acknowledged. */
async function stream(session, first, last, pauseMs = 0) {
  const acks = [];
  for (const number of numbers(first, last)) {
    acks.push(session.record(transcript(number)));
    await sleep(pauseMs);
  }
  return seqs(acks);
}

/** Wait until so many events are stored. */
const storedCount = (one, id, count) => until(async () => (await stored(one, id)).length === count, `${count} events`);

/** A1: connections that are reset in the middle of a frame, again and again. */
test("a1_resets_in_the_middle_of_messages", async (t) => {
  const { one, proxy, client } = await behindProxy(t);
  proxy.toServer.limitBytes = 6_000;
  proxy.toServer.resetAtLimit = true;
  const session = await client.open(newId());
  assert.deepEqual(await stream(session, 1, 300), numbers(1, 300));
  assert.ok(proxy.accepted > 3);
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(300));
});

/** A2: a peer that is gone without a word is found out, and the next connection takes over. */
test("a2_a_half_open_peer", async (t) => {
  const { one, proxy, client } = await behindProxy(t, { connectTimeoutMs: 500, silenceMs: 400 });
  const session = await client.open(newId());
  await stream(session, 1, 10);
  const before = proxy.accepted;
  proxy.toServer.swallow = proxy.toClient.swallow = true;
  const acks = recordTranscripts(session, 11, 20);
  await until(() => proxy.accepted > before, "another connection");
  proxy.toServer.swallow = proxy.toClient.swallow = false;
  assert.deepEqual(await seqs(acks), numbers(11, 20));
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(20));
});

/** A3: every byte in a segment of its own, both ways. */
test("a3_segments_of_one_byte", async (t) => {
  const { one, proxy, client } = await behindProxy(t, PATIENT);
  proxy.toServer.sliceBytes = proxy.toClient.sliceBytes = 1;
  const session = await client.open(newId());
  assert.deepEqual(await stream(session, 1, 50), numbers(1, 50));
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(50));
});

/** A4: a long way, of changing length, is no reason for another connection. */
test("a4_latency_and_jitter", async (t) => {
  const { one, proxy, client } = await behindProxy(t, PATIENT);
  for (const way of [proxy.toServer, proxy.toClient]) Object.assign(way, { latencyMs: 50, jitterMs: 50 });
  const session = await client.open(newId());
  assert.deepEqual(await stream(session, 1, 100, 3), numbers(1, 100));
  assert.equal(proxy.accepted, 1);
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(100));
});

/** A5: a narrow way holds back the writer, never `record`. */
test("a5_a_narrow_network", async (t) => {
  const { one, proxy, client } = await behindProxy(t, PATIENT);
  const session = await client.open(newId());
  proxy.toServer.bytesPerS = 60_000;
  const acks = recordTranscripts(session, 1, 1000);
  assert.equal(acks[0].done, false);
  assert.deepEqual(await seqs(acks), numbers(1, 1000));
  assert.equal(proxy.accepted, 1);
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(1000));
});

/** A6: when the end of a connection takes its time, the next connection does not wait for it. */
test("a6_a_slow_close", async (t) => {
  const { one, proxy, client } = await behindProxy(t);
  proxy.toServer.slowCloseMs = proxy.toClient.slowCloseMs = 500;
  const session = await client.open(newId());
  for (const round of [0, 1, 2]) {
    const acks = recordTranscripts(session, 10 * round + 1, 10 * round + 10);
    proxy.cut();
    assert.deepEqual(await seqs(acks), numbers(10 * round + 1, 10 * round + 10));
  }
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(30));
});

/** A7: each connection ends after so many bytes, a few more each time; the rest comes over the next. */
test("a7_cut_after_so_many_bytes", async (t) => {
  for (const limit of [1, 400, 1_000, 4_321]) {
    const { one, proxy, client } = await behindProxy(t);
    proxy.toServer.limitBytes = limit;
    const growing = setInterval(() => (proxy.toServer.limitBytes += 50), 50);
    const session = client.session(newId());
    const acks = recordTranscripts(session, 1, 100);
    assert.deepEqual(await seqs(acks), numbers(1, 100));
    clearInterval(growing);
    assert.ok(proxy.accepted > 1);
    assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(100));
  }
});

/** A8: while nobody listens events are kept, and go out once somebody does; also a first open waits. */
test("a8_a_listener_that_comes_and_goes", async (t) => {
  const { one, proxy, client } = await behindProxy(t);
  await proxy.down();
  const session = client.session(newId());
  await sleep(100);
  assert.equal(session.isOpen, false);
  await proxy.up();
  await session.ready();
  for (const round of [0, 1, 2]) {
    await proxy.down();
    const acks = recordTranscripts(session, 10 * round + 1, 10 * round + 10);
    await sleep(50);
    assert.equal(acks[9].done, false);
    await proxy.up();
    assert.deepEqual(await seqs(acks), numbers(10 * round + 1, 10 * round + 10));
  }
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(30));
});

/** A9: when the client cannot know whose events the server has, it sends all again; each is stored once. */
test("a9_resent_events_are_stored_once", async (t) => {
  const { one, proxy, client } = await behindProxy(t);
  const session = await client.open(newId());
  proxy.toClient.swallow = true;
  const acks = recordTranscripts(session, 1, 50);
  await storedCount(one, session.sessionId, 50);
  await stranger(t, one, session.sessionId); // another epoch in between
  proxy.toClient.swallow = false;
  assert.deepEqual(await seqs(acks), numbers(1, 50));
  assert.deepEqual(await stream(session, 51, 60), numbers(51, 60));
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(60));
});

/** A9: where another process has used the same seqs meanwhile, the loss is told, event by event. */
test("a9_what_a_stranger_stored_is_not_taken_for_an_ack", async (t) => {
  const { one, proxy, client } = await behindProxy(t);
  const session = await client.open(newId());
  await stream(session, 1, 2);
  await proxy.down();
  const acks = recordTranscripts(session, 3, 5);
  const { socket } = await stranger(t, one, session.sessionId);
  for (const [seq, text] of [[3, "Another."], [4, "Line 4."]]) {
    socket.send(JSON.stringify({ type: "asr", seq, turn_id: seq, text, final: true, ts: 1 }));
  }
  await storedCount(one, session.sessionId, 4);
  await proxy.up();
  for (const ack of acks.slice(0, 2)) {
    const refused = await thrown(ack);
    assert.deepEqual([refused.constructor, refused.code], [EventRefused, "seq_conflict"]);
  }
  assert.equal(await acks[2], 5);
  assert.deepEqual((await stored(one, session.sessionId)).slice(2), [[3, "Another."], [4, "Line 4."], [5, "Line 5."]]);
});

/** A10: on a `seq_gap` the client goes back to what is expected, and nothing is stored twice. */
test("a10_a_hole_is_filled", async (t) => {
  const { one, proxy, client } = await behindProxy(t, PATIENT);
  const session = await client.open(newId());
  await stream(session, 1, 3);
  const acks = recordTranscripts(session, 4, 7);
  session._producer.buffer.takeBatch(1); // as if the first of them had been sent, and lost
  client._reconnector.transport.schedule(session._producer);
  assert.deepEqual(await seqs(acks), [4, 5, 6, 7]);
  assert.equal(proxy.accepted, 1);
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(7));
});

/** A11: what was committed while its ack was lost is acknowledged by the resume, and not stored again. */
test("a11_acks_that_are_lost", async (t) => {
  const { one, proxy, client } = await behindProxy(t);
  const session = await client.open(newId());
  proxy.toClient.swallow = true;
  const acks = recordTranscripts(session, 1, 50);
  await storedCount(one, session.sessionId, 50);
  assert.ok(acks.every((ack) => !ack.done));
  proxy.toClient.swallow = false;
  assert.deepEqual(await seqs(acks), numbers(1, 50));
  assert.equal(session.unacknowledged, 0);
  assert.ok(session.epoch >= 2);
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(50));
});

/** A11: also an end is found acknowledged after a resume, though the session is closed by then. */
test("a11_the_ack_of_the_end_is_lost", async (t) => {
  const { one, proxy, client } = await behindProxy(t);
  const session = await client.open(newId());
  await stream(session, 1, 3);
  proxy.toClient.swallow = true;
  const ending = session.end();
  await storedCount(one, session.sessionId, 4);
  proxy.toClient.swallow = false;
  assert.equal(await ending, 4);
  assert.equal(session.state, "ended");
});

/** A12: of two clients of one producer the newer one goes on; the older one throws, and stays away. */
test("a12_two_live_sockets", async (t) => {
  const { one, proxy, client: zombie } = await behindProxy(t);
  const old = await zombie.open(newId());
  await stream(old, 1, 3);
  const session = await clientFor(t, one.url).open(old.sessionId);
  assert.ok((await thrown(old.record(transcript(9)))) instanceof Superseded);
  proxy.reset();
  assert.deepEqual(await stream(session, 4, 5), [4, 5]);
  await (await zombie.open(newId())).flush(); // its connection is back, for other sessions
  assert.deepEqual([session.epoch, await stream(session, 6, 6)], [2, [6]]);
  assert.deepEqual(await stored(one, old.sessionId), transcriptsUpTo(6));
});

/** A14: many clients lose their connections together, and all of them resume, spread over time. */
test("a14_all_clients_come_back_at_once", async (t) => {
  const one = await service();
  const proxy = await proxyOf(t, one.ingest);
  const sessions = numbers(1, 20).map(() => clientFor(t, proxy.url).session(newId()));
  await Promise.all(sessions.map((session) => session.ready()));
  for (const begin of [1, 6, 11]) {
    const acks = sessions.flatMap((session) => recordTranscripts(session, begin, begin + 4));
    proxy.reset();
    await seqs(acks);
  }
  for (const session of sessions) assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(15));
});

/** A15: a session whose client is gone without an end is closed as idle; the client that comes back reopens it. */
test("a15_a_client_that_vanishes", async (t) => {
  const { one, proxy, client } = await behindProxy(t);
  const session = await client.open(newId(), { config: { idle_timeout: 0.2 } });
  const state = async () => (await one.session(session.sessionId)).state;
  await stream(session, 1, 2);
  await proxy.down();
  await until(async () => (await state()) === "ended", "the close as idle");
  await proxy.up();
  assert.deepEqual(await stream(session, 3, 3), [3]);
  assert.deepEqual([session.state, await state()], ["running", "running"]);
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(3));
});

/** A16, from the other side: while nothing gets through, `record` takes what there is room for, at once. */
test("a16_a_server_that_reads_nothing", async (t) => {
  const { one, proxy, client } = await behindProxy(t, { maxBytes: 1024 * 1024 });
  const session = await client.open(newId());
  proxy.toServer.bytesPerS = 1;
  const acks = [];
  let ack;
  while (!(ack = session.record(transcript(acks.length + 1, { metadata: { x: "y".repeat(500) } }))).done) acks.push(ack);
  assert.ok(ack.error instanceof BufferFull);
  assert.ok(session.unacknowledgedBytes <= 1024 * 1024);
  proxy.toServer.bytesPerS = null;
  proxy.reset();
  assert.equal((await seqs(acks)).at(-1), acks.length);
  assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(acks.length));
});

const TOXICS = [{ sliceBytes: 3 }, { limitBytes: 9_000 }, { latencyMs: 20 }, { bytesPerS: 50_000 }];

/** Sessions that stream while the network does one thing after the other lose and double nothing. */
test("everything_at_once", async (t) => {
  const { one, proxy, client } = await behindProxy(t);
  const sessions = numbers(1, 5).map(() => client.session(newId()));
  const streams = Promise.all(sessions.map((session) => stream(session, 1, 200, 10)));
  const spoil = (toxics) => {
    proxy.toServer = Object.assign(new Toxics(), toxics);
    proxy.toClient = Object.assign(new Toxics(), toxics);
    proxy.reset();
  };
  for (const toxics of [...TOXICS, ...TOXICS]) {
    spoil(toxics);
    await sleep(200);
  }
  spoil({});
  for (const all of await streams) assert.deepEqual(all, numbers(1, 200));
  for (const session of sessions) assert.deepEqual(await stored(one, session.sessionId), transcriptsUpTo(200));
});
