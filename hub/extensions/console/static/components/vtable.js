// @ts-check
/** A table of any length: rows of one height, of which only those on the screen exist; their elements are recycled. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "../core/ui.js";

export const ROW = 30;
const OVERSCAN = 6;

/** @param {number} top @param {number} height @param {number} count @returns {[number, number]} the first row and the one after the last */
export function windowOf(top, height, count) {
  const first = Math.max(0, Math.floor(top / ROW) - OVERSCAN);
  return [Math.min(first, count), Math.min(count, Math.ceil((top + height) / ROW) + OVERSCAN)];
}

/** @typedef {{id: string, title: string, width: string, sort?: string, numeric?: boolean}} Head */

/**
 * @param {object} props
 * @param {string} props.label
 * @param {readonly Head[]} props.columns
 * @param {readonly string[]} props.names of all rows
 * @param {number} props.current index of the current row; -1: none
 * @param {string} props.sort as `--sort-by`
 * @param {(word: string) => void} props.onSort
 * @param {any} props.Row component with `name`, `index` and `current`; it renders a `role="row"`
 * @param {any} [props.lead] the header cell before all columns
 * @param {(names: string[]) => void} props.onWindow names of the rows on the screen
 * @param {(inside: boolean) => void} props.onHold whether the pointer is over the rows
 * @param {any} [props.empty] shown without rows
 */
export function VirtualTable({ label, columns, names, current, sort, onSort, Row, lead, onWindow, onHold, empty }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const [view, setView] = useState({ top: 0, height: 600 });
  const frame = useRef(0);
  const measure = () => {
    frame.current = 0;
    const { scrollTop: top = 0, clientHeight: height = 0 } = place.current ?? {};
    setView((old) => (old.top === top && old.height === height ? old : { top, height }));
  };
  const schedule = () => (frame.current ||= requestAnimationFrame(measure));
  useEffect(() => {
    const observer = new ResizeObserver(schedule);
    if (place.current) observer.observe(place.current);
    return () => observer.disconnect();
  }, []);
  const [first, last] = windowOf(view.top, view.height - ROW, names.length);
  const pool = last - first;
  useEffect(() => onWindow(names.slice(Math.ceil(view.top / ROW), Math.ceil((view.top + view.height) / ROW))), [names, view]);
  useLayoutEffect(() => {
    const box = place.current;
    if (!box || current < 0) return;
    const top = current * ROW;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + 2 * ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + 2 * ROW - box.clientHeight;
  }, [current]);
  const keys = sort.split(",").map((part) => part.trim());
  const sorted = (/** @type {Head} */ column) => {
    if (!column.sort) return undefined;
    return keys[0] === column.sort ? "ascending" : keys[0] === `-${column.sort}` ? "descending" : "none";
  };
  const widths = [...(lead ? ["34px"] : []), ...columns.map((column) => column.width)];
  const least = widths.reduce((sum, width) => sum + Number(/\d+/.exec(width)?.[0] ?? 0), 0);
  const rows = names.slice(first, last).map((name, offset) => {
    const index = first + offset;
    return html`<${Row} key=${pool ? index % pool : 0} name=${name} index=${index} current=${index === current} />`;
  });
  return html`<div class="vtable" ref=${place} role="region" aria-label=${label} tabIndex=${0} data-testid="table" style=${{ "--columns": widths.join(" "), "--least": `${least}px` }} onScroll=${schedule}>
    <div role="table" aria-label=${label} aria-rowcount=${names.length + 1} aria-colcount=${columns.length + (lead ? 1 : 0)}>
    <div role="rowgroup" class="vhead"><div role="row" class="vrow" aria-rowindex=${1}>
      ${lead && html`<span role="columnheader" class="vcell">${lead}</span>`}
      ${columns.map((column) => html`<span key=${column.id} role="columnheader" class=${`vcell ${column.numeric ? "numeric" : ""}`} aria-sort=${sorted(column)} data-column=${column.id}>
        ${column.sort ? html`<button type="button" title=${`Sort by ${column.title}`} onClick=${() => onSort(sorted(column) === "ascending" ? `-${column.sort}` : /** @type {string} */ (column.sort))}>${column.title}<i aria-hidden="true">${{ ascending: " ↑", descending: " ↓" }[/** @type {"ascending"} */ (sorted(column))] ?? ""}</i></button>` : column.title}
      </span>`)}
    </div></div>
    <div role="rowgroup" class="vbody" style=${{ height: `${names.length * ROW}px` }} onPointerEnter=${() => onHold(true)} onPointerLeave=${() => onHold(false)}>${rows}</div>
    </div>
    ${!names.length && empty}
  </div>`;
}
