// A matrix of weights: only what is not zero is drawn.
import { shape } from "./shapes.js";
import { html, scrolling } from "./svg.js";

/** Draw weights of rows over columns. */
export function drawMatrix(element, data) {
  const count = data.cells.length / 3;
  const total = data.rows.length * data.columns.length;
  const label = `${data.title}: ${count} of ${total} weights are not zero. ${strongest(data)}`;
  const drawn = shape({ draws: "alignment", rows: data.rows, columns: data.columns }, { parts: data.cells }, null, label);
  element.replaceChildren(
    html("figure", {}, html("figcaption", {}, data.title), scrolling(`${data.title}, drawn`, drawn), html("p", { class: "pmx-note" }, `${count} of ${total} weights are not zero`)),
  );
}

function strongest(data) {
  const best = data.rows.map(() => [-1, 0]);
  for (let k = 0; k < data.cells.length; k += 3) {
    const [i, j, p] = data.cells.slice(k, k + 3);
    if (p > best[i][1]) best[i] = [j, p];
  }
  const named = best.map(([j], i) => (j < 0 ? null : `${data.rows[i]} to ${data.columns[j]}`)).filter(Boolean);
  return `Most weight: ${named.slice(0, 40).join(", ")}.`;
}
