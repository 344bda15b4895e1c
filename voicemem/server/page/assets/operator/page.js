// @ts-check
/** The operator's page: how the service does now, what fails, what was refused, its keys and its nodes. */
import { get } from "../base/api.js";
import { h, replace } from "../base/dom.js";
import { link } from "../base/routes.js";
import { keyCommand, readSession } from "../base/sign_in.js";
import { lasting } from "../deliveries/endpoints.js";
import { keysTable, nodesTable, refusedTable } from "./tables.js";
import { tiles } from "./tiles.js";

const LOOK_MS = 1_500;
const KEPT = 600; // 15 minutes

/** @param {HTMLElement} container @param {any} _route @param {any} shell */
export function show(container, _route, shell) {
  const page = { past: /** @type {any[]} */ ([]), shell, closed: false, keys: null, timer: 0 };
  const parts = { state: h("span", { role: "status" }), facts: h("span", { class: "soft" }), alerts: h("div"), figures: h("dl", { class: "tiles", hidden: true }), note: h("p", { class: "soft op-note" }), nodes: h("div"), refused: h("div"), keys: h("div") };
  container.append(h("div", { class: "title" }, h("h1", null, "Operator"), parts.state, parts.facts), parts.alerts, parts.figures, parts.note, parts.nodes, h("div", { class: "halves" }, parts.refused, parts.keys));
  document.title = "Operator · voicemem";
  const look = async () => {
    clearTimeout(page.timer);
    if (!document.hidden) await refresh(page, parts);
    if (!page.closed) page.timer = window.setTimeout(look, LOOK_MS);
  };
  look();
  if (shell.may) readKeys(page, parts);
  document.addEventListener("visibilitychange", look);
  return {
    close() {
      page.closed = true;
      clearTimeout(page.timer);
      document.removeEventListener("visibilitychange", look);
    },
  };
}

/** @param {any} page @param {any} parts */
async function refresh(page, parts) {
  const report = await get("/v1/operations").catch((problem) => problem);
  if (page.closed) return;
  if (report instanceof Error) {
    page.past.push(null);
    return say(parts.state, "bad", report.message);
  }
  page.past = [...page.past, report.service ? report : null].slice(-KEPT);
  if (report.ready) say(parts.state, "ok", "ready: the last commit is on disk");
  else say(parts.state, "bad", report.service?.draining ? "shutting down" : "not ready: the last commit failed");
  drawReport(page, parts, report);
}

/** Say how it is; nothing is said again that is said already. @param {HTMLElement} place @param {string} kind @param {string} words */
function say(place, kind, words) {
  if (place.textContent !== words) replace(place, h("span", { class: `state ${kind}` }, h("span", { class: `dot ${kind}` }), words));
}

/** @param {any} page @param {any} parts @param {any} report */
function drawReport(page, parts, report) {
  const { service } = report;
  replace(parts.facts, service ? `voicemem ${report.version} · up ${span(service.uptime_s)}` : `voicemem ${report.version} · ${report.sessions.running} live calls`);
  replace(parts.alerts, ...report.webhooks.map(alert));
  parts.figures.hidden = !service;
  if (!service) return replace(parts.note, "The figures of the whole service need a key of the project “default”.");
  replace(parts.figures, ...tiles(report, page.past));
  replace(parts.note, "The lines cover the last 15 minutes, while this page is open. For more, let Prometheus read ", h("code", null, "/metrics"), ".");
  replace(parts.nodes, service.nodes.length ? nodesTable(service.nodes) : null);
  replace(parts.refused, refusedTable(service.refused));
}

/** @param {any} endpoint */
function alert(endpoint) {
  const name = endpoint.id === "operator" ? "Operator’s endpoint" : endpoint.description || endpoint.id;
  const waits = `${endpoint.pending.toLocaleString("en")} ${endpoint.pending === 1 ? "delivery waits" : "deliveries wait"}`;
  const words = endpoint.disabled_reason ? "was disabled because it kept failing." : `has been failing for ${lasting(endpoint.failing_since)}; ${waits}.`;
  return h("p", { class: "alert" }, h("strong", { class: "bad" }, name), h("span", null, words), link(`/deliveries/${encodeURIComponent(endpoint.id)}`, "See its deliveries"));
}

/** 3 d 4 h, 4 h 5 min, 5 min, 12 s @param {number} seconds */
function span(seconds) {
  const [days, hours, minutes] = [Math.floor(seconds / 86_400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

/** @param {any} page @param {any} parts */
async function readKeys(page, parts) {
  const answer = await get("/v1/keys").catch(() => null);
  const command = answer?.keys.length === 0 ? keyCommand("admin", await readSession()) : "";
  if (page.closed || !answer) return;
  replace(parts.keys, keysTable(answer.keys, page.shell.me.key_id, () => readKeys(page, parts), command));
}
