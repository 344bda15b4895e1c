/** A phone's media stream beside a connection to a model, each with a tee, in one session. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { WebSocket } from "ws";

import { memoryOf, tee } from "../../source/tee/tee.js";
import { behindProxy, clientTo, newId, service } from "../clients.js";
import { until } from "../service.js";
import { arrivals, call, forward, recordedClock } from "./vendors.js";

const one = await service();
const BEGAN = 1_790_000_000_000;
const TEXT = "In Oslo it rains until the evening, and tomorrow the sun comes out.";
const AUDIO = Buffer.alloc(32_000, 0x7f).toString("base64");

/** The model's reply was cut where the phone was when the app cleared its queue. */
test("what_the_phone_has_played_is_what_was_heard", async (t) => {
  const at = recordedClock(t);
  const [socket, model] = await call(t);
  const [phone, handset] = await call(t);
  const sessionId = newId();
  at(BEGAN);
  tee(socket, clientTo(t, one, { WebSocket }), { dialect: "openai-realtime", sessionId });
  assert.equal(tee.phone(phone, memoryOf(socket)), phone);
  const [atApp, atBridge, atHandset] = [socket, phone, handset].map(arrivals);
  const about = { item_id: "item_1", response_id: "resp_1" };
  const start = { callSid: "CA1", customParameters: { caller: "+4930123456" } };
  await forward({ event: "start", streamSid: "MZ1", start }, handset, atBridge);
  const output = { format: { type: "audio/pcmu" } };
  for (const frame of [
    { type: "session.created", session: { id: "s", audio: { output } } },
    { type: "response.created", response: { id: "resp_1", conversation_id: "c" } },
    { type: "response.output_audio_transcript.delta", delta: TEXT, ...about },
    { type: "response.output_audio.delta", delta: AUDIO, ...about },
    { type: "response.done", response: { id: "resp_1", status: "completed", output: [] } },
  ]) {
    await forward(frame, model, atApp);
  }
  await forward({ event: "media", streamSid: "MZ1", media: { payload: AUDIO } }, phone, atHandset);
  await memoryOf(phone).reduced();
  at(BEGAN + 2_000);
  await forward({ event: "clear", streamSid: "MZ1" }, phone, atHandset);
  await until(() => memoryOf(phone).session !== null);
  await memoryOf(phone).reduced();
  await memoryOf(phone).session.flush();
  await memoryOf(socket).close();
  const [reply] = await one.contents(sessionId);
  assert.deepEqual([reply.content, reply.metadata.interrupted], ["In Oslo it rains until the ", true]);
});

/** What the phone has played is not in a context that the service gives meanwhile: so there is none. */
test("words_of_another_connection_that_do_not_come_in_time", async (t) => {
  const { proxy, client } = await behindProxy(t, { WebSocket, contextTimeoutMs: 2_000, silenceMs: 60_000 }, one);
  const [socket] = await call(t);
  const [phone, handset] = await call(t);
  const sessionId = newId();
  tee(socket, client, { dialect: "openai-realtime", sessionId });
  tee.phone(phone, memoryOf(socket));
  const atBridge = arrivals(phone);
  await forward({ event: "start", streamSid: "MZ1", start: { callSid: "CA1" } }, handset, atBridge);
  await Promise.all([socket, phone].map((each) => memoryOf(each).session.ready()));
  assert.notEqual(await memoryOf(socket).context(), null);
  proxy.toServer.swallow = true;
  await forward({ event: "dtmf", streamSid: "MZ1", dtmf: { digit: "1" } }, handset, atBridge);
  await memoryOf(phone).reduced();
  assert.equal(await memoryOf(socket).context(), null);
});

/** Another connection's memory has to know its session. */
test("memory_without_a_session", async (t) => {
  const [socket] = await call(t);
  const [phone] = await call(t);
  tee(socket, clientTo(t, one, { WebSocket }), { dialect: "openai-realtime" });
  assert.throws(() => tee.phone(phone, memoryOf(socket)), TypeError);
  await memoryOf(socket).close();
});
