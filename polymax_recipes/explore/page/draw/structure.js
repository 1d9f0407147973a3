// Smoothings of a structure side by side, and whole structures as they enter and leave the support.
import { figure } from "./mapping.js";
import { shape } from "./shapes.js";
import { chart, html, saving, scrolling, share, short, slider, svg } from "./svg.js";

/** Draw a structure. The result has `update(data)`, which keeps the temperature, for a page that computes anew. */
export function drawStructure(element, data, options = {}) {
  const state = { data, ladder: options.ladder || data.temperatures, at: options.at ?? data.at, chosen: null };
  const body = html("div", { class: "pmx-structure" });
  const control = slider("temperature", {
    min: 0,
    max: state.ladder.length - 1,
    step: 1,
    value: state.at,
    say: (k) => short(state.ladder[k]),
    moved: (k) => {
      state.at = k;
      if (state.data.temperatures.length === state.ladder.length) show();
      if (options.moved) options.moved(k);
    },
  });
  const show = () => render(body, state, show);
  element.replaceChildren(...(state.ladder.length > 1 ? [control.element] : []), body);
  show();
  return {
    update(next) {
      if (JSON.stringify(next.structures) !== JSON.stringify(state.data.structures)) state.chosen = null;
      state.data = next;
      show();
    },
    get at() {
      return state.at;
    },
  };
}

function render(body, state, show) {
  const { data } = state;
  const whole = data.temperatures.length === state.ladder.length;
  const index = whole ? state.at : 0;
  const chosen = state.chosen === null ? null : new Set(data.structures[state.chosen]?.map(([i, j]) => `${i},${j}`));
  const focused = document.activeElement?.dataset?.structure;
  const panels = data.panels.map((panel) => panelOf(data, panel, index, chosen));
  const parts = [html("div", { class: "pmx-panels" }, ...panels), structureTable(data, index, state, show)];
  const sparse = data.panels.find((panel) => panel.name === "SparseMap");
  if (whole && data.temperatures.length > 1 && !sparse.missing) {
    const lines = data.structures.map((_, k) => ({ name: describe(data, k), color: k, values: sparse.steps.map((step) => step.probabilities[k]) }));
    const label = `Probabilities under SparseMap over temperatures, now ${short(state.ladder[state.at])}`;
    const drawn = chart({ label, xs: data.temperatures, lines, at: state.ladder[state.at], xTitle: "temperature γ" });
    parts.push(figure("Whole structures under SparseMap: each enters, and leaves", drawn.element));
  }
  body.replaceChildren(...parts);
  if (focused !== undefined) body.querySelector(`[data-structure="${focused}"]`)?.focus();
}

// what the four panels mean
const ABOUT = {
  HardMax: "The best structure alone: a small change of scores changes all or nothing.",
  Marginals: "Every structure has a probability above 0: each part has the sum of those that have it.",
  LocalMax: "Each step of the dynamic program chooses among few: many parts are exactly 0.",
  SparseMap: "A mixture of few whole structures: all others have probability 0.",
};
// structures that no panel gives more are folded away
const LEAST = 0.001;

function panelOf(data, panel, index, chosen) {
  const title = html("h2", {}, panel.name);
  const about = html("p", { class: "pmx-about" }, ABOUT[panel.name]);
  const code = html("p", { class: "pmx-note" }, html("code", {}, panel.code));
  if (panel.missing) return html("section", { class: "pmx-panel" }, title, about, code, html("p", { class: "pmx-missing" }, panel.missing));
  const step = panel.steps[Math.min(index, panel.steps.length - 1)];
  const positive = `${step.positive} of ${data.parts} parts are not zero`;
  const size = panel.name === "Marginals" ? `all ${data.noun}, ` : step.size === null ? "" : step.size === 1 ? `one of the ${data.noun}, ` : `${step.size} ${data.noun}, `;
  const label = `${panel.name}: ${size}${positive}. ${likeliest(data, step)}`;
  const drawn = scrolling(`${panel.name}, drawn`, shape(data, step, chosen, label));
  const below = html("p", { class: "pmx-note" }, `${size}${positive} `, saving(drawn, `${panel.name} of ${data.set}`));
  return html("section", { class: "pmx-panel" }, title, about, code, drawn, below);
}

function likeliest(data, step) {
  const found = [];
  for (let k = 0; k < step.parts.length && found.length < 40; k += 3) {
    if (step.parts[k + 2] > 0.5) found.push(`${partName(data, step.parts[k], step.parts[k + 1])} ${share(step.parts[k + 2])}`);
  }
  return found.length ? `Likely parts: ${found.join(", ")}.` : "";
}

function partName(data, i, j) {
  if (data.draws === "tags") return `${data.rows[i]}: ${data.columns[j]}`;
  if (data.draws === "arcs") return i ? `${data.rows[i - 1]} → ${data.rows[j - 1]}` : `root → ${data.rows[j - 1]}`;
  if (data.draws === "brackets") return `[${data.rows.slice(i, j + 1).join(" ")}]`;
  return `${data.rows[i]}–${data.columns[j]}`;
}

/** A whole structure in words: what it has that the best has not, or else what it lacks. */
function describe(data, k) {
  if (k === 0) return "the best";
  const missing = (from, set) => from.filter((part) => !set.has(String(part)));
  const best = new Set(data.structures[0].map(String));
  const other = missing(data.structures[k], best);
  const listed = other.length ? other : missing(data.structures[0], new Set(data.structures[k].map(String)));
  const names = listed.slice(0, 3).map(([i, j]) => partName(data, i, j));
  return (other.length ? "" : "without ") + names.join(", ") + (listed.length > 3 ? `, and ${listed.length - 3} more` : "");
}

function structureTable(data, index, state, show) {
  const panels = data.panels.filter((panel) => !panel.missing);
  const steps = panels.map((panel) => panel.steps[Math.min(index, panel.steps.length - 1)]);
  const weight = (k) => Math.max(0, ...steps.map((step, panel) => (panels[panel].name === "HardMax" || step.probabilities === null ? 0 : step.probabilities[k])));
  const sparse = steps[panels.findIndex((panel) => panel.name === "SparseMap")];
  const first = (k) => sparse?.probabilities?.[k] ?? 0;
  const order = data.structures.map((_, k) => k).sort((a, b) => first(b) - first(a) || weight(b) - weight(a) || a - b);
  const shown = order.filter((k) => weight(k) >= LEAST || k === 0 || k === state.chosen);
  const listed = state.unfolded ? order : shown;
  const rows = listed.map((k) => {
    const pressed = state.chosen === k;
    const button = html("button", {
      type: "button",
      class: "pmx-choose",
      "data-structure": k,
      "aria-pressed": String(pressed),
      onclick: () => {
        state.chosen = pressed ? null : k;
        show();
      },
    }, svg("svg", { class: "pmx-swatch", viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("circle", { class: `pmx-fill pmx-c${k % 12}`, cx: 5, cy: 5, r: 5 })), describe(data, k));
    const cells = steps.map((step) => {
      const p = step.probabilities === null ? null : step.probabilities[k];
      const bar = svg("svg", { class: "pmx-bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { class: `pmx-fill pmx-c${k % 12}`, width: 100 * (p || 0), height: 10 }));
      return html("td", { class: p === 0 ? "pmx-zero" : null }, bar, html("span", {}, share(p)));
    });
    return html("tr", {}, html("th", { scope: "row" }, button), ...cells);
  });
  const hidden = order.length - shown.length;
  const fold = hidden ? html("button", { type: "button", class: "pmx-fold", "aria-expanded": String(Boolean(state.unfolded)), onclick: () => {
    state.unfolded = !state.unfolded;
    show();
  } }, state.unfolded ? `Hide ${hidden} that have next to no weight here` : `Show ${hidden} more, with next to no weight at this temperature`) : null;
  const head = html("tr", {}, html("th", { scope: "col" }, "difference from the best"), ...panels.map((panel) => html("th", { scope: "col" }, panel.name)));
  return scrolling("Whole structures and their probabilities",
    html("table", { class: "pmx-table pmx-structures" }, html("caption", {}, "Whole structures, the heaviest at this temperature first; choose one to see it above"), html("thead", {}, head), html("tbody", {}, ...rows)), fold);
}
