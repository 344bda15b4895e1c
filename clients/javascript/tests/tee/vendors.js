/** Recorded calls of other stacks over real connections, with a tee around one end. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { WebSocket, WebSocketServer } from "ws";

import { CLOCK } from "../../source/tee/frames.js";
import { memoryOf } from "../../source/tee/tee.js";
import { until } from "../service.js";

const FIXTURES = new URL("../../../../fixtures/", import.meta.url);
/** The caller leaves so long after the last frame, unless the last line of a call is `{"hang_up": TS}`. */
const HANG_UP_MS = 100;

/** The recorded calls of a dialect: their envelopes, when the caller left, and what must be remembered. */
export function recordingsOf(...dialects) {
  return dialects.flatMap((dialect) => {
    const folder = new URL(`${dialect}/`, FIXTURES);
    const names = readdirSync(fileURLToPath(folder)).filter((name) => name.endsWith(".jsonl") && !name.includes("webhook"));
    return names.sort().map((file) => {
      const name = file.slice(0, -".jsonl".length);
      const lines = readFileSync(new URL(file, folder), "utf8").trim().split("\n").map((line) => JSON.parse(line));
      const hangUp = lines.at(-1).hang_up ?? Math.max(...lines.map((line) => line.ts ?? 0)) + HANG_UP_MS;
      const { contents } = JSON.parse(readFileSync(new URL(`${name}.contents.json`, folder), "utf8"));
      return { dialect, name, hangUp, contents, envelopes: lines.filter((line) => "frame" in line) };
    });
  });
}

/** The time of a recorded call, until the test is over. */
export function recordedClock(t) {
  const { now } = CLOCK;
  t.after(() => Object.assign(CLOCK, { now }));
  return (ms) => Object.assign(CLOCK, { now: () => ms });
}

/** A vendor's websocket: its URL, and the connections to it, one after the other. */
export async function vendorAt(t, at = { port: 0, host: "127.0.0.1" }) {
  const server = new WebSocketServer({ ...at, maxPayload: 0 });
  await once(server, "listening");
  const waiting = [];
  const connections = [];
  server.on("connection", (connection) => {
    const waiter = waiting.shift();
    if (waiter) waiter(connection);
    else connections.push(connection);
  });
  t.after(() => {
    for (const connection of server.clients) connection.terminate();
    server.close();
  });
  const next = () => (connections.length ? Promise.resolve(connections.shift()) : new Promise((resolve) => waiting.push(resolve)));
  return { url: `ws://127.0.0.1:${server.address().port}`, server, next };
}

/** An open connection, and the vendor's end of it. */
export async function call(t, options = {}) {
  const vendor = await vendorAt(t);
  const socket = new WebSocket(vendor.url, { maxPayload: 0, ...options });
  const [other] = await Promise.all([vendor.next(), once(socket, "open")]);
  t.after(() => socket.terminate());
  return [socket, other];
}

/** What arrives at a socket of `ws`, one message after the other. */
export function arrivals(socket) {
  const messages = [];
  const waiting = [];
  socket.on("message", (data, isBinary) => {
    const message = isBinary ? data : data.toString();
    const waiter = waiting.shift();
    if (waiter) waiter(message);
    else messages.push(message);
  });
  return () => (messages.length ? Promise.resolve(messages.shift()) : new Promise((resolve) => waiting.push(resolve)));
}

/** Sends a message and sees it arrive as it was. */
export async function forward(message, sender, arrival) {
  const sent = typeof message === "string" || message instanceof Uint8Array ? message : JSON.stringify(message);
  sender.send(sent);
  assert.deepEqual(await arrival(), sent);
}

/** Send each frame from the side that sent it, and see it arrive at the other end; then the caller has gone. */
export async function play(recording, setClock, ends, between = async () => {}) {
  for (const [number, { ts, from, frame }] of recording.envelopes.entries()) {
    await between(number);
    setClock(ts);
    const message = messageOf(frame);
    const [send, arrival] = from === "app" ? [ends.appSends, ends.vendorGets] : [ends.vendorSends, ends.appGets];
    send(message);
    assert.deepEqual(parsed(await arrival()), parsed(message));
  }
  setClock(recording.hangUp);
}

/** A frame as it crosses the connection: audio of a stack that names nothing there is a binary message. */
function messageOf(frame) {
  if (typeof frame === "string") return frame;
  return Object.keys(frame).join() === "audio_bytes" ? Buffer.alloc(frame.audio_bytes) : JSON.stringify(frame);
}

function parsed(message) {
  try {
    return JSON.parse(message);
  } catch {
    return String(message);
  }
}

/** Both ends of a connection of `ws`. */
export function endsOf(socket, other) {
  return {
    appSends: (text) => socket.send(text),
    appGets: arrivals(socket),
    vendorSends: (text) => other.send(text),
    vendorGets: arrivals(other),
  };
}

/** Close the memory, and see that the service has what the recording says. */
export async function memoryAfter(one, connection, recording, id) {
  const memory = memoryOf(connection);
  await memory.close();
  assert.equal(memory.dropped, 0);
  await ended(one, id);
  assert.deepEqual(await one.contents(id), recording.contents);
}

/** Wait until a session has ended. */
export async function ended(one, id) {
  const state = () => one.session(id).then((session) => session.state, () => "not there yet");
  await until(async () => (await state()) === "ended", `the end of ${id}`);
}

/** A piece of a reply's text. */
export function reply(number, item = "r") {
  const event_id = `e${number}`;
  return { type: "response.output_text.delta", event_id, response_id: "resp", item_id: item, delta: `${number} ` };
}

/** Everything that was to be said. */
export async function texts(one, id) {
  const { contents } = await one.request("GET", `/v1/sessions/${id}/history?open=true`);
  return contents.map((message) => message.metadata.original ?? message.content);
}
