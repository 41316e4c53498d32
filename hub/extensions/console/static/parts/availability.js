// @ts-check
/** The availability of a cluster over time, from its ClusterTransitions, as a strip with its share in words. */
import { conditionOf } from "../core/cluster.js";
import { counted, duration, moment, timeOf } from "../core/format.js";
import { html } from "../core/ui.js";

const HOUR = 3600e3;
/** What a status means, and the height of its bar, so that states differ without colour. */
const STATUSES = new Map([
  ["True", { words: "Available", height: 24 }],
  ["False", { words: "Unavailable", height: 16 }],
  ["Unknown", { words: "Silent", height: 10 }],
  ["", { words: "Not reported", height: 3 }],
]);

/** @typedef {{at: number, to: string, from: string, reason: string, actor: string}} Change of the condition Available */
/** @typedef {{from: number, to: number, status: string, reason: string}} Segment */

/** @param {string} status of the condition Available @returns {string} */
export function statusWords(status) {
  return STATUSES.get(status)?.words ?? status;
}

/**
 * The changes of one cluster, oldest first, without those of earlier clusters of its name. Its condition stands for the last
 * change if the hub keeps no record of it.
 * @param {any[]} transitions @param {any} cluster @returns {Change[]}
 */
export function changesOf(transitions, cluster) {
  const changes = transitions
    .filter((each) => each.clusterUID === cluster.metadata.uid)
    .map(({ time, to = "", from = "", reason = "", actor = "" }) => ({ at: timeOf(time), to, from, reason, actor }))
    .sort((one, other) => one.at - other.at);
  const now = conditionOf(cluster, "ManagedClusterConditionAvailable");
  if (changes.length || !now) return changes;
  return [{ at: timeOf(now.lastTransitionTime), to: now.status, from: "", reason: now.reason ?? "", actor: "" }];
}

/** @param {Change[]} changes @param {number} since @param {number} until @returns {Segment[]} without gaps */
export function segmentsOf(changes, since, until) {
  const before = changes.filter(({ at }) => at <= since).at(-1);
  const within = changes.filter(({ at }) => at > since && at < until);
  /** @type {Segment[]} */
  const segments = [];
  let open = { from: since, status: before ? before.to : (within[0]?.from ?? ""), reason: before?.reason ?? "" };
  for (const change of within) {
    segments.push({ ...open, to: change.at });
    open = { from: change.at, status: change.to, reason: change.reason };
  }
  return [...segments, { ...open, to: until }];
}

/** @param {Segment[]} segments @returns {number} share of the reported time in which it was available; NaN: nothing is reported */
export function shareOf(segments) {
  const total = (/** @type {Segment[]} */ some) => some.reduce((sum, { from, to }) => sum + to - from, 0);
  return total(segments.filter(({ status }) => status === "True")) / total(segments.filter(({ status }) => status !== ""));
}

/** @param {number} share @returns {string} rounded down, so that an interruption never looks like 100 % */
export function percent(share) {
  return `${(Math.floor(share * 10000) / 100).toFixed(share === 1 ? 0 : 2)} %`;
}

/** One strip with its summary. @param {{changes: Change[], hours: number, until: number}} props */
export function Strip({ changes, hours, until }) {
  const since = until - hours * HOUR;
  const segments = segmentsOf(changes, since, until);
  const share = shareOf(segments);
  const falls = segments.filter(({ status }, at) => at > 0 && segments[at - 1].status === "True" && status !== "True").length;
  const title = hours > 48 ? `${hours / 24} days` : `${hours} hours`;
  const rest = segments.some(({ status }) => status === "") ? " of the reported time" : "";
  const words = Number.isNaN(share) ? "not reported" : `${percent(share)} available${rest}, ${counted(falls, "interruption")}`;
  const place = (/** @type {number} */ at) => (1000 * (at - since)) / (until - since);
  return html`<figure class="availability" data-testid=${`strip-${hours}`}>
    <figcaption><span>${title}</span> <strong>${words}</strong></figcaption>
    <svg viewBox="0 0 1000 24" preserveAspectRatio="none" role="img" aria-label=${`Last ${title}: ${words}`}>
      ${segments.map(({ from, to, status, reason }) => {
        const height = STATUSES.get(status)?.height ?? 3;
        const text = `${statusWords(status)}${reason ? ` (${reason})` : ""}: ${moment(from)}, for ${duration(to - from)}`;
        return html`<rect class=${`segment segment-${status || "none"}`} x=${place(from)} y=${24 - height} height=${height}
          width=${Math.max(place(to) - place(from), 1.5)}><title>${text}</title></rect>`;
      })}
    </svg>
  </figure>`;
}
