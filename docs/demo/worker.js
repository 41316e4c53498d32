/** Answers the console's requests from recording.json, which `python -m docs.record_console` writes. Nothing leaves the browser. */

/** Between two recorded events of a watch, and until a watch ends as after `timeoutSeconds`: a silent worker would be stopped. */
const PACE = 3000;
const SPAN = 20_000;
const VARYING = ["at", "allowWatchBookmarks", "limit", "resourceVersion", "timeoutSeconds", "watch"];
const TIMES = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/g;
const READS = ["get", "list", "watch"];
const REVIEWS = "/selfsubjectaccessreviews";
const UNKNOWN = "This is a recording, and it has no answer to this question. A hub does: make demo.";

/** @type {Promise<any> | undefined} */
let loading;

async function load() {
  const { at, exchanges, events } = await (await fetch("recording.json")).json();
  const answers = new Map();
  const rows = new Map();
  for (const { method, url, accept, status, body } of exchanges) {
    const key = keyOf(method, new URL(url), accept);
    if (!answers.has(key)) answers.set(key, { status, body });
    if (!key.startsWith("GET Table") || !body.includes('"Last Beat"')) continue;
    const table = JSON.parse(body);
    for (const row of table.rows) rows.set(row.cells[0], { row, table });
  }
  return { answers, rows, events, shift: Date.now() - Date.parse(at) };
}

/** The request without what differs from one time to another. @param {string} method @param {URL} url @param {string} accept */
function keyOf(method, url, accept) {
  const query = new URLSearchParams(url.searchParams);
  for (const name of VARYING) query.delete(name);
  const fields = (query.get("fieldSelector") ?? "").split(",").filter((term) => !/^(since|until)=/.test(term));
  query.set("fieldSelector", fields.join(","));
  query.sort();
  const form = accept.includes("as=Table") ? "Table" : accept.includes("as=Partial") ? "Names" : "Objects";
  return `${method} ${form} ${pathOf(url)}?${query}`;
}

/** @param {URL} url */
function pathOf(url) {
  return url.pathname.slice(url.pathname.search(/\/apis?\//));
}

/** @param {string} text @param {number} shift of its times, in milliseconds */
function moved(text, shift) {
  return text.replace(TIMES, (time) => new Date(Date.parse(time) + shift).toISOString());
}

/** @param {BodyInit} body @param {number} status */
function answerOf(body, status) {
  return new Response(body, { status, headers: { "Content-Type": "application/json" } });
}

/** @param {number} code @param {string} reason @param {string} message */
function refusal(code, reason, message) {
  return answerOf(JSON.stringify({ kind: "Status", apiVersion: "v1", status: "Failure", code, reason, message }), code);
}

/** Later recorded events, one after another. @param {string[]} events @param {number} after revision @param {number} shift */
function watch(events, after, shift) {
  const left = events.filter((line) => Number(JSON.parse(line).object.metadata.resourceVersion) > after);
  const ends = Date.now() + SPAN;
  const body = new ReadableStream({
    async pull(controller) {
      do {
        await new Promise((resolve) => setTimeout(resolve, PACE));
        const line = left.shift();
        if (line) return controller.enqueue(new TextEncoder().encode(`${moved(line, shift)}\n`));
      } while (Date.now() < ends);
      return controller.close();
    },
  });
  return answerOf(body, 200);
}

/** Rows of the clusters that a condition names. @param {string} where @param {Map<string, any>} rows */
function tableOf(where, rows) {
  const found = [...where.matchAll(/"([^"]+)"/g)].flatMap(([, name]) => rows.get(name) ?? []);
  const { columnDefinitions = [], metadata = {} } = found[0]?.table ?? {};
  return answerOf(JSON.stringify({ kind: "Table", metadata, columnDefinitions, rows: found.map(({ row }) => row) }), 200);
}

/** @param {Request} request */
async function answer(request) {
  const { answers, rows, events, shift } = await (loading ??= load());
  const url = new URL(request.url);
  const path = pathOf(url);
  if (path.endsWith(REVIEWS)) {
    const { spec } = await request.json();
    return answerOf(JSON.stringify({ spec, status: { allowed: READS.includes(spec.resourceAttributes.verb) } }), 201);
  }
  if (url.searchParams.get("watch")) return watch(events[path] ?? [], Number(url.searchParams.get("resourceVersion")), shift);
  const where = url.searchParams.get("where") ?? "";
  if (where.startsWith("name in [")) return tableOf(where, rows);
  const found = answers.get(keyOf(request.method, url, request.headers.get("Accept") ?? ""));
  if (found) return answerOf(moved(found.body, shift), found.status);
  return request.method === "GET" ? refusal(400, "BadRequest", UNKNOWN) : refusal(403, "Forbidden", "This is a recording: nothing can be changed.");
}

addEventListener("fetch", (event) => {
  if (/\/apis?\//.test(new URL(event.request.url).pathname)) event.respondWith(answer(event.request));
});
