// @ts-check
/** Differences between two states of an object, as `hubctl history` and `hubctl diff` show them; and objects as YAML. */

const BOOKKEEPING = new Set(["metadata.managedFields", "metadata.resourceVersion", "metadata.generation"]);
/** Identifying fields of list entries: the first set that all entries have, with unique values. */
const NAMED_BY = [["type"], ["name"], ["key", "effect"], ["key"], ["id"]];
const DERIVED = ["lastTransitionTime", "message"];
const INTERNAL = ["hubs", "cluster-uid", "given-to-agent", "second-agent-refused", "wanted-by-uid"].map(
  (name) => `metadata.annotations["hub.open-cluster-management.io/${name}"]`,
);
const PLAIN = /^[A-Za-z_][A-Za-z0-9_-]*$/;

/** @typedef {{path: string, before?: any, after?: any}} Difference */

const isMap = (/** @type {any} */ value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** @param {any[]} entries @param {string[]} fields @returns {Record<string, any> | null} */
function named(entries, fields) {
  const found = Object.create(null);
  for (const entry of entries) {
    if (!isMap(entry) || !fields.every((field) => typeof entry[field] === "string")) return null;
    const name = fields.map((field) => entry[field]).join(":");
    if (name in found) return null;
    found[name] = entry;
  }
  return found;
}

/** @returns {Generator<Difference>} */
function* ofMaps(/** @type {string} */ path, /** @type {any} */ before, /** @type {any} */ after, /** @type {(name: string) => string} */ below) {
  for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) {
    const one = path + below(name);
    if (!BOOKKEEPING.has(one.replace(/^\./, ""))) yield* ofValues(one, before[name], after[name]);
  }
}

const field = (/** @type {string} */ name) => (PLAIN.test(name) ? `.${name}` : `["${name}"]`);

/** @returns {Generator<Difference>} */
function* ofValues(/** @type {string} */ path, /** @type {any} */ before, /** @type {any} */ after) {
  if (JSON.stringify(before) === JSON.stringify(after)) return;
  if (isMap(before) && isMap(after)) return yield* ofMaps(path, before, after, field);
  if (Array.isArray(before) && Array.isArray(after)) {
    for (const fields of NAMED_BY) {
      const old = named(before, fields), now = named(after, fields);
      if (old && now) return yield* ofMaps(path, old, now, (name) => `[${name}]`);
    }
  }
  yield { path: path.replace(/^\./, ""), before, after };
}

/** @param {any} before @param {any} after @returns {Difference[]} */
export const differences = (before, after) => [...ofMaps("", before || {}, after || {}, field)];

/** The differences that matter to people: no bookkeeping of the hub, no texts and times that follow from other fields. */
export const relevant = (/** @type {Difference[]} */ fields) =>
  fields.filter(({ path }) => !INTERNAL.includes(path) && !DERIVED.some((end) => path.endsWith(end)));

/** Conditions, and maps of plain values, in words; "": the value has another form. @param {any} value @returns {string} */
function words(value) {
  if (Array.isArray(value)) {
    const found = value.map((each) => (each?.type && each.status ? `${each.type} ${words(each)}` : words(each)));
    return found.every(Boolean) ? found.join("; ") : "";
  }
  if (!isMap(value) || Object.values(value).some((each) => each !== null && typeof each === "object")) return "";
  const { type, status, reason, message, name, ...rest } = value;
  if (type && status) return `${status}${reason ? ` (${reason})` : ""}${message ? `: ${message}` : ""}`;
  if (name && Object.keys(value).length === 2 && "value" in rest) return `${name}=${rest.value}`;
  return Object.entries(value).map(([key, each]) => `${key}=${each}`).join(", ");
}

/** A value of a difference on one line. */
export function short(/** @type {any} */ value, limit = 120) {
  const text = typeof value === "string" ? value : words(value) || (JSON.stringify(value) ?? "");
  return text.length > limit ? `${text.slice(0, limit - 1)}…` : text;
}

/** The object without the fields that only the server maintains. */
export function readable(/** @type {any} */ document) {
  const { managedFields: _fields, ...metadata } = document.metadata || {};
  return { ...document, metadata };
}

const SAFE = /^[A-Za-z_/][A-Za-z0-9_./-]*$/;
const WORDS = /^(true|false|yes|no|on|off|null|y|n|~)$/i;

const scalar = (/** @type {any} */ value) =>
  typeof value === "string" && SAFE.test(value) && !WORDS.test(value) ? value : JSON.stringify(value) ?? "null";

/** YAML of plain values; unusual texts are quoted as in JSON. @param {any} value @param {string} [indent] @returns {string} */
export function yaml(value, indent = "") {
  if (Array.isArray(value) && value.length)
    return value.map((each) => `${indent}- ${yaml(each, `${indent}  `).slice(indent.length + 2) || scalar(each)}`).join("\n");
  if (isMap(value) && Object.keys(value).length)
    return Object.entries(value)
      .map(([key, each]) => {
        const inner = each !== null && typeof each === "object" && Object.keys(each).length;
        return `${indent}${scalar(key)}:${inner ? `\n${yaml(each, Array.isArray(each) ? indent : `${indent}  `)}` : ` ${scalar(each)}`}`;
      })
      .join("\n");
  return `${indent}${scalar(value)}`;
}
