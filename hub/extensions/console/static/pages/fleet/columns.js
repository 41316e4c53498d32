// @ts-check
/** The columns of the fleet's table, and those that the user has chosen. */
import { Ago, StateBadge } from "../../components/basics.js";
import { cores, gibibytes, moment, shortId } from "../../core/format.js";
import { href } from "../../core/router.js";
import { html, signal } from "../../core/ui.js";
import { parseDuration } from "./beats.js";

/** @typedef {import("../../core/cluster.js").Cluster} Cluster */
/** @typedef {import("../../core/cluster.js").Session | undefined} Session */
/** @typedef {import("./beats.js").Extra | undefined} Extra */
/**
 * @typedef {object} Column
 * @property {string} id
 * @property {string} title
 * @property {string} width of CSS grid
 * @property {string} [sort] the field that sorts it
 * @property {boolean} [numeric]
 * @property {(cluster: Cluster, session: Session, extra: Extra) => any} cell
 * @property {(cluster: Cluster, session: Session, extra: Extra) => string | number} text for CSV
 */

const time = (/** @type {number} */ at) => (Number.isFinite(at) ? new Date(at).toISOString() : "");
const number = (/** @type {number} */ value) => (Number.isFinite(value) ? value : "");
const pairs = (/** @type {Record<string, string>} */ map) => Object.entries(map).map(([name, value]) => `${name}=${value}`).join(" ");
const none = html`<span class="muted">–</span>`;

/** @param {string} text @param {string} [tone] */
function plain(text, tone = "") {
  return text ? html`<span class=${tone} title=${text}>${text}</span>` : none;
}

/** @param {string | undefined} ends of a certificate @returns {boolean} whether it has expired, or does within a week */
function isSoon(ends = "") {
  return ends === "expired" || parseDuration(ends) < 7 * 864e5;
}

/** @param {Cluster} one @returns {string} the reason without the prefix that all reasons have */
export function shortReason(one) {
  return one.state === "Available" ? "" : one.reason.replace(/^ManagedCluster|^HubCluster/, "");
}

/** @param {Cluster} one @param {Session} session @param {Extra} extra */
function sessionText(one, session, extra) {
  if (session) return session.replica || "open";
  if (extra?.agent === "(driver csr)") return "driver csr";
  return one.state === "Waiting" || one.state === "Never" ? "" : "no session";
}

/** @type {Column[]} */
const COLUMNS = [
  { id: "name", title: "Name", width: "minmax(150px, 2fr)", sort: "name", cell: (one) => html`<a href=${href("cluster", [one.name])} data-testid="cluster-link">${one.name}</a>`, text: (one) => one.name },
  {
    id: "state", title: "State", width: "minmax(220px, 1.7fr)", sort: "state", text: (one) => `${one.state}${one.state === "Available" ? "" : ` ${one.reason}`}`,
    cell: (one) => html`<span class="state-cell" title=${one.message}><${StateBadge} state=${one.state} /><span class="muted">${shortReason(one)}</span></span>`,
  },
  { id: "since", title: "Since", width: "76px", sort: "since", cell: (one) => html`<${Ago} at=${one.since} />`, text: (one) => time(one.since) },
  {
    id: "session", title: "Session", width: "minmax(96px, .8fr)", sort: "replica", text: sessionText,
    cell: (one, session, extra) => {
      const text = sessionText(one, session, extra);
      const about = session ? `Agent ${session.agent} at ${session.replica} since ${moment(session.since)}` : text;
      return text ? html`<span class=${text === "no session" ? "bad" : ""} title=${about} data-testid="session">${shortId(text)}</span>` : none;
    },
  },
  { id: "beat", title: "Last beat", width: "92px", sort: "lastBeat", cell: (_one, _session, extra) => (extra ? html`<span data-testid="beat"><${Ago} at=${extra.beat} /></span>` : none), text: (_one, _session, extra) => time(extra?.beat ?? NaN) },
  { id: "certificate", title: "Certificate", width: "100px", sort: "certificateExpiresIn", cell: (_one, _session, extra) => plain(extra?.ends ?? "", isSoon(extra?.ends) ? "warn" : ""), text: (_one, _session, extra) => extra?.ends ?? "" },
  { id: "set", title: "Set", width: "minmax(80px, 1fr)", sort: "set", cell: (one) => plain(one.set), text: (one) => one.set },
  { id: "version", title: "Version", width: "86px", sort: "version", cell: (one) => plain(one.version), text: (one) => one.version },
  { id: "nodes", title: "Nodes", width: "70px", sort: "nodes", numeric: true, cell: (one) => plain(String(number(one.nodes))), text: (one) => number(one.nodes) },
  { id: "cpu", title: "CPU", width: "62px", sort: "cpu", numeric: true, cell: (one) => plain(cores(one.cpu)), text: (one) => number(one.cpu) },
  { id: "memory", title: "Memory", width: "86px", sort: "memory", numeric: true, cell: (one) => plain(gibibytes(one.memory)), text: (one) => number(one.memory) },
  { id: "agent", title: "Agent", width: "80px", sort: "agentVersion", cell: (one, session) => plain(session?.agentVersion || one.agentVersion), text: (one, session) => session?.agentVersion || one.agentVersion },
  { id: "flaps", title: "Flaps", width: "66px", sort: "flaps", numeric: true, cell: (_one, _session, extra) => plain(extra?.flaps ? String(extra.flaps) : "", "warn"), text: (_one, _session, extra) => extra?.flaps ?? "" },
  {
    id: "addons", title: "Add-ons", width: "minmax(90px, 1fr)", text: (one) => pairs(one.addons),
    cell: (one) => {
      const bad = Object.entries(one.addons).filter(([, state]) => state !== "available");
      const count = Object.keys(one.addons).length;
      if (!count) return none;
      return html`<span title=${pairs(one.addons)} class=${bad.length ? "warn" : ""}>${bad.length ? bad.map(([name, state]) => `${name} ${state}`).join(", ") : `${count} available`}</span>`;
    },
  },
  { id: "taints", title: "Taints", width: "minmax(90px, 1fr)", cell: (one) => plain(pairs(one.taints)), text: (one) => pairs(one.taints) },
  { id: "age", title: "Age", width: "62px", sort: "age", cell: (one) => html`<${Ago} at=${one.created} />`, text: (one) => time(one.created) },
];
const USUAL = ["name", "state", "since", "session", "beat", "certificate", "set", "version", "nodes", "cpu", "memory", "agent", "flaps", "addons"];
const KEPT = "muster-console-columns";
const LABEL = "label:";

/** @param {string} key of a label @returns {Column} */
function labelColumn(key) {
  const sort = /^[A-Za-z_]\w*$/.test(key) ? `labels.${key}` : `labels["${key}"]`;
  return { id: LABEL + key, title: key, width: "minmax(90px, 1fr)", sort, cell: (one) => plain(one.labels[key] ?? ""), text: (one) => one.labels[key] ?? "" };
}

/** @returns {string[]} */
function kept() {
  try {
    const found = JSON.parse(localStorage.getItem(KEPT) ?? "null");
    return Array.isArray(found) ? found.map(String) : USUAL;
  } catch {
    return USUAL;
  }
}

/** @param {string[]} ids @returns {Column[]} the columns in their order; those of labels follow the set */
export function columnsOf(ids) {
  const labels = ids.filter((id) => id.startsWith(LABEL)).map((id) => labelColumn(id.slice(LABEL.length)));
  return COLUMNS.filter((column) => column.id === "name" || ids.includes(column.id)).flatMap((column) => (column.id === "set" ? [column, ...labels] : [column])).concat(ids.includes("set") ? [] : labels);
}

const ids = signal(kept());
/** The columns that are shown. */
export const columns = signal(columnsOf(ids.value));
/** All columns that can be chosen besides labels. */
export const choices = COLUMNS.filter((column) => column.id !== "name").map(({ id, title }) => ({ id, title }));

/** @param {string} id @param {boolean} on */
export function choose(id, on) {
  ids.value = on ? [...ids.value.filter((each) => each !== id), id] : ids.value.filter((each) => each !== id);
  localStorage.setItem(KEPT, JSON.stringify(ids.value));
  columns.value = columnsOf(ids.value);
}

/** @param {string} id */
export function isChosen(id) {
  return ids.value.includes(id);
}

/** @returns {string[]} keys of labels that have a column */
export function chosenLabels() {
  return ids.value.filter((id) => id.startsWith(LABEL)).map((id) => id.slice(LABEL.length));
}

/** @param {string} key of a label @param {boolean} on */
export function chooseLabel(key, on) {
  choose(LABEL + key, on);
}
