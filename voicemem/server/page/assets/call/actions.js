// @ts-check
/** What can be done with a call: download it, end it, erase it. Each asks once; erasing wants the call's id. */
import { post, remove, url } from "../base/api.js";
import { ask } from "../base/dialog.js";
import { h, replace } from "../base/dom.js";
import { go } from "../base/routes.js";

const FORMATS = {
  vcon: "vCon",
  webvtt: "WebVTT",
  srt: "SRT",
  markdown: "Markdown",
  csv: "CSV",
  jsonl: "JSON lines",
};

/**
 * The buttons for what this key may do with the call as it is.
 * @param {HTMLElement} container
 * @param {import("./live.js").Call} call
 * @param {{me: {scopes: string[]}}} shell
 */
export function drawActions(container, call, shell) {
  const may = shell.me.scopes.includes("admin");
  const state = `${call.session.state} ${may}`;
  if (container.dataset.state === state) return;
  container.dataset.state = state;
  replace(
    container,
    download(call.id),
    may && call.session.state === "running" ? button("End session…", "btn", () => end(call)) : null,
    may ? button("Erase…", "btn danger", () => erase(call)) : null,
  );
}

/** @param {string} words @param {string} look @param {() => void} act */
const button = (words, look, act) => h("button", { class: look, type: "button", on: { click: act } }, words);

/** @param {string} id */
const pathOf = (id) => `/v1/sessions/${encodeURIComponent(id)}`;

/** A menu of the formats. @param {string} id */
function download(id) {
  const links = Object.entries(FORMATS).map(([format, words]) =>
    h("li", null, h("a", { href: url(`${pathOf(id)}/export`, { format }), download: "" }, words)),
  );
  const journal = h("li", null, h("a", { href: url(`${pathOf(id)}/events`), download: `${id}.jsonl` }, "Journal"));
  const menu = h("details", { class: "menu" }, h("summary", { class: "btn" }, "Download"), h("ul", null, ...links, journal));
  menu.addEventListener("keydown", (event) => {
    if (/** @type {KeyboardEvent} */ (event).key !== "Escape") return;
    menu.removeAttribute("open");
    menu.querySelector("summary")?.focus();
  });
  menu.addEventListener("focusout", (event) => {
    const next = /** @type {FocusEvent} */ (event).relatedTarget;
    if (next instanceof Node && !menu.contains(next)) menu.removeAttribute("open");
  });
  return menu;
}

/** @param {import("./live.js").Call} call */
function end(call) {
  ask({
    title: "End this session?",
    words: h("p", null, `This ends the memory’s session ${call.id}, not the phone call. Its webhooks are sent, and the agent can send nothing more for it.`),
    action: "End session",
    danger: true,
    run: () => post(`${pathOf(call.id)}/end`, {}),
  });
}

/** @param {import("./live.js").Call} call */
function erase(call) {
  ask({
    title: "Erase this call?",
    words: h("p", null, "Its messages, journal, working memory and memories are deleted for good. This cannot be undone."),
    action: "Erase for good",
    danger: true,
    typed: call.id,
    run: async () => {
      call.erasing = true; // the tail may say first that it is gone
      await remove(pathOf(call.id)).catch((problem) => {
        call.erasing = false;
        throw problem;
      });
      go("/calls", { erased: call.id });
    },
  });
}
