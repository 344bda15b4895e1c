// @ts-check
/** The REST API as the page reaches it: behind its own door, with a cookie instead of a key. */

const PROJECT = /^\/ui\/p\/([^/]+)/;
const LINES = /jsonl|ndjson|json-seq/;

/** An answer that is not a success. `status` is 0 when there was no answer at all. */
export class Problem extends Error {
  /** @param {number} status @param {string} code @param {string} detail */
  constructor(status, code, detail) {
    super(detail || code || `HTTP ${status}`);
    this.name = "Problem";
    this.status = status;
    this.code = code;
    this.detail = this.message;
  }
}

/** Where the pages of the project that is shown begin: `/ui` or `/ui/p/shop`. */
export function base() {
  return PROJECT.exec(location.pathname)?.[0] ?? "/ui";
}

/**
 * The address of a path of the API; parameters that are null, undefined, false or empty are left out.
 * @param {string} path @param {Record<string, any>} [params]
 */
export function url(path, params) {
  const given = Object.entries(params ?? {}).filter(([, value]) => value || value === 0);
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `${base()}${path}${query ? `?${query}` : ""}`;
}

/** @param {string} path @param {Record<string, any>} [params] @param {AbortSignal} [signal] */
export const get = (path, params, signal) => ask("GET", url(path, params), undefined, signal);
/** @param {string} path @param {any} [body] */
export const post = (path, body = {}) => ask("POST", url(path), body);
/** @param {string} path @param {any} body */
export const patch = (path, body) => ask("PATCH", url(path), body);
/** @param {string} path @param {any} body */
export const put = (path, body) => ask("PUT", url(path), body);
/** @param {string} path @param {any} [body] */
export const remove = (path, body) => ask("DELETE", url(path), body);

/** @param {string} path @param {Record<string, any>} [params] Text as it is, as of an export. @returns {Promise<string>} */
export const text = async (path, params) => (await fetched("GET", url(path, params))).text();

/**
 * Ask, and give the parsed answer: null without a body, a list for JSON lines.
 * @param {string} method @param {string} address @param {any} [body] @param {AbortSignal} [signal] @returns {Promise<any>}
 */
export async function ask(method, address, body, signal) {
  const answer = await fetched(method, address, body, signal);
  const written = await answer.text();
  const areLines = LINES.test(answer.headers.get("Content-Type") ?? "");
  if (!areLines) return written ? JSON.parse(written) : null;
  return written.split("\n").filter(Boolean).map((line) => JSON.parse(line));
}

/** @param {string} method @param {string} address @param {any} [body] @param {AbortSignal} [signal] */
async function fetched(method, address, body, signal) {
  /** @type {Record<string, string>} */
  const headers = method === "GET" ? {} : { "Content-Type": "application/json" };
  const sent = body === undefined ? undefined : JSON.stringify(body);
  const answer = await fetch(address, { method, headers, body: sent, signal }).catch((error) => {
    if (error.name === "AbortError") throw error;
    answers(false);
    throw new Problem(0, "unreachable", "The service does not answer.");
  });
  answers(true);
  if (answer.ok) return answer;
  const problem = await problemOf(answer);
  if (problem.status === 401) toSignIn();
  throw problem;
}

/** Tell the page whether the service answers. @param {boolean} does */
export const answers = (does) => window.dispatchEvent(new CustomEvent("answers", { detail: does }));

/** @param {Response} answer */
export async function problemOf(answer) {
  const given = await answer.json().catch(() => ({}));
  return new Problem(answer.status, given.reason ?? "", given.detail ?? given.title ?? "");
}

/** Ask for a key, and come back to this address afterwards. */
export function toSignIn() {
  if (location.pathname.endsWith("/sign-in")) return;
  const next = location.pathname + location.search + location.hash;
  location.assign(`/ui/sign-in?${new URLSearchParams({ next })}`);
}
