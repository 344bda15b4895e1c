// @ts-check
/** Which address shows which page, and links between them, which keep the project. */
import { base } from "./api.js";
import { h } from "./dom.js";

/** @typedef {{page: string, project: string | null, id: string, tab: string, query: URLSearchParams}} Route */

/** @type {Record<string, number>} how many names the address of a page has at most */
const DEEPEST = { calls: 2, call: 3, deliveries: 2, operator: 1, sign_in: 1 };
export const TABS = ["conversation", "timeline", "memory", "deliveries", "journal", "settings", "played"];

/** A part of an address as text. @param {string} text */
export function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a lone % in a typed address
  }
}

/** What an address shows. @param {{pathname: string, search: string}} address @returns {Route} */
export function route({ pathname, search }) {
  const [, project, rest] = /^\/ui(?:\/p\/([^/]+))?(?:\/(.*))?$/.exec(pathname) ?? ["", undefined, ""];
  const parts = (rest ?? "").split("/").map(decoded);
  const [first = "", id = "", tab = ""] = parts;
  const known = first === "calls" && id ? "call" : { "": "calls", "sign-in": "sign_in" }[first] ?? first;
  const page = parts.length <= DEEPEST[known] && (!tab || TABS.includes(tab)) ? known : "nothing";
  return {
    page,
    project: project === undefined ? null : decoded(project),
    id,
    tab: tab || (page === "call" ? "conversation" : ""),
    query: new URLSearchParams(search),
  };
}

/** The address of a page of this project. @param {string} path such as `/calls` */
export const address = (path) => `${base()}${path}`;

/** Show another page. @param {string} path @param {any} [state] what that page gets, once */
export function go(path, state = null) {
  history.pushState(state, "", address(path));
  window.dispatchEvent(new Event("moved"));
}

/**
 * Change the query of the page that is shown: it stays, and its address says what it shows.
 * @param {Record<string, any>} changes null and empty take a parameter away
 */
export function setQuery(changes) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value || value === 0) query.set(name, String(value));
    else query.delete(name);
  }
  const written = query.toString();
  if (written === location.search.slice(1)) return;
  history.pushState(null, "", location.pathname + (written ? `?${written}` : ""));
  window.dispatchEvent(new Event("queried"));
}

/** A link to a page of this project. @param {string} path @param {...any} children @returns {HTMLAnchorElement} */
export function link(path, ...children) {
  return h("a", { href: address(path) }, ...children);
}

/** Let links of the page show the next one without loading everything again. */
export function catchLinks() {
  document.addEventListener("click", (event) => {
    const target = /** @type {Element} */ (event.target).closest?.("a");
    if (!target || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const isPage = target.origin === location.origin && /^\/ui(\/|$)/.test(target.pathname);
    const isFile = target.pathname.includes("/v1/") || target.hasAttribute("download") || target.target;
    const isPlace = target.hash && target.pathname === location.pathname && target.search === location.search;
    if (!isPage || isFile || isPlace) return;
    event.preventDefault();
    history.pushState(null, "", target.href);
    window.dispatchEvent(new Event("moved"));
  });
}
