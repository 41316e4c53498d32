// @ts-check
/** Texts for times, durations and quantities. Pure functions. */

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** @param {number} span milliseconds @returns {string} such as `5m`, `3h`, `12d`, as kubectl prints ages */
export function duration(span) {
  if (!Number.isFinite(span)) return "";
  const ms = Math.max(0, span);
  if (ms < 2 * MINUTE) return `${Math.floor(ms / SECOND)}s`;
  if (ms < 10 * MINUTE) return joined(ms, MINUTE, "m", SECOND, "s");
  if (ms < 3 * HOUR) return `${Math.floor(ms / MINUTE)}m`;
  if (ms < 8 * HOUR) return joined(ms, HOUR, "h", MINUTE, "m");
  if (ms < 2 * DAY) return `${Math.floor(ms / HOUR)}h`;
  if (ms < 8 * DAY) return joined(ms, DAY, "d", HOUR, "h");
  return ms < 730 * DAY ? `${Math.floor(ms / DAY)}d` : `${Math.floor(ms / (365 * DAY))}y`;
}

/** @param {number} ms @param {number} large @param {string} first @param {number} small @param {string} second */
function joined(ms, large, first, small, second) {
  const rest = Math.floor((ms % large) / small);
  return `${Math.floor(ms / large)}${first}${rest ? `${rest}${second}` : ""}`;
}

const MOMENT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** @param {number} at milliseconds since 1970 @returns {string} local date and time */
export function moment(at) {
  return Number.isFinite(at) ? MOMENT.format(at) : "";
}

/** @param {string | undefined} text RFC 3339 @returns {number} milliseconds; NaN without a time */
export function timeOf(text) {
  return text ? Date.parse(text) : NaN;
}

const FACTORS = new Map(
  Object.entries({ n: 1e-9, u: 1e-6, m: 1e-3, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18 }).concat(
    ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].map((unit, power) => [unit, 1024 ** (power + 1)]),
  ),
);

/** @param {unknown} text a Kubernetes quantity @returns {number} NaN if it is none */
export function quantity(text) {
  const found = /^([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)$/.exec(String(text ?? ""));
  if (!found) return NaN;
  return Number(found[1]) * (found[2] ? (FACTORS.get(found[2]) ?? NaN) : 1);
}

/** @param {number} cores @returns {string} such as `4` or `1.5` */
export function cores(cores) {
  return Number.isFinite(cores) ? String(Math.round(cores * 10) / 10) : "";
}

/** @param {number} bytes @returns {string} in Gi, as `hubctl top` prints it */
export function gibibytes(bytes) {
  if (!Number.isFinite(bytes)) return "";
  const value = bytes / 1024 ** 3;
  return value >= 1024 ? `${(value / 1024).toFixed(1)}Ti` : `${Math.round(value * (value < 100 ? 10 : 1)) / (value < 100 ? 10 : 1)}Gi`;
}

/** @param {string} text a version @returns {number[]} for comparison; suffixes of vendors are ignored */
export function versionParts(text) {
  const found = /^v?(\d+)\.(\d+)(?:\.(\d+))?(-(?:alpha|beta|rc)[.\d]*)?/.exec(text);
  return found ? [Number(found[1]), Number(found[2]), Number(found[3] ?? 0), found[4] ? 0 : 1] : [];
}

/** @param {string} text a version @returns {string} such as `1.30` */
export function minorOf(text) {
  const [major, minor] = versionParts(text);
  return major === undefined ? "" : `${major}.${minor}`;
}

/** @param {number} count @param {string} one @param {string} [many] */
export function counted(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

/** @param {string} name of a replica @returns {string} the beginning of a UUID, else the name */
export function shortId(name) {
  return /^[0-9a-f]{8}-[0-9a-f-]{27}$/.test(name) ? name.slice(0, 8) : name;
}
