/** What can have a tee, what cannot, and what becomes of messages before they go to the memory. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { WebSocket } from "ws";

import { DIALECTS } from "../../source/dialects/registry.js";
import { FrameQueue } from "../../source/tee/frames.js";
import { memoryOf, tee } from "../../source/tee/tee.js";
import { clientFor } from "../clients.js";
import { freePorts, until } from "../service.js";
import { call, recordedClock, recordingsOf } from "./vendors.js";

const [port] = await freePorts(1);
const REFUSING = `ws://127.0.0.1:${port}`;
const GIVEN = { sessionId: "call-1", dialect: "openai-realtime" };

/** A queue of a dialect, what it has handed on, and what it has warned of. */
function queueOf(dialect, keepTyped = true) {
  const [handedOn, warnings] = [[], []];
  const forward = (reduced) => handedOn.push(reduced);
  return { queue: new FrameQueue(DIALECTS.get(dialect), keepTyped, forward, (sentence) => warnings.push(sentence)), handedOn, warnings };
}

/** Waits until all that was put aside is handed on. */
function reduced(queue) {
  return new Promise((resolve) => queue.after(resolve));
}

/** A missing or unknown dialect lists all names; ids, names, sides, keys and URLs are checked. */
test("mistakes_throw_at_the_line_itself", async (t) => {
  const client = clientFor(t, REFUSING, { WebSocket });
  const [socket] = await call(t);
  for (const [wrong, said] of [
    [{ dialect: undefined }, /agora-ten, conversation-relay, .*openai-realtime/],
    [{ dialect: "none" }, /dialect must be one of/],
    [{ dialect: "constructor" }, /dialect must be one of/],
    [{ sessionId: "a b" }, /session id/],
    [{ sessionId: "" }, /session id/],
    [{ producer: "" }, /1 to 128/],
    [{ side: "caller" }, /app or vendor/],
    [{ session_id: "call-1" }, /no option session_id: they are sessionId, /],
    [{ key: "k" }, /go with a URL/],
    [{ restUrl: "http://127.0.0.1" }, /go with a URL/],
  ]) {
    assert.throws(() => tee(socket, client, { ...GIVEN, ...wrong }), { name: "TypeError", message: said });
  }
  for (const url of ["http://127.0.0.1", "none"]) {
    assert.throws(() => tee(socket, url, { ...GIVEN, WebSocket }), Error);
  }
  assert.throws(() => memoryOf(socket), /has no memory/);
  assert.equal(Object.hasOwn(socket, "send"), false);
  tee(socket, client, GIVEN);
  assert.throws(() => tee(socket, client, GIVEN), /has a tee already/);
});

/** Other objects, and those that let nothing be changed. */
test("what_is_not_such_a_connection_is_refused", async (t) => {
  const client = clientFor(t, REFUSING, { WebSocket });
  for (const wrong of [{}, { send() {} }, new EventTarget(), "ws", 7]) {
    assert.throws(() => tee(wrong, client, GIVEN), /a tee goes around a socket of ws/);
  }
  const [socket] = await call(t);
  assert.throws(() => tee(Object.freeze(Object.create(socket)), client, GIVEN), /lets nothing be changed/);
});

/** The socket of the call is in the way of nothing: what it throws, and what nobody listens to, is as without a tee. */
test("errors_of_the_call_are_its_own", async (t) => {
  const client = clientFor(t, REFUSING, { WebSocket });
  const [socket] = await call(t);
  const before = socket.listenerCount("error");
  tee(socket, client, { ...GIVEN, sessionId: "call-2" });
  assert.equal(socket.listenerCount("error"), before);
  const connecting = new WebSocket(REFUSING);
  connecting.on("error", () => {});
  tee(connecting, client, { ...GIVEN, sessionId: "call-3" });
  assert.throws(() => connecting.send("text"), /CONNECTING/);
  assert.equal(memoryOf(connecting).counts.malformed, 0);
});

/** A tap that fails loses the copy, and nothing else. */
test("nothing_throws_into_the_call", async (t) => {
  const [socket, other] = await call(t);
  tee(socket, clientFor(t, REFUSING, { WebSocket }), { ...GIVEN, sessionId: "call-4" });
  const memory = memoryOf(socket);
  memory.queue.put = () => {
    throw new Error("a defect of ours");
  };
  const arrived = new Promise((resolve) => other.once("message", resolve));
  socket.send("{}");
  assert.equal(String(await arrived), "{}");
  assert.equal(memory.counts.malformed, 1);
});

for (const recording of recordingsOf("openai-realtime", "gemini-live")) {
  /** What is handed on has the order and the times of what crossed; only counts of audio are added up. */
  test(`recorded_calls ${recording.dialect} ${recording.name}`, async (t) => {
    const setClock = recordedClock(t);
    const { queue, handedOn } = queueOf(recording.dialect);
    let audio = 0;
    for (const { ts, from, frame } of recording.envelopes) {
      setClock(ts);
      queue.put(typeof frame === "string" ? frame : JSON.stringify(frame), from ?? "vendor");
      audio += frame.audio_bytes ?? 0;
    }
    await reduced(queue);
    const times = handedOn.map(({ ts }) => ts);
    assert.deepEqual(times, [...times].sort((one, other) => one - other));
    assert.ok(handedOn.length <= queue.counts.taken);
    const counted = handedOn.reduce((sum, { frame }) => sum + (frame.content.audio_bytes ?? 0), 0);
    if (audio > 0 && recording.dialect === "openai-realtime") assert.equal(counted, audio);
    assert.equal(Object.values(queue.counts).reduce((sum, count) => sum + count), recording.envelopes.length);
  });
}

/** Those of one item that follow each other are one, of the first's time; another frame comes after them. */
test("counts_of_audio_are_added_up", async (t) => {
  const setClock = recordedClock(t);
  const { queue, handedOn } = queueOf("openai-realtime");
  const delta = (item) => JSON.stringify({ type: "response.output_audio.delta", item_id: item, delta: "QUJD" });
  for (const [ts, item] of [[1, "a"], [2, "a"], [3, "b"], [4, "b"], [5, "b"]]) {
    setClock(ts);
    queue.put(delta(item), "vendor");
  }
  await reduced(queue);
  const found = handedOn.map(({ ts, frame }) => [ts, frame.content.item_id, frame.content.audio_bytes]);
  assert.deepEqual(found, [[1, "a", 6], [3, "b", 9]]);
  queue.put(delta("c"), "vendor");
  await until(() => handedOn.length === 3, "a count that nothing follows");
});

/** What a browser gives as a Blob is read later; what comes behind it waits for that. */
test("blobs_keep_their_place", async () => {
  const { queue, handedOn, warnings } = queueOf("conversation-relay");
  const said = (text) => JSON.stringify({ type: "text", token: text });
  queue.put(said("1"), "app");
  queue.put(new Blob([said("2")]), "app");
  queue.put(new TextEncoder().encode(said("3")), "app");
  queue.put({ size: 1, arrayBuffer: () => Promise.reject(new Error("gone")), __proto__: Blob.prototype }, "app");
  queue.put(said("4"), "app");
  await reduced(queue);
  assert.deepEqual(handedOn.map(({ frame }) => frame.content.token), ["1", "2", "3", "4"]);
  assert.deepEqual([queue.asideBytes, queue.counts.malformed, warnings.length], [0, 1, 1]);
});

/** Any JSON, text and bytes, in every dialect, from both sides: each is counted once. */
test("nothing_throws", async () => {
  const values = ["", "x", "{}", "[1]", "null", '{"type":7}', '{"type":"__proto__"}', '{"__proto__":{"type":"text"}}'];
  const types = ["text", "setup", "session.created", "response.done", "audio", "user.transcription", "bot-output"];
  const shapes = [{}, [], "x", 7, null, { item: null }, { response: { output: [null] } }, { data: [] }];
  for (const type of types) for (const shape of shapes) {
    values.push(JSON.stringify({ ...shape, type }), JSON.stringify({ label: "rtvi-ai", type, data: shape, item: shape }));
  }
  values.push('{"serverContent":{"modelTurn":{"parts":[null,7,{"inlineData":{"data":7}}]}}}', '{"clientContent":{"turns":[7]}}');
  for (const dialect of DIALECTS.keys()) {
    const { queue } = queueOf(dialect);
    let count = 0;
    for (const value of values) for (const side of ["vendor", "app"]) for (const message of [value, Buffer.from(value)]) {
      queue.put(message, side);
      count += 1;
    }
    await reduced(queue);
    assert.equal(Object.values(queue.counts).reduce((sum, one) => sum + one), count);
    assert.equal(queue.asideBytes, 0);
  }
});
