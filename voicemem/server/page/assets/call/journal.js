// @ts-check
/** The tab of the raw journal: every entry as it was stored, by type and turn, with a place to link to. */
import { get } from "../base/api.js";
import { h, replace } from "../base/dom.js";
import { setQuery } from "../base/routes.js";
import { full, milliseconds, seconds } from "../base/times.js";

const PAGE = 200;
const SHOWN = 300; // characters of an entry, without its details
const BEFORE = 20; // entries that are shown before the one that is linked to
const LOOK_MS = 1000; // a call that runs is looked at at most this often
/** @type {Record<string, string>} */
const TYPES = { "": "All entries", "asr,asr.*,message": "Caller", "llm.*": "Reply", "tts.*": "Playback", "interrupt,resume": "Interruptions", "tool.*": "Tools", metric: "Metrics", "memory.*": "Memory", "session.*": "Session", refused: "Refused" };

/** @param {HTMLElement} container @param {{id: string, call?: any}} given */
export function show(container, { id, call }) {
  const list = h("tbody");
  const more = h("p", { class: "more" });
  const words = h("p", { class: "soft", role: "status" });
  const journal = { id, after: 0, rows: [], over: false, busy: false, closed: false, list, more, words, timer: 0 };
  const again = () => begin(journal);
  const heads = ["Position", "Received", "Type", "Turn", "Producer", "What"].map((head) => h("th", { scope: "col" }, head));
  const table = h("table", { class: "journal" }, h("caption", { class: "sr" }, "Entries of the journal, the oldest first"), h("thead", null, h("tr", null, ...heads)), list);
  container.append(bar(again), words, h("div", { class: "wide-table" }, table), more);
  begin(journal);
  const grown = () => {
    journal.timer = 0;
    if (journal.over) load(journal);
  };
  const unlisten = call?.listen(() => {
    if (!journal.timer) journal.timer = window.setTimeout(grown, LOOK_MS);
  });
  window.addEventListener("hashchange", again);
  return {
    close() {
      journal.closed = true;
      unlisten?.();
      clearTimeout(journal.timer);
      window.removeEventListener("hashchange", again);
    },
  };
}

/** @param {() => void} changed */
function bar(changed) {
  const query = new URLSearchParams(location.search);
  const set = (/** @type {Record<string, any>} */ values) => {
    setQuery(values);
    changed();
  };
  const options = Object.entries(TYPES).map(([types, words]) => h("option", { value: types, selected: types === (query.get("types") ?? "") }, words));
  const type = h("select", { "aria-label": "Type" }, ...options);
  type.addEventListener("change", () => set({ types: type.value }));
  const turn = h("input", { type: "number", min: 0, placeholder: "Turn", "aria-label": "Turn", value: query.get("turn") ?? "", class: "turn-number" });
  turn.addEventListener("change", () => set({ turn: turn.value }));
  return h("form", { class: "bar", on: { submit: (/** @type {Event} */ event) => event.preventDefault() } }, type, turn);
}

/** Which position the address names. */
const target = () => Number(/^#p(\d+)$/.exec(location.hash)?.[1] ?? 0);

/** @param {any} journal */
function begin(journal) {
  const wanted = target();
  const known = wanted && document.getElementById(`p${wanted}`);
  if (known) return mark(known);
  replace(journal.list);
  Object.assign(journal, { after: Math.max(0, wanted - BEFORE), rows: [], over: false, asked: (journal.asked ?? 0) + 1, busy: false });
  return load(journal);
}

/** Read the next entries and put them below. @param {any} journal */
async function load(journal) {
  if (journal.busy || journal.closed) return;
  journal.busy = true;
  const { asked } = journal;
  const query = new URLSearchParams(location.search);
  const rows = await read(journal, query.get("types"), query.get("turn")).catch((problem) => problem);
  if (asked !== journal.asked || journal.closed) return;
  journal.busy = false;
  if (!Array.isArray(rows)) {
    replace(journal.words, rows.detail ?? String(rows));
    return replace(journal.more, h("button", { class: "btn", type: "button", on: { click: () => load(journal) } }, "Try again"));
  }
  journal.rows.push(...rows);
  journal.after = rows.at(-1)?.position ?? journal.after;
  journal.over = rows.length < PAGE;
  journal.list.append(...rows.map(entry));
  replace(journal.words, journal.rows.length ? null : "No entries match these filters.");
  const button = h("button", { class: "btn", type: "button", on: { click: () => load(journal) } }, "Show more");
  replace(journal.more, h("span", null, `${journal.rows.length} shown`), journal.over ? null : button);
  const wanted = target() && document.getElementById(`p${target()}`);
  if (wanted && journal.rows.length === rows.length) mark(wanted);
}

/** @param {any} journal @param {string | null} types @param {string | null} turn @returns {Promise<any[]>} */
function read(journal, types, turn) {
  const path = `/v1/sessions/${encodeURIComponent(journal.id)}/events`;
  return get(path, { after: journal.after, limit: PAGE, native: true, types, turn_id: turn });
}

/** @param {HTMLElement} row */
function mark(row) {
  for (const other of row.parentElement?.querySelectorAll("[aria-current]") ?? []) other.removeAttribute("aria-current");
  row.setAttribute("aria-current", "true");
  row.scrollIntoView({ block: "center" });
}

/** @param {any} row */
function entry({ position, producer, seq, received_ms: received, event }) {
  const refused = event.type === "refused";
  const whole = h("details", null, h("summary", { dir: "auto" }, wordsOf(event)), h("pre", null, JSON.stringify(event, null, 2)));
  return h(
    "tr",
    { id: `p${position}` },
    h("td", { class: "num" }, h("a", { href: `#p${position}` }, position)),
    h("td", { class: "num soft", title: full(received) }, seconds(received)),
    h("td", { class: refused ? "bad mono" : "mono" }, event.type),
    h("td", { class: "num" }, event.turn_id === undefined ? "" : [h("span", { class: "phone" }, "turn "), event.turn_id]),
    h("td", { class: "soft" }, producer ? `${producer} ${seq ?? ""}` : "service"),
    h("td", { class: "what" }, whole),
  );
}

/** The part of an event that tells most, else all that it says beside what the row has. @param {any} event */
function wordsOf(event) {
  if (event.type === "metric") return `${event.name} ${milliseconds(event.latency_ms)}`;
  const words = event.text ?? event.content ?? event.code ?? event.name ?? event.reason ?? event.heard_text;
  if (typeof words === "string" && words) return words.slice(0, SHOWN);
  const { type, ts, seq, turn_id, id, item, ...rest } = event;
  const said = Object.entries(rest).map(([name, value]) => `${name}: ${JSON.stringify(value)}`).join(", ");
  return said.slice(0, SHOWN) || "details";
}
