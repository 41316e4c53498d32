// @ts-check
/** What is known of visible rows only: last beat, flaps, the agent and the end of its certificate. Read every 10 s. */
import { RESOURCES, TABLE, get, pathOf } from "../../core/api.js";
import { rowOf as storeRow, stale } from "../../core/store.js";
import { signal } from "../../core/ui.js";
import { columns } from "./columns.js";
import { quoted } from "./completion.js";

/** @typedef {{beat: number, flaps: number, agent: string, ends: string}} Extra `beat`: milliseconds, NaN: none */

const PERIOD = 10_000;
const CERTIFICATE_PERIOD = 300_000;
/** The hub reads beats of up to this number of clusters one by one, and for more it reads those of the whole fleet. */
const PORTION = 8;
const ENDS = { "0s": "expired", "1d": "< 1d", "7d": "< 7d", "30d": "< 30d" };

/** @type {Map<string, import("../../core/ui.js").Signal<Extra | undefined>>} */
const extras = new Map();
/** @type {Map<string, {at: number, ends: string}>} */
const certificates = new Map();
/** @type {Map<string, number>} */
const readAt = new Map();
let visible = /** @type {string[]} */ ([]);
let busy = false;

/** @param {string} name */
export function extraOf(name) {
  let found = extras.get(name);
  if (!found) extras.set(name, (found = signal(/** @type {Extra | undefined} */ (undefined))));
  return found;
}

/** @param {string[]} names rows on the screen */
export function show(names) {
  visible = names;
}

/** @param {string} text such as `2m5s` @returns {number} milliseconds */
export function parseDuration(text) {
  const units = { s: 1e3, m: 6e4, h: 36e5, d: 864e5, y: 365 * 864e5 };
  const parts = [...text.matchAll(/(\d+)([smhdy])/g)];
  return parts.length ? parts.reduce((sum, [, count, unit]) => sum + Number(count) * units[/** @type {"s"} */ (unit)], 0) : NaN;
}

/** @param {string[]} names */
function condition(names) {
  return `name in [${names.map(quoted).join(", ")}]`;
}

/** @param {string[]} names */
async function read(names) {
  const path = pathOf(RESOURCES.clusters);
  const table = await get(path, { where: condition(names), includeObject: "None" }, { accept: TABLE });
  const columns = table.columnDefinitions.map((/** @type {any} */ column) => column.name);
  const place = (/** @type {string} */ title) => columns.indexOf(title);
  const at = Date.now();
  for (const { cells } of table.rows ?? []) {
    const name = cells[place("Name")];
    readAt.set(name, at);
    const span = parseDuration(String(cells[place("Last Beat")] ?? ""));
    extraOf(name).value = { beat: at - span, flaps: Number(cells[place("Flaps")]), agent: cells[place("Agent")], ends: certificates.get(name)?.ends ?? "" };
  }
}

/** @param {string[]} names */
async function readCertificates(names) {
  const ends = new Map(names.map((name) => [name, "> 30d"]));
  const found = async (/** @type {string} */ more) => {
    const table = await get(pathOf(RESOURCES.clusters), { where: `${condition(names)} && ${more}`, groupBy: "name" }, { accept: TABLE });
    return (table.rows ?? []).map((/** @type {any} */ row) => row.cells[0]);
  };
  for (const name of await found("!has(certificateExpiresIn)")) ends.set(name, "none");
  for (const [limit, text] of Object.entries(ENDS).reverse()) for (const name of await found(`certificateExpiresIn < ${limit}`)) ends.set(name, text);
  for (const [name, text] of ends) {
    certificates.set(name, { at: Date.now(), ends: text });
    const extra = extraOf(name);
    if (extra.peek()) extra.value = { .../** @type {Extra} */ (extra.peek()), ends: text };
  }
}

async function refresh() {
  if (busy || document.visibilityState !== "visible" || stale.peek()) return;
  const now = Date.now();
  const due = visible.filter((name) => now - (readAt.get(name) ?? 0) >= PERIOD && storeRow("clusters", name).peek());
  const hasCertificates = columns.peek().some((column) => column.id === "certificate");
  const old = hasCertificates ? visible.filter((name) => now - (certificates.get(name)?.at ?? 0) >= CERTIFICATE_PERIOD) : [];
  if (!due.length && !old.length) return;
  busy = true;
  try {
    for (let from = 0; from < due.length; from += PORTION) await read(due.slice(from, from + PORTION));
    if (old.length) await readCertificates(old);
  } catch {
    // the watch reports a hub that does not answer; the next round reads again
  } finally {
    for (const name of due) readAt.set(name, now);
    for (const name of old) certificates.set(name, { at: now, ends: certificates.get(name)?.ends ?? "" });
    busy = false;
  }
}

setInterval(refresh, 500);
