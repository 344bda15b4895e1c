/** What the tests of the client share: clients that try again quickly, and what must be stored. */
import { Client } from "../source/index.js";
import { LONG_MS, serve } from "./service.js";

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
export function recordTranscripts(session, first, last) {
  const acks = [];
  for (let number = first; number <= last; number += 1) acks.push(session.record(transcript(number)));
  return acks;
}

/** The texts of all transcripts up to a number. */
export function transcriptsUpTo(last) {
  return Array.from({ length: last }, (_, index) => `Line ${index + 1}.`);
}

/** The texts of the transcripts that are stored, in order. */
export async function storedTranscripts(one, sessionId) {
  const rows = await one.journal(sessionId);
  return rows.filter((row) => row.event?.type === "asr").map((row) => row.event.text);
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
