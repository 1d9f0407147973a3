// The page without a server: the simplex is computed here, structures were computed ahead.
import { drawMapping } from "./draw/mapping.js";
import { drawStructure } from "./draw/structure.js";
import { html, short, slider } from "./draw/svg.js";

const state = { labels: ["the", "cat", "sat", "on", "mats"], scores: [-0.6, 1.1, 0.9, -0.2, 0.4], alpha: 1.5, gamma: 1 };
const GAMMAS = Array.from({ length: 61 }, (_, k) => 0.05 * 400 ** (k / 60));

/** entmax of scores: softmax for alpha 1, sparsemax for alpha 2. The threshold is found by halving. */
export function entmax(scores, alpha) {
  const top = Math.max(...scores);
  if (alpha < 1.0005) {
    const parts = scores.map((one) => Math.exp(one - top));
    const sum = parts.reduce((a, b) => a + b, 0);
    return parts.map((one) => one / sum);
  }
  const scaled = scores.map((one) => (alpha - 1) * (one - top));
  const weights = (tau) => scaled.map((one) => Math.max(one - tau, 0) ** (1 / (alpha - 1)));
  let [low, high] = [-1, 0];
  for (let k = 0; k < 60; k += 1) {
    const middle = (low + high) / 2;
    if (weights(middle).reduce((a, b) => a + b, 0) >= 1) low = middle;
    else high = middle;
  }
  const found = weights(low);
  const sum = found.reduce((a, b) => a + b, 0);
  return found.map((one) => one / sum);
}

function pictureOf({ labels, scores, alpha, gamma }) {
  const at = (temperature, given = scores) => entmax(given.map((one) => one / temperature), alpha);
  const weights = at(gamma);
  const first = scores.slice(0, 3);
  const mean = first.reduce((a, b) => a + b, 0) / 3;
  const reach = Array.from({ length: 15 }, (_, k) => -2.5 + (5 * k) / 14);
  const round = (list) => list.map((one) => Number(one.toPrecision(3)));
  const triangle = {
    point: at(gamma, first),
    dots: reach.flatMap((a) => reach.map((b) => round(at(gamma, [a, -a / 2 + b, -a / 2 - b])))),
    path: Array.from({ length: 41 }, (_, k) => at(gamma, first.map((one) => (k / 10) * (one - mean)))),
  };
  return { kind: "mapping", name: "entmax", labels, scores, weights, path: { gamma, gammas: GAMMAS, weights: GAMMAS.map((one) => at(one)) }, triangle };
}

function simplex(element) {
  const picture = html("div", {});
  const code = html("code", {});
  const show = () => {
    drawMapping(picture, pictureOf(state), { live: true });
    const gamma = state.gamma === 1 ? "" : `, gamma=${short(state.gamma)}`;
    code.textContent = `pm.entmax(torch.tensor([${state.scores.join(", ")}]), alpha=${short(state.alpha)}${gamma})`;
  };
  const scores = state.labels.map((label, k) => slider(label, { min: -4, max: 4, step: 0.05, value: state.scores[k], say: short, moved: (value) => {
    state.scores[k] = value;
    show();
  } }).element);
  const alpha = slider("alpha: 1 is softmax, 2 is sparsemax", { min: 1, max: 3, step: 0.05, value: state.alpha, say: short, moved: (value) => {
    state.alpha = value;
    show();
  } }).element;
  const gamma = slider("temperature", { min: -1.3, max: 1.3, step: 0.02, value: 0, say: (x) => short(10 ** x), moved: (x) => {
    state.gamma = Number(short(10 ** x));
    show();
  } }).element;
  show();
  element.append(html("div", { class: "two" }, html("div", { class: "controls" }, alpha, gamma, ...scores, html("div", { class: "code" }, code)), picture));
}

function structures(element, ahead) {
  const picture = html("div", {});
  const draw = (name) => drawStructure(picture, ahead[name]);
  const choose = html("select", { onchange: (event) => draw(event.target.value) }, ...Object.keys(ahead).map((name) => html("option", { value: name }, `${name}: ${ahead[name].noun}`)));
  draw(Object.keys(ahead)[0]);
  element.append(html("label", { class: "field" }, html("span", {}, "set"), choose), picture);
}

simplex(document.getElementById("simplex"));
structures(document.getElementById("structures"), JSON.parse(document.getElementById("ahead").textContent));
// what tests compare with the library
globalThis.polymaxEntmax = entmax;
