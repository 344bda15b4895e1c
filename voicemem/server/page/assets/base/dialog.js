// @ts-check
/** What is asked once before something is done, in a dialog that gives the focus back. */
import { h } from "./dom.js";

/**
 * Ask before an action; true when it was done. An error of the action is shown in the dialog, which stays. With `typed`,
 * that must be typed first.
 * @param {{title: string, words?: any, action: string, danger?: boolean, typed?: string, run: (form: FormData) => Promise<any>}} question
 * @returns {Promise<boolean>}
 */
export function ask({ title, words, action, danger = false, typed, run }) {
  const error = h("p", { class: "bad", role: "alert" });
  const yes = h("button", { class: danger ? "btn danger" : "btn main", type: "submit" }, action);
  const no = h("button", { class: "btn", type: "button" }, "Cancel");
  const input = typed ? h("input", { autocomplete: "off", spellcheck: "false", "aria-label": `Type ${typed} to confirm` }) : null;
  const label = typed ? h("label", null, "Type ", h("b", { class: "mono" }, typed), " to confirm", input) : null;
  const allow = () => (yes.disabled = input !== null && input.value.trim() !== typed);
  input?.addEventListener("input", allow);
  allow();
  const form = h("form", null, h("h2", { id: "asked" }, title), words, label, error, h("p", { class: "acts" }, no, yes));
  const dialog = h("dialog", { class: "ask", "aria-labelledby": "asked" }, form);
  return new Promise((done) => {
    let isDone = false;
    no.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => {
      dialog.remove();
      done(isDone);
    });
    form.addEventListener("submit", async (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      yes.disabled = true;
      try {
        await run(new FormData(form));
        isDone = true;
        dialog.close();
      } catch (problem) {
        error.textContent = /** @type {Error} */ (problem).message;
        allow();
      }
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Show something that is shown only once. @param {string} title @param {...any} words */
export function tell(title, ...words) {
  const close = h("button", { class: "btn main", type: "button", autofocus: true }, "Done");
  const dialog = h("dialog", { class: "ask", "aria-labelledby": "dialog-title" }, h("h2", { id: "dialog-title" }, title), ...words, h("p", { class: "acts" }, close));
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
