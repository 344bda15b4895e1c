// @ts-check
/**
 * One live tail: server-sent events that are read by `fetch`, because an EventSource does not tell of the comments that
 * say that a silent connection is still there. A hidden page holds none: a browser has six connections for all its tabs.
 */
import { answers, problemOf, toSignIn, url } from "./api.js";

const SILENT_MS = 30_000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 5_000;

/**
 * Follow a path for as long as the page is visible. `handlers.reset` is called before everything is sent again.
 * @param {string} path @param {Record<string, any>} params
 * @param {Record<string, (data: any) => void>} handlers by the name of the event
 * @param {{onLost?: () => void, onBack?: () => void}} [notices]
 */
export function follow(path, params, handlers, { onLost, onBack } = {}) {
  const tail = { closed: false, wait: FIRST_WAIT_MS, timer: 0, stop: new AbortController() };
  const open = async () => {
    clearTimeout(tail.timer);
    tail.stop.abort();
    const stop = (tail.stop = new AbortController());
    const ended = await read(url(path, params), stop, handlers, () => {
      tail.wait = FIRST_WAIT_MS;
      onBack?.();
    }).catch(() => false);
    if (tail.closed || tail.stop !== stop || document.hidden || ended) return;
    onLost?.();
    tail.timer = window.setTimeout(open, tail.wait);
    tail.wait = Math.min(2 * tail.wait, LONGEST_WAIT_MS);
  };
  const seen = () => {
    clearTimeout(tail.timer);
    if (document.hidden) tail.stop.abort();
    else open();
  };
  document.addEventListener("visibilitychange", seen);
  if (!document.hidden) open();
  return {
    close() {
      tail.closed = true;
      document.removeEventListener("visibilitychange", seen);
      clearTimeout(tail.timer);
      tail.stop.abort();
    },
  };
}

/**
 * Read until the stream is over: true when nothing more will come, false when it broke off.
 * @param {string} address @param {AbortController} stop @param {Record<string, (data: any) => void>} handlers
 * @param {() => void} begun
 */
async function read(address, stop, handlers, begun) {
  let silence = window.setTimeout(() => stop.abort(), SILENT_MS);
  try {
    const headers = { Accept: "text/event-stream" };
    const answer = await fetch(address, { headers, signal: stop.signal, cache: "no-store" }).catch((error) => {
      if (!stop.signal.aborted) answers(false);
      throw error;
    });
    answers(true);
    if (answer.status === 401) toSignIn();
    const isStream = answer.headers.get("Content-Type")?.startsWith("text/event-stream");
    if (!answer.ok || !answer.body || !isStream) throw await problemOf(answer);
    handlers.reset?.(null);
    begun();
    const stream = { over: false };
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    const take = parser((name, data) => {
      handlers[name]?.(data);
      if (name === "end" && !address.includes("/v1/events")) stream.over = true;
    });
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      clearTimeout(silence);
      silence = window.setTimeout(() => stop.abort(), SILENT_MS);
      take(part.value);
      if (stop.signal.aborted) break;
    }
    return stream.over;
  } finally {
    clearTimeout(silence);
  }
}

/**
 * Split what comes into events; comments are passed over.
 * @param {(name: string, data: any) => void} tell
 * @returns {(text: string) => void}
 */
export function parser(tell) {
  let rest = "";
  return (text) => {
    const blocks = (rest + text).split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const fields = block.split("\n").map((line) => /^(\w*):? ?(.*)$/s.exec(line) ?? ["", "", ""]);
      const data = fields.filter(([, field]) => field === "data").map(([, , value]) => value);
      const name = fields.find(([, field]) => field === "event")?.[2] ?? "message";
      if (data.length) tell(name, JSON.parse(data.join("\n")));
    }
  };
}
