// Elements of HTML and SVG, and the words that describe them to whoever does not see.

const NAMESPACE = "http://www.w3.org/2000/svg";

/** An element of HTML; attributes whose value is null or false are left out. */
export function html(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** An element of SVG. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(NAMESPACE, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

/** The root of a drawing, which says what it shows. */
export function drawing(width, height, label, ...children) {
  const size = { width: Math.ceil(width), height: Math.ceil(height) };
  const box = `0 0 ${size.width} ${size.height}`;
  return svg("svg", { ...size, viewBox: box, role: "img", "aria-label": label }, ...children);
}

/** A part of the page that scrolls sideways where a drawing is wider than it; the keyboard reaches it. */
export function scrolling(label, ...children) {
  return html("div", { class: "pmx-scroll", tabindex: "0", role: "group", "aria-label": label }, ...children);
}

/** A probability as people write it; what is exactly zero is "0". */
export function share(p) {
  if (p === null) return "–";
  if (p === 0) return "0";
  if (p < 0.001) return "<.001";
  return p > 0.9995 ? "1" : p.toFixed(p < 0.1 ? 3 : 2).replace(/^0/, "");
}

/** A number with as many digits as matter. */
export function short(value) {
  return Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

/** About how wide a text is, in pixels, at 13 px; characters of East Asia are twice as wide. */
export function textWidth(text) {
  let width = 0;
  for (const character of text) width += character.codePointAt(0) > 0x2e80 ? 13 : 7.1;
  return width;
}

/** A text of at most so many characters. */
export function clipped(text, most = 18) {
  const characters = [...text];
  return characters.length > most ? characters.slice(0, most - 1).join("") + "…" : text;
}

/** How visible something of a weight is: what is not zero can be seen. */
export function strength(p) {
  return (0.1 + 0.9 * Math.min(1, p)).toFixed(3);
}

/** A slider with its name before it and its value after. */
export function slider(name, options) {
  const value = html("output", { class: "pmx-value" });
  const input = html("input", {
    type: "range",
    min: options.min,
    max: options.max,
    step: options.step,
    value: options.value,
    "aria-label": name,
  });
  const say = () => {
    const text = options.say(Number(input.value));
    value.textContent = text;
    input.setAttribute("aria-valuetext", text);
  };
  input.addEventListener("input", () => {
    say();
    options.moved(Number(input.value));
  });
  say();
  const element = html("label", { class: "pmx-slider" }, html("span", {}, name), input, value);
  return { element, input, say };
}

/** Lines of a chart over a logarithmic axis, and a mark where the slider is. */
export function chart({ label, xs, lines, at, xTitle, yTitle, most = 1 }) {
  const [width, height, left, right, top, bottom] = [430, 190, 38, 10, 10, 34];
  const low = Math.log(xs[0]);
  const span = Math.log(xs[xs.length - 1]) - low || 1;
  const x = (value) => left + ((Math.log(value) - low) / span) * (width - left - right);
  const y = (value) => height - bottom - (value / most) * (height - top - bottom);
  const parts = [];
  for (const value of [0, most / 2, most]) {
    parts.push(svg("line", { class: "pmx-rule", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    parts.push(svg("text", { class: "pmx-tick", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)));
  }
  for (const value of [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20]) {
    if (value < xs[0] * 0.999 || value > xs[xs.length - 1] * 1.001) continue;
    parts.push(svg("text", { class: "pmx-tick", x: x(value), y: height - bottom + 15, "text-anchor": "middle" }, short(value)));
  }
  parts.push(svg("text", { class: "pmx-tick", x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, xTitle));
  parts.push(svg("text", { class: "pmx-tick", x: 4, y: top - 1 + 4, "text-anchor": "start" }, yTitle || ""));
  lines.forEach(({ values, name, color }) => {
    // a line is drawn where there is weight, and where it begins and ends
    let path = "";
    let pen = false;
    values.forEach((value, k) => {
      const visible = value > 0 || values[k - 1] > 0 || values[k + 1] > 0;
      if (visible) path += `${pen ? "L" : "M"}${x(xs[k]).toFixed(1)} ${y(value || 0).toFixed(1)}`;
      pen = visible;
    });
    if (path) parts.push(svg("path", { class: `pmx-line pmx-c${color % 12}`, d: path }, svg("title", {}, name)));
  });
  const mark = svg("line", { class: "pmx-mark", y1: top, y2: height - bottom });
  const move = (value) => {
    mark.setAttribute("x1", x(value));
    mark.setAttribute("x2", x(value));
  };
  move(at);
  const element = drawing(width, height, label, ...parts, mark);
  element.classList.add("pmx-fluid");
  return { element, move };
}

const STYLED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "stroke-linejoin", "stroke-linecap", "opacity", "font-family", "font-size", "font-weight", "text-anchor"];

/** A drawing as the text of an SVG file: what style sheets say of its parts is written into them. */
export function svgText(drawn) {
  const copy = drawn.cloneNode(true);
  const parts = [drawn, ...drawn.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((part, k) => {
    const style = getComputedStyle(parts[k]);
    // attributes: the policy of the page takes no style that stands in an element
    for (const name of STYLED) part.setAttribute(name, style.getPropertyValue(name));
    part.removeAttribute("class");
  });
  copy.setAttribute("xmlns", NAMESPACE);
  return new XMLSerializer().serializeToString(copy);
}

function save(url, name) {
  html("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function savePng(drawn, name) {
  const image = new Image();
  const url = URL.createObjectURL(new Blob([svgText(drawn)], { type: "image/svg+xml" }));
  image.onload = () => {
    const canvas = html("canvas", { width: 2 * drawn.viewBox.baseVal.width, height: 2 * drawn.viewBox.baseVal.height });
    const context = canvas.getContext("2d");
    context.fillStyle = getComputedStyle(drawn).getPropertyValue("--pmx-paper") || "white";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(url);
    canvas.toBlob((blob) => save(URL.createObjectURL(blob), name));
  };
  image.src = url;
}

/** Buttons that save the drawing inside an element as SVG or PNG. */
export function saving(element, name) {
  const drawn = () => element.querySelector("svg[role=img]");
  const file = name.toLowerCase().replace(/[^a-z0-9]+/g, "-");
  const button = (kind, act) => html("button", { type: "button", class: "pmx-save", "aria-label": `Save ${name} as ${kind}`, onclick: () => { if (drawn()) act(drawn()); } }, kind);
  return html("span", { class: "pmx-saving" },
    button("SVG", (one) => save(URL.createObjectURL(new Blob([svgText(one)], { type: "image/svg+xml" })), `${file}.svg`)),
    button("PNG", (one) => savePng(one, `${file}.png`)));
}
