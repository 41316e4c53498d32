// @ts-check
/** The question box: a condition in the language of `--where`, with completion and the place of an error. */
import { Button } from "../../components/basics.js";
import { get } from "../../core/api.js";
import { param, setParams } from "../../core/router.js";
import { clusters, sessions } from "../../core/store.js";
import { html, signal, useEffect, useRef, useState } from "../../core/ui.js";
import { complete } from "./completion.js";
import { result } from "./state.js";

/** @typedef {import("./completion.js").Field} Field */

/** The fields of conditions, generated from the hub's. */
export const fields = signal(/** @type {Field[]} */ ([]));
get("console/query-fields.json").then((found) => (fields.value = found.fields), () => {});

const MOST_VALUES = 40;
const KNOWN = { available: ["True", "False", "Unknown"], joined: ["True", "False"], clockSynced: ["True", "False"], driver: ["grpc", "csr"] };

/** Values that occur in the fleet, the most frequent first. @type {import("./completion.js").Values} */
function values(field, key) {
  if (field in KNOWN) return KNOWN[/** @type {keyof typeof KNOWN} */ (field)];
  /** @type {Map<string, number>} */
  const found = new Map();
  const add = (/** @type {string | undefined} */ value) => value && found.set(value, (found.get(value) ?? 0) + 1);
  for (const one of clusters.values()) {
    const map = { labels: one.labels, addons: one.addons, taints: one.taints }[field];
    if (map) key === "*" ? Object.keys(map).forEach(add) : add(map[key]);
    else if (field === "version.minor") add(one.minor);
    else if (field === "replica") add(sessions.get(one.name)?.replica);
    else if (field === "name" || field === "set" || field === "reason" || field === "version" || field === "agentVersion") add(one[field]);
  }
  return [...found].sort((one, other) => other[1] - one[1]).slice(0, MOST_VALUES).map(([value]) => value);
}

/** @param {string} text @returns {import("./completion.js").Suggestion[]} fields, for a list separated by commas */
function fieldNames(text) {
  const from = text.lastIndexOf(",") + 1;
  const start = text.slice(from).trim().replace(/^-/, "").toLowerCase();
  const lead = /^\s*-?/.exec(text.slice(from))?.[0] ?? "";
  return fields.value.filter((field) => !field.type.startsWith("map") && field.name.toLowerCase().startsWith(start) && field.name !== start).slice(0, 12).map((field) => ({ text: lead + field.name, about: field.about, from }));
}

/**
 * A text field with a list of suggestions. Enter takes the chosen suggestion, or else runs the text.
 * @param {{id: string, label: string, value: string, placeholder: string, onRun: (text: string) => void, suggest: (text: string, cursor: number) => import("./completion.js").Suggestion[], invalid?: boolean, wide?: boolean}} props
 */
function Suggested({ id, label, value, placeholder, onRun, suggest, invalid = false, wide = false }) {
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [text, setText] = useState(value);
  const [open, setOpen] = useState(/** @type {import("./completion.js").Suggestion[]} */ ([]));
  const [active, setActive] = useState(-1);
  useEffect(() => setText(value), [value]);
  const close = () => (setOpen([]), setActive(-1));
  const look = () => {
    const box = input.current;
    if (!box) return;
    setText(box.value);
    setOpen(suggest(box.value, box.selectionStart ?? box.value.length));
    setActive(-1);
  };
  const take = (/** @type {import("./completion.js").Suggestion} */ each) => {
    const box = input.current;
    if (!box) return;
    const cursor = box.selectionStart ?? box.value.length;
    const space = /^[=!<>&|]/.test(each.text) && cursor && !box.value.slice(0, each.from).endsWith(" ") ? " " : "";
    const end = /[("[.]$/.test(each.text) ? "" : " ";
    box.setRangeText(space + each.text + end, each.from, cursor, "end");
    look();
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const chosen = open[active] ?? (event.key === "Tab" && text ? open[0] : undefined);
    if (step && open.length) setActive((active + step + open.length + (active < 0 && step < 0 ? 1 : 0)) % open.length);
    else if ((event.key === "Enter" || event.key === "Tab") && chosen && !event.shiftKey) take(chosen);
    else if (event.key === "Enter") (close(), onRun(text.trim()));
    else if (event.key === "Escape") open.length ? close() : (setText(value), input.current?.blur());
    else return;
    event.preventDefault();
  };
  return html`<span class=${`suggested ${wide ? "wide" : ""}`}>
    <input ref=${input} id=${id} class="mono" value=${text} placeholder=${placeholder} aria-label=${label} data-testid=${id} maxlength="4096"
      role="combobox" aria-autocomplete="list" aria-expanded=${String(open.length > 0)} aria-controls=${`${id}-list`} aria-invalid=${invalid ? "true" : undefined}
      aria-activedescendant=${active >= 0 ? `${id}-${active}` : undefined} autocomplete="off" autocapitalize="off" spellcheck=${false}
      onInput=${look} onClick=${look} onFocus=${look} onKeyDown=${onKeyDown} onBlur=${() => (close(), text.trim() !== value && onRun(text.trim()))} />
    <ul id=${`${id}-list`} role="listbox" aria-label=${`Suggestions: ${label}`} hidden=${!open.length}>
      ${open.map((each, index) => html`<li key=${each.text} id=${`${id}-${index}`} role="option" aria-selected=${String(index === active)} onMouseDown=${(/** @type {Event} */ event) => (event.preventDefault(), take(each))}><code>${each.text.trim()}</code><span class="muted">${each.about.replaceAll("`", "")}</span></li>`)}
    </ul>
  </span>`;
}

/** The condition, the order and the groups, all in the URL. */
export function QuestionBox() {
  const [where, sort, group] = [param("where"), param("sort"), param("group")];
  const { problem, column, busy } = result.value;
  return html`<section class="question" aria-label="Question">
    <${Suggested} id="where" wide=${true} label="Condition" value=${where} invalid=${Boolean(problem)} placeholder='Ask:  version < 1.30 && available != "True"     ( / )' onRun=${(/** @type {string} */ text) => setParams({ where: text })} suggest=${(/** @type {string} */ text, /** @type {number} */ cursor) => complete(text, cursor, fields.value, values)} />
    <${Suggested} id="sort" label="Sort by" value=${sort} placeholder="sort: -memory,name" onRun=${(/** @type {string} */ text) => setParams({ sort: text })} suggest=${fieldNames} />
    <${Suggested} id="group" label="Group by" value=${group} placeholder="group: set,available" onRun=${(/** @type {string} */ text) => setParams({ group: text })} suggest=${fieldNames} />
    ${where || sort || group ? html`<${Button} testid="clear" onClick=${() => setParams({ where: "", sort: "", group: "" })}>Clear<//>` : ""}
    ${problem && html`<p class="problem mono" role="alert" data-testid="question-problem">${column > 0 && where && html`<span aria-hidden="true">${where.slice(0, column - 1)}<mark>${where.slice(column - 1, column) || " "}</mark>${where.slice(column)}</span>`}${problem}</p>`}
    ${busy && html`<span class="visually-hidden" role="status">Asking the hub.</span>`}
  </section>`;
}
