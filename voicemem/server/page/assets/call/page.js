// @ts-check
/** The page of one call: its head, its timeline, and the tabs. */
import * as api from "../base/api.js";
import { h, replace } from "../base/dom.js";
import { go, link } from "../base/routes.js";
import { figuresOf } from "./figures.js";
import { head } from "./head.js";
import { openCall, readAnalysis } from "./live.js";
import { callTimeline } from "./call_timeline.js";
import { compactHead } from "./compact.js";
import { player } from "./player.js";

const TABS = {
  conversation: { words: "Conversation", load: () => import("../conversation/page.js") },
  timeline: { words: "Timeline", load: () => import("./timeline.js") },
  memory: { words: "Memory", load: () => import("./memory.js") },
  deliveries: { words: "Deliveries", load: () => import("./deliveries_tab.js") },
  journal: { words: "Journal", load: () => import("./journal.js") },
  settings: { words: "Settings", load: () => import("./settings.js") },
  played: { words: "Played", load: () => import("../played/page.js") },
};
const TRUE_CALL = "truth"; // the label of a call of which it is known what was played
const FIGURES_MS = 250; // at least between two counts of a call that grows

/**
 * Show a call.
 * @param {HTMLElement} container
 * @param {{id: string, tab?: string, project?: string, query: URLSearchParams}} route
 * @param {any} shell
 */
export function show(container, route, shell) {
  /** @type {{closed: boolean, closers: (() => void)[]}} */
  const page = { closed: false, closers: [] };
  const close = () => {
    page.closed = true;
    while (page.closers.length) page.closers.pop()?.();
  };
  begin(container, route, shell, page, close).catch((problem) => {
    if (!page.closed) replace(container, missing(route.id, problem));
  });
  return { close };
}

/** @param {HTMLElement} container @param {any} route @param {any} shell @param {any} page @param {() => void} close */
async function begin(container, route, shell, page, close) {
  const tab = TABS[route.tab] ? route.tab : "conversation";
  const loading = TABS[tab].load().catch(() => null);
  const session = await api.get(`/v1/sessions/${encodeURIComponent(route.id)}`);
  if (page.closed) return;
  const call = openCall(session);
  page.closers.push(call.close);
  const [top, picture, body] = [h("div", null), h("div", null), h("div", { class: "tab-body" })];
  replace(container, top, picture, tabs(session, tab), body);
  /** @type {any} the part of the page that is shown */
  let shown = null;
  const pick = (/** @type {number} */ time, /** @type {number | null} */ turn, /** @type {string} */ lane) => {
    audio.seek(time);
    const key = keyAt(call, time, turn, lane);
    if (key === undefined) return;
    if (shown?.go) shown.go(key);
    else go(`/calls/${encodeURIComponent(call.id)}#m-${encodeURIComponent(key)}`);
  };
  const headOf = head(top, call, shell);
  const timelineOf = callTimeline(picture, { pick });
  const compact = compactHead(container, picture, call, pick);
  const strips = [timelineOf, compact.strip];
  const strip = { look: (/** @type {number[]} */ ...range) => strips.forEach((one) => one.look(...range)) };
  const audio = player(picture, call, (time) => strips.forEach((one) => one.play(time)));
  page.closers.push(timelineOf.close, compact.close, audio.close);
  const draw = () => {
    const figures = figuresOf(call.turns, call.list());
    const live = call.session.state === "running";
    const words = `Timeline: ${figures.messages} ${figures.messages === 1 ? "message" : "messages"}, ${figures.interruptions} cut`;
    headOf.draw(figures);
    audio.draw(figures.picture.from);
    timelineOf.draw(figures.picture, words, live);
    compact.draw(figures, words, live);
    document.title = `${live ? "● " : ""}${route.id} · voicemem`;
  };
  draw();
  if (tab !== "conversation") readAnalysis(call); // whose panel does it
  page.closers.push(onChange(call, draw, () => {
    close();
    document.title = "voicemem";
    replace(container, erased());
  }));
  const module = await loading;
  if (page.closed) return;
  if (!module) return body.append(broken());
  shown = module.show(body, { session, id: route.id, api, call, strip }, shell);
  page.closers.push(() => shown?.close?.());
}

/** Draw after changes, not more often than is of use; tell once when the call is erased. */
function onChange(/** @type {any} */ call, /** @type {() => void} */ draw, /** @type {() => void} */ gone) {
  let timer = 0;
  const now = () => {
    timer = 0;
    draw();
  };
  const unlisten = call.listen((/** @type {any} */ change) => {
    if (call.erased && call.erasing) return; // the list says it
    if (call.erased) gone();
    else if (change.state || change.fresh) draw();
    else if (!timer) timer = window.setTimeout(now, FIGURES_MS);
  });
  return () => {
    unlisten();
    clearTimeout(timer);
  };
}

/** The message at a time: of that turn and speaker where one is meant, else the last that had begun. */
function keyAt(/** @type {any} */ call, /** @type {number} */ time, /** @type {number | null} */ turn, /** @type {string} */ lane) {
  const role = lane === "user" ? "user" : lane === "agent" || lane === "unheard" ? "assistant" : null;
  const all = call.keys.map((/** @type {string} */ key) => ({ key, ...call.messages.get(key) }));
  const ofTurn = all.filter((/** @type {any} */ one) => turn === null || one.turn_id === turn);
  const ofRole = ofTurn.filter((/** @type {any} */ one) => role === null || one.role === role);
  const left = ofRole.length ? ofRole : ofTurn.length ? ofTurn : all;
  return (left.findLast((/** @type {any} */ one) => one.timestamp <= time) ?? left[0])?.key;
}

/** @param {any} session @param {string} current */
function tabs(session, current) {
  const isTrue = TRUE_CALL in (session.config?.labels ?? {});
  const known = Object.entries(TABS).filter(([tab]) => tab !== "played" || isTrue || current === tab);
  const links = known.map(([tab, { words }]) => {
    const path = `/calls/${encodeURIComponent(session.session_id)}${tab === "conversation" ? "" : `/${tab}`}`;
    const made = link(path, words);
    if (tab === current) made.setAttribute("aria-current", "page");
    return made;
  });
  const nav = h("nav", { class: "tabs", "aria-label": "This call" }, ...links);
  requestAnimationFrame(() => {
    const chosen = /** @type {HTMLElement | null} */ (nav.querySelector("[aria-current]"));
    if (chosen) nav.scrollLeft = chosen.offsetLeft - nav.offsetLeft - (nav.clientWidth - chosen.offsetWidth) / 2;
  });
  return nav;
}

/** A part of the page that did not come: the service is away, or a newer one has another page. */
function broken() {
  const again = h("button", { class: "btn", type: "button", on: { click: () => location.reload() } }, "Try again");
  return h("p", { class: "alert unreachable", role: "alert" }, h("span", null, "This tab could not be loaded: the service does not answer, or has been updated."), again);
}

/** @returns {HTMLElement} */
function erased() {
  return h(
    "section",
    { class: "panel gone-page", role: "status" },
    h("h1", null, "This call was erased"),
    h("p", null, "Nothing of it is left."),
    h("p", null, link("/calls", "Back to calls")),
  );
}

/** @param {string} id @param {any} problem */
function missing(id, problem) {
  const unknown = problem?.status === 404 || problem?.status === 410;
  return h(
    "section",
    { class: problem?.status === 0 ? "panel gone-page unreachable" : "panel gone-page" },
    h("h1", null, unknown ? "There is no such call" : "This call cannot be shown"),
    h("p", null, unknown ? `${id} was never here, or has been erased.` : (problem?.detail ?? String(problem))),
    h("p", null, link("/calls", "Back to calls")),
  );
}
