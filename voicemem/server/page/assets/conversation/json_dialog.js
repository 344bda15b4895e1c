// @ts-check
/** A dialog with JSON to read and to copy. */
import { h, replace } from "../base/dom.js";

/** Show what a request gives. @param {string} title @param {Promise<any>} read */
export async function showJson(title, read) {
  const text = h("pre", { tabindex: 0 }, "…");
  const copy = h("button", { class: "btn", type: "button", disabled: true }, "Copy");
  const close = h("button", { class: "btn", type: "button", on: { click: () => dialog.close() } }, "Close");
  const dialog = h(
    "dialog",
    { class: "json", "aria-label": title },
    h("header", null, h("h2", null, title), copy, close),
    text,
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  try {
    const written = JSON.stringify(await read, null, 2);
    replace(text, written);
    copy.removeAttribute("disabled");
    copy.addEventListener("click", () => copied(copy, text, written));
  } catch (problem) {
    replace(text, /** @type {any} */ (problem)?.detail ?? String(problem));
  }
}

/** Copy, or select it where the clipboard is closed (without https). */
async function copied(/** @type {HTMLElement} */ button, /** @type {HTMLElement} */ text, /** @type {string} */ written) {
  try {
    await navigator.clipboard.writeText(written);
    button.textContent = "Copied";
  } catch {
    getSelection()?.selectAllChildren(text);
    button.textContent = "Selected: copy it with the keyboard";
  }
}
