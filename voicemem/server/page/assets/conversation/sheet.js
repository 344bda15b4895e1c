// @ts-check
/** What stands beside the conversation; where there is no room beside it, a sheet that a button opens. */
import { h } from "../base/dom.js";

/** @param {HTMLElement} aside @param {string} words of its button */
export function sheet(aside, words) {
  const close = h("button", { class: "btn plain sheet-close", type: "button" }, "Close");
  const button = h("button", { class: "btn sheet-open", type: "button", "aria-expanded": "false", "aria-controls": "beside" }, words);
  aside.id = "beside";
  aside.prepend(close);
  const set = (/** @type {boolean} */ isOpen) => {
    if (isOpen === aside.classList.contains("open")) return;
    aside.classList.toggle("open", isOpen);
    button.setAttribute("aria-expanded", String(isOpen));
    (isOpen ? close : button).focus({ preventScroll: true });
  };
  button.addEventListener("click", () => set(!aside.classList.contains("open")));
  close.addEventListener("click", () => set(false));
  aside.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => event.key === "Escape" && set(false));
  return { button, close: () => set(false) };
}
