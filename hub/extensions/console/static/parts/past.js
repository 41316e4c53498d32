// @ts-check
/** Questions about the past: the fleet at a time, differences between two times, and what came before a cluster's fall. */
import { NAMES, RESOURCES, TABLE, get, listAll, pathOf } from "../core/api.js";
import { timeOf } from "../core/format.js";
import { differences, readable, relevant, short } from "./differences.js";

const PAGE = 100;
const UNITS = { s: 1000, m: 60e3, h: 3600e3, d: 86400e3 };
const SILENT = 'available != "True"';
const AGENTS = "system:open-cluster-management:";

/** @param {number} at @returns {string} the parameter `at` of the API */
export function timeParameter(at) {
  return new Date(at).toISOString();
}

/** @param {string} text as `?at=` takes it @returns {number} milliseconds; NaN for now and for a revision */
export function momentOf(text) {
  const ago = /^-(\d+)([smhd])$/.exec(text);
  if (ago) return Date.now() - Number(ago[1]) * UNITS[/** @type {keyof UNITS} */ (ago[2])];
  return /^\d+$/.test(text) ? NaN : timeOf(text);
}

/**
 * Numbers of clusters by acceptance and availability.
 * @param {number} at @param {AbortSignal} stop @returns {Promise<{accepted: boolean, available: string, count: number}[]>}
 */
export async function countsAt(at, stop) {
  const query = { groupBy: "accepted,available", at: timeParameter(at) };
  const table = await get(pathOf(RESOURCES.clusters), query, { accept: TABLE, stop });
  return (table.rows ?? []).map((/** @type {any} */ { cells: [accepted, available, count] }) => ({
    accepted: String(accepted) === "true",
    available: /^(True|False|Unknown)$/.test(available) ? available : "",
    count: Number(count),
  }));
}

/**
 * One page of the clusters at a time.
 * @param {number} at @param {string} where @param {string} next continue token @param {AbortSignal} [stop]
 * @returns {Promise<{items: any[], next: string}>}
 */
export async function clustersAt(at, where, next, stop) {
  const query = { at: timeParameter(at), where, limit: PAGE, continue: next };
  const page = await get(pathOf(RESOURCES.clusters), query, { stop });
  return { items: page.items ?? [], next: page.metadata?.continue ?? "" };
}

/** @param {number} at @param {string} where @param {AbortSignal} stop @returns {Promise<Map<string, any>>} metadata by name */
async function namesAt(at, where, stop) {
  const found = await listAll(pathOf(RESOURCES.clusters), { at: timeParameter(at), where }, { accept: NAMES, stop });
  return new Map(found.map(({ metadata }) => [metadata.name, metadata]));
}

/**
 * Clusters that differ between two times, by their revisions, so that no documents are read.
 * @param {number} from @param {number} to @param {AbortSignal} stop
 * @returns {Promise<{name: string, what: "added" | "deleted" | "changed" | "replaced"}[]>}
 */
export async function changedBetween(from, to, stop) {
  const [old, now] = await Promise.all([namesAt(from, "", stop), namesAt(to, "", stop)]);
  const found = [];
  for (const name of [...new Set([...old.keys(), ...now.keys()])].sort()) {
    const before = old.get(name);
    const after = now.get(name);
    if (before?.resourceVersion === after?.resourceVersion) continue;
    const kept = before?.uid === after?.uid ? "changed" : "replaced";
    found.push({ name, what: /** @type {any} */ (!before ? "added" : !after ? "deleted" : kept) });
  }
  return found;
}

/** @param {string} name @param {number} at @returns {Promise<any>} the cluster at a time; null: there was none */
async function clusterAt(name, at) {
  try {
    return await get(pathOf(RESOURCES.clusters, name), { at: timeParameter(at) });
  } catch (error) {
    if (/** @type {any} */ (error).code === 404) return null;
    throw error;
  }
}

/** @param {string} name @param {number} from @param {number} to @returns {Promise<import("./differences.js").Difference[]>} */
export async function differencesOf(name, from, to) {
  const [before, after] = await Promise.all([clusterAt(name, from), clusterAt(name, to)]);
  return differences(before && readable(before), after && readable(after));
}

/**
 * Changes of availability of all clusters, newest first.
 * @param {number} at @param {number} span milliseconds before it @param {AbortSignal} stop @returns {Promise<any[]>} ClusterTransitions
 */
export async function transitionsBefore(at, span, stop) {
  const fieldSelector = `since=${timeParameter(at - span)},until=${timeParameter(at)}`;
  return (await get(pathOf(RESOURCES.transitions), { fieldSelector, limit: PAGE }, { stop })).items ?? [];
}

/** @typedef {{at: number, source: string, by: string, text: string}} Entry of a time line */

/** @param {any} change of an ObjectHistory @returns {string} its fields on one line */
export function changeText(change) {
  if (change.type !== "MODIFIED") return change.type === "ADDED" ? "added" : "deleted";
  const fields = relevant(change.fields ?? []).map(({ path, before, after }) => {
    if (before === undefined) return `${path}: + ${short(after)}`;
    return after === undefined ? `${path}: − ${short(before)}` : `${path}: ${short(before)} → ${short(after)}`;
  });
  return fields.join("; ");
}

/** @param {string} name @param {number} since @param {number} until @param {AbortSignal} stop @returns {Promise<Entry[]>} */
async function historyOf(name, since, until, stop) {
  const query = { since: timeParameter(since), until: timeParameter(until) };
  const { changes = [] } = await get(pathOf(RESOURCES.clusters, name, "history"), query, { stop });
  return changes
    .map((/** @type {any} */ each) => ({ at: timeOf(each.time), source: "Cluster", by: each.actor, text: changeText(each) }))
    .filter((/** @type {Entry} */ { text }) => text);
}

/** @param {string} name @param {number} since @param {number} until @param {AbortSignal} stop @returns {Promise<Entry[]>} */
async function eventsOf(name, since, until, stop) {
  const fieldSelector = `involvedObject.kind=ManagedCluster,involvedObject.name=${name}`;
  const found = await listAll(pathOf(RESOURCES.events), { fieldSelector }, { stop });
  return found
    .map((each) => ({ at: lastSeen(each), source: "Event", by: each.type ?? "", text: `${each.reason}: ${each.message}` }))
    .filter(({ at }) => at >= since && at <= until);
}

/** @param {any} event @returns {number} the time of its last occurrence */
export function lastSeen(event) {
  const { series, lastTimestamp, eventTime, metadata } = event;
  return timeOf(series?.lastObservedTime || lastTimestamp || eventTime || metadata?.creationTimestamp);
}

/** @param {any} table @returns {Record<string, any>[]} its rows as objects by column name */
export function rowsOf(table) {
  const names = (table.columnDefinitions ?? []).map((/** @type {any} */ { name }) => name);
  return (table.rows ?? []).map((/** @type {any} */ { cells }) => Object.fromEntries(names.map((/** @type {string} */ name, /** @type {number} */ at) => [name, cells[at]])));
}

/**
 * Requests of people and programs, without those of agents about other clusters.
 * @param {string} name @param {number} since @param {number} until @param {AbortSignal} stop @returns {Promise<Entry[]>}
 */
async function requestsOf(name, since, until, stop) {
  const fieldSelector = `since=${timeParameter(since)},until=${timeParameter(until)}`;
  const table = await get(pathOf(RESOURCES.audit), { fieldSelector, sortBy: "-time", limit: 500, includeObject: "None" }, { accept: TABLE, stop });
  return rowsOf(table)
    .filter((/** @type {any} */ { User = "", Object: about = "" }) => !User.startsWith(AGENTS) || about.split("/").includes(name))
    .map((/** @type {any} */ row) => ({ at: timeOf(row.Time), source: "Request", by: row.User, text: `${row.Verb} ${row.Object} (${row.Code})` }));
}

/**
 * What happened until a moment, newest first, and the clusters that ceased to be available in the same time. A source that the
 * caller may not read, or that has no records, is named in `missing`.
 * @param {string} name @param {number} at @param {number} span milliseconds @param {AbortSignal} stop
 */
export async function before(name, at, span, stop) {
  const since = at - span;
  const until = at + 1000;
  /** @type {string[]} */
  const missing = [];
  const sources = [
    { what: "history", read: () => historyOf(name, since, until, stop) },
    { what: "Events", read: () => eventsOf(name, since, until, stop) },
    { what: "audit records", read: () => requestsOf(name, since, until, stop) },
  ];
  const found = await Promise.all(
    sources.map(({ what, read }) =>
      read().catch((error) => {
        if (stop.aborted) throw error;
        missing.push(`${what}: ${error.message}`);
        return /** @type {Entry[]} */ ([]);
      }),
    ),
  );
  const [then, now] = await Promise.all([namesAt(since, SILENT, stop), namesAt(until, SILENT, stop)]);
  const also = [...now.keys()].filter((each) => each !== name && !then.has(each));
  return { entries: found.flat().sort((one, other) => other.at - one.at), also, missing };
}
