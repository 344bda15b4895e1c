/** A tee whose memory, vendor or app does what it should not: the call goes on, and the log says what is missing. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { WebSocket } from "ws";

import { TIMES } from "../../source/tee/memory.js";
import { memoryOf, tee } from "../../source/tee/tee.js";
import { clientFor, clientTo, newId, service } from "../clients.js";
import { freePorts, serve, until } from "../service.js";
import { arrivals, call, ended, forward, reply, texts } from "./vendors.js";

const one = await service();
const [REFUSING] = (await freePorts(1)).map((port) => `127.0.0.1:${port}`);
const MIB = 1024 * 1024;

/** A connection with a tee: the app's and the vendor's end, what arrives at each, the memory, and what was warned of. */
async function teed(t, { client, dialect = "openai-realtime", sessionId = newId(), ...options } = {}) {
  const [socket, other] = await call(t);
  const warnings = [];
  const warn = (sentence) => warnings.push(sentence);
  tee(socket, client ?? clientTo(t, one, { WebSocket, warn }), { dialect, sessionId: sessionId ?? undefined, ...options });
  const [atApp, atVendor] = [arrivals(socket), arrivals(other)];
  const fromVendor = (message) => forward(message, other, atApp);
  const fromApp = (message) => forward(message, socket, atVendor);
  return { socket, other, fromVendor, fromApp, memory: memoryOf(socket), warnings, id: sessionId };
}

/** Other times of the tee, until the test is over. */
function times(t, set) {
  const before = { ...TIMES };
  t.after(() => Object.assign(TIMES, before));
  Object.assign(TIMES, set);
}

/** Truncated JSON, bytes, other vendors' frames, numbers beyond all limits: what follows is remembered. */
test("what_is_no_frame_is_counted", async (t) => {
  const { fromVendor, fromApp, memory, warnings, id } = await teed(t);
  const wrong = [
    '{"type": "response.output_text.del',
    "[]",
    "null",
    '{"type": 7}',
    '{"type": "response.output_text.delta", "item_id": {}, "delta": "x"}',
    "[".repeat(5_000),
    '{"a":'.repeat(5_000),
    Buffer.from([0, 1, 2]),
    Buffer.from([0x7b, 0xff, 0xfe]),
    Buffer.from([]),
    JSON.stringify({ event: "media", media: {} }),
  ];
  for (const message of wrong) {
    await fromVendor(message);
    await fromApp(message);
  }
  await fromVendor({ type: "a.new.one" });
  await fromVendor(reply(1));
  await fromApp(reply(2)); // the other side sends these
  await fromApp({ type: "conversation.item.create", item: {} });
  await memory.close();
  assert.deepEqual(await texts(one, id), ["1 "]);
  // A frame of which one value is of another type is taken without it, and judged by the service.
  const counts = { taken: 2, ignored: 1, unknown: 1, malformed: 2 * wrong.length, dropped: 0 };
  assert.deepEqual([memory.counts, memory.dropped], [counts, 0]);
  assert.equal(warnings.filter((line) => line.startsWith("A message is not a frame of openai-realtime")).length, 1);
});

/** Frames up to 16 MiB are reduced, also many at once; larger ones are left out. All of them reach the app. */
test("large_frames", async (t) => {
  const { fromVendor, fromApp, memory, id } = await teed(t);
  const audio = Buffer.alloc(11 * MIB).toString("base64");
  const delta = { type: "response.output_audio.delta", item_id: "r", response_id: "resp", delta: audio };
  await fromVendor(reply(1));
  for (let count = 0; count < 3; count += 1) await fromVendor(delta);
  await fromApp({ type: "input_audio_buffer.append", audio });
  await fromVendor({ ...delta, more: "x".repeat(2 * MIB) });
  await fromVendor(reply(2));
  await memory.close();
  assert.deepEqual(await texts(one, id), ["1 2 "]);
  assert.deepEqual(memory.counts, { taken: 5, ignored: 1, unknown: 0, malformed: 1, dropped: 0 });
  const frames = (await one.journal(id)).map((row) => row.event.frame ?? {});
  assert.equal(frames.reduce((sum, frame) => sum + (frame.audio_bytes ?? 0), 0), 33 * MIB);
});

/** A frame of which more than 1 MiB would be kept is dropped and counted; the others are stored. */
test("text_that_is_too_long_to_keep", async (t) => {
  const { fromVendor, memory, id } = await teed(t);
  await fromVendor(reply(1));
  await fromVendor({ ...reply(2), delta: "x".repeat(2 * MIB) });
  await fromVendor(reply(3));
  await memory.close();
  assert.deepEqual(await texts(one, id), ["1 3 "]);
  assert.equal(memory.dropped, 1);
});

/** `ws` can send a message in pieces, and receive one as its pieces; the copy is of the whole. */
test("messages_in_pieces", async (t) => {
  const { socket, other, memory, id } = await teed(t, { dialect: "conversation-relay" });
  const [atApp, atVendor] = [once(socket, "message"), arrivals(other)];
  const first = JSON.stringify({ type: "text", token: "One, ", last: false });
  const second = Buffer.from(JSON.stringify({ type: "text", token: "two.", last: true }));
  socket.send(first.slice(0, 9), { fin: false });
  socket.send(first.slice(9), { fin: true });
  socket.send(second.subarray(0, 9), { fin: false, binary: false });
  socket.send(second.subarray(9), { fin: true, binary: false });
  assert.deepEqual([await atVendor(), await atVendor()], [first, second.toString()]);
  socket.binaryType = "fragments";
  const prompt = Buffer.from(JSON.stringify({ type: "prompt", voicePrompt: "And?", last: true }));
  other.send(prompt.subarray(0, 9), { fin: false });
  other.send(prompt.subarray(9), { fin: true });
  assert.deepEqual(Buffer.concat((await atApp)[0]), prompt);
  await memory.close();
  assert.deepEqual(await texts(one, id), ["One, two.", "And?"]);
  assert.equal(memory.counts.taken, 3);
});

/** Gemini sends its JSON in binary messages, which `ws` gives as buffers of several kinds. */
test("binary_messages_may_be_json", async (t) => {
  const { socket, other, memory, id } = await teed(t, { dialect: "gemini-live" });
  const said = ["Hel", "lo", "?"].map((text) => JSON.stringify({ serverContent: { inputTranscription: { text } } }));
  for (const [place, binaryType] of ["nodebuffer", "arraybuffer", "fragments"].entries()) {
    socket.binaryType = binaryType;
    const arrived = once(socket, "message");
    other.send(Buffer.from(said[place]));
    await arrived;
  }
  await memory.close();
  assert.deepEqual(await texts(one, id), ["Hello?"]);
});

/** What an app writes into a buffer, and uses again at once, is remembered as it was sent. */
test("buffers_that_are_used_again", async (t) => {
  const { socket, other, memory, id } = await teed(t, { dialect: "conversation-relay" });
  const atVendor = arrivals(other);
  for (const kind of [Buffer.from, (text) => new Uint8Array(Buffer.from(text)), (text) => new Uint8Array(Buffer.from(text)).buffer]) {
    const message = kind(JSON.stringify({ type: "text", token: "Yes. ", last: true }));
    await new Promise((resolve) => socket.send(message, { mask: true }, resolve));
    new Uint8Array(message.buffer ?? message).fill(0, message.byteOffset ?? 0, (message.byteOffset ?? 0) + message.byteLength);
    await atVendor();
  }
  await memory.close();
  assert.deepEqual(await texts(one, id), ["Yes. ", "Yes. ", "Yes. "]);
});

// The memory

/** Nobody listens: frames pass, the context is null at once, closing ends in its time, and the log says so once. */
test("a_memory_that_is_away_costs_the_call_nothing", async (t) => {
  const warnings = [];
  const warn = (sentence) => warnings.push(sentence);
  const client = clientFor(t, `ws://${REFUSING}`, { restUrl: `http://${REFUSING}`, WebSocket, warn, contextTimeoutMs: 50 });
  const { fromVendor, memory } = await teed(t, { client });
  for (let number = 0; number < 100; number += 1) await fromVendor(reply(number));
  assert.deepEqual([await memory.context(), await memory.context()], [null, null]);
  await memory.close({ timeoutMs: 10 });
  assert.deepEqual([memory.dropped, memory.session.isOpen], [0, false]);
  assert.equal(warnings.filter((line) => line.startsWith("The agent continues without its memory.")).length, 1);
});

/** What does not fit while the memory is away is dropped and counted, by events and by bytes; the end is kept. */
test("a_full_buffer_is_counted", async (t) => {
  for (const limits of [{ maxEvents: 10 }, { maxBytes: 1_000 }]) {
    const dropped = [];
    const onDropped = (session, producer, error) => dropped.push(error.code);
    const client = clientFor(t, `ws://${REFUSING}`, { WebSocket, onDropped, ...limits });
    const { fromVendor, memory } = await teed(t, { client });
    for (let number = 0; number < 100; number += 1) await fromVendor(reply(number));
    await memory.close({ timeoutMs: 0 });
    assert.ok(80 < memory.dropped && memory.dropped < 100, `${memory.dropped}`);
    assert.deepEqual(dropped, Array(memory.dropped).fill("buffer_full"));
    assert.equal(memory.session.refusal ?? null, null);
  }
});

/** A burst that comes without a pause is bounded too, and its order stays. */
test("too_many_frames_at_once_are_counted", async (t) => {
  const { memory, warnings, id } = await teed(t);
  for (let number = 0; number < 10_050; number += 1) memory.received(JSON.stringify(reply(number)));
  assert.equal(memory.dropped, 50);
  await memory.close();
  assert.deepEqual(await texts(one, id), [Array.from({ length: 10_000 }, (_, number) => `${number} `).join("")]);
  assert.ok(warnings.some((line) => line.includes("more of them came than could be reduced")));
});

/** The call goes on without a memory; what it would have had is counted, and the key is in no sentence. */
test("a_wrong_key_is_said_once", async (t) => {
  const guarded = await serve("--admin-key", "an admin key for tests");
  t.after(() => guarded.kill());
  const warnings = [];
  const warn = (sentence) => warnings.push(sentence);
  const client = clientTo(t, guarded, { WebSocket, warn, key: "vm_wrong" });
  const { fromVendor, memory } = await teed(t, { client });
  await until(() => memory.session.error !== null);
  for (let number = 0; number < 5; number += 1) await fromVendor(reply(number));
  await memory.close();
  assert.ok(memory.dropped >= 5);
  assert.equal(warnings.filter((line) => line.startsWith("This call is not remembered. Session")).length, 1);
  assert.ok(!warnings.join().includes("vm_wrong"));
});

/** A `warn` of the program's own that throws does not end the call, nor the memory of it. */
test("a_warn_that_throws", async (t) => {
  t.mock.method(console, "error", () => {});
  const warn = () => {
    throw new Error("a defect of the program's");
  };
  const { fromVendor, memory, id } = await teed(t, { client: clientTo(t, one, { WebSocket, warn }) });
  await fromVendor("no frame");
  await fromVendor({ type: "a.new.one" });
  await fromVendor(reply(1));
  await memory.close();
  assert.deepEqual(await texts(one, id), ["1 "]);
});

// The session and its end

/** Without an id the vendor's own is taken, made into one that a session may have; before, it is not known. */
test("the_vendor_says_the_session", async (t) => {
  const { fromVendor, memory } = await teed(t, { dialect: "conversation-relay", sessionId: null });
  memory.send({ type: "metric", name: "ringing", value: 1, turn_id: 1 });
  assert.equal(memory.sessionId, null);
  const said = newId();
  await fromVendor({ type: "setup", callSid: `${said}/1` });
  await fromVendor({ type: "prompt", voicePrompt: "Hello?" });
  await memory.close();
  assert.match(memory.sessionId, new RegExp(`^${said}-1\\.\\.[0-9a-f]{32}$`));
  assert.deepEqual(await texts(one, memory.sessionId), ["Hello?"]);
});

/** What a vendor says of the caller goes to the service, which names no user by it unless it is allowed to. */
test("who_calls", async (t) => {
  const frame = { type: "setup", callSid: newId(), from: "+15551234567", customParameters: { user_id: "ann" } };
  for (const userId of [undefined, "bob"]) {
    const more = userId === undefined ? {} : { userId };
    const { fromVendor, memory } = await teed(t, { dialect: "conversation-relay", sessionId: newId(), ...more });
    await fromVendor(frame);
    await fromVendor({ type: "prompt", voicePrompt: "Hello?" });
    await memory.close();
    const { config } = await one.request("GET", `/v1/sessions/${memory.sessionId}`);
    assert.equal(config.user_id, userId);
    const journal = await (await fetch(`${one.restUrl}/v1/sessions/${memory.sessionId}/events`)).text();
    assert.equal(journal.includes("5551234567"), false);
  }
});

/** After 64 frames, some time, or the end of the call, it gets an id of its own. */
test("a_vendor_that_says_no_session", async (t) => {
  for (const [frames, idMs] of [[64, 1_000_000], [1, 50], [2, 1_000_000]]) {
    times(t, { idMs });
    const { fromVendor, memory } = await teed(t, { sessionId: null });
    for (let number = 0; number < frames; number += 1) await fromVendor(reply(number));
    if (frames !== 2) await until(() => memory.sessionId !== null);
    await memory.close();
    assert.equal((await texts(one, memory.sessionId)).length, 1);
  }
});

for (const closer of ["app", "vendor"]) {
  /** Whoever closes it: the session ends soon after, with the time of the close; so with a client of the tee's own. */
  test(`the_session_ends_with_the_connection ${closer}`, async (t) => {
    times(t, { closedMs: 200 });
    for (const client of [undefined, one.url]) {
      const { socket, other, fromVendor, memory, id } = await teed(t, { client, ...(client && { WebSocket }) });
      await fromVendor(reply(1));
      (closer === "app" ? socket : other).close();
      await once(socket, "close");
      const { leftAt } = memory;
      await ended(one, id);
      const [end] = (await one.journal(id)).map((row) => row.event).filter((event) => event.type === "session.end");
      assert.deepEqual([end.reason, end.ts], ["closed", leftAt]);
      await memory.leaving;
    }
  });
}

/** With `end: false` the app ends it, over any other connection. */
test("without_end_the_session_stays", async (t) => {
  times(t, { closedMs: 0 });
  const { socket, fromVendor, memory, id } = await teed(t, { end: false });
  await fromVendor(reply(1));
  socket.close();
  await until(() => memory.leaving !== null);
  await memory.leaving;
  assert.ok(!(await one.journal(id)).some((row) => row.event.type === "session.end"));
});

/** An app that connects to its vendor again makes a tee with the same id: nothing is lost, and nothing ends. */
test("a_second_connection_goes_on_with_the_call", async (t) => {
  times(t, { closedMs: 1_000_000 });
  const client = clientTo(t, one, { WebSocket });
  const first = await teed(t, { client });
  await first.fromVendor(reply(1));
  first.other.close();
  await once(first.socket, "close");
  const second = await teed(t, { client, sessionId: first.id });
  await second.fromVendor(reply(2));
  first.memory.leaveAlone(); // its time is over
  await second.fromVendor(reply(3));
  await second.memory.close({ reason: "hangup" });
  assert.deepEqual(await texts(one, first.id), ["1 2 3 "]);
  assert.equal(second.memory.dropped, 0);
});

/** ConversationRelay's own `end` ends the session at once; what the vendor still sends is not taken. */
test("frames_after_the_end_are_counted", async (t) => {
  const client = clientTo(t, one, { WebSocket });
  const { fromVendor, fromApp, memory, id } = await teed(t, { client, dialect: "conversation-relay" });
  await fromApp({ type: "text", token: "Bye.", last: true });
  await fromApp({ type: "end" });
  await ended(one, id);
  await fromVendor({ type: "prompt", voicePrompt: "Wait!" });
  await memory.close();
  assert.equal(memory.dropped, 1);
  assert.ok(!client.isOpen(id, "conversation-relay"));
});

/** A message that the connection could not send was not said; the app gets the error as before. */
test("a_copied_send_that_fails_is_not_remembered", async (t) => {
  const { socket, fromApp, memory, id } = await teed(t, { dialect: "conversation-relay" });
  await fromApp({ type: "text", token: "One.", last: true });
  socket.close();
  const error = await new Promise((resolve) => socket.send(JSON.stringify({ type: "text", token: "Two." }), resolve));
  assert.match(error.message, /not open/);
  await memory.close();
  assert.deepEqual(await texts(one, id), ["One."]);
});

/** The next LLM request has what came just before, and what the app has added as an event. */
test("context_has_all_that_crossed", async (t) => {
  const { fromVendor, memory } = await teed(t, { dialect: "conversation-relay" });
  memory.send({ type: "message", role: "assistant", text: "Welcome.", source: "greeting" });
  await fromVendor({ type: "prompt", voicePrompt: "Hello?", last: true });
  const body = await memory.context();
  assert.deepEqual(body.messages.map(({ content }) => content), ["Welcome.", "Hello?"]);
  await memory.close();
});

/** Texts that the app adds are left out on request. */
test("typed_text_can_be_left_out", async (t) => {
  const { fromApp, fromVendor, memory, id } = await teed(t, { dialect: "pipecat-rtvi", keepTyped: false });
  await fromApp({ label: "rtvi-ai", type: "send-text", id: "1", data: { content: "typed" } });
  await fromVendor({ label: "rtvi-ai", type: "user-transcription", data: { text: "Spoken.", final: true } });
  await memory.close();
  assert.deepEqual(await texts(one, id), ["Spoken."]);
});

/** A call may be over, and its connection gone, before the memory is there at all. */
test("what_is_left_at_the_end_is_delivered_later", async (t) => {
  const later = await serve();
  t.after(() => later.kill());
  await later.kill();
  const { fromVendor, memory, id } = await teed(t, { client: clientTo(t, later, { WebSocket }) });
  await fromVendor(reply(1));
  await memory.close({ timeoutMs: 10 });
  await later.start();
  await memory.leaving;
  assert.deepEqual(await texts(later, id), ["1 "]);
  await ended(later, id);
});
