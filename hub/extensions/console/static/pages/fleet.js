// @ts-check
/** All clusters: the hub, tiles, bars, the question box, and a table of any length. */
import { Button, Command, Dialog, Empty, copy, notify } from "../components/basics.js";
import { ROW, VirtualTable, styleOf } from "../components/vtable.js";
import { can } from "../core/access.js";
import { RESOURCES } from "../core/api.js";
import { counted } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { href, navigate, param, route, setParams } from "../core/router.js";
import { clusters, loaded, now, revisions, sessions, streams } from "../core/store.js";
import { effect, html, signal, untracked, useEffect, useSignal } from "../core/ui.js";
import { beats, extras, readAll, show } from "./fleet/beats.js";
import { choices, choose, chooseLabel, chosenLabels, columns, isChosen } from "./fleet/columns.js";
import { conditionFor, toggled } from "./fleet/completion.js";
import { csvOf, hubctlCommand, kubectlCommand, save } from "./fleet/export.js";
import { Bars, HubStrip, Tiles } from "./fleet/overview.js";
import { QuestionBox, fields } from "./fleet/question.js";
import { apply, held, hold, result, select, selected, shown } from "./fleet/state.js";

const MOST_IN_URL = 100;
const BARS = "muster-console-bars";
/** Name of the row that the keyboard is at. */
const current = signal("");
/** @type {import("../core/ui.js").Signal<"" | "columns" | "copy">} */
const dialog = signal(/** @type {"" | "columns" | "copy"} */ (""));
const showsBars = signal(localStorage.getItem(BARS) ? localStorage.getItem(BARS) === "shown" : innerWidth > 640);

/** @param {string} tag @param {Record<string, string>} attributes @param {(Node | string)[]} children */
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/**
 * A row of the table. It writes only what differs from what its elements show, because all rows change in a frame that scrolls.
 * @param {readonly import("../components/vtable.js").Place[]} places @returns {import("../components/vtable.js").Row}
 */
function makeRow(places) {
  const shownColumns = columns.peek();
  const box = /** @type {HTMLInputElement} */ (make("input", { type: "checkbox" }));
  const cells = shownColumns.map(({ id, numeric }) => {
    const [text, note, base] = [new Text(), new Text(), numeric ? "vcell numeric" : "vcell"];
    const element = make("span", { role: "cell", class: base, "data-column": id });
    const inner = id === "name" ? make("a", { "data-testid": "cluster-link" }, text) : id === "state" ? make("b", { class: "badge", "data-testid": "state" }, text) : text;
    element.append(inner, ...(id === "state" ? [make("span", { class: "muted note" }, note)] : []));
    return { element, inner: /** @type {HTMLElement} */ (inner), text, note, base, tone: "" };
  });
  const lead = make("span", { role: "cell", class: "vcell check" }, box);
  const element = make("div", { role: "row", class: "vrow", "data-testid": "row" }, lead, ...cells.map((each) => each.element));
  [lead, ...cells.map((each) => each.element)].forEach((each, index) => Object.entries(styleOf(places[index - 1])).forEach(([name, value]) => each.style.setProperty(name, value)));
  const seen = { name: "", index: -1, selected: "", current: false };
  const show = (/** @type {string} */ name, /** @type {number} */ index) => {
    revisions.clusters.value;
    revisions.sessions.value;
    beats.value;
    const [one, session, extra, at] = [clusters.get(name), sessions.get(name), extras.get(name), now.value];
    if (index !== seen.index) {
      element.style.transform = `translateY(${index * ROW}px)`;
      element.setAttribute("aria-rowindex", String(index + 2));
      seen.index = index;
    }
    if (name !== seen.name) {
      element.dataset.name = name;
      box.setAttribute("aria-label", `Select ${name}`);
      cells[0]?.inner.setAttribute("href", href("cluster", [name]));
      for (const cell of cells) if (cell.element.title) cell.element.title = "";
      seen.name = name;
    }
    const isSelected = selected.value.has(name);
    box.checked = isSelected;
    if (String(isSelected) !== seen.selected) element.setAttribute("aria-selected", (seen.selected = String(isSelected)));
    if ((name === current.value) !== seen.current) seen.current = element.toggleAttribute("data-current", !seen.current);
    for (const [place, column] of shownColumns.entries()) {
      const slot = /** @type {typeof cells[0]} */ (cells[place]);
      const cell = one ? column.cell(one, session, extra, at) : place ? "" : { text: `${name} was deleted`, tone: "muted" };
      const { text, tone = "", note = "" } = typeof cell === "string" ? { text: cell } : cell;
      const wanted = text ? tone : "muted";
      if (slot.text.data !== (text || "–")) slot.text.data = text || "–";
      if (slot.note.data !== note) slot.note.data = note;
      if (slot.tone === wanted) continue;
      if (column.id === "state") slot.inner.dataset.state = wanted;
      else slot.element.className = wanted ? `${slot.base} ${wanted}` : slot.base;
      slot.tone = wanted;
    }
  };
  return { element, show };
}

/** @param {Element | null} element @returns {string} the cluster of its row */
function nameAt(element) {
  return element?.closest(".vrow")?.getAttribute("data-name") ?? "";
}

/** The cell under the pointer: only it has a tooltip, because a date costs more than all texts of a row. @type {HTMLElement | null} */
let pointed = null;

function showTip() {
  const name = nameAt(pointed);
  const column = columns.peek().find((each) => each.id === pointed?.dataset.column);
  const one = clusters.get(name);
  if (pointed && column && one) pointed.title = String((column.about ?? column.text)(one, sessions.get(name), extras.get(name)));
}

effect(() => {
  revisions.clusters.value;
  revisions.sessions.value;
  beats.value;
  untracked(showTip);
});

/** Events of all rows. */
const on = {
  onPointerEnter: () => hold(true),
  onPointerLeave: () => ((pointed = null), hold(false)),
  onPointerOver: (/** @type {any} */ event) => ((pointed = event.target.closest("[data-column]")), showTip()),
  onClick: (/** @type {any} */ event) => (current.value = nameAt(event.target) || current.value),
  onChange: (/** @type {any} */ event) => select([nameAt(event.target)], event.target.checked),
};

/** @param {number} step */
function move(step) {
  const names = shown.peek();
  const at = names.indexOf(current.peek());
  const next = names[Math.max(0, Math.min(names.length - 1, at < 0 ? 0 : at + step))];
  if (next === undefined) return;
  current.value = next;
  requestAnimationFrame(() => /** @type {HTMLElement | null} */ (document.querySelector(".vrow[data-current] a"))?.focus({ preventScroll: true }));
}

/** @param {"accept" | "deny"} action opens the inbox with the selected clusters, or the current one */
function decide(action) {
  const names = selected.peek().size ? [...selected.peek()] : current.peek() ? [current.peek()] : [];
  if (!names.length) return notify("Select clusters first: x selects the current row.");
  if (names.length > MOST_IN_URL) notify(`The inbox takes the first ${MOST_IN_URL} of ${names.length} clusters.`, true);
  navigate("inbox", [], { select: names.slice(0, MOST_IN_URL).join(","), do: action });
}

async function exportCsv() {
  const shownColumns = columns.peek();
  try {
    await readAll(shown.peek());
  } catch (error) {
    return notify(`No CSV: ${error instanceof Error ? error.message : error}`, true);
  }
  const rows = shown.peek().map((name) => {
    const one = clusters.get(name);
    return one ? shownColumns.map((column) => column.text(one, sessions.get(name), extras.get(name))) : [];
  });
  save("clusters.csv", csvOf([shownColumns.map((column) => column.title), ...rows.filter((row) => row.length)]));
}

function Toolbar() {
  const count = selected.value.size;
  const may = can("patch", RESOURCES.clusters).value;
  return html`<div class="toolbar">
    <span class="total" data-testid="count" role="status">${counted(shown.value.length, "cluster")}${shown.value.length < clusters.size ? ` of ${clusters.size.toLocaleString("en")}` : ""}${!loaded.value ? ", loading…" : ""}</span>
    ${held.value > 0 && html`<${Button} kind="small primary" testid="apply" title="Rows do not move while the pointer is over the table or rows are selected." onClick=${apply}>${counted(held.value, "change")}, apply<//>`}
    ${count > 0 && html`<span class="selection"><b data-testid="selected">${count} selected</b>
      <${Button} kind="small" testid="accept" title="Accept (a)" access=${may} onClick=${() => decide("accept")}>Accept…<//>
      <${Button} kind="small" testid="deny" title="Deny (d)" access=${may} onClick=${() => decide("deny")}>Deny…<//>
      <${Button} kind="small" onClick=${() => copy([...selected.value].join(" "))}>Copy names<//>
      <${Button} kind="small" onClick=${() => select([...selected.value], false)}>Clear<//></span>`}
    <span class="grow"></span>
    <${Button} kind="small" testid="toggle-bars" pressed=${showsBars.value} onClick=${() => ((showsBars.value = !showsBars.value), localStorage.setItem(BARS, showsBars.value ? "shown" : "hidden"))}>Charts<//>
    <${Button} kind="small" testid="columns" onClick=${() => (dialog.value = "columns")}>Columns<//>
    <${Button} kind="small" testid="copy-as" onClick=${() => (dialog.value = "copy")}>Copy as<//>
    <${Button} kind="small" testid="csv" title="The rows and columns of this view" onClick=${exportCsv}>CSV<//>
  </div>`;
}

function ColumnsDialog() {
  const label = useSignal("");
  const keys = [...new Set([...clusters.values()].slice(0, 500).flatMap((one) => Object.keys(one.labels)))].sort();
  const add = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (label.value.trim()) chooseLabel(label.value.trim(), true);
    label.value = "";
  };
  const box = (/** @type {string} */ title, /** @type {boolean} */ on, /** @type {(on: boolean) => void} */ change) => html`<label class="choice"><input type="checkbox" checked=${on} onChange=${(/** @type {any} */ event) => change(event.target.checked)} />${title}</label>`;
  return html`<${Dialog} title="Columns" onClose=${() => (dialog.value = "")} testid="columns-dialog">
    <div class="choices">${choices.map(({ id, title }) => box(title, isChosen(id), (on) => choose(id, on)))}</div>
    <h3>Labels</h3>
    <div class="choices">${chosenLabels().map((key) => box(key, true, (on) => chooseLabel(key, on)))}</div>
    <form class="add" onSubmit=${add}><input list="label-keys" aria-label="Key of a label" placeholder="key of a label" value=${label.value} onInput=${(/** @type {any} */ event) => (label.value = event.target.value)} />
      <datalist id="label-keys">${keys.map((key) => html`<option value=${key}></option>`)}</datalist><button class="button">Add</button></form>
  <//>`;
}

function CopyDialog() {
  const { params } = route.value;
  return html`<${Dialog} title="This view elsewhere" onClose=${() => (dialog.value = "")} testid="copy-dialog" wide=${true}>
    <dl class="copies">
      <dt>hubctl</dt><dd><${Command} text=${hubctlCommand(params)} /></dd>
      <dt>kubectl</dt><dd><${Command} text=${kubectlCommand(params)} /></dd>
      <dt>URL</dt><dd><${Command} text=${location.href} /></dd>
    </dl>
  <//>`;
}

function Groups() {
  const { columns: titles, rows } = /** @type {{columns: string[], rows: any[][]}} */ (result.value.groups);
  const { where = "", group = "" } = route.value.params;
  const at = titles.findIndex((title) => title.toLowerCase() === "count");
  const open = (/** @type {any[]} */ cells) => {
    const conditions = titles.slice(0, at).map((word, index) => conditionFor(fields.value.find((field) => field.name === word.split(/[.[]/)[0] || field.name === word), word, cells[index]));
    setParams({ where: conditions.reduce((text, condition) => toggled(text, condition), where), group: "" });
  };
  return html`<div class="panel groups"><table class="plain" data-testid="groups" aria-label=${`Clusters by ${group}`}>
    <thead><tr>${titles.map((title) => html`<th key=${title} scope="col">${title}</th>`)}<th scope="col"><span class="visually-hidden">Open</span></th></tr></thead>
    <tbody>${rows.map((cells) => html`<tr key=${cells.slice(0, at).join("\u0000")}>${cells.map((cell) => html`<td>${cell ?? html`<span class="muted">none</span>`}</td>`)}<td><button type="button" class="button small quiet" onClick=${() => open(cells)}>Show</button></td></tr>`)}</tbody>
  </table></div>`;
}

function Nothing() {
  if (!loaded.value) return html`<${Empty} title="Loading…">${streams.clusters.value.why}<//>`;
  if (result.value.problem) return html`<${Empty} title="The hub does not answer this condition"><//>`;
  if (clusters.size) return html`<${Empty} title="No cluster matches"><${Button} onClick=${() => setParams({ tile: "", where: "" })}>Show all<//><//>`;
  return html`<${Empty} title="No clusters yet"><p>A cluster appears here as soon as its agent asks to join.</p><p><${Command} text="hubctl join edge1 | kubectl --context edge1 apply -f -" /></p><//>`;
}

export function FleetPage() {
  const here = shown.value.indexOf(current.value);
  const at = (/** @type {KeyboardEvent} */ event) => (event.target instanceof HTMLInputElement ? "" : current.peek());
  useKeys(
    [
      { keys: "/", label: "Ask: the condition", run: () => document.getElementById("where")?.focus() },
      { keys: "j", label: "Next cluster", run: () => move(1) },
      { keys: "k", label: "Previous cluster", run: () => move(-1) },
      { keys: "x", label: "Select the cluster", run: (event) => at(event) && select([current.peek()], !selected.peek().has(current.peek())) },
      { keys: "a", label: "Accept the selected clusters", run: () => decide("accept") },
      { keys: "d", label: "Deny the selected clusters", run: () => decide("deny") },
    ],
    [],
  );
  useEffect(() => () => hold(false), []);
  const all = shown.value.length > 0 && shown.value.every((name) => selected.value.has(name));
  const lead = html`<input type="checkbox" aria-label="Select all shown clusters" checked=${all} onChange=${() => select(shown.peek(), !all)} />`;
  return html`<div class="fleet">
    <h1 class="visually-hidden">Fleet</h1>
    <div class="overview"><${Tiles} /><${HubStrip} /></div>
    ${showsBars.value && html`<${Bars} />`}
    <${QuestionBox} />
    <${Toolbar} />
    ${param("group") && result.value.groups
      ? html`<${Groups} />`
      : html`<${VirtualTable} label="Clusters" columns=${columns.value} names=${shown.value} current=${here} sort=${param("sort") || "name"} onSort=${(/** @type {string} */ word) => setParams({ sort: word === "name" ? "" : word })} makeRow=${makeRow} lead=${lead} onWindow=${show} on=${on} empty=${html`<${Nothing} />`} />`}
    ${dialog.value === "columns" && html`<${ColumnsDialog} />`}
    ${dialog.value === "copy" && html`<${CopyDialog} />`}
  </div>`;
}
