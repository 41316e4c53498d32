// @ts-check
/** The view as CSV, and as the commands that return the same. */
import { RESOURCES, pathOf } from "../../core/api.js";
import { TILES, sortKeys } from "./view.js";

/** @param {unknown} value @returns {string} one field of RFC 4180; a text that a spreadsheet would compute gets a leading apostrophe */
export function csvField(value) {
  const text = String(value ?? "");
  const safe = /^[=+\-@\t\r\n]/.test(text) && !/^-?\d+(\.\d+)?$/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** @param {unknown[][]} rows @returns {string} */
export function csvOf(rows) {
  return rows.map((row) => row.map(csvField).join(",")).join("\r\n") + "\r\n";
}

/** Offers a file to save. @param {string} name @param {string} text */
export function save(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** @param {string} text @returns {string} as one word of a POSIX shell */
export function shellWord(text) {
  return /^[\w./:=,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** @param {Record<string, string>} params of the route @returns {Record<string, string>} the parameters of a list that returns the same */
export function listQuery({ tile = "", where = "", sort = "", group = "" }) {
  const chosen = TILES[tile]?.where ?? "";
  const both = [where && chosen && where.includes("||") ? `(${where})` : where, chosen].filter(Boolean).join(" && ");
  const words = { state: "available", since: "" };
  const keys = sortKeys(sort).map((key) => ({ ...key, word: words[/** @type {"state"} */ (key.word)] ?? key.word }));
  const sortBy = keys.filter((key) => key.word).map((key) => `${key.descending ? "-" : ""}${key.word}`).join(",");
  return { where: both, sortBy, groupBy: group };
}

/** @param {Record<string, string>} params @returns {string} the command of hubctl */
export function hubctlCommand(params) {
  const { where = "", sortBy = "", groupBy = "" } = listQuery(params);
  const flags = { "--where": where, "--sort-by": sortBy, "--group-by": groupBy };
  return ["hubctl get clusters", ...Object.entries(flags).filter(([, value]) => value).map(([flag, value]) => `${flag}=${shellWord(value)}`)].join(" ");
}

/** @param {Record<string, string>} params @returns {string} the command of kubectl */
export function kubectlCommand(params) {
  const given = Object.entries(listQuery(params)).filter(([, value]) => value);
  const query = given.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
  return `kubectl get --raw ${shellWord(`/${pathOf(RESOURCES.clusters)}${query ? `?${query}` : ""}`)}`;
}
