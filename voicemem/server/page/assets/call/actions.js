// @ts-check
/** What can be done with a call: download it, end it, erase it. Each asks once; erasing wants the call's id. */
import { post, remove, url } from "../base/api.js";
import { h, replace } from "../base/dom.js";

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
    may && call.session.state === "running" ? button("End call…", "btn", () => end(call)) : null,
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
    title: "End this call?",
    words: `The memory of ${call.id} is closed, and its webhooks are sent. The agent can send nothing more for it.`,
    verb: "End call",
    act: () => post(`${pathOf(call.id)}/end`, {}),
  });
}

/** @param {import("./live.js").Call} call */
function erase(call) {
  ask({
    title: "Erase this call?",
    words: "Its messages, journal and working memory will be gone for good, and so will its memories. Nobody can bring them back.",
    verb: "Erase for good",
    typed: call.id,
    act: async () => {
      await remove(pathOf(call.id));
      if (call.connection === "over") location.reload(); // of one that has ended, no tail tells it
    },
  });
}

/**
 * Ask once, and do it. What goes wrong is said in the dialog.
 * @param {{title: string, words: string, verb: string, typed?: string, act: () => Promise<any>}} question
 */
function ask({ title, words, verb, typed, act }) {
  const trouble = h("p", { class: "bad", role: "alert" });
  const input = typed ? h("input", { autocomplete: "off", spellcheck: "false", "aria-label": `Type ${typed} to confirm` }) : null;
  const yes = h("button", { class: "btn danger", type: "submit" }, verb);
  const no = button("Cancel", "btn", () => dialog.close());
  const label = typed ? h("label", null, "Type ", h("b", { class: "mono" }, typed), " to confirm", input) : null;
  const form = h("form", { method: "dialog" }, h("h2", null, title), h("p", null, words), label, trouble, h("div", { class: "acts" }, no, yes));
  const dialog = h("dialog", { class: "ask", "aria-label": title }, form);
  const check = () => yes.toggleAttribute("disabled", input !== null && input.value.trim() !== typed);
  input?.addEventListener("input", check);
  check();
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    yes.setAttribute("disabled", "");
    try {
      await act();
      dialog.close();
    } catch (problem) {
      replace(trouble, /** @type {any} */ (problem)?.detail ?? String(problem));
      check();
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
