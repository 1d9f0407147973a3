// Attention as lines: queries at the left, keys at the right; a word under the pointer shows its own lines.
import { clipped, drawing, share, strength, svg } from "./svg.js";

const [ROW, LEFT, RIGHT] = [20, 150, 390];

/** Draw weights, as i, j, p one after the other, between words; with a pointer or the keyboard, those of one word. */
export function lines(rows, columns, cells, label, chosen) {
  const y = (k) => 16 + ROW * k;
  const drawn = [];
  for (let k = 0; k < cells.length; k += 3) {
    const [i, j, p] = cells.slice(k, k + 3);
    const title = svg("title", {}, `${rows[i]} → ${columns[j]}: ${share(p)}`);
    drawn.push(svg("line", { class: "pmx-link", "data-row": i, "data-column": j, x1: LEFT + 6, x2: RIGHT - 6, y1: y(i) - 4, y2: y(j) - 4, opacity: strength(p), "stroke-width": (0.5 + 3 * p).toFixed(2) }, title));
  }
  const show = (name, k) => drawn.forEach((line) => { line.style.display = k === null || line.dataset[name] === String(k) ? "" : "none"; });
  const word = (text, k, name, x, anchor) => svg("text", { class: "pmx-word", x, y: y(k), "text-anchor": anchor,
    onpointerenter: () => show(name, k), onpointerleave: () => show(name, null), onclick: () => name === "row" && chosen(k) }, clipped(text, 18));
  const left = rows.map((text, k) => word(text, k, "row", LEFT, "end"));
  const right = columns.map((text, k) => word(text, k, "column", RIGHT, "start"));
  return drawing(RIGHT + 150, y(Math.max(rows.length, columns.length)), label, ...drawn, ...left, ...right);
}
