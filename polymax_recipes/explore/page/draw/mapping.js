// A mapping: weights of scores, their path over temperatures, the triangle.
import { chart, clipped, drawing, html, saving, share, short, slider, svg } from "./svg.js";

/** Draw a mapping; with a path, and unless the page has controls of its own, a slider moves the temperature. */
export function drawMapping(element, data, options = {}) {
  const weights = html("div", { class: "pmx-weights" });
  const parts = [weights];
  weights.replaceChildren(weightTable(data.labels, data.scores, data.weights));
  let path = null;
  if (data.path) {
    const gammas = data.path.gammas;
    const lines = data.labels.map((name, k) => ({ name, color: k, values: data.path.weights.map((row) => row[k]) }));
    const label = `Weights of ${data.name} over temperatures from ${gammas[0]} to ${gammas[gammas.length - 1]}`;
    path = chart({ label, xs: gammas, lines, at: clamped(data.path.gamma, gammas), xTitle: "temperature γ", yTitle: "" });
    parts.push(figure("Regularization path", path.element));
    if (!options.live) {
      const near = gammas.reduce((best, gamma, k) => (closer(gamma, gammas[best], data.path.gamma) ? k : best), 0);
      const moved = (k) => {
        path.move(gammas[k]);
        weights.replaceChildren(weightTable(data.labels, data.scores, data.path.weights[k]));
      };
      const say = (k) => short(gammas[k]);
      parts.unshift(slider("temperature", { min: 0, max: gammas.length - 1, step: 1, value: near, say, moved }).element);
    }
  }
  if (data.triangle) parts.push(figure(`The triangle of ${data.labels.slice(0, 3).join(", ")}`, triangle(data)));
  if (!options.live) parts.push(html("pre", { class: "pmx-code" }, html("code", {}, data.code)));
  element.replaceChildren(html("div", { class: "pmx-mapping" }, ...parts));
}

function clamped(value, range) {
  return Math.min(Math.max(value, range[0]), range[range.length - 1]);
}

function closer(value, than, wanted) {
  return Math.abs(Math.log(value / wanted)) < Math.abs(Math.log(than / wanted));
}

export function figure(title, ...children) {
  const element = html("figure", {}, html("figcaption", {}, title, " "), ...children);
  element.firstChild.append(saving(element, title));
  return element;
}

function weightTable(labels, scores, weights) {
  const most = Math.max(1, ...weights);
  const support = weights.filter((weight) => weight > 0).length;
  const rows = labels.map((label, k) => {
    const zero = weights[k] === 0;
    const fused = k > 0 && !zero && weights[k] === weights[k - 1];
    const bar = svg("svg", { class: "pmx-bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { class: "pmx-empty", width: 100, height: 10 }),
      svg("rect", { class: `pmx-fill pmx-c${k % 12}`, width: (100 * weights[k]) / most, height: 10 }));
    return html("tr", { class: [zero ? "pmx-zero" : "", fused ? "pmx-fused" : ""].join(" ").trim() || null },
      html("th", { scope: "row" }, clipped(label)),
      html("td", { class: "pmx-number" }, short(scores[k])),
      html("td", { class: "pmx-wide" }, bar),
      html("td", { class: "pmx-number" }, share(weights[k])));
  });
  return html("table", { class: "pmx-table" },
    html("caption", {}, `${support} of ${labels.length} weights are not zero`),
    html("thead", {}, html("tr", {}, ...["", "score", "weight", ""].map((name, k) => html("th", { scope: "col", class: k === 1 ? "pmx-number" : null }, name)))),
    html("tbody", {}, ...rows));
}

const HEIGHT = Math.sqrt(0.75);

function triangle(data) {
  const [size, margin] = [230, 26];
  const place = ([a, b, c]) => [margin + size * (b + c / 2), margin + size * (HEIGHT - c * HEIGHT)];
  const points = (list) => list.map((p) => place(p).map((v) => v.toFixed(1)).join(",")).join(" ");
  const counts = new Map();
  for (const dot of data.triangle.dots) {
    const key = dot.join(" ");
    counts.set(key, (counts.get(key) || 0) + 1);
  }
  const dots = [...counts].map(([key, count]) => {
    const dot = key.split(" ").map(Number);
    const [x, y] = place(dot);
    const support = dot.filter((p) => p > 0).length;
    return svg("circle", { class: `pmx-dot pmx-s${support}`, cx: x.toFixed(1), cy: y.toFixed(1), r: Math.min(7, 1.5 * Math.sqrt(count)).toFixed(2) });
  });
  const [x, y] = place(data.triangle.point);
  const corners = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
  const names = corners.map((corner, k) => {
    const [left, top] = place(corner);
    const anchor = ["start", "end", "middle"][k];
    return svg("text", { class: "pmx-tick", x: left + [-14, 14, 0][k], y: top + [17, 17, -8][k], "text-anchor": anchor }, clipped(data.labels[k], 14));
  });
  const shares = data.triangle.point.map((p, k) => `${data.labels[k]} ${share(p)}`).join(", ");
  const label = `Triangle of three classes: ${shares}. Dots show where a grid of scores lands.`;
  const drawn = drawing(size + 2 * margin, size * HEIGHT + 2 * margin, label,
    svg("polygon", { class: "pmx-plane", points: points(corners) }), ...dots,
    svg("polyline", { class: "pmx-trail", points: points(data.triangle.path) }),
    svg("circle", { class: "pmx-here", cx: x, cy: y, r: 6 }), ...names);
  drawn.classList.add("pmx-fluid", "pmx-small");
  return drawn;
}
