// @ts-check
/** What the page knows of one call, kept up to date by one tail, and passed on in one piece before each frame. */
import { get } from "../base/api.js";
import { follow } from "../base/tail.js";

/** @typedef {import("./words.js").Message} Message */
/** @typedef {{fresh: boolean, keys: Set<string>, removed: Set<string>, turns: Set<number>, memory: boolean, state: boolean}} Change */
/** @typedef {ReturnType<typeof openCall>} Call */

const LOOK_AGAIN_MS = 10_000;

/** @returns {Change} */
const nothing = () => ({ fresh: false, keys: new Set(), removed: new Set(), turns: new Set(), memory: false, state: false });

/**
 * Follow a call. What is read first and what changes later come in the same way.
 * @param {any} session the answer of GET /v1/sessions/{id}
 */
export function openCall(session) {
  const id = session.session_id;
  const listeners = new Set();
  let change = nothing();
  let frame = 0;
  const path = `/v1/sessions/${encodeURIComponent(id)}`;
  const call = {
    id,
    session,
    /** @type {string[]} keys of messages, in their order */
    keys: [],
    /** @type {Map<string, Message>} */
    messages: new Map(),
    /** @type {Map<number, any>} */
    turns: new Map(),
    /** @type {Map<string, any>} calls of tools with what they were asked and answered */
    tools: new Map(),
    /** @type {any} */
    memory: null,
    /** @type {"loading" | "open" | "lost" | "over"} */
    connection: "loading",
    erased: false,
    /** this page has asked for it */
    erasing: false,
    lastEvent: 0,
    /** @type {string | null} that of the analysis */
    outcome: null,
    /** @returns {Message[]} */
    list: () => call.keys.map((key) => /** @type {Message} */ (call.messages.get(key))),
    changed() {
      change.state = true;
      soon();
    },
    listen(/** @type {(change: Change) => void} */ listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    close() {
      clearInterval(looking);
      document.removeEventListener("visibilitychange", lookAgain);
      cancelAnimationFrame(frame);
      listeners.clear();
      tail.close();
    },
  };
  const tell = () => {
    frame = 0;
    const reported = change;
    change = nothing();
    for (const listener of [...listeners]) listener(reported);
  };
  const soon = () => {
    if (!frame) frame = requestAnimationFrame(tell);
  };
  const arrived = (/** @type {(data: any) => void} */ apply) => (/** @type {any} */ data) => {
    call.lastEvent = Date.now();
    if (call.connection !== "over") call.connection = "open";
    apply(data);
    soon();
  };
  const handlers = {
    reset() {
      Object.assign(call, { keys: [], messages: new Map(), turns: new Map() });
      change = { ...nothing(), fresh: true, state: true };
    },
    messages: arrived((data) => upsert(call, data, change)),
    turn: arrived((row) => {
      call.turns.set(row.turn_id, row);
      change.turns.add(row.turn_id);
    }),
    memory: arrived((memory) => {
      call.memory = memory;
      change.memory = true;
    }),
    state: arrived(({ state, reason, ended_at }) => {
      Object.assign(call.session, { state, reason, ended_at });
      change.state = true;
    }),
    end: arrived((end) => {
      Object.assign(call.session, { state: end.state, reason: end.reason });
      Object.assign(call, { connection: "over", erased: end.state === "erased" });
      change.state = true;
      tail.close();
    }),
  };
  const lost = () => {
    connection("lost")();
    return isErased();
  };
  const isErased = async () => {
    const known = await get(path).catch((problem) => problem);
    if (known.status !== 404 && known.status !== 410) return;
    Object.assign(call, { connection: "over", erased: true });
    clearInterval(looking);
    tail.close();
    soon();
  };
  // Of a call that is over nothing is told any more, also not that somebody erased it.
  const lookAgain = () => {
    if (call.connection === "over" && !call.erased && !document.hidden) isErased();
  };
  const looking = window.setInterval(lookAgain, LOOK_AGAIN_MS);
  document.addEventListener("visibilitychange", lookAgain);
  const connection = (/** @type {"open" | "lost"} */ state) => () => {
    if (call.connection === "over") return;
    call.connection = state;
    change.state = true;
    soon();
  };
  const tail = follow(`${path}/events`, { view: "call" }, handlers, {
    onLost: lost,
    onBack: connection("open"),
  });
  return call;
}

/** What was found out about a call, where anything is asked; its outcome is in the head. @param {Call} call */
export async function readAnalysis(call) {
  if (!call.session.config?.memory?.extract?.schema) return null;
  const answer = await get(`/v1/sessions/${encodeURIComponent(call.id)}/analysis`).catch(() => null);
  if (answer && answer.outcome !== call.outcome) {
    call.outcome = answer.outcome;
    call.changed();
  }
  return answer;
}

/**
 * Apply a step of the memory: remove, then put each message behind the one that it names.
 * @param {any} call
 * @param {any} step
 * @param {Change} change
 */
export function upsert(call, step, change) {
  for (const key of step.removed ?? []) {
    if (call.messages.delete(key)) call.keys.splice(call.keys.lastIndexOf(key), 1);
    change.keys.delete(key);
    change.removed.add(key);
  }
  for (const { key, after, message } of step.upserts ?? []) {
    if (call.messages.has(key)) call.keys.splice(call.keys.lastIndexOf(key), 1);
    const place = after === null || after === undefined ? 0 : call.keys.lastIndexOf(after) + 1;
    call.keys.splice(place, 0, key);
    call.messages.set(key, message);
    change.keys.add(key);
    change.removed.delete(key);
  }
}

/**
 * What tools were asked and what they answered, of one turn or of all of them; it stands in the journal alone.
 * @param {Call} call
 * @param {number | null} turn
 */
export async function readTools(call, turn) {
  const path = `/v1/sessions/${encodeURIComponent(call.id)}/events`;
  const rows = await get(path, { native: true, types: "tool.*", turn_id: turn });
  for (const { event } of rows ?? []) {
    const known = call.tools.get(event.call_id) ?? { turn_id: event.turn_id };
    if (event.type === "tool.call") Object.assign(known, { name: event.name, arguments: event.arguments });
    if (event.type === "tool.result") Object.assign(known, { result: event.result, answered: true });
    call.tools.set(event.call_id, known);
  }
}
