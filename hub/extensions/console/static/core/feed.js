// @ts-check
/** The three watches of the console, for any number of listeners: tabs of a SharedWorker, or one page. */
import { RESOURCES, pathOf } from "./api.js";
import { clusterOf, requestOf, sessionOf } from "./cluster.js";
import { follow } from "./follow.js";

/** @typedef {"clusters" | "sessions" | "requests"} Kind */
/** @typedef {{phase: import("./follow.js").Phase, why: string, at: number}} StreamState `at`: when the phase began */
/** @typedef {{type: "changes", kind: Kind, changes: [string, any][], reset?: true} | {type: "stream", kind: Kind, state: StreamState}} Message A change has the name and the new row, or null. `reset`: earlier rows are gone. */
/** @typedef {(message: Message) => void} Listener */

const PACE = 60;
/** Milliseconds for which changes are collected. */
const PORTION = 1000;

/** @type {Record<Kind, {resource: import("./api.js").Resource, row: (document: any) => any}>} */
const SOURCES = {
  clusters: { resource: RESOURCES.clusters, row: clusterOf },
  sessions: { resource: RESOURCES.sessions, row: sessionOf },
  requests: { resource: RESOURCES.requests, row: requestOf },
};

/** The rows of one kind, and what has changed since the last message. */
class Table {
  /** @param {Kind} kind @param {Listener} send */
  constructor(kind, send) {
    this.kind = kind;
    this.send = send;
    /** @type {Map<string, any>} */
    this.rows = new Map();
    /** @type {Map<string, any>} */
    this.changed = new Map();
    /** @type {Set<string>} names of the list that is being read */
    this.seen = new Set();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** @type {StreamState} */
    this.state = { phase: "listing", why: "", at: Date.now() };
  }

  /** @param {any[]} documents */
  listed(documents) {
    for (const document of documents) {
      const name = document.metadata.name;
      this.seen.add(name);
      if (this.rows.get(name)?.revision !== document.metadata.resourceVersion) this.put(name, SOURCES[this.kind].row(document));
    }
  }

  complete() {
    for (const name of this.rows.keys()) if (!this.seen.has(name)) this.put(name, null);
  }

  /** @param {string} type @param {any} document */
  receive(type, document) {
    this.put(document.metadata.name, type === "DELETED" ? null : SOURCES[this.kind].row(document));
  }

  /** @param {string} name @param {any} row */
  put(name, row) {
    if (row) this.rows.set(name, row);
    else if (!this.rows.delete(name)) return;
    this.changed.set(name, row);
    this.timer ??= setTimeout(() => this.flush(), PACE);
  }

  flush() {
    this.timer = undefined;
    if (!this.changed.size) return;
    const changes = [...this.changed];
    this.changed = new Map();
    this.send({ type: "changes", kind: this.kind, changes });
  }

  /** @param {import("./follow.js").Phase} phase @param {string} why */
  phase(phase, why) {
    this.seen = new Set(); // a list has ended, completely or not
    if (phase === this.state.phase && why === this.state.why) return;
    const at = phase === this.state.phase ? this.state.at : Date.now();
    this.flush();
    this.state = { phase, why, at };
    this.send({ type: "stream", kind: this.kind, state: this.state });
  }

  /** @returns {Generator<Message>} everything, for a new listener */
  *snapshot() {
    yield { type: "changes", kind: this.kind, changes: [], reset: true };
    const all = [...this.rows];
    for (let from = 0; from < all.length; from += PORTION) {
      yield { type: "changes", kind: this.kind, changes: all.slice(from, from + PORTION) };
    }
    yield { type: "stream", kind: this.kind, state: this.state };
  }
}

/** Starts the watches with the first listener; `stop` ends them. */
export class Feed {
  constructor() {
    /** @type {Set<Listener>} */
    this.listeners = new Set();
    this.end = new AbortController();
    const send = (/** @type {Message} */ message) => this.listeners.forEach((listener) => listener(message));
    this.tables = /** @type {Kind[]} */ (Object.keys(SOURCES)).map((kind) => new Table(kind, send));
  }

  start() {
    for (const table of this.tables) {
      const sink = {
        listed: (/** @type {any[]} */ documents) => table.listed(documents),
        complete: () => table.complete(),
        changed: (/** @type {string} */ type, /** @type {any} */ document) => table.receive(type, document),
        phase: (/** @type {import("./follow.js").Phase} */ phase, /** @type {string} */ why) => table.phase(phase, why),
      };
      follow(() => pathOf(SOURCES[table.kind].resource), sink, this.end.signal);
    }
  }

  /** @param {Listener} listener */
  add(listener) {
    for (const table of this.tables) {
      table.flush();
      for (const message of table.snapshot()) listener(message);
    }
    this.listeners.add(listener);
  }

  /** @param {Listener} listener @returns {number} how many are left */
  remove(listener) {
    this.listeners.delete(listener);
    return this.listeners.size;
  }

  stop() {
    this.listeners.clear(); // changes may still wait to be sent
    this.end.abort();
  }
}
