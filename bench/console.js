// Evaluated in a page: an object with functions for bench/console.py.
({
  /** Milliseconds of each frame while the table scrolls by 23 rows a frame, or is filtered every 15 frames. */
  async frames(work, seconds) {
    const table = document.querySelector("[data-testid=table]");
    const steps = {
      scroll: () => (table.scrollTop = (table.scrollTop + 700) % (table.scrollHeight - table.clientHeight)),
      filter: (frame) => frame % 15 || document.querySelector("[data-testid=tile-available]").click(),
    };
    const spans = [];
    const end = performance.now() + seconds * 1000;
    for (let frame = 0, last = performance.now(); last < end; frame += 1) {
      steps[work](frame);
      await new Promise(requestAnimationFrame);
      spans.push(performance.now() - last);
      last = performance.now();
    }
    return spans;
  },

  /** Makes a bare table of as many rows and cells: what such frames cost this machine without the console. */
  plain() {
    document.body.innerHTML = `<div data-testid="table" style="height: 640px; overflow: auto; contain: strict">
      <div style="position: relative; height: 300000px"></div></div>`;
    const table = document.body.firstChild;
    const cell = (number) => `<i style="position: absolute; left: ${number * 100}px; width: 100px; overflow: clip"> </i>`;
    const rows = Array.from({ length: 35 }, () => document.createElement("div"));
    for (const row of rows) {
      row.style = "position: absolute; width: 100%; height: 30px";
      row.innerHTML = Array.from({ length: 15 }, (_, number) => cell(number)).join("");
      table.firstElementChild.append(row);
    }
    table.onscroll = () => requestAnimationFrame(() => {
      const first = Math.floor(table.scrollTop / 30);
      for (let row = first; row < first + 35; row += 1) {
        rows[row % 35].style.transform = `translateY(${row * 30}px)`;
        [...rows[row % 35].children].forEach((each, column) => (each.firstChild.data = `row ${row % 999} ${column}`));
      }
    });
  },
})