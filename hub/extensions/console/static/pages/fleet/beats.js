// @ts-check
/** What is known of visible rows only: last beat, flaps, the agent and the end of its certificate. Read every 10 s. */
import { RESOURCES, TABLE, get, pages, pathOf } from "../../core/api.js";
import { clusters, stale } from "../../core/store.js";
import { signal } from "../../core/ui.js";
import { quoted } from "./completion.js";

/** @typedef {{beat: number, flaps: number, agent: string, ends: string, isEnding: boolean}} Extra `beat`: milliseconds, NaN: none; `ends`: as kubectl prints it; `isEnding`: expired, or within a week */

const PERIOD = 10_000;
/** Rows that scroll by are not read. */
const REST = 300;
const WEEK = 7 * 864e5;
/** Characters of one condition: the hub reads 4,096, and a URL of 8,190 with them encoded. */
const MOST = 3000;
/** More clusters are read with the whole fleet. */
const SCREENS = 200;

/** @type {Map<string, Extra>} */
export const extras = new Map();
/** Increases with each answer. */
export const beats = signal(0);
/** @type {Map<string, number>} */
const readAt = new Map();
let visible = /** @type {string[]} */ ([]);
let movedAt = 0;
let busy = false;

/** @param {string[]} names rows on the screen */
export function show(names) {
  if (names[0] !== visible[0]) movedAt = Date.now();
  visible = names;
}

/** @param {string} text such as `2m5s` @returns {number} milliseconds */
export function parseDuration(text) {
  const units = { s: 1e3, m: 6e4, h: 36e5, d: 864e5, y: 365 * 864e5 };
  const parts = [...text.matchAll(/(\d+)([smhdy])/g)];
  return parts.length ? parts.reduce((sum, [, count, unit]) => sum + Number(count) * units[/** @type {"s"} */ (unit)], 0) : NaN;
}

/** @param {readonly string[]} names @returns {string[]} conditions for them: one for a screen of rows, unless their names are long */
export function conditionsFor(names) {
  const found = [];
  let words = /** @type {string[]} */ ([]);
  let length = 0;
  for (const word of names.map(quoted)) {
    if (length + word.length > MOST) {
      found.push(words);
      [words, length] = [[], 0];
    }
    words.push(word);
    length += word.length + 2;
  }
  return [...found, words].filter((each) => each.length).map((each) => `name in [${each.join(", ")}]`);
}

/** Reads clusters that are not on the screen too, as for CSV. @param {readonly string[]} names */
export async function readAll(names) {
  if (names.length <= SCREENS) await read(names);
  else for await (const page of pages(pathOf(RESOURCES.clusters), { limit: 1000, includeObject: "None" }, { accept: TABLE })) keep(page);
}

/** @param {readonly string[]} names */
async function read(names) {
  for (const where of conditionsFor(names)) keep(await get(pathOf(RESOURCES.clusters), { where, includeObject: "None" }, { accept: TABLE }));
}

/** @param {any} table */
function keep(table) {
  const columns = table.columnDefinitions.map((/** @type {any} */ column) => column.name);
  const at = Date.now();
  for (const { cells } of table.rows ?? []) {
    const cell = (/** @type {string} */ title) => String(cells[columns.indexOf(title)] ?? "");
    readAt.set(cell("Name"), at);
    const ends = cell("Certificate").replace("<none>", "");
    const isEnding = ends === "expired" || parseDuration(ends) < WEEK;
    extras.set(cell("Name"), { beat: at - parseDuration(cell("Last Beat")), flaps: Number(cell("Flaps")), agent: cell("Agent"), ends, isEnding });
  }
  beats.value += 1;
}

async function refresh() {
  if (busy || document.visibilityState !== "visible" || stale.peek()) return;
  const now = Date.now();
  if (now - movedAt < REST) return;
  const due = visible.filter((name) => now - (readAt.get(name) ?? 0) >= PERIOD && clusters.has(name));
  if (!due.length) return;
  busy = true;
  try {
    await read(due);
  } catch {
    // the watch reports a hub that does not answer; the next round reads again
  } finally {
    for (const name of due) readAt.set(name, now);
    busy = false;
  }
}

setInterval(refresh, 500);
