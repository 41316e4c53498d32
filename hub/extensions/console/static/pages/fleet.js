// @ts-check
/** All clusters: the hub, tiles, bars, the question box, and a table of any length. */
import { Button, Command, Dialog, Empty, copy, notify } from "../components/basics.js";
import { VirtualTable } from "../components/vtable.js";
import { can } from "../core/access.js";
import { RESOURCES } from "../core/api.js";
import { counted } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { navigate, route, setParams } from "../core/router.js";
import { clusters, loaded, rowOf, sessions, streams } from "../core/store.js";
import { html, signal, useEffect, useSignal } from "../core/ui.js";
import { extraOf, show } from "./fleet/beats.js";
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

/** @param {{name: string, index: number, current: boolean}} props */
function Row({ name, index, current: isCurrent }) {
  const one = rowOf("clusters", name).value;
  const session = rowOf("sessions", name).value;
  const extra = extraOf(name).value;
  const isSelected = selected.value.has(name);
  if (!one) return html`<div role="row" class="vrow" aria-rowindex=${index + 2} style=${{ transform: `translateY(${index * 30}px)` }}><span role="cell" class="vcell muted gone">${name} was deleted</span></div>`;
  return html`<div role="row" class="vrow" aria-rowindex=${index + 2} aria-selected=${String(isSelected)} data-current=${isCurrent ? "" : undefined} data-testid="row" data-name=${name}
      style=${{ transform: `translateY(${index * 30}px)` }} onClick=${() => (current.value = name)}>
    <span role="cell" class="vcell check"><input type="checkbox" checked=${isSelected} aria-label=${`Select ${name}`} onChange=${() => select([name], !isSelected)} /></span>
    ${columns.value.map((column) => html`<span key=${column.id} role="cell" class=${`vcell ${column.numeric ? "numeric" : ""}`} data-column=${column.id}>${column.cell(one, session, extra)}</span>`)}
  </div>`;
}

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

function exportCsv() {
  const shownColumns = columns.peek();
  const rows = shown.peek().map((name) => {
    const one = clusters.get(name);
    return one ? shownColumns.map((column) => column.text(one, sessions.get(name), extraOf(name).peek())) : [];
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
  if (clusters.size) return html`<${Empty} title="No cluster matches"><${Button} onClick=${() => setParams({ tile: "", where: "" })}>Show all<//><//>`;
  return html`<${Empty} title="No clusters yet"><p>A cluster appears here as soon as its agent asks to join.</p><p><${Command} text="hubctl join edge1 | kubectl --context edge1 apply -f -" /></p><//>`;
}

export function FleetPage() {
  const { params } = route.value;
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
    ${params.group && result.value.groups
      ? html`<${Groups} />`
      : html`<${VirtualTable} label="Clusters" columns=${columns.value} names=${shown.value} current=${here} sort=${params.sort || "name"} onSort=${(/** @type {string} */ word) => setParams({ sort: word === "name" ? "" : word })} Row=${Row} lead=${lead} onWindow=${show} onHold=${hold} empty=${html`<${Nothing} />`} />`}
    ${dialog.value === "columns" && html`<${ColumnsDialog} />`}
    ${dialog.value === "copy" && html`<${CopyDialog} />`}
  </div>`;
}
