// Runs: type a sentence, see what trained models find, side by side where there are two.
import { ask, recalled, remember } from "./app.js";
import { drawMatrix } from "./draw/matrix.js";
import { shape } from "./draw/shapes.js";
import { clipped, html, saving, scrolling, share, short, svg } from "./draw/svg.js";

const PAIRS = ["word-align", "protein-align", "entail"];
const EXAMPLES = { lm: "The ", listops: "[MAX 2 9 [MIN 4 7 ] 0 ]", series: "0 1 2 1 0", "word-align": "she sings", entail: "A man sleeps." };
const LISTED = 12;
const VERBS = { parse: "Parse", tag: "Tag", bracket: "Parse", seq2seq: "Translate", lm: "Go on", classify: "Classify", "word-align": "Align", "protein-align": "Align" };
const state = { text: null, second: "" };

export async function runsView() {
  const { runs } = await ask("/api/runs");
  const lead = "Type a sentence; trained models show their sparse distributions over tags, trees, translations and alignments.";
  if (!runs.length) {
    return { title: "Runs", lead, content: html("p", {}, "No run was given. Train one, then start ", html("code", {}, "polymax explore RUN"), ", or with two runs to compare them.") };
  }
  const task = runs[0].task;
  const found = recalled("runs");
  if (typeof found.text === "string") state.text = found.text.slice(0, 2000);
  if (typeof found.second === "string") state.second = found.second.slice(0, 2000);
  state.text ??= EXAMPLES[task] || "Anna Berg saw the man with a telescope in New York .";
  const fault = html("p", { class: "fault", role: "alert", hidden: true });
  const outputs = html("div", { class: "outputs" });
  const text = html("textarea", { rows: 2, "data-field": "input" }, state.text);
  const second = html("textarea", { rows: 2, "data-field": "second" }, state.second);
  const two = runs.some((run) => PAIRS.includes(run.task) || run.task === "classify");
  const predict = async () => {
    state.text = text.value;
    state.second = second.value;
    remember("runs", state);
    try {
      const found = await Promise.all(runs.map((run, k) => predicted(run, k)));
      outputs.replaceChildren(...found.map((one, k) => outputOf(runs[k], one, runs.length > 1 ? k + 1 : 0)));
      outputs.dataset.drawn = String(Number(outputs.dataset.drawn || 0) + 1);
      fault.hidden = true;
    } catch (error) {
      fault.textContent = error.message;
      fault.hidden = false;
    }
  };
  const enter = (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      predict();
    }
  };
  for (const field of [text, second]) field.addEventListener("keydown", enter);
  predict();
  const names = { "word-align": ["source", "target"], "protein-align": ["first", "second"], entail: ["premise", "hypothesis"] }[task] || ["input", "second text, where the training had two"];
  return {
    title: runs.length > 1 ? "Runs, compared" : "A run",
    lead,
    content: html("div", { class: "controls" },
      html("label", { class: "field" }, html("span", {}, names[0]), text),
      two ? html("label", { class: "field" }, html("span", {}, names[1]), second) : null,
      html("div", { class: "row" }, html("button", { type: "button", onclick: predict }, VERBS[task] ?? "Show what is found")),
      fault, outputs),
  };
}

async function predicted(run, number) {
  let input = state.text;
  if (PAIRS.includes(run.task) || (run.task === "classify" && state.second.trim())) input = [state.text, state.second];
  if (run.task === "series") input = state.text.trim().split(/[\s,;]+/).map(Number);
  const body = { inputs: [input], run: number };
  if (run.alternatives) {
    try {
      return (await ask("/api/predict", { ...body, alternatives: true })).outputs[0];
    } catch (error) {
      // a loss such as that of a perceptron has no probabilities
      if (!error.message.includes("needs a loss with probabilities")) throw error;
    }
  }
  return (await ask("/api/predict", body)).outputs[0];
}

/** What a run found, drawn. */
export function outputOf(run, output, number) {
  const parts = { tag: tagged, parse: parsed, bracket: bracketed, seq2seq: translated, "word-align": aligned, "protein-align": paired, "speech-align": spoken, entail: entailed, classify: classified, listops: classified, lm: continued, series: measured }[run.task](output);
  return html("section", { class: "output", "aria-label": `${run.name}: ${run.task}` }, html("h2", {}, `${number ? `${number}. ` : ""}${run.name}: ${run.task}`), ...parts.flat());
}

function flat(matrix, least = 5e-4) {
  const found = [];
  matrix.forEach((row, i) => row.forEach((p, j) => {
    if (p > least) found.push(i, j, p);
  }));
  return found;
}

function one(length, places) {
  return places.slice(0, length).flatMap(([i, j]) => [i, j, 1]);
}

function tagged(output) {
  const words = output.tokens.map((token, k) => `${token}/${output.tags[k]}`).join(" ");
  const parts = output.probabilities ? flat(output.probabilities) : output.tags.flatMap((tag, k) => [k, Math.max(0, output.names.indexOf(tag)), 1]);
  const used = [...new Set(parts.filter((_, k) => k % 3 === 1))].sort((a, b) => a - b);
  const data = { draws: "tags", rows: output.tokens, columns: used.map((k) => output.names[k]) };
  const placed = parts.map((value, k) => (k % 3 === 1 ? used.indexOf(value) : value));
  const draw = (chosen) => shape(data, { parts: placed, links: [] }, chosen, `Tags: ${words}`);
  if (output.tags.some((tag) => /^[BIESLU]-/.test(tag))) {
    const drawn = whole("Tags", draw, output, (row) => entityText(output.tokens, row.tags), (row) => row.tags.map((tag, k) => `${k},${data.columns.indexOf(tag)}`));
    return [entities(output.tokens, output.tags), ...drawn];
  }
  return whole("Tags", draw, output, (row) => row.tags.join(" "), (row) => row.tags.map((tag, k) => `${k},${data.columns.indexOf(tag)}`));
}

/** Entities of tags in BIO or BIOES, as [first, after the last, type]. */
function spansOf(tags) {
  const found = [];
  tags.forEach((tag, k) => {
    const [, mark, kind] = /^([BIESLU])-(.*)$/.exec(tag) ?? [];
    if (!kind) return;
    const last = found[found.length - 1];
    if ("IEL".includes(mark) && last && last[1] === k && last[2] === kind) last[1] = k + 1;
    else found.push([k, k + 1, kind]);
  });
  return found;
}

function entityText(tokens, tags) {
  return spansOf(tags).map(([first, end, kind]) => `${tokens.slice(first, end).join(" ")} (${kind})`).join(", ") || "no entity";
}

/** A text whose entities are coloured spans. */
function entities(tokens, tags) {
  const spans = spansOf(tags);
  const kinds = [...new Set(spans.map(([, , kind]) => kind))].sort();
  const parts = [];
  let at = 0;
  for (const [first, end, kind] of [...spans, [tokens.length, tokens.length, ""]]) {
    if (first > at) parts.push(`${tokens.slice(at, first).join(" ")} `);
    if (end > first) parts.push(html("mark", { class: `entity entity-${kinds.indexOf(kind) % 6}` }, tokens.slice(first, end).join(" "), html("span", { class: "kind" }, ` ${kind}`)), " ");
    at = end;
  }
  return html("p", { class: "entities", "aria-label": `Entities: ${entityText(tokens, tags)}` }, ...parts);
}

function parsed(output) {
  const parts = output.arcs ? flat(output.arcs) : one(output.heads.length, output.heads.map((head, k) => [head, k + 1]));
  const arc = (heads, k) => `${heads[k] ? output.tokens[heads[k] - 1] : "root"} → ${output.tokens[k]}`;
  const said = output.heads.map((_, k) => `${arc(output.heads, k)} (${output.relations[k]})`).join(", ");
  const step = { parts, heads: output.heads, relations: output.relations };
  const draw = (chosen) => shape({ draws: "arcs", rows: output.tokens }, step, chosen, `Dependencies: ${said}`);
  const differences = (row) => {
    const other = row.heads.map((head, k) => (head === output.heads[k] ? null : arc(row.heads, k))).filter(Boolean);
    return other.slice(0, 4).join(", ") + (other.length > 4 ? `, and ${other.length - 4} more` : "") || "the best";
  };
  return whole("Dependencies", draw, output, differences, (row) => row.heads.map((head, k) => `${head},${k + 1}`));
}

function bracketed(output) {
  const parts = output.spans ? flat(output.spans) : one(output.brackets.length, output.brackets);
  const draw = (chosen) => shape({ draws: "brackets", rows: output.tokens }, { parts, brackets: output.brackets }, chosen, `Constituents: ${output.tree}`);
  return whole("Constituents", draw, output, (row) => row.tree, (row) => row.brackets.map(([i, j]) => `${i},${j}`));
}

/** A drawing, and the whole structures below it, each of which can be chosen and is then seen in the drawing. */
function whole(title, draw, output, name, keys) {
  const drawn = scrolling(`${title}, drawn`, draw(null));
  if (!output.alternatives) return [drawn, saving(drawn, title), html("p", { class: "pmx-note" }, "The loss of this run has no probabilities.")];
  const listed = output.alternatives.slice(0, LISTED);
  const buttons = listed.map((row) => html("button", { type: "button", class: "pmx-choose", "aria-pressed": "false", onclick: (event) => {
    const pressed = event.currentTarget.getAttribute("aria-pressed") === "true";
    for (const button of buttons) button.setAttribute("aria-pressed", String(button === event.currentTarget && !pressed));
    drawn.replaceChildren(draw(pressed ? null : new Set(keys(row))));
  } }, name(row)));
  const rows = listed.map((row, k) => html("tr", {}, html("th", { scope: "row" }, buttons[k]), html("td", { class: "pmx-number" }, share(row.probability))));
  const count = output.alternatives.length;
  const caption = `Whole structures and their probabilities${count > LISTED ? `, the ${LISTED} most probable of ${count}` : ""}; choose one to see it above`;
  return [drawn, saving(drawn, title), scrolling("Whole structures", html("table", { class: "pmx-table" }, html("caption", {}, caption), html("tbody", {}, ...rows)))];
}

function matrix(title, weights, rows, columns) {
  const element = html("div", {});
  drawMatrix(element, { title, rows, columns, cells: flat(weights, 0) });
  return element;
}

function translated(output) {
  return [html("p", { class: "text-out" }, output.text), matrix("attention", output.attention, output.target, output.source)];
}

function aligned(output) {
  return [matrix("alignment, the mean of both directions", output.weights, output.source, output.target)];
}

function paired(output) {
  return [html("pre", { class: "text-out" }, output.rows.join("\n")), html("p", { class: "pmx-note" }, output.cigar), matrix("probabilities of pairs", output.weights, [...output.first], [...output.second])];
}

function spoken(output) {
  const said = output.tokens.map((token, k) => `${token} ${output.starts[k].toFixed(2)} to ${output.ends[k].toFixed(2)} s`).join(", ");
  return [html("p", { class: "text-out" }, said), matrix("expected alignment", output.weights, output.weights.map((_, k) => String(k)), output.tokens)];
}

function entailed(output) {
  const both = Array.isArray(output.attention[0][0]);
  const drawn = both ? matrix("premise to hypothesis", output.attention[0], output.premise, output.hypothesis) : matrix("attention", output.attention, output.hypothesis, output.premise);
  return [html("p", { class: "text-out" }, output.label), bars(output.probabilities, 1), drawn];
}

function classified(output) {
  const trees = output.tokens.map((rows, k) => {
    if (output.heads[k]?.length) return scrolling("Tree, drawn", shape({ draws: "arcs", rows }, { parts: one(rows.length, output.heads[k].map((head, m) => [head, m + 1])) }, null, "latent tree"));
    if (output.spans[k]?.length) return scrolling("Tree, drawn", shape({ draws: "brackets", rows }, { parts: one(output.spans[k].length, output.spans[k]) }, null, "latent tree"));
    return null;
  });
  return [html("p", { class: "text-out" }, output.label), bars(output.probabilities, 1), ...trees];
}

function continued(output) {
  const mean = output.log_probs.length ? output.log_probs.reduce((a, b) => a + b, 0) / output.log_probs.length : 0;
  return [html("p", { class: "text-out" }, html("span", { class: "pmx-zero" }, output.prompt), output.text), html("p", { class: "pmx-note" }, `${output.tokens.length} tokens, mean log-probability ${short(mean)}`)];
}

function measured(output) {
  return [html("p", { class: "text-out" }, output.label), html("p", { class: "pmx-note" }, "discrepancy to each class; the least is nearest"), bars(output.discrepancies, Math.max(...Object.values(output.discrepancies)) || 1, short)];
}

function bars(shares, most, say = share) {
  const rows = Object.entries(shares).map(([name, p], k) => html("tr", {}, html("th", { scope: "row" }, clipped(name)),
    html("td", { class: "pmx-wide" }, svg("svg", { class: "pmx-bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { class: `pmx-fill pmx-c${k % 12}`, width: Math.max(0, (100 * p) / most), height: 10 }))),
    html("td", { class: "pmx-number" }, say(p))));
  return html("table", { class: "pmx-table" }, html("tbody", {}, ...rows));
}
