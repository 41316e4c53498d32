// @ts-check
/** The columns of the fleet's table, and those that the user has chosen. */
import { cores, duration, gibibytes, moment, shortId } from "../../core/format.js";
import { signal } from "../../core/ui.js";

/** @typedef {import("../../core/cluster.js").Cluster} Cluster */
/** @typedef {import("../../core/cluster.js").Session | undefined} Session */
/** @typedef {import("./beats.js").Extra | undefined} Extra */
/** @typedef {string | {text: string, tone?: string, note?: string}} Cell A text, its class or, for a state, the state; `note`: a text after it. */
/**
 * @typedef {object} Column Its functions run for each row of a frame while the table scrolls, except `about` and `text`.
 * @property {string} id
 * @property {string} title
 * @property {number} width the least, in pixels
 * @property {number} [grow] share of the space that is left
 * @property {string} [sort] the field that sorts it
 * @property {boolean} [numeric]
 * @property {(cluster: Cluster, session: Session, extra: Extra, now: number) => Cell} cell
 * @property {(cluster: Cluster, session: Session, extra: Extra) => string} [about] tooltip; without it the text
 * @property {(cluster: Cluster, session: Session, extra: Extra) => string | number} text for CSV
 */

const time = (/** @type {number} */ at) => (Number.isFinite(at) ? new Date(at).toISOString() : "");
const number = (/** @type {number} */ value) => (Number.isFinite(value) ? value : "");
const pairs = (/** @type {Record<string, string>} */ map) => Object.entries(map).map(([name, value]) => `${name}=${value}`).join(" ");

/** @param {Cluster} one @returns {string} the reason without the prefix that all reasons have; "": it says no more than the state */
export function shortReason(one) {
  return one.state === "Available" || one.reason === one.state ? "" : one.reason.replace(/^ManagedCluster|^HubCluster/, "");
}

/** @param {Cluster} one @param {Session} session @param {Extra} extra */
function sessionText(one, session, extra) {
  if (session) return session.replica || "open";
  if (extra?.agent === "(driver csr)") return "driver csr";
  return one.state === "Waiting" || one.state === "Never" ? "" : "no session";
}

/** @param {Cluster} one @returns {Cell} */
function addonsCell(one) {
  const bad = Object.entries(one.addons).filter(([, state]) => state !== "available");
  if (bad.length) return { text: bad.map(([name, state]) => `${name} ${state}`).join(", "), tone: "warn" };
  const count = Object.keys(one.addons).length;
  return count ? `${count} available` : "";
}

/** The usual columns fit into a window of 1,200 pixels. @type {Column[]} */
const COLUMNS = [
  { id: "name", title: "Name", width: 148, grow: 2, sort: "name", cell: (one) => one.name, text: (one) => one.name },
  {
    id: "state", title: "State", width: 114, grow: 2.4, sort: "state", text: (one) => `${one.state}${one.state === "Available" ? "" : ` ${one.reason}`}`,
    cell: (one) => ({ text: one.state, tone: one.state, note: shortReason(one) }), about: (one) => one.message,
  },
  { id: "since", title: "Since", width: 58, sort: "since", cell: (one, _session, _extra, now) => duration(now - one.since), about: (one) => moment(one.since), text: (one) => time(one.since) },
  {
    id: "session", title: "Session", width: 94, grow: 0.8, sort: "replica", text: sessionText,
    cell: (one, session, extra) => {
      const text = sessionText(one, session, extra);
      return text === "no session" ? { text, tone: "bad" } : shortId(text);
    },
    about: (one, session, extra) => (session ? `Agent ${session.agent} at ${session.replica} since ${moment(session.since)}` : sessionText(one, session, extra)),
  },
  { id: "beat", title: "Last beat", width: 86, sort: "lastBeat", cell: (_one, _session, extra, now) => (extra ? duration(now - extra.beat) : ""), about: (_one, _session, extra) => moment(extra?.beat ?? NaN), text: (_one, _session, extra) => time(extra?.beat ?? NaN) },
  { id: "certificate", title: "Certificate", width: 92, sort: "certificateExpiresIn", cell: (_one, _session, extra) => ({ text: extra?.ends ?? "", tone: extra?.isEnding ? "warn" : "" }), text: (_one, _session, extra) => extra?.ends ?? "" },
  { id: "set", title: "Set", width: 64, grow: 1, sort: "set", cell: (one) => one.set, text: (one) => one.set },
  { id: "version", title: "Version", width: 74, grow: 0.4, sort: "version", cell: (one) => one.version, text: (one) => one.version },
  { id: "nodes", title: "Nodes", width: 68, sort: "nodes", numeric: true, cell: (one) => String(number(one.nodes)), text: (one) => number(one.nodes) },
  { id: "cpu", title: "CPU", width: 50, sort: "cpu", numeric: true, cell: (one) => cores(one.cpu), text: (one) => number(one.cpu) },
  { id: "memory", title: "Memory", width: 77, sort: "memory", numeric: true, cell: (one) => gibibytes(one.memory), text: (one) => number(one.memory) },
  { id: "agent", title: "Agent", width: 64, grow: 0.3, sort: "agentVersion", cell: (one, session) => session?.agentVersion || one.agentVersion, text: (one, session) => session?.agentVersion || one.agentVersion },
  { id: "flaps", title: "Flaps", width: 59, sort: "flaps", numeric: true, cell: (_one, _session, extra) => ({ text: extra?.flaps ? String(extra.flaps) : "", tone: "warn" }), text: (_one, _session, extra) => extra?.flaps ?? "" },
  { id: "addons", title: "Add-ons", width: 84, grow: 1, cell: addonsCell, about: (one) => pairs(one.addons), text: (one) => pairs(one.addons) },
  { id: "taints", title: "Taints", width: 90, grow: 1, cell: (one) => pairs(one.taints), text: (one) => pairs(one.taints) },
  { id: "age", title: "Age", width: 62, sort: "age", cell: (one, _session, _extra, now) => duration(now - one.created), about: (one) => moment(one.created), text: (one) => time(one.created) },
];
const USUAL = ["name", "state", "since", "session", "beat", "certificate", "set", "version", "nodes", "cpu", "memory", "agent", "flaps", "addons"];
const KEPT = "muster-console-columns";
const LABEL = "label:";

/** @param {string} key of a label @returns {Column} */
function labelColumn(key) {
  const sort = /^[A-Za-z_]\w*$/.test(key) ? `labels.${key}` : `labels["${key}"]`;
  return { id: LABEL + key, title: key, width: 90, grow: 1, sort, cell: (one) => one.labels[key] ?? "", text: (one) => one.labels[key] ?? "" };
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
