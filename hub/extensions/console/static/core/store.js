// @ts-check
/**
 * The page's copy of the fleet: plain maps for whole-fleet work, a signal per row for views of one row.
 *
 * Changes are applied once per frame. `revisions.clusters` and its siblings increase with each batch: read one in a computed or
 * an effect to run it again.
 */
import { configuration } from "./api.js";
import { Feed } from "./feed.js";
import { batch, computed, signal } from "./ui.js";

/** @typedef {import("./cluster.js").Cluster} Cluster */
/** @typedef {import("./cluster.js").Session} Session */
/** @typedef {import("./cluster.js").CertificateRequest} CertificateRequest */
/** @typedef {import("./feed.js").Kind} Kind */

/** @type {Map<string, Cluster>} */
export const clusters = new Map();
/** @type {Map<string, Session>} */
export const sessions = new Map();
/** @type {Map<string, CertificateRequest>} those that wait for a decision */
export const requests = new Map();
/** @type {Record<Kind, Map<string, any>>} */
const maps = { clusters, sessions, requests };

export const revisions = { clusters: signal(0), sessions: signal(0), requests: signal(0) };

/** @type {import("./feed.js").StreamState} */
const initial = { phase: "listing", why: "", at: Date.now() };
export const streams = { clusters: signal(initial), sessions: signal(initial), requests: signal(initial) };

/** The oldest stream that is not live: `{at, why}`, or null. A list that is read again after a live phase is stale too. */
export const stale = computed(() => {
  const gone = Object.values(streams)
    .map((each) => each.value)
    .filter((state) => state.phase === "stale");
  return gone.length ? gone.reduce((oldest, state) => (state.at < oldest.at ? state : oldest)) : null;
});

/** Whether all clusters have been listed once since the page joined its feed. */
export const loaded = signal(false);

/** The time, once a second while the page is visible. */
export const now = signal(Date.now());
setInterval(() => {
  if (document.visibilityState === "visible") now.value = Date.now();
}, 1000);

/** @type {Record<Kind, Map<string, import("./ui.js").Signal<any>>>} */
const rows = { clusters: new Map(), sessions: new Map(), requests: new Map() };

/** @param {Kind} kind @param {string} name @returns {import("./ui.js").Signal<any>} the row as a signal; undefined: there is none */
export function rowOf(kind, name) {
  let found = rows[kind].get(name);
  if (!found) {
    found = signal(maps[kind].get(name));
    rows[kind].set(name, found);
  }
  return found;
}

/** @type {import("./feed.js").Message[]} */
let waiting = [];
let scheduled = false;

/** @param {import("./feed.js").Message} message */
export function receive(message) {
  waiting.push(message);
  if (scheduled) return;
  scheduled = true;
  if (document.visibilityState === "visible") requestAnimationFrame(apply);
  setTimeout(apply, 200); // also if the tab is hidden before that frame
}

function apply() {
  const messages = waiting;
  waiting = [];
  scheduled = false;
  batch(() => {
    for (const message of messages) {
      if (message.type === "stream") {
        streams[message.kind].value = message.state;
        if (message.kind === "clusters" && message.state.phase === "live") loaded.value = true;
        continue;
      }
      const known = maps[message.kind];
      /** @type {[string, any][]} */
      const gone = message.reset ? [...known.keys()].map((name) => [name, null]) : [];
      if (message.reset && message.kind === "clusters") loaded.value = false;
      for (const [name, row] of [...gone, ...message.changes]) {
        if (row) known.set(name, row);
        else known.delete(name);
        const view = rows[message.kind].get(name);
        if (view) view.value = row ?? undefined;
      }
      revisions[message.kind].value += 1;
    }
  });
}

/** Connects to the worker of all tabs, or reads in this page where there is none. @param {string} user of this tab */
export function start(user) {
  if (typeof SharedWorker === "undefined") {
    const feed = new Feed();
    feed.add(receive);
    feed.start();
    return;
  }
  const worker = new SharedWorker(scriptUrl("worker.js"), { type: "module", name: "muster-console" });
  worker.port.onmessage = ({ data }) => receive(data);
  const join = () => worker.port.postMessage({ type: "start", user, ...configuration() });
  addEventListener("pagehide", () => worker.port.postMessage({ type: "bye" }));
  addEventListener("pageshow", (event) => {
    if (event.persisted) join();
  });
  join();
}

/** @param {"worker.js"} file @returns {any} its URL, as Trusted Types require; the policy takes no other file */
function scriptUrl(file) {
  const url = new URL(file, import.meta.url).href;
  const trusted = /** @type {any} */ (globalThis).trustedTypes;
  if (!trusted) return url;
  const policy = trusted.createPolicy("muster-console", {
    createScriptURL: (/** @type {string} */ asked) => {
      if (asked !== url) throw new TypeError("only the console's worker");
      return asked;
    },
  });
  return policy.createScriptURL(url);
}
