// The simplex: scores to drag, a mapping to choose, and what it makes of them.
import { codeLine, latest, numbers, recalled, remember, tensor, texts } from "./app.js";
import { drawMapping } from "./draw/mapping.js";
import { html, short, slider } from "./draw/svg.js";

const REACH = 4;
const state = {
  labels: ["the", "cat", "sat", "on", "mats"],
  scores: [-0.6, 1.1, 0.9, -0.2, 0.4],
  name: "sparsemax",
  parameters: {},
};

export async function simplexView(offers) {
  const picture = html("div", {});
  const fault = html("p", { class: "fault", role: "alert", hidden: true });
  const code = codeLine();
  const scores = html("div", { class: "scores", role: "group", "aria-label": "Scores" });
  const parameters = html("div", { class: "controls", role: "group", "aria-label": "Parameters of the mapping" });
  const refresh = latest("/api/mapping", (data) => {
    fault.hidden = true;
    drawMapping(picture, data, { live: true });
    code.show(data.code, [`words = ${JSON.stringify(data.labels)}`, `x = ${tensor(data.scores)}`]);
  }, (error) => {
    fault.textContent = error.message;
    fault.hidden = false;
  });
  restore(offers);
  const ask = () => {
    remember("simplex", state);
    refresh({ scores: state.scores, name: state.name, parameters: state.parameters, labels: state.labels });
  };
  const listScores = () => scores.replaceChildren(...state.scores.map((_, k) => scoreRow(k, ask, listScores)));
  const choose = html("select", { "aria-label": "Mapping", onchange: (event) => {
    state.name = event.target.value;
    state.parameters = state.parameters.gamma && offers.mappings[state.name].gamma ? { gamma: state.parameters.gamma } : {};
    listParameters(parameters, offers, ask);
    ask();
  } }, ...Object.keys(offers.mappings).map((name) => html("option", { value: name, selected: name === state.name }, name)));
  const add = html("button", { type: "button", onclick: () => {
    state.labels.push(`x${state.labels.length + 1}`);
    state.scores.push(0);
    listScores();
    ask();
  } }, "Add a score");
  listScores();
  listParameters(parameters, offers, ask);
  ask();
  return {
    title: "The simplex",
    lead: "Drag the scores, choose a mapping, and see which weights are exactly zero.",
    content: html("div", { class: "two" },
      html("div", { class: "controls" }, html("label", { class: "field" }, html("span", {}, "mapping"), choose), parameters, html("h2", {}, "Scores x"), scores, html("div", { class: "row" }, add), code.element),
      html("div", {}, fault, picture)),
  };
}

/** Take the state of the address, as far as it fits. */
function restore(offers) {
  const found = recalled("simplex");
  const scores = numbers(found.scores, 1);
  const labels = texts(found.labels, 64);
  if (scores && labels && scores.length === labels.length && !scores.includes(null)) Object.assign(state, { scores, labels });
  if (!Object.hasOwn(offers.mappings, found.name)) return;
  state.name = found.name;
  const known = [...Object.keys(offers.mappings[found.name].parameters), "gamma"];
  const given = Object.entries(found.parameters ?? {}).filter(([name, value]) => known.includes(name) && Number.isFinite(value));
  state.parameters = Object.fromEntries(given);
}

function scoreRow(k, ask, list) {
  const value = html("output", { class: "pmx-value" }, short(state.scores[k]));
  const name = html("input", { type: "text", value: state.labels[k], "aria-label": `Name of score ${k + 1}`, maxlength: 24, oninput: (event) => {
    state.labels[k] = event.target.value || String(k + 1);
    ask();
  } });
  const range = html("input", { type: "range", min: -REACH, max: REACH, step: 0.05, value: state.scores[k], "aria-label": `Score of ${state.labels[k]}`, oninput: (event) => {
    state.scores[k] = Number(event.target.value);
    value.textContent = short(state.scores[k]);
    ask();
  } });
  const remove = html("button", { type: "button", "aria-label": `Remove ${state.labels[k]}`, disabled: state.scores.length < 2, onclick: () => {
    state.labels.splice(k, 1);
    state.scores.splice(k, 1);
    list();
    ask();
  } }, "×");
  return html("div", { class: "score" }, name, range, value, remove);
}

function listParameters(element, offers, ask) {
  const { gamma, parameters } = offers.mappings[state.name];
  const sliders = Object.entries(parameters).map(([name, range]) => {
    const value = state.parameters[name] ?? range.default;
    state.parameters[name] = value;
    return slider(name, { min: range.least, max: range.most, step: (range.most - range.least) / 200, value, say: short, moved: (next) => {
      state.parameters[name] = Number(short(next));
      ask();
    } }).element;
  });
  if (gamma) {
    const value = Math.log10(state.parameters.gamma ?? 1);
    sliders.push(slider("temperature γ", { min: -1.3, max: 1.3, step: 0.02, value, say: (x) => short(10 ** x), moved: (x) => {
      state.parameters.gamma = Number(short(10 ** x));
      ask();
    } }).element);
  }
  element.replaceChildren(...sliders);
}
