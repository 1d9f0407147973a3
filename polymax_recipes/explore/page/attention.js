// Attention of a whole model: one head at a time, and of it only what is visible and not zero.
import { ask, recalled, remember } from "./app.js";
import { lines } from "./draw/lines.js";
import { clipped, html, saving, scrolling, share, short, svg } from "./draw/svg.js";
import { Sheet, thumbnail } from "./sheet.js";

const FOUND = 200;
// tokens up to which attention is drawn as lines too, and heads up to which all layers are seen at once
const WORDS = 150;
const GRID = 96;

export async function attentionView(offers) {
  const lead = "Weights of each head, drawn where they are not zero. Drag or scroll to move; double-click, pinch, or scroll with Ctrl to zoom; click a row to list what it attends to.";
  if (!offers.attention) {
    return { title: "Attention", lead, content: html("p", {}, "No weights were given: start with ", html("code", {}, "polymax explore --attention FILE"), ". ", html("code", {}, 'pm.explore.save_attention("attention.npz", weights, tokens)'), " writes such a file from the weights of any model.") };
  }
  const file = await ask("/api/attention");
  file.keys ??= file.queries;
  const state = { layer: 0, head: 0, loaded: new Map() };
  const found = recalled("attention");
  const within = (value, most) => (Number.isInteger(value) && value >= 0 && value < most ? value : 0);
  [state.layer, state.head] = [within(found.layer, file.layers), within(found.head, file.heads)];
  const few = Math.max(file.queries.length, file.keys.length) <= WORDS;
  const grid = file.layers > 1 && file.layers * file.heads <= GRID;
  const between = html("div", { hidden: true });
  const canvas = html("canvas", { tabindex: 0, role: "application", "aria-label": "Attention weights, queries down and keys across. Arrow keys move, + and − zoom, 0 shows all." });
  const where = html("p", { class: "pmx-note", "aria-live": "off" }, "\u00a0");
  const listTitle = html("h2", {}, "Choose a query");
  const list = html("ol", { class: "list", "aria-label": "Keys that the chosen query attends to" });
  const heads = html("div", { class: "heads", role: "group", "aria-label": "Heads" });
  const matches = html("ol", { class: "list", "aria-label": "Tokens found" });
  const sheet = new Sheet(canvas, file, {
    hovered: (i, j, p) => { where.textContent = i === null ? "\u00a0" : `${file.queries[i]} (${i + 1}) → ${file.keys[j]} (${j + 1}): ${share(p)}`; },
    chosen: (i) => showQuery(i),
  });
  const showQuery = (i) => {
    sheet.choose(i);
    const row = sheet.row(i).sort((a, b) => b[1] - a[1]);
    listTitle.textContent = `${clipped(file.queries[i], 24)} (${i + 1}) attends to ${row.length} of ${file.keys.length}`;
    list.replaceChildren(...row.slice(0, FOUND).map(([j, p]) => html("li", {},
      html("button", { type: "button", onclick: () => { sheet.center(i, j); if (file.keys === file.queries) showQuery(j); } }, `${file.keys[j]} (${j + 1})`),
      svg("svg", { class: "pmx-bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { class: "pmx-fill pmx-c0", width: 100 * p, height: 10 })),
      html("span", {}, share(p)))));
  };
  const load = async (layer, head) => {
    const key = `${layer}/${head}`;
    if (!state.loaded.has(key)) state.loaded.set(key, ask(`/api/attention/${key}`).then((buffer) => unpacked(buffer, file)));
    return state.loaded.get(key);
  };
  const open = async (layer, head) => {
    [state.layer, state.head] = [layer, head];
    for (const button of heads.children) button.setAttribute("aria-pressed", String(Number(button.dataset.head) === head));
    for (const button of all.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.place === `${layer}/${head}`));
    layers.value = layer;
    remember("attention", { layer, head });
    const found = await load(layer, head);
    if (state.layer !== layer || state.head !== head) return;
    sheet.show(found);
    if (few) {
      const drawn = scrolling("Attention as lines", lines(file.queries, file.keys, cellsOf(found), `Attention of layer ${layer + 1}, head ${head + 1} as lines from queries to keys`, showQuery));
      between.replaceChildren(drawn, saving(drawn, `attention layer ${layer + 1} head ${head + 1}`));
    }
    if (sheet.query !== null) showQuery(sheet.query);
    canvas.dataset.drawn = `${layer}/${head}`;
  };
  const list_heads = () => {
    if (!grid) state.loaded.clear();
    heads.replaceChildren(...Array.from({ length: file.heads }, (_, h) => html("button", { type: "button", "data-head": h, "aria-pressed": String(h === state.head), "aria-label": `Head ${h + 1}: mean support ${short(file.support[state.layer][h])}`, onclick: () => open(state.layer, h) },
      html("canvas", { width: 56, height: 56, "aria-hidden": "true" }), `${h + 1}`)));
  };
  const thumbnails = async (layer) => {
    // one after the other, behind what is being looked at
    for (let h = 0; h < file.heads && state.layer === layer && heads.isConnected; h += 1) {
      const found = await load(layer, h);
      if (state.layer === layer && heads.children[h]) thumbnail(heads.children[h].firstChild, found, file);
      await new Promise((resume) => setTimeout(resume, 20));
    }
  };
  const layers = html("select", { onchange: async (event) => {
    state.layer = Number(event.target.value);
    list_heads();
    await open(state.layer, state.head);
    thumbnails(state.layer);
  } }, ...Array.from({ length: file.layers }, (_, l) => html("option", { value: l }, `layer ${l + 1}`)));
  const search = html("input", { type: "search", "aria-label": "Search for a token", placeholder: "search for a token", oninput: (event) => {
    const wanted = event.target.value.trim().toLowerCase();
    const places = [];
    if (wanted) file.queries.forEach((token, k) => { if (token.toLowerCase().includes(wanted)) places.push(k); });
    sheet.mark(places);
    matches.replaceChildren(...places.slice(0, FOUND).map((k) => html("li", {}, html("button", { type: "button", onclick: () => { sheet.center(k, Math.min(k, file.keys.length - 1)); showQuery(k); } }, `${file.queries[k]} (${k + 1})`))));
    matches.hidden = !places.length;
  } });
  matches.hidden = true;
  const zoom = (name, label, act) => html("button", { type: "button", "aria-label": label, onclick: act }, name);
  // all heads of all layers, each a thumbnail
  const all = html("div", { class: "all-heads", role: "group", "aria-label": "All heads", hidden: !grid }, ...(grid ? file.support : []).map((row, l) => html("div", { class: "row" }, html("span", { class: "pmx-note" }, `layer ${l + 1}`), ...row.map((size, h) => html("button", { type: "button", "data-place": `${l}/${h}`, "aria-pressed": "false", "aria-label": `Layer ${l + 1}, head ${h + 1}: mean support ${short(size)}`, onclick: () => { state.layer = l; list_heads(); open(l, h); } }, html("canvas", { width: 44, height: 44, "aria-hidden": "true" }))))));
  const overview = async () => {
    for (const button of all.querySelectorAll("button")) {
      if (!all.isConnected) return;
      thumbnail(button.firstChild, await load(...button.dataset.place.split("/").map(Number)), file);
      await new Promise((resume) => setTimeout(resume, 10));
    }
  };
  heads.hidden = grid;
  const turn = html("button", { type: "button", "aria-pressed": "false", hidden: !few, onclick: () => {
    between.hidden = !between.hidden;
    sheetBox.hidden = !between.hidden;
    turn.setAttribute("aria-pressed", String(!between.hidden));
    if (!sheetBox.hidden) sheet.resize();
  } }, "Lines between words");
  const sheetBox = html("div", {}, html("div", { class: "canvas" }, canvas), where);
  list_heads();
  const content = html("div", { class: "controls" },
    html("div", { class: "row" }, html("label", { class: "row" }, "layer", layers), zoom("+", "Zoom in", () => sheet.zoom(1.6)), zoom("−", "Zoom out", () => sheet.zoom(1 / 1.6)), zoom("all", "Show all", () => sheet.fit()), turn, search),
    heads, all,
    html("div", { class: "attention" },
      html("div", {}, sheetBox, between),
      html("aside", { class: "controls", "aria-label": "Details" }, matches, listTitle, list)),
    supports(file, (l, h) => { layers.value = l; state.layer = l; state.head = h; list_heads(); open(l, h).then(() => thumbnails(l)); }));
  requestAnimationFrame(async () => {
    sheet.resize();
    await open(state.layer, state.head);
    if (grid) overview();
    else thumbnails(state.layer);
  });
  const unit = file.least > 0 ? ` Weights up to ${file.least} were left out when the file was written.` : "";
  return { title: `Attention: ${file.name}`, lead: `${file.layers} layers, ${file.heads} heads, ${file.queries.length} queries, ${file.keys.length} keys.${unit} ${lead}`, content };
}

/** The mean support of each head in each layer: how sparse the model is over its depth. */
function supports(file, open) {
  const most = Math.max(...file.support.flat(), 1);
  const rows = file.support.map((row, l) => html("tr", {}, html("th", { scope: "row" }, `layer ${l + 1}`), ...row.map((size, h) => {
    const cell = html("td", {}, html("button", { type: "button", class: "pmx-choose", "aria-label": `Layer ${l + 1}, head ${h + 1}: mean support ${short(size)}, at most ${file.largest[l][h]}`, onclick: () => open(l, h) }, short(size)));
    cell.style.background = `color-mix(in srgb, var(--pmx-blue) ${Math.round((45 * Math.log1p(size)) / Math.log1p(most))}%, transparent)`;
    return cell;
  })));
  const head = html("tr", {}, html("td", {}), ...Array.from({ length: file.heads }, (_, h) => html("th", { scope: "col" }, `${h + 1}`)));
  return html("div", { class: "pmx-scroll", tabindex: 0, role: "group", "aria-label": "Supports over depth" }, html("table", { class: "supports" }, html("caption", {}, "Mean number of keys that a query attends to, by layer and head"), html("thead", {}, head), html("tbody", {}, ...rows)));
}

function cellsOf({ starts, columns, weights, halves }) {
  const cells = [];
  for (let i = 0; i + 1 < starts.length; i += 1) {
    for (let k = starts[i]; k < starts[i + 1]; k += 1) cells.push(i, columns[k], halves[weights[k]]);
  }
  return cells;
}

// all numbers that float16 has, made once
let halves = null;

function halfTable() {
  if (halves) return halves;
  halves = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits += 1) {
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    const size = exponent === 0 ? fraction * 2 ** -24 : exponent === 31 ? 0 : (1 + fraction / 1024) * 2 ** (exponent - 15);
    halves[bits] = bits >> 15 ? -size : size;
  }
  return halves;
}

function unpacked(buffer, file) {
  const starts = new Uint32Array(buffer, 0, file.queries.length + 1);
  const count = starts[starts.length - 1];
  const from = starts.byteLength;
  const columns = file.keys.length < 65536 ? new Uint16Array(buffer, from, count) : new Uint32Array(buffer, from, count);
  return { starts, columns, weights: new Uint16Array(buffer, from + columns.byteLength, count), halves: halfTable() };
}
