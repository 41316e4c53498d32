// @ts-check
/** The state of the fleet page: the condition's result, the rows in order, and what is selected. */
import { config } from "../../core/access.js";
import { ApiError, RESOURCES, TABLE, get, pages, pathOf } from "../../core/api.js";
import { route } from "../../core/router.js";
import { clusters, requests, revisions, sessions } from "../../core/store.js";
import { batch, computed, effect, signal, untracked } from "../../core/ui.js";
import { TILES, arrange, countMoves, sortsRemotely } from "./view.js";

/** @typedef {{names: string[] | null, groups: {columns: string[], rows: any[][]} | null, problem: string, column: number, busy: boolean}} Result */

const NOTHING = { names: null, groups: null, problem: "", column: 0, busy: false };
const MOVING = /\b(?:age|lastBeat|flaps|certificateExpiresIn|connected|replica|driver)\b/;
const PACE = { changed: 2000, moving: 10_000, arranged: 400 };

/** The parameters that the hub evaluates, as one text, so that an equal one starts no request. */
const asked = computed(() => {
  const { page, params } = route.value;
  if (page !== "fleet" || !config.value.version) return "";
  const { where = "", sort = "", group = "", tile = "" } = params;
  if (group) return JSON.stringify({ where: [where && TILES[tile] && where.includes("||") ? `(${where})` : where, TILES[tile]?.where].filter(Boolean).join(" && "), group });
  return where || sortsRemotely(sort) ? JSON.stringify({ where, sort: sortsRemotely(sort) ? sort : "" }) : "";
});

/** @type {import("../../core/ui.js").Signal<Result>} */
export const result = signal(/** @type {Result} */ (NOTHING));
let running = new AbortController();
let last = 0;

/** @param {string} text of `asked` */
async function ask(text) {
  running.abort();
  running = new AbortController();
  const stop = running.signal;
  if (!text) {
    result.value = NOTHING;
    return;
  }
  result.value = { ...result.peek(), busy: true };
  try {
    result.value = { ...NOTHING, ...(await answer(JSON.parse(text), stop)) };
  } catch (error) {
    if (stop.aborted) return;
    const problem = error instanceof ApiError ? error.message : String(error);
    result.value = { ...result.peek(), problem, column: Number(/column (\d+)/.exec(problem)?.[1] ?? 0), busy: false };
  }
  last = Date.now();
}

/** @param {{where: string, sort?: string, group?: string}} query @param {AbortSignal} stop */
async function answer({ where, sort, group }, stop) {
  const path = pathOf(RESOURCES.clusters);
  if (sort) {
    const names = [];
    for await (const page of pages(path, { where, sortBy: sort, limit: 1000, includeObject: "None" }, { accept: TABLE, stop })) {
      names.push(...page.rows.map((/** @type {any} */ row) => row.cells[0]));
    }
    return { names };
  }
  const table = await get(path, { where, groupBy: group || "name" }, { accept: TABLE, stop });
  const rows = (table.rows ?? []).map((/** @type {any} */ row) => row.cells);
  if (!group) return { names: rows.map((/** @type {any[]} */ cells) => cells[0]) };
  return { groups: { columns: table.columnDefinitions.map((/** @type {any} */ column) => column.name), rows } };
}

effect(() => {
  const text = asked.value;
  untracked(() => ask(text));
});

setInterval(() => {
  const text = asked.peek();
  if (!text || result.peek().busy || document.visibilityState !== "visible") return;
  const changed = revisions.clusters.peek() !== seen && Date.now() - last > PACE.changed;
  if (changed || (MOVING.test(text) && Date.now() - last > PACE.moving)) {
    seen = revisions.clusters.peek();
    ask(text);
  }
}, 500);
let seen = 0;

/** Clusters that wait for a decision about a certificate request. */
export const waiting = computed(() => {
  revisions.requests.value;
  return new Set([...requests.values()].map((each) => each.cluster));
});

/** The rows in order, as shown. */
export const shown = signal(/** @type {string[]} */ ([]));
/** How many rows would appear, disappear or move; they are held while the pointer or a selection is on the table. */
export const held = signal(0);
/** Selected clusters. */
export const selected = signal(/** @type {ReadonlySet<string>} */ (new Set()));
let pointed = false;
let chosen = "";
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;

function arranged() {
  const { tile = "", sort = "" } = route.peek().params;
  return arrange(clusters, sessions, { tile, sort, matches: result.peek().names, waiting: waiting.peek() });
}

/** Shows the present order. */
export function apply() {
  clearTimeout(timer);
  timer = undefined;
  batch(() => {
    shown.value = arranged();
    held.value = 0;
    const gone = [...selected.peek()].filter((name) => !clusters.has(name));
    if (gone.length) selected.value = new Set([...selected.peek()].filter((name) => clusters.has(name)));
  });
}

function consider() {
  timer = undefined;
  const next = arranged();
  const moves = countMoves(shown.peek(), next);
  if (moves && (pointed || selected.peek().size) && shown.peek().length) held.value = moves;
  else if (moves) apply();
  else held.value = 0;
}

effect(() => {
  revisions.clusters.value;
  revisions.sessions.value;
  waiting.value;
  const names = result.value.names;
  const { page, params } = route.value;
  if (page !== "fleet") return;
  // what the user asks for is shown at once; what happens to the fleet is not shown under the pointer
  const wanted = JSON.stringify([params.tile, params.sort, params.where, names === null]);
  untracked(() => {
    if (wanted !== chosen || !shown.peek().length) {
      chosen = wanted;
      apply();
    } else timer ??= setTimeout(consider, PACE.arranged);
  });
});

/** @param {boolean} inside whether the pointer is over the table */
export function hold(inside) {
  pointed = inside;
  if (!inside && !selected.peek().size && held.peek()) apply();
}

/** @param {Iterable<string>} names @param {boolean} on */
export function select(names, on) {
  const next = new Set(selected.peek());
  for (const name of names) on ? next.add(name) : next.delete(name);
  selected.value = next;
  if (!next.size && !pointed && held.peek()) apply();
}
