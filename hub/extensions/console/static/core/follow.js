// @ts-check
/** One resource, listed in pages and then watched for ever. */
import { ApiError, errorOf, open, pages } from "./api.js";

/** @typedef {"listing" | "live" | "stale" | "forbidden"} Phase */
/**
 * @typedef {object} Sink Receives what `follow` reads.
 * @property {(documents: any[]) => void} listed one page of a list
 * @property {() => void} complete the list is complete: what it did not contain is gone
 * @property {(type: string, document: any) => void} changed one event of the watch
 * @property {(phase: Phase, why: string) => void} phase
 */

const PAGE = 500;
const SILENCE = 95_000;
/** Bookmarks arrive every 30 s, so a stream that is silent for this long is dead. */
const RETRY = { first: 500, most: 15_000, forbidden: 60_000 };
const WATCH_SECONDS = 3000;

/** @param {number} failures in a row @param {number} chance from 0 to 1 @returns {number} milliseconds until the next attempt */
export function backoff(failures, chance = Math.random()) {
  return Math.min(RETRY.most, RETRY.first * 2 ** Math.min(failures, 10)) * (0.5 + chance / 2);
}

/** @param {number} ms @param {AbortSignal} stop */
function pause(ms, stop) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    stop.addEventListener("abort", () => resolve(clearTimeout(timer)), { once: true });
  });
}

/** @param {string} text @returns {[string[], string]} whole lines, and the rest */
export function linesOf(text) {
  const lines = text.split("\n");
  const rest = lines.pop() ?? "";
  return [lines.filter(Boolean), rest];
}

/**
 * Lists and watches until `stop`. Continues from the last resourceVersion; lists again after 410.
 * @param {() => string} path @param {Sink} sink @param {AbortSignal} stop @param {Record<string, string>} [query]
 */
export async function follow(path, sink, stop, query = {}) {
  let version = "";
  let failures = 0;
  while (!stop.aborted) {
    try {
      if (!version) {
        if (!failures) sink.phase("listing", "");
        version = await list(path(), query, sink, stop);
      }
      version = await watch(path(), { ...query, resourceVersion: version }, sink, stop, () => {
        failures = 0;
        sink.phase("live", "");
      });
    } catch (error) {
      if (stop.aborted) return;
      const failure = error instanceof ApiError ? error : new ApiError(0, "Unreachable", "The connection to the hub was lost.");
      if (failure instanceof Interrupted) version = failure.version;
      if (failure.code === 410) version = "";
      const forbidden = failure.code === 401 || failure.code === 403;
      sink.phase(forbidden ? "forbidden" : "stale", failure.message);
      await pause(forbidden ? RETRY.forbidden : failure.code === 410 && !failures ? 0 : backoff(failures), stop);
      failures += 1;
    }
  }
}

/** A watch that broke off after `version`. */
class Interrupted extends ApiError {
  /** @param {string} version @param {ApiError} cause */
  constructor(version, cause) {
    super(cause.code, cause.reason, cause.message);
    this.version = version;
  }
}

/** @param {string} path @param {Record<string, string>} query @param {Sink} sink @param {AbortSignal} stop */
async function list(path, query, sink, stop) {
  let version = "";
  for await (const page of pages(path, { ...query, limit: PAGE }, { stop })) {
    version = page.metadata.resourceVersion;
    sink.listed(page.items ?? []);
  }
  sink.complete();
  return version;
}

/**
 * Reads one watch to its end. Raises Interrupted, or ApiError before the first byte.
 * @param {string} path @param {Record<string, string>} query @param {Sink} sink @param {AbortSignal} stop @param {() => void} opened
 * @returns {Promise<string>} the last resourceVersion
 */
async function watch(path, query, sink, stop, opened) {
  const local = new AbortController();
  const abort = () => local.abort();
  stop.addEventListener("abort", abort, { once: true });
  let timer = setTimeout(abort, SILENCE);
  let version = query.resourceVersion ?? "";
  try {
    const asked = { ...query, watch: 1, allowWatchBookmarks: "true", timeoutSeconds: WATCH_SECONDS };
    const response = await open("GET", path, { query: asked, stop: local.signal });
    if (!response.body) throw new ApiError(0, "Unreachable", "The watch has no body.");
    opened();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return version;
      clearTimeout(timer);
      timer = setTimeout(abort, SILENCE);
      const [lines, left] = linesOf(rest + value);
      rest = left;
      for (const line of lines) {
        const { type, object } = JSON.parse(line);
        if (type === "ERROR") throw errorOf(object?.code ?? 500, JSON.stringify(object));
        version = object.metadata.resourceVersion;
        if (type !== "BOOKMARK") sink.changed(type, object);
      }
    }
  } catch (error) {
    if (error instanceof ApiError && version === query.resourceVersion) throw error;
    const cause = error instanceof ApiError ? error : new ApiError(0, "Unreachable", "The connection to the hub was lost.");
    throw new Interrupted(version, cause);
  } finally {
    clearTimeout(timer);
    stop.removeEventListener("abort", abort);
    local.abort();
  }
}
