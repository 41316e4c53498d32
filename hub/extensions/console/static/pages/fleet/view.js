// @ts-check
/** Which clusters the table shows, and in which order. Pure functions. */
import { STATES } from "../../core/cluster.js";
import { versionParts } from "../../core/format.js";

/** @typedef {import("../../core/cluster.js").Cluster} Cluster */
/** @typedef {import("../../core/cluster.js").Session} Session */
/** @typedef {string | number | readonly number[] | undefined} Place undefined: last in both directions */
/** @typedef {{word: string, descending: boolean}} SortKey */
/**
 * @typedef {object} Wanted
 * @property {string} tile "": all
 * @property {string} sort as `--sort-by`; "": by name
 * @property {readonly string[] | null} matches names that the hub selects, in its order; null: no condition
 * @property {ReadonlySet<string>} waiting clusters with a request that waits
 */

/** @type {Record<string, {title: string, where: string, about: string, selects: (cluster: Cluster, waiting: ReadonlySet<string>) => boolean}>} */
export const TILES = {
  available: { title: "Available", where: 'available == "True"', about: "The agent beats and the API server answers.", selects: (one) => one.state === "Available" },
  unavailable: { title: "Unavailable", where: 'available == "False"', about: "The agent reports that the API server does not answer.", selects: (one) => one.state === "Unavailable" },
  silent: { title: "Silent", where: 'accepted && available == "Unknown" && reason != "Revoked"', about: "Unknown: no heartbeat within the grace period.", selects: (one) => one.state === "Unknown" },
  waiting: { title: "Waiting for a decision", where: "!accepted && !has(conditions.HubAcceptedManagedCluster)", about: "The cluster is not accepted, or a certificate request is not decided.", selects: (one, waiting) => one.state === "Waiting" || waiting.has(one.name) },
  revoked: { title: "Revoked", where: 'reason == "Revoked"', about: "The agent's certificates are revoked.", selects: (one) => one.state === "Revoked" },
};

const severity = new Map(["Unavailable", "Unknown", "Revoked", "Waiting", "Never", "Denied", "Available"].map((state, place) => [state, place]));

/** Fields that this page sorts by itself. The hub sorts by all others. @type {Record<string, (cluster: Cluster, session: Session | undefined) => Place>} */
const PLACES = {
  name: (one) => one.name,
  state: (one) => severity.get(one.state),
  since: (one) => -one.since,
  reason: (one) => one.reason || undefined,
  set: (one) => one.set || undefined,
  age: (one) => -one.created,
  connected: (_one, session) => (session ? 1 : 0),
  replica: (_one, session) => session?.replica || undefined,
  version: (one) => (one.version ? versionParts(one.version) : undefined),
  "version.minor": (one) => (one.version ? versionParts(one.version).slice(0, 2) : undefined),
  agentVersion: (one) => (one.agentVersion ? versionParts(one.agentVersion) : undefined),
  nodes: (one) => one.nodes,
  cpu: (one) => one.cpu,
  memory: (one) => one.memory,
};

/** @param {string} sort @returns {SortKey[]} */
export function sortKeys(sort) {
  const parts = sort.match(/(?:[^,"']|"[^"]*"|'[^']*')+/g) ?? [];
  return parts.map((part) => ({ word: part.trim().replace(/^-/, ""), descending: part.trim().startsWith("-") })).filter((key) => key.word);
}

/** @param {string} word @returns {((cluster: Cluster, session: Session | undefined) => Place) | undefined} undefined: only the hub has the values */
function placeOf(word) {
  const label = /^labels(?:\.([\w-]+)|\["([^"]+)"\])$/.exec(word);
  const key = label?.[1] ?? label?.[2];
  return key === undefined ? PLACES[word] : (one) => one.labels[key];
}

/** @param {string} sort @returns {boolean} whether the hub must sort */
export function sortsRemotely(sort) {
  return sortKeys(sort).some((key) => !placeOf(key.word));
}

/** @param {Place} left @param {Place} right @returns {number} */
export function compare(left, right) {
  if (typeof left === "object" && typeof right === "object") {
    for (let index = 0; index < left.length || index < right.length; index++) {
      const difference = (left[index] ?? -1) - (right[index] ?? -1);
      if (difference) return difference;
    }
    return 0;
  }
  return left === right ? 0 : /** @type {any} */ (left) < /** @type {any} */ (right) ? -1 : 1;
}

/** @param {Place} place */
function isMissing(place) {
  return place === undefined || (typeof place === "number" && Number.isNaN(place));
}

/**
 * The names in the order of the table.
 * @param {ReadonlyMap<string, Cluster>} clusters @param {ReadonlyMap<string, Session>} sessions @param {Wanted} wanted @returns {string[]}
 */
export function arrange(clusters, sessions, { tile, sort, matches, waiting }) {
  const selects = TILES[tile]?.selects;
  /** @type {Cluster[]} */
  const found = [];
  for (const one of matches ? matches.map((name) => clusters.get(name)) : clusters.values()) {
    if (one && (!selects || selects(one, waiting))) found.push(one);
  }
  if (matches && sortsRemotely(sort)) return found.map((one) => one.name);
  if (!sort || sort === "name") return found.map((one) => one.name).sort();
  const keys = [...sortKeys(sort), { word: "name", descending: false }];
  const rows = found.map((one) => ({ name: one.name, places: keys.map((key) => placeOf(key.word)?.(one, sessions.get(one.name))) }));
  rows.sort((left, right) => {
    for (const [index, { descending }] of keys.entries()) {
      const [one, other] = [left.places[index], right.places[index]];
      if (isMissing(one) || isMissing(other)) {
        if (isMissing(one) !== isMissing(other)) return isMissing(one) ? 1 : -1;
        continue;
      }
      const order = compare(one, other);
      if (order) return descending ? -order : order;
    }
    return 0;
  });
  return rows.map((row) => row.name);
}

/** @param {readonly string[]} before @param {readonly string[]} after @returns {number} rows that appear, disappear or move */
export function countMoves(before, after) {
  const places = new Map(before.map((name, place) => [name, place]));
  /** @type {number[]} ends of increasing sequences, by length: the longest one stays in place */
  const ends = [];
  let common = 0;
  for (const name of after) {
    const place = places.get(name);
    if (place === undefined) continue;
    common += 1;
    let [low, high] = [0, ends.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (/** @type {number} */ (ends[middle]) < place) low = middle + 1;
      else high = middle;
    }
    ends[low] = place;
  }
  return before.length - common + (after.length - common) + (common - ends.length);
}

/** @typedef {{name: string, total: number, states: Record<string, number>}} Bar */

/**
 * Counts by a key and state, the largest first; beyond `most` they are added up as "others".
 * @param {Iterable<Cluster>} clusters @param {(cluster: Cluster) => string} keyOf @param {number} most @returns {Bar[]}
 */
export function bars(clusters, keyOf, most) {
  /** @type {Map<string, Bar>} */
  const found = new Map();
  for (const one of clusters) {
    const name = keyOf(one);
    let bar = found.get(name);
    if (!bar) found.set(name, (bar = { name, total: 0, states: {} }));
    bar.total += 1;
    bar.states[one.state] = (bar.states[one.state] ?? 0) + 1;
  }
  const sorted = [...found.values()].sort((one, other) => other.total - one.total || (one.name < other.name ? -1 : 1));
  if (sorted.length <= most) return sorted;
  const others = { name: "others", total: 0, states: /** @type {Record<string, number>} */ ({}) };
  for (const bar of sorted.splice(most - 1)) {
    others.total += bar.total;
    for (const state of STATES) if (bar.states[state]) others.states[state] = (others.states[state] ?? 0) + bar.states[state];
  }
  return [...sorted, others];
}
