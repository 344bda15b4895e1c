// @ts-check
/** The start of the page: whom it is shown to, and which part of it stands at the address. */
import { get, Problem, toSignIn } from "./api.js";
import { h, replace } from "./dom.js";
import { patterns } from "./logo.js";
import { catchLinks, link, route } from "./routes.js";
import { makeShell } from "./shell.js";
import { readSession } from "./sign_in.js";
import { startTheme } from "./theme.js";

/** @type {Record<string, () => Promise<{show: (container: HTMLElement, route: any, shell: any) => any}>>} */
const PAGES = {
  calls: () => import("../calls/page.js"),
  call: () => import("../call/page.js"),
  deliveries: () => import("../deliveries/page.js"),
  operator: () => import("../operator/page.js"),
  sign_in: () => import("./sign_in.js"),
  nothing: async () => ({ show: nothing }),
};

const main = h("main", { id: "main", tabindex: -1 });
const skip = h("a", { class: "skip", href: "#main" }, "Skip to the content");
/** @type {{close?: () => void} | null} */
let shown = null;
/** @type {any} */
let shell = null;
let number = 0;

/** Show what stands at the address. @param {boolean} isFirst */
async function showPage(isFirst) {
  const mine = ++number;
  const at = route(location);
  shown?.close?.();
  shown = null;
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  if (at.page !== "sign_in" && !shell) await enter();
  if (mine !== number) return;
  shell?.mark(at.page);
  try {
    const page = await (PAGES[at.page] ?? PAGES.nothing)().catch(notLoaded);
    if (mine !== number) return;
    replace(main);
    if (!isFirst) {
      window.scrollTo(0, 0);
      main.focus({ preventScroll: true });
    }
    shown = page.show(main, at, shell);
  } catch (problem) {
    replace(main, broken(/** @type {any} */ (problem)));
  }
}

/** Learn who is signed in, and put the head above the page. */
async function enter() {
  const me = await whoAmI();
  if (shell) return;
  shell = makeShell(me);
  main.before(shell.head);
}

/** What the key is. A project's name in the path that is not one's own is answered by asking for a key. */
async function whoAmI() {
  const session = await readSession();
  if (session.signed_in) return get("/v1/me");
  toSignIn();
  return new Promise(() => {}); // until the browser is there
}

/** A part of the page that did not come, in plain words. @returns {never} */
function notLoaded() {
  throw new Problem(0, "unreachable", "The service does not answer, or has been updated.");
}

/** @param {HTMLElement} container */
function nothing(container) {
  document.title = "No such page · voicemem";
  container.append(h("section", { class: "panel gone-page" }, h("h1", null, "There is no such page"), h("p", null, link("/calls", "Back to calls"))));
}

/** @param {{detail?: string, message: string}} problem */
function broken(problem) {
  const again = h("button", { class: "btn", type: "button", on: { click: () => location.reload() } }, "Try again");
  return h("section", { class: "panel unreachable", role: "alert" }, h("h1", null, "This page cannot be shown"), h("p", null, problem.detail ?? problem.message), h("p", null, again, " ", link("/calls", "Back to calls")));
}

/** @param {boolean} isFirst */
const start = (isFirst) =>
  showPage(isFirst).catch((problem) => {
    if (problem.status !== 401) replace(main, broken(problem));
  });

startTheme();
document.body.append(skip, patterns(), main);
catchLinks();
const place = () => location.pathname + location.search;
let path = place();
const moved = () => {
  if (place() === path && shown) return; // only a part of the same page
  path = place();
  start(false);
};
window.addEventListener("queried", () => (path = place()));
// What could not be shown while the service was away is shown once it is back.
let wasAway = false;
window.addEventListener("answers", (event) => {
  const isBack = /** @type {CustomEvent} */ (event).detail;
  if (isBack && wasAway && main.querySelector(".unreachable")) location.reload();
  wasAway = !isBack;
});
window.addEventListener("popstate", moved);
window.addEventListener("moved", moved);
window.addEventListener("pageshow", (event) => event.persisted && location.reload());
start(true);
