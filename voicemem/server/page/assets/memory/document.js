// @ts-check
/** The document that a call works on: as it is, and how any two of its versions differ. */
import { get } from "../base/api.js";
import { h, replace } from "../base/dom.js";
import { full } from "../base/times.js";
import { difference, linesOf } from "./difference.js";

const VERSIONS = 100;
/** @type {Record<string, string>} */
const SIGNS = { same: "  ", new: "+ ", gone: "- " };

/** @param {HTMLElement} container @param {string} path of the session @param {any} config */
export function documentPanels(container, path, config) {
  const title = h("h2", null, "Working memory");
  const choice = h("span", { class: "versions" });
  const text = h("div", { class: "document" }, h("p", { class: "soft" }, "…"));
  const list = h("ol", { class: "vers" });
  const older = h("p", null);
  const versions = h("section", { class: "panel", hidden: true }, h("header", null, h("h2", null, "Versions")), list, older);
  container.append(h("section", { class: "panel", "aria-label": "Working memory" }, h("header", null, title, choice), text), versions);
  const panel = { path, title, choice, text, list, older, versions, config, known: [], next: null, newest: -1 };
  return { refresh: () => refresh(panel).catch((problem) => explain(panel, problem)) };
}

/** @param {any} panel @param {any} problem */
function explain(panel, problem) {
  panel.versions.hidden = true;
  replace(panel.choice);
  const words = problem.code === "no_user" ? "This call shares the working memory of its user, but has no user." : (problem.detail ?? String(problem));
  replace(panel.text, h("p", { class: "soft" }, words));
}

/** Show the newest version, unless it is shown already. @param {any} panel */
async function refresh(panel) {
  const now = await get(`${panel.path}/working-memory`);
  if (now.version === panel.newest) return;
  panel.newest = now.version;
  const whose = now.scope === "user" ? ` of ${panel.config?.user_id ?? "the user"}` : " of this call";
  replace(panel.title, "Working memory", whose);
  const answer = await get(`${panel.path}/working-memory/versions`, { limit: VERSIONS });
  panel.known = answer.versions;
  drawVersions(panel);
  await compare(panel, Math.max(0, now.version - 1), now.version);
}

/** @param {any} panel */
function drawVersions(panel) {
  panel.versions.hidden = panel.known.length === 0;
  const items = panel.known.map((/** @type {any} */ one) => {
    const button = h("button", { class: "link", type: "button", title: "Show what it changed", "aria-label": `Version ${one.version}: show what it changed` }, String(one.version));
    button.addEventListener("click", () => compare(panel, one.version - 1, one.version));
    return h("li", null, button, h("span", null, one.operation), h("span", { class: "soft" }, [writer(one.by), full(one.updated_at)].filter(Boolean).join(" · ")));
  });
  replace(panel.list, ...items);
  const oldest = panel.known.at(-1)?.version ?? 1;
  const more = h("button", { class: "btn", type: "button" }, "Older versions");
  more.addEventListener("click", async () => {
    const { versions } = await get(`${panel.path}/working-memory/versions`, { limit: VERSIONS, before: oldest });
    panel.known.push(...versions);
    drawVersions(panel);
  });
  replace(panel.older, panel.known.length >= VERSIONS && oldest > 1 ? more : null);
}

/** @param {any} by */
const writer = (by) => (by ? ["by", by.session_id, by.producer ? `(${by.producer})` : ""].filter(Boolean).join(" ") : "");

/** Show one version and mark what differs from another. @param {any} panel @param {number} from @param {number} to */
async function compare(panel, from, to) {
  const [before, after] = await Promise.all([contentOf(panel, from), contentOf(panel, to)]);
  const lines = difference(before, after);
  const changed = from !== to && from > 0;
  replace(panel.choice, panel.newest > 0 ? chooser(panel, from, to) : null);
  if (!after.length && !before.length) {
    replace(panel.text, h("p", { class: "soft" }, "Nothing has been written yet."));
    return;
  }
  replace(panel.text, h("pre", { tabindex: 0, "aria-label": "The document" }, ...lines.filter(({ kind }) => changed || kind !== "gone").map((line) => drawn(line, changed))));
}

/** @param {import("./difference.js").Line} line @param {boolean} changed */
function drawn({ kind, line }, changed) {
  if (!changed) return h("span", { class: "line" }, line, "\n");
  const words = [h("span", { class: "sign" }, SIGNS[kind]), line, "\n"];
  if (kind === "same") return h("span", { class: "line" }, ...words);
  return h(kind === "new" ? "ins" : "del", { class: "line" }, ...words);
}

/** @param {any} panel @param {number} version @returns {Promise<string[]>} */
async function contentOf(panel, version) {
  if (version < 1) return [];
  const answer = await get(`${panel.path}/working-memory`, { version });
  return linesOf(answer.content);
}

/** @param {any} panel @param {number} from @param {number} to */
function chooser(panel, from, to) {
  const pick = (/** @type {string} */ label, /** @type {number} */ current, /** @type {boolean} */ withNone) => {
    const numbers = panel.known.map((/** @type {any} */ one) => one.version);
    if (current > 0 && !numbers.includes(current)) numbers.push(current);
    const options = numbers.map((/** @type {number} */ number) => h("option", { value: number, selected: number === current }, `version ${number}`));
    if (withNone) options.push(h("option", { value: 0, selected: current < 1 }, "nothing"));
    return h("select", { "aria-label": label }, ...options);
  };
  const [left, right] = [pick("Compare with", from, true), pick("Version", to, false)];
  left.addEventListener("change", () => compare(panel, Number(left.value), to));
  right.addEventListener("change", () => compare(panel, from, Number(right.value)));
  return [right, h("span", { class: "soft" }, "against"), left];
}
