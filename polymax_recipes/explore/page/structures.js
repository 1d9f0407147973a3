// Structures: a sentence or a grid with scores to edit, and four smoothings side by side.
import { ask, codeLine, latest, numbers, recalled, remember, tensor, texts } from "./app.js";
import { drawStructure } from "./draw/structure.js";
import { html } from "./draw/svg.js";
import { scoreGrid } from "./grid.js";

// temperatures of the slider
const LADDER = Array.from({ length: 35 }, (_, k) => Number((10 ** (-1 + (1.7 * k) / 34)).toPrecision(4)));
const ONE = LADDER.reduce((best, value, k) => (Math.abs(Math.log(value)) < Math.abs(Math.log(LADDER[best])) ? k : best), 0);
// milliseconds that the hand rests before all temperatures are computed, and tokens up to which LocalMax lists structures
const PATIENCE = 400;
const LISTED = 12;
const state = { set: "ProjectiveTree", rows: null, columns: null, tags: null, scores: null, at: ONE };

export async function structuresView(offers) {
  restore(offers);
  state.rows ??= offers.sentence.split(" ");
  state.columns ??= offers.other.split(" ");
  state.tags ??= offers.tags;
  const picture = html("div", {});
  const fault = html("p", { class: "fault", role: "alert", hidden: true });
  const editors = html("div", { class: "controls" });
  const code = codeLine();
  let view = null;
  let timer = null;
  let whole = false;
  let begun = 0;
  const failed = (error) => {
    fault.textContent = error.message;
    fault.hidden = false;
  };
  const show = (data) => {
    fault.hidden = true;
    whole = data.temperatures.length === LADDER.length;
    if (view) view.update(data);
    else view = drawStructure(picture, data, { ladder: LADDER, at: state.at, moved });
    picture.dataset.drawn = String(Number(picture.dataset.drawn || 0) + 1);
    picture.dataset.whole = String(whole);
  };
  // first what is seen, at one temperature; then all temperatures, when the hand rests
  const refresh = latest("/api/structure", show, failed);
  const body = (temperatures, quick) => ({ set: state.set, scores: state.scores, rows: state.rows, columns: named(offers), temperatures, quick });
  const changed = () => {
    keep();
    refresh(body([LADDER[state.at]], true));
    clearTimeout(timer);
    timer = setTimeout(() => refresh(body(LADDER, state.rows.length > LISTED)), PATIENCE);
  };
  // a browser takes some hundred new addresses in a while, and no more
  let keeping = null;
  const keep = () => {
    clearTimeout(keeping);
    keeping = setTimeout(() => { if (picture.isConnected) remember("structures", state); }, PATIENCE);
    told();
  };
  const told = () => {
    const gamma = `gamma=${LADDER[state.at]}`;
    const named = state.scores[1] ? ["unary", "transition"] : ["scores"];
    const lines = state.scores.map((one, k) => `${named[k]} = ${tensor(one)}`);
    code.show(`pm.SparseMap(pm.${state.set}(), ${gamma})(${named.join(", ")})`, [`words = ${JSON.stringify(state.rows)}`, ...lines]);
  };
  const moved = (k) => {
    state.at = k;
    if (state.scores) keep();
    if (!whole && state.scores) changed();
  };
  const edit = () => {
    const kind = offers.sets[state.set].draws;
    const tokens = kind === "arcs" ? ["root", ...state.rows] : state.rows;
    const across = { tags: state.tags, arcs: tokens, brackets: state.rows }[kind] || state.columns;
    const used = { arcs: (i, j) => j > 0 && i !== j, brackets: (i, j) => i <= j }[kind] || (() => true);
    const titles = { tags: "scores of tags at tokens", arcs: "scores of arcs, [head, modifier]", brackets: "scores of spans, [first, last]" };
    const grids = [scoreGrid({ title: titles[kind] || "scores of pairs", rows: tokens, columns: across, scores: state.scores[0], used, changed })];
    if (state.scores[1]) grids.push(scoreGrid({ title: "scores of neighbours, [previous, next]", rows: state.tags, columns: state.tags, scores: state.scores[1], used: () => true, changed }));
    editors.replaceChildren(...grids);
  };
  const begin = async () => {
    // scores of other tokens are not asked about any more, and the last sentence typed is the one that counts
    const turn = (begun += 1);
    clearTimeout(timer);
    state.scores = null;
    try {
      const found = await ask("/api/scores", { set: state.set, rows: state.rows, columns: named(offers) });
      if (turn !== begun) return;
      state.scores = found.scores;
      view = null;
      edit();
      changed();
    } catch (error) {
      failed(error);
    }
  };
  const other = html("label", { class: "field" }, html("span", {}, "columns: another sentence, or tags"), html("input", { type: "text", "data-field": "other", onchange: (event) => {
    const words = split(event.target.value, offers.most);
    if (!words.length) return;
    if (state.set === "Chain") state.tags = words;
    else state.columns = words;
    begin();
  } }));
  const naming = () => {
    const kind = offers.sets[state.set].draws;
    other.hidden = kind === "arcs" || kind === "brackets";
    other.querySelector("input").value = (kind === "tags" ? state.tags : state.columns).join(" ");
  };
  const choose = html("select", { onchange: (event) => {
    state.set = event.target.value;
    naming();
    begin();
  } }, ...Object.entries(offers.sets).map(([name, about]) => html("option", { value: name, selected: name === state.set }, `${name}: ${about.noun}`)));
  const sentence = html("textarea", { rows: 2, "data-field": "sentence", onchange: (event) => {
    const words = split(event.target.value, offers.most);
    if (!words.length) return;
    state.rows = words;
    begin();
  } }, state.rows.join(" "));
  naming();
  if (state.scores) {
    edit();
    changed();
  } else begin();
  return {
    title: "Structures",
    lead: "One set, four smoothings. Edit scores, move the temperature, and watch whole structures enter and leave the support.",
    content: html("div", { class: "controls" },
      html("div", { class: "two" },
        html("div", { class: "controls" }, html("label", { class: "field" }, html("span", {}, "set"), choose), html("label", { class: "field" }, html("span", {}, "tokens, between spaces"), sentence), other, code.element),
        editors),
      fault, picture),
  };
}

/** Take the state of the address, as far as it fits. */
function restore(offers) {
  const found = recalled("structures");
  const rows = texts(found.rows, offers.most);
  if (!Object.hasOwn(offers.sets, found.set) || !rows) return;
  const scores = Array.isArray(found.scores) && found.scores.length === (found.set === "Chain" ? 2 : 1) && found.scores.every((one) => numbers(one, 2)) ? found.scores : null;
  const at = Number.isInteger(found.at) && found.at >= 0 && found.at < LADDER.length ? found.at : ONE;
  const lists = { columns: texts(found.columns, offers.most) ?? offers.other.split(" "), tags: texts(found.tags, 12) ?? offers.tags };
  const tokens = rows.length + (offers.sets[found.set].draws === "arcs" ? 1 : 0);
  Object.assign(state, { set: found.set, rows, at, ...lists, scores: scores && scores[0].length === tokens ? scores : null });
}

function named(offers) {
  const kind = offers.sets[state.set].draws;
  return { tags: state.tags, arcs: [], brackets: [] }[kind] || state.columns;
}

function split(text, most) {
  return text.trim().split(/\s+/).filter(Boolean).slice(0, most);
}
