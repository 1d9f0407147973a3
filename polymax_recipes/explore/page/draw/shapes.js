// Structures as SVG: tags, arcs, brackets, alignments, matchings. Parts are i, j, p one after the other.
import { clipped, drawing, share, strength, svg, textWidth } from "./svg.js";

// parts from which on the faint ones are drawn together, and what is faint
const MANY = 120;
const FAINT = 0.05;

/** Draw the expected parts of a structure; `chosen` has the parts of one whole structure, as "i,j". */
export function shape(data, step, chosen = null, label = "") {
  const draw = { tags, arcs, brackets, alignment, matching }[data.draws];
  return draw(data, triples(step.parts), step, chosen, label);
}

function triples(flat) {
  const found = [];
  for (let k = 0; k < flat.length; k += 3) found.push([flat[k], flat[k + 1], flat[k + 2]]);
  return found;
}

function look(kind, i, j, chosen) {
  return chosen ? `${kind} ${chosen.has(`${i},${j}`) ? "pmx-chosen" : "pmx-aside"}` : kind;
}

/** The middles of words that stand beside each other, and the width of all. */
function places(words, gap = 14, least = 26) {
  let x = 8;
  const centers = words.map((word) => {
    const width = Math.max(least, textWidth(clipped(word)));
    const center = x + width / 2;
    x += width + gap;
    return center;
  });
  return [centers, x - gap + 8];
}

function tags(data, parts, step, chosen, label) {
  const [xs, width] = places(data.rows, 18, 30);
  const left = 12 + Math.max(...data.columns.map((name) => textWidth(clipped(name, 12))));
  const row = 30;
  const top = 18;
  const y = (tag) => top + row * tag;
  const bottom = y(data.columns.length - 1) + 34;
  const drawn = [];
  const links = step.links || [];
  for (let k = 0; k < links.length; k += 4) {
    const [at, from, to, p] = links.slice(k, k + 4);
    const on = chosen && chosen.has(`${at},${from}`) && chosen.has(`${at + 1},${to}`);
    const kind = chosen ? `pmx-link ${on ? "pmx-chosen" : "pmx-aside"}` : "pmx-link";
    drawn.push(svg("line", { class: kind, x1: left + xs[at], y1: y(from), x2: left + xs[at + 1], y2: y(to), opacity: strength(p), "stroke-width": 0.6 + 2.2 * p }));
  }
  const there = new Set(parts.map(([i, j]) => `${i},${j}`));
  data.rows.forEach((_, i) => data.columns.forEach((_, j) => {
    if (!there.has(`${i},${j}`)) drawn.push(svg("circle", { class: "pmx-none", cx: left + xs[i], cy: y(j), r: 1.6 }));
  }));
  for (const [i, j, p] of parts) {
    const title = svg("title", {}, `${data.rows[i]}: ${data.columns[j]} ${share(p)}`);
    drawn.push(svg("circle", { class: look("pmx-state", i, j, chosen), cx: left + xs[i], cy: y(j), r: (2 + 7 * Math.sqrt(p)).toFixed(1), "fill-opacity": strength(p) }, title));
  }
  const names = data.columns.map((name, j) => svg("text", { class: "pmx-tick", x: left - 4, y: y(j) + 4, "text-anchor": "end" }, clipped(name, 12)));
  return drawing(left + width, bottom, label, ...drawn, ...names, ...words(data.rows, xs.map((x) => left + x), bottom - 8));
}

function words(rows, xs, y) {
  return rows.map((word, k) => svg("text", { class: "pmx-word", x: xs[k], y, "text-anchor": "middle" }, clipped(word)));
}

function arcs(data, parts, step, chosen, label) {
  const named = step.relations || null;
  const [xs, width] = places(data.rows, named ? 26 : 14, named ? 44 : 26);
  const rise = (a, b) => 16 + 15 * Math.min(Math.abs(a - b), 4) + 5.5 * Math.max(0, Math.abs(a - b) - 4);
  const tallest = Math.max(34, ...parts.map(([head, modifier]) => (head ? rise(head, modifier) : 0)));
  const base = tallest + 30;
  const curve = (head, modifier) => {
    const end = xs[modifier - 1];
    if (!head) return `M${end} 16V${base - 6}`;
    const start = xs[head - 1] + (end > xs[head - 1] ? 5 : -5);
    const top = (base - 6 - rise(head, modifier) * 1.18).toFixed(1);
    return `M${start} ${base - 2}C${start} ${top} ${end} ${top} ${end} ${base - 6}`;
  };
  // hundreds of faint arcs are a few paths: the more elements, the later they are on the screen
  const faint = parts.length > MANY && !chosen ? parts.filter(([, , p]) => p < FAINT) : [];
  const drawn = [[0, FAINT / 5], [FAINT / 5, FAINT / 2], [FAINT / 2, FAINT]].map(([low, high]) => {
    const own = faint.filter(([, , p]) => p >= low && p < high);
    const d = own.map(([head, modifier]) => curve(head, modifier)).join("");
    return d ? svg("g", { class: "pmx-arc", opacity: strength((low + high) / 2), "stroke-width": 0.8 }, svg("path", { d })) : null;
  });
  for (const [head, modifier, p] of faint.length ? parts.filter((part) => part[2] >= FAINT) : parts) {
    const end = xs[modifier - 1];
    const name = head ? data.rows[head - 1] : "root";
    const title = svg("title", {}, `${name} → ${data.rows[modifier - 1]} ${share(p)}`);
    const looks = { class: look(head ? "pmx-arc" : "pmx-arc pmx-root", head, modifier, chosen), opacity: strength(p), "stroke-width": (0.7 + 1.7 * p).toFixed(2) };
    const tip = svg("path", { class: "pmx-tip", d: `M${end - 3.5} ${base - 8}L${end + 3.5} ${base - 8}L${end} ${base - 1}Z` });
    drawn.push(svg("g", looks, title, svg("path", { d: curve(head, modifier) }), tip));
  }
  if (parts.some(([head]) => head === 0)) {
    const at = Math.max(...parts.filter(([head]) => head === 0).map((part) => part[2]));
    const root = parts.find(([head, , p]) => head === 0 && p === at);
    drawn.push(svg("text", { class: "pmx-tick", x: xs[root[1] - 1], y: 11, "text-anchor": "middle" }, "root"));
  }
  if (named) {
    named.forEach((name, k) => {
      const head = step.heads[k];
      if (!head) return;
      const x = (xs[head - 1] + xs[k]) / 2;
      drawn.push(svg("text", { class: "pmx-relation", x, y: base - 9 - rise(head, k + 1) * 0.89, "text-anchor": "middle" }, name));
    });
  }
  return drawing(width, base + 24, label, ...drawn, ...words(data.rows, xs, base + 15));
}

function brackets(data, parts, step, chosen, label) {
  const [xs, width] = places(data.rows, 14, 26);
  const row = data.rows.length > 14 ? 11 : 17;
  const top = 14;
  const base = top + row * data.rows.length;
  const half = (k) => Math.max(13, textWidth(clipped(data.rows[k])) / 2);
  const names = new Map((step.brackets || []).map(([i, j, name]) => [`${i},${j}`, name]));
  const drawn = parts.filter(([i, j]) => i < j || names.has(`${i},${j}`)).map(([i, j, p]) => {
    const y = base - row * (j - i) - (i === j ? 2 : 0);
    const span = data.rows.slice(i, j + 1).join(" ");
    const name = names.get(`${i},${j}`);
    const [from, to] = [xs[i] - half(i), xs[j] + half(j)];
    const bar = svg("path", { class: look("pmx-span", i, j, chosen), opacity: strength(p), "stroke-width": (1.2 + 2.6 * p).toFixed(2), d: `M${from} ${y + 5}V${y}H${to}V${y + 5}` }, svg("title", {}, `${span} ${share(p)}`));
    return name ? svg("g", {}, bar, svg("text", { class: "pmx-relation", x: (from + to) / 2, y: y - 3, "text-anchor": "middle" }, name)) : bar;
  });
  return drawing(width, base + 26, label, ...drawn, ...words(data.rows, xs, base + 18));
}

function alignment(data, parts, step, chosen, label) {
  const cell = data.rows.length > 16 || data.columns.length > 16 ? 14 : 22;
  const left = 10 + Math.max(...data.rows.map((word) => textWidth(clipped(word, 14))));
  const top = 8 + Math.max(...data.columns.map((word) => 0.75 * textWidth(clipped(word, 14)))) + 8;
  const [n, m] = [data.rows.length, data.columns.length];
  const field = svg("rect", { class: "pmx-field", x: left, y: top, width: m * cell, height: n * cell });
  const drawn = parts.map(([i, j, p]) => {
    const title = svg("title", {}, `${data.rows[i]} – ${data.columns[j]} ${share(p)}`);
    return svg("rect", { class: look("pmx-cell", i, j, chosen), x: left + j * cell + 0.5, y: top + i * cell + 0.5, width: cell - 1, height: cell - 1, rx: 2, "fill-opacity": strength(p) }, title);
  });
  const down = data.rows.map((word, i) => svg("text", { class: "pmx-word", x: left - 6, y: top + (i + 0.5) * cell + 4, "text-anchor": "end" }, clipped(word, 14)));
  const across = data.columns.map((word, j) => {
    const [x, y] = [left + (j + 0.5) * cell + 4, top - 6];
    return svg("text", { class: "pmx-word", x, y, transform: `rotate(-50 ${x} ${y})` }, clipped(word, 14));
  });
  return drawing(left + m * cell + 46, top + n * cell + 4, label, field, ...drawn, ...down, ...across);
}

function matching(data, parts, step, chosen, label) {
  const row = 22;
  const left = 10 + Math.max(...data.rows.map((word) => textWidth(clipped(word, 16))));
  const right = 10 + Math.max(...data.columns.map((word) => textWidth(clipped(word, 16))));
  const [n, m] = [data.rows.length, data.columns.length];
  const height = row * Math.max(n, m) + 8;
  const y = (k, count) => 4 + (height - 8) * ((k + 0.5) / count);
  const between = 110;
  const drawn = parts.map(([i, j, p]) => {
    const title = svg("title", {}, `${data.rows[i]} – ${data.columns[j]} ${share(p)}`);
    return svg("line", { class: look("pmx-match", i, j, chosen), x1: left + 4, y1: y(i, n), x2: left + between - 4, y2: y(j, m), opacity: strength(p), "stroke-width": (0.7 + 3 * p).toFixed(2) }, title);
  });
  const first = data.rows.map((word, i) => svg("text", { class: "pmx-word", x: left - 2, y: y(i, n) + 4, "text-anchor": "end" }, clipped(word, 16)));
  const second = data.columns.map((word, j) => svg("text", { class: "pmx-word", x: left + between + 2, y: y(j, m) + 4 }, clipped(word, 16)));
  return drawing(left + between + right, height, label, ...drawn, ...first, ...second);
}
