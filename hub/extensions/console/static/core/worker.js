// @ts-check
/** The SharedWorker: one feed for all tabs. A tab sends `start` with its configuration, and `bye` when it closes. */
import { configure } from "./api.js";
import { Feed } from "./feed.js";

/** @type {Feed | null} */
let feed = null;
let identity = "";
/** @type {Map<MessagePort, import("./feed.js").Listener>} */
const tabs = new Map();

/** @param {MessagePort} port @param {{secret: string, suffix: string, user: string}} wanted */
function join(port, wanted) {
  leave(port);
  const joined = JSON.stringify([wanted.secret, wanted.user]);
  if (feed && (joined !== identity || feed.tables.every(({ state }) => state.phase === "forbidden"))) {
    feed.stop();
    feed = null;
  }
  identity = joined;
  configure(wanted.secret, wanted.suffix);
  if (!feed) {
    feed = new Feed();
    for (const listener of tabs.values()) feed.add(listener);
    feed.start();
  }
  const listener = (/** @type {import("./feed.js").Message} */ message) => port.postMessage(message);
  tabs.set(port, listener);
  feed.add(listener);
}

/** @param {MessagePort} port */
function leave(port) {
  const listener = tabs.get(port);
  tabs.delete(port);
  if (listener && feed?.remove(listener) === 0) {
    feed.stop();
    feed = null;
  }
}

const scope = /** @type {any} */ (globalThis);
scope.onconnect = (/** @type {MessageEvent} */ event) => {
  const port = event.ports[0];
  if (!port) return;
  port.onmessage = ({ data }) => (data.type === "start" ? join(port, data) : leave(port));
};
