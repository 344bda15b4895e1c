// @ts-check
/** The form that takes a key for a cookie. The key is sent once, and kept nowhere. */
import { ask } from "./api.js";
import { h, replace } from "./dom.js";
import { logo } from "./logo.js";

const SESSION = "/ui/session";
const PAGE = /^\/ui(\/(?!sign-in)[^\\]*)?$/;

/** @returns {Promise<{signed_in: boolean, keys_required: boolean, projects: {project: string, scopes: string[], key_id: string | null}[], key_command: string | null}>} */
export const readSession = () => ask("GET", SESSION);

/** The command that makes a key. @param {string} scope @param {{key_command: string | null} | null} session */
export const keyCommand = (scope, session) => `${session?.key_command ?? "voicemem keys create --store …"} --scope ${scope}`;

/** Sign out, of everything or of one project. @param {string} [project] */
export async function signOut(project) {
  await ask("DELETE", project ? `${SESSION}?${new URLSearchParams({ project })}` : SESSION);
  location.assign("/ui/sign-in");
}

/** @param {HTMLElement} container @param {{query: URLSearchParams}} route */
export function show(container, { query }) {
  const key = h("input", { type: "password", name: "password", id: "key", autocomplete: "current-password", placeholder: "vm_…", required: true, "aria-describedby": "key-error key-help", spellcheck: "false" });
  const name = h("input", { type: "text", name: "username", autocomplete: "username", value: "voicemem", class: "sr", tabindex: -1, "aria-hidden": "true", readonly: true });
  const error = h("p", { class: "bad", id: "key-error", role: "alert" });
  const button = h("button", { class: "btn main", type: "submit" }, "Sign in");
  const form = h("form", { method: "post", action: SESSION }, name, h("label", { for: "key" }, "API key"), key, error, button);
  form.addEventListener("submit", async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await ask("POST", SESSION, { key: key.value.trim() });
      key.value = "";
      location.assign(await nextPage(query));
    } catch (problem) {
      replace(error, explained(/** @type {any} */ (problem)));
      key.setAttribute("aria-invalid", "true");
      key.select();
      key.focus();
    } finally {
      button.disabled = false;
    }
  });
  const help = h("p", { class: "soft", id: "key-help" }, "Keys with the scope ", h("code", null, "read"), " can sign in; those with ", h("code", null, "admin"), " can also resend, end and erase. This page exchanges the key for a cookie and does not keep it.");
  const command = h("code", { class: "command" }, keyCommand("read", null));
  const make = h("p", { class: "soft" }, "Make one with ", command);
  readSession().then((session) => replace(command, keyCommand("read", session)), () => {});
  const title = query.get("add") ? "Add a project" : "Sign in";
  container.append(h("div", { class: "sign" }, h("p", { class: "word" }, logo(), "voicemem"), h("h1", null, title), form, help, make));
  document.title = `${title} · voicemem`;
  key.focus();
  return { close() {} };
}

/** Where to go on: the page that asked for a key, or that of the project that was added. @param {URLSearchParams} query */
async function nextPage(query) {
  const next = query.get("next") ?? "";
  if (PAGE.test(next.split(/[?#]/)[0])) return next;
  const { projects } = await readSession();
  const newest = projects.at(-1);
  return query.get("add") && newest ? `/ui/p/${encodeURIComponent(newest.project)}/calls` : "/ui/";
}

/** @param {{status: number, detail: string}} problem */
function explained({ status, detail }) {
  if (status === 401) return "This key is not known here, or has been revoked.";
  if (status === 429) return "Too many wrong keys. Wait a minute, then try again.";
  return detail;
}
