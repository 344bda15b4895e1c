// @ts-check
/** What stands around every page: its name, where one can go, whose calls these are, and what needs attention. */
import { get } from "./api.js";
import { h, replace } from "./dom.js";
import { logo } from "./logo.js";
import { address, link } from "./routes.js";
import { readSession, signOut } from "./sign_in.js";
import { themeSwitch } from "./theme.js";

const PAGES = { calls: "Calls", deliveries: "Deliveries", operator: "Operator" };
const HEALTH_MS = 10_000;
const AGAIN_MS = 2000; // while the service is away
const ADD = "\u0000add"; // no project is called so

/** @typedef {{project: string, scopes: string[], key_id: string | null, name: string | null, keys_required: boolean, version: string}} Me */

/** Make the shell for who is signed in. @param {Me} me */
export function makeShell(me) {
  const nav = h("nav", { "aria-label": "Main" });
  const who = h("div", { class: "who" });
  const failing = h("span", { class: "count" });
  const away = h("p", { class: "away", role: "alert", hidden: true });
  const head = h("header", { class: "head" }, h("a", { class: "word", href: address("/calls") }, logo(), "voicemem"), nav, who, away);
  window.addEventListener("answers", (event) => {
    away.hidden = /** @type {CustomEvent} */ (event).detail;
    away.textContent = away.hidden ? "" : "The service does not answer. What you see may be out of date. Trying again…";
  });
  const shell = {
    me,
    head,
    /** Whether the key may do more than look. */
    may: me.scopes.includes("admin"),
    /** Say which page is shown. @param {string} page */
    mark(page) {
      const links = Object.entries(PAGES).map(([name, words]) => {
        const made = link(`/${name}`, words, name === "deliveries" ? failing : null);
        if (name === page || (name === "calls" && page === "call")) made.setAttribute("aria-current", "page");
        return made;
      });
      replace(nav, ...links);
    },
  };
  drawWho(who, me);
  watchEndpoints(failing);
  return shell;
}

/** @param {HTMLElement} who @param {Me} me */
function drawWho(who, me) {
  const place = h("span", { class: "place" });
  const key = me.keys_required ? `${me.scopes.includes("admin") ? "admin" : "read"} key ${me.name ?? me.key_id ?? ""}` : null;
  const leave = me.keys_required ? h("button", { class: "btn plain", type: "button", on: { click: () => signOut() } }, "Sign out") : null;
  const tag = key ? h("span", { class: "tag hide", title: "Everything you do here is done with this key" }, key) : null;
  replace(who, place, tag, themeSwitch(), leave);
  if (me.keys_required) drawProjects(place, me.project);
}

/** The choice between projects; a key belongs to one of them. @param {HTMLElement} place @param {string} current */
async function drawProjects(place, current) {
  const { projects } = await readSession();
  const choices = projects.map(({ project }) => h("option", { value: project, selected: project === current }, project));
  const select = h("select", { "aria-label": "Project" }, ...choices, h("option", { value: ADD }, "Add a project…"));
  select.addEventListener("change", () => {
    location.assign(select.value === ADD ? "/ui/sign-in?add=1" : `/ui/p/${encodeURIComponent(select.value)}/calls`);
  });
  replace(place, select);
}

/** Keep the head's count of endpoints that fail. @param {HTMLElement} count */
function watchEndpoints(count) {
  const look = async () => {
    if (document.hidden) return;
    const answer = await get("/v1/operations").catch(() => null);
    if (answer) replace(count, answer.webhooks.length ? ` ${answer.webhooks.length} failing` : null);
  };
  look();
  setInterval(look, HEALTH_MS);
  let again = 0;
  window.addEventListener("answers", (event) => {
    clearTimeout(again);
    if (!(/** @type {CustomEvent} */ (event).detail)) again = window.setTimeout(look, AGAIN_MS);
  });
  document.addEventListener("visibilitychange", look);
}
