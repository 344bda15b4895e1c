// @ts-check
/** A new endpoint: where it is, what it hears of, and its secret, once. */
import { post } from "../base/api.js";
import { ask, tell } from "../base/dialog.js";
import { h } from "../base/dom.js";
import { EVENTS } from "./row.js";

/** @param {() => void} changed */
export async function addEndpoint(changed) {
  let made = /** @type {any} */ (null);
  const choices = Object.entries(EVENTS).map(([number, words]) => h("label", { class: "toggle" }, h("input", { type: "checkbox", name: "event", value: number, checked: number === "103" }), `${words} ${number}`));
  const words = h(
    "div",
    { class: "fields" },
    h("label", null, "URL", h("input", { type: "url", name: "url", required: true, autofocus: true, placeholder: "https://crm.example/calls" })),
    h("label", null, "Name", h("input", { name: "description", maxlength: 100 })),
    h("fieldset", { class: "plain" }, h("legend", null, "Events"), h("div", { class: "toggles" }, ...choices)),
  );
  const run = async (/** @type {FormData} */ form) => {
    const types = form.getAll("event").map(Number);
    if (!types.length) throw new Error("Choose at least one event.");
    made = await post("/v1/webhooks", { url: form.get("url"), description: form.get("description"), event_types: types });
  };
  if (!(await ask({ title: "Add an endpoint", words, action: "Add", run }))) return;
  tell("Signing secret", h("p", null, "Copy it now: it is not shown again. Each webhook is signed with it."), h("p", null, h("code", { class: "command", tabindex: 0 }, made.secret)));
  made = null;
  changed();
}
