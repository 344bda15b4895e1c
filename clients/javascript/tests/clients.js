/** What the tests of the client share: clients that try again quickly, and what must be stored. */
import { Client } from "../source/index.js";
import { proxyOf } from "./network.js";
import { LONG_MS, serve, until } from "./service.js";

/**
 * Options for networks that change their mind within a second; without fallback, unless a test says so.
 *
 * What a caller waits for may take as long as a busy machine needs.
 */
export const QUICK = {
  firstDelayMs: 20,
  longestDelayMs: 200,
  awayDelayMs: 200,
  openTimeoutMs: LONG_MS,
  contextTimeoutMs: LONG_MS,
  readTimeoutMs: LONG_MS,
  closeTimeoutMs: LONG_MS,
  connectTimeoutMs: 2_000,
  silenceMs: 1_000,
  websocketEveryMs: 100,
  requestTimeoutMs: 5_000,
  fallbackAfter: 1_000_000,
  warn: () => {},
};

let running;
/** The service that the tests of a file share. */
export function service() {
  running ??= serve();
  return running;
}

/** A client of a service, with quick options, which is closed after the test `t`. */
export function clientTo(t, one, options = {}) {
  return clientFor(t, one.url, { restUrl: one.restUrl, ...options });
}

/** A client of an address. */
export function clientFor(t, url, options = {}) {
  const client = new Client(url, { ...QUICK, ...options });
  t.after(() => client.close({ timeoutMs: 0 }).catch(() => {}));
  return client;
}

let count = 0;
/** The id of a session that no other test has. */
export function newId() {
  count += 1;
  return `s-${process.pid}-${count}`;
}

/** A final transcript in a turn of its own. */
export function transcript(number, more = {}) {
  return { type: "asr", turn_id: number, text: `Line ${number}.`, final: true, ...more };
}

/** Record transcripts with these numbers; their acks. */
export function recordTranscripts(session, first, last, more = {}) {
  return numbers(first, last).map((number) => session.record(transcript(number, more)));
}

/** The whole numbers from one to another, both included. */
export function numbers(first, last) {
  return Array.from({ length: last - first + 1 }, (_, index) => first + index);
}

/** The seqs, once all are on disk. */
export async function seqs(acks) {
  const stored = [];
  for (const ack of acks) stored.push(await ack.result(LONG_MS));
  return stored;
}

/** What is stored of lines 1, 2, 3 …, each once and in order. */
export function transcriptsUpTo(last) {
  return numbers(1, last).map((number) => [number, `Line ${number}.`]);
}

/** Seq and text of all that a journal has of producers. */
export async function stored(one, sessionId) {
  const rows = (await one.journal(sessionId)).filter((row) => row.seq !== null);
  return rows.map((row) => [row.seq, row.event.text ?? null]);
}

/** A service, a proxy in front of its websockets, and a client behind that. */
export async function behindProxy(t, options = {}, one = undefined) {
  const target = one ?? (await service());
  const proxy = await proxyOf(t, target.ingest);
  return { one: target, proxy, client: clientFor(t, proxy.url, { restUrl: target.restUrl, ...options }) };
}

/** A bare connection, as another process would have: it opens a session, and stays. */
export async function stranger(t, one, sessionId, key = undefined) {
  const socket = new WebSocket(`${one.url}/v1/ingest`);
  const frames = [];
  socket.onmessage = (message) => frames.push(JSON.parse(message.data));
  await new Promise((resolve) => (socket.onopen = resolve));
  if (key) socket.send(JSON.stringify({ type: "auth", token: key }));
  socket.send(JSON.stringify({ type: "session.open", session_id: sessionId }));
  await until(() => frames.length, "an answer to a stranger");
  t.after(() => socket.close());
  return { socket, frames, epoch: frames[0].epoch };
}

/** Arrays in each other. */
export function nested(depth) {
  return depth ? [nested(depth - 1)] : [];
}

/** What a promise throws. */
export async function thrown(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("nothing was thrown");
}
