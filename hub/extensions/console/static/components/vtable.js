// @ts-check
/** A table of any length: rows of one height. A few elements outside Preact show the rows on the screen, one after the other. */
import { effect, html, untracked, useEffect, useLayoutEffect, useRef, useState } from "../core/ui.js";

export const ROW = 30;
const OVERSCAN = 6;
const LEAD = 34;

/** @param {number} top @param {number} height @param {number} count @returns {[number, number]} the first row and the one after the last */
export function windowOf(top, height, count) {
  const first = Math.max(0, Math.floor(top / ROW) - OVERSCAN);
  return [Math.min(first, count), Math.min(count, Math.ceil((top + height) / ROW) + OVERSCAN)];
}

/** @typedef {{id: string, title: string, width: number, grow?: number, sort?: string, numeric?: boolean}} Head `grow`: share of the space that is left */
/** @typedef {{left: number, width: number}} Place pixels */
/**
 * @typedef {object} Row Elements that show one row.
 * @property {HTMLElement} element a `role="row"`
 * @property {(name: string, index: number) => void} show When a signal that it reads changes, all rows are shown again.
 */

/** @param {readonly Head[]} columns @param {number} width of the table @returns {Place[]} after the cell before all columns */
export function placesOf(columns, width) {
  const shares = columns.reduce((sum, { grow = 0 }) => sum + grow, 0);
  const free = Math.max(0, width - LEAD - columns.reduce((sum, column) => sum + column.width, 0));
  let left = LEAD;
  return columns.map((column) => {
    const place = { left, width: Math.floor(column.width + (shares ? (free * (column.grow ?? 0)) / shares : 0)) };
    left += place.width;
    return place;
  });
}

/** @param {Place | undefined} place @returns {Record<string, string>} style of a cell */
export function styleOf({ left, width } = { left: 0, width: LEAD }) {
  return { "--left": `${left}px`, "--width": `${width}px` };
}

/**
 * @param {object} props
 * @param {string} props.label
 * @param {readonly Head[]} props.columns
 * @param {readonly string[]} props.names of all rows
 * @param {number} props.current index of the current row; -1: none
 * @param {string} props.sort as `--sort-by`
 * @param {(word: string) => void} props.onSort
 * @param {(places: readonly Place[]) => Row} props.makeRow
 * @param {any} props.lead the header cell before all columns
 * @param {(names: string[]) => void} props.onWindow names of the rows on the screen
 * @param {Record<string, (event: any) => void>} props.on events of the rows
 * @param {any} [props.empty] shown without rows
 */
export function VirtualTable({ label, columns, names, current, sort, onSort, makeRow, lead, onWindow, on, empty }) {
  const table = useRef(/** @type {HTMLElement | null} */ (null));
  const body = useRef(/** @type {HTMLElement | null} */ (null));
  const [{ width, height }, setSize] = useState({ width: 0, height: 0 });
  const pool = useRef(/** @type {(Row & {index: number})[]} */ ([]));
  const scrolled = useRef(() => {});
  const places = placesOf(columns, width);
  useEffect(() => {
    const observer = new ResizeObserver(() => table.current && setSize({ width: table.current.clientWidth, height: table.current.clientHeight }));
    if (table.current) observer.observe(table.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    const many = Math.ceil(height / ROW) + 2 * OVERSCAN + 1;
    pool.current = height ? Array.from({ length: many }, () => ({ ...makeRow(places), index: -1 })) : [];
    body.current?.replaceChildren();
  }, [columns, width, height]);
  useLayoutEffect(() => {
    const [box, inside, slots] = [table.current, body.current, pool.current];
    if (!box || !inside || !slots.length) return;
    const draw = (/** @type {boolean} */ all) => {
      const top = box.scrollTop;
      const [first, last] = windowOf(top, height - ROW, names.length);
      for (let index = first; index < last; index++) {
        const slot = /** @type {typeof slots[0]} */ (slots[index % slots.length]);
        const name = /** @type {string} */ (names[index]);
        if (!all && slot.index === index) continue;
        slot.index = index;
        slot.show(name, index);
        if (!slot.element.parentNode) inside.append(slot.element);
      }
      // a row that only scrolls out of the window keeps what it shows
      for (const slot of all ? slots : []) {
        if (slot.index >= first && slot.index < last) continue;
        slot.index = -1;
        slot.element.remove();
      }
      onWindow(names.slice(Math.floor(top / ROW), Math.ceil((top + height) / ROW) - 1));
    };
    let frame = 0;
    scrolled.current = () => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        untracked(() => draw(false));
      });
    };
    const stop = effect(() => draw(true));
    return () => (stop(), cancelAnimationFrame(frame));
  }, [names, columns, width, height]);
  useLayoutEffect(() => {
    const box = table.current;
    if (!box || current < 0) return;
    const top = current * ROW;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + 2 * ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + 2 * ROW - box.clientHeight;
  }, [current]);
  const key = sort.split(",")[0]?.trim();
  const sorted = (/** @type {Head} */ column) => {
    if (!column.sort) return undefined;
    return key === column.sort ? "ascending" : key === `-${column.sort}` ? "descending" : "none";
  };
  const end = places.at(-1);
  const least = end ? end.left + end.width : 0;
  return html`<div class=${`vtable ${least > width ? "wide" : ""}`} ref=${table} role="region" aria-label=${label} tabIndex=${0} data-testid="table" onScroll=${() => scrolled.current()}>
    <div role="table" aria-label=${label} aria-rowcount=${names.length + 1} aria-colcount=${columns.length + 1} style=${{ width: `${least}px` }}>
    <div role="rowgroup" class="vhead"><div role="row" class="vrow" aria-rowindex=${1}>
      <span role="columnheader" class="vcell check" style=${styleOf()}>${lead}</span>
      ${columns.map((column, index) => html`<span key=${column.id} role="columnheader" class=${`vcell ${column.numeric ? "numeric" : ""}`} style=${styleOf(places[index])} aria-sort=${sorted(column)} data-column=${column.id}>
        ${column.sort ? html`<button type="button" title=${`Sort by ${column.title}`} onClick=${() => onSort(sorted(column) === "ascending" ? `-${column.sort}` : /** @type {string} */ (column.sort))}>${column.title}<i aria-hidden="true">${{ ascending: "↑", descending: "↓" }[/** @type {"ascending"} */ (sorted(column))] ?? ""}</i></button>` : column.title}
      </span>`)}
    </div></div>
    <div role="rowgroup" class="vbody" ref=${body} style=${{ height: `${names.length * ROW}px` }} ...${on}></div>
    </div>
    ${!names.length && empty}
  </div>`;
}
