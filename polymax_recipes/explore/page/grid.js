// A grid of scores to edit: by a click and a slider, or by the keyboard alone.
import { html, short, slider } from "./draw/svg.js";

const REACH = 6;

/** An editor of scores[i][j]; `used(i, j)` says which of them count, and `changed` is told of every change. */
export function scoreGrid({ title, rows, columns, scores, used, changed }) {
  let at = null;
  const cells = new Map();
  const control = slider("score of the chosen cell", { min: -REACH, max: REACH, step: 0.05, value: 0, say: short, moved: (value) => set(value) });
  const name = ([i, j]) => `${rows[i]}, ${columns[j]}`;
  const paint = (i, j) => {
    const cell = cells.get(`${i},${j}`);
    const value = scores[i][j];
    cell.textContent = value === null ? "−∞" : short(value);
    cell.setAttribute("aria-label", `${name([i, j])}: ${value === null ? "forbidden" : short(value)}`);
    const share = value === null ? 0 : Math.min(1, Math.abs(value) / 3);
    cell.style.background = `color-mix(in srgb, var(${value < 0 ? "--pmx-warm" : "--pmx-blue"}) ${Math.round(38 * share)}%, var(--pmx-raised))`;
  };
  const set = (value) => {
    if (!at) return;
    scores[at[0]][at[1]] = value;
    paint(...at);
    changed();
  };
  const choose = (i, j, focus = true) => {
    if (at) {
      const before = cells.get(at.join());
      before.setAttribute("aria-selected", "false");
      before.tabIndex = -1;
    }
    at = [i, j];
    const cell = cells.get(at.join());
    cell.setAttribute("aria-selected", "true");
    cell.tabIndex = 0;
    if (focus) cell.focus();
    control.input.value = scores[i][j] ?? 0;
    control.input.setAttribute("aria-label", `score of ${name(at)}`);
    control.element.firstChild.textContent = name(at);
    control.say();
  };
  const keys = (event) => {
    const [i, j] = at;
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (steps[event.key]) {
      const [down, right] = steps[event.key];
      for (let [a, b] = [i + down, j + right]; a >= 0 && a < rows.length && b >= 0 && b < columns.length; a += down, b += right) {
        if (cells.has(`${a},${b}`)) {
          choose(a, b);
          break;
        }
      }
    } else if (event.key === "+" || event.key === "=") set(Math.min(REACH, Math.round(((scores[i][j] ?? 0) + 0.25) * 100) / 100));
    else if (event.key === "-") set(Math.max(-REACH, Math.round(((scores[i][j] ?? 0) - 0.25) * 100) / 100));
    else if (event.key === "Delete") set(null);
    else return;
    event.preventDefault();
    control.input.value = scores[at[0]][at[1]] ?? 0;
    control.say();
  };
  const body = rows.map((row, i) => html("tr", { role: "row" }, html("th", { scope: "row", role: "rowheader" }, row), ...columns.map((_, j) => {
    if (!used(i, j)) return html("td", { class: "unused", role: "gridcell", "aria-hidden": "true" });
    const cell = html("td", { role: "gridcell", tabindex: -1, "aria-selected": "false", onclick: () => choose(i, j), onkeydown: keys });
    cells.set(`${i},${j}`, cell);
    return cell;
  })));
  for (const key of cells.keys()) paint(...key.split(",").map(Number));
  const table = html("table", { class: "grid-scores", role: "grid", "aria-label": title },
    html("thead", {}, html("tr", { role: "row" }, html("td", { class: "unused" }), ...columns.map((column) => html("th", { scope: "col", role: "columnheader", title: column }, column)))),
    html("tbody", {}, ...body));
  const first = cells.keys().next().value;
  if (first) choose(...first.split(",").map(Number), false);
  return html("div", { class: "field" }, html("span", {}, `${title}: choose a cell, then move the slider; on the keyboard, arrows, + and −, Delete forbids`), html("div", { class: "editor" }, table), control.element);
}
