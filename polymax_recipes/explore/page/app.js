// The page: which view is shown, light or dark, and how the server is asked.
import { html } from "./draw/svg.js";
import { attentionView } from "./attention.js";
import { runsView } from "./runs.js";
import { simplexView } from "./simplex.js";
import { structuresView } from "./structures.js";

const VIEWS = { simplex: simplexView, structures: structuresView, runs: runsView, attention: attentionView };
const main = document.getElementById("main");
// milliseconds that an answer is waited for although a newer one is wanted: most are quicker
const PATIENT = 150;
let offers = null;

/** Ask the server; the words of its refusal are the words of the error. */
export async function ask(path, body, signal) {
  const request = body === undefined ? {} : { method: "POST", signal, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer: is `polymax explore` still running?");
  }
  if (answer.ok) return (answer.headers.get("Content-Type") || "").startsWith("application/json") ? answer.json() : answer.arrayBuffer();
  const told = await answer.json().catch(() => ({}));
  throw new Error(told.error || `the server answered ${answer.status}`);
}

/** Ask again and again with what is newest: one request at a time, and an answer to what is old already is not waited for. */
export function latest(path, done, failed) {
  let waiting = null;
  let busy = false;
  let control = null;
  let begun = 0;
  const next = async () => {
    if (busy || waiting === null) return;
    const body = waiting;
    waiting = null;
    busy = true;
    try {
      control = new AbortController();
      begun = performance.now();
      const found = await ask(path, body, control.signal);
      if (waiting === null) done(found, body);
    } catch (error) {
      if (waiting === null) failed(error);
    }
    busy = false;
    next();
  };
  return (body) => {
    waiting = body;
    if (busy && performance.now() - begun > PATIENT) control.abort();
    next();
  };
}

/** Say something for a moment, also to screen readers. */
export function say(text) {
  const said = document.getElementById("said");
  said.textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { said.textContent = ""; }, 1800);
}

/** A line of Python with a button that copies it, together with the lines that it needs to run. */
export function codeLine() {
  const code = html("code", {});
  let whole = "";
  const copy = html("button", { type: "button", "aria-label": "Copy code that runs", onclick: async () => {
    try {
      await navigator.clipboard.writeText(whole);
      say("copied");
    } catch {
      const chosen = getSelection();
      chosen.selectAllChildren(code);
      say("press Ctrl-C to copy");
    }
  } }, "Copy");
  return { element: html("div", { class: "code" }, code, copy), show: (text, before = []) => {
    code.textContent = text;
    whole = ["import polymax as pm", "import torch", "", ...before, `print(${text})`, ""].join("\n");
    code.dataset.copied = whole;
  } };
}

/** A tensor as Python writes it; null is -inf. */
export function tensor(values) {
  const text = (one) => (Array.isArray(one) ? `[${one.map(text).join(", ")}]` : one === null ? "-torch.inf" : Number.isInteger(one) ? one.toFixed(1) : String(one));
  return `torch.tensor(${text(values)})`;
}

/** Keep the state of a view in the address, so that it can be sent. */
export function remember(name, state) {
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  const text = btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  // what is too long for an address is not kept
  const hash = text.length < 8000 ? `#${name}?${text}` : `#${name}`;
  if (location.hash !== hash) history.replaceState(null, "", hash);
}

/** The state of a view in the address, if there is one; whoever sent it may have sent anything. */
export function recalled(name) {
  const [view, text] = location.hash.slice(1).split("?");
  if (view !== name || !text) return {};
  try {
    const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (one) => one.charCodeAt(0));
    const found = JSON.parse(new TextDecoder().decode(bytes));
    return found && typeof found === "object" && !Array.isArray(found) ? found : {};
  } catch {
    return {};
  }
}

/** A list of texts, or null. */
export function texts(value, most) {
  return Array.isArray(value) && value.length && value.length <= most && value.every((one) => typeof one === "string") ? value : null;
}

/** A list of numbers (null for -inf), or lists of them down to a depth, or null. */
export function numbers(value, depth) {
  if (!Array.isArray(value) || !value.length) return null;
  const good = (one) => (depth > 1 ? numbers(one, depth - 1) !== null : one === null || Number.isFinite(one));
  return value.every(good) ? value : null;
}

async function show() {
  const name = location.hash.slice(1).split(/[/?]/)[0] || "simplex";
  const view = VIEWS[name] || VIEWS.simplex;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${VIEWS[name] ? name : "simplex"}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const element = html("div", {});
  try {
    offers ??= await ask("/api/offers");
    const { title, lead, content } = await view(offers);
    document.title = `${title} · polymax explore`;
    main.replaceChildren(html("h1", {}, title), html("p", { class: "lead" }, lead), content);
  } catch (error) {
    element.append(html("p", { class: "fault", role: "alert" }, error.message));
    main.replaceChildren(element);
  }
  main.dataset.ready = name;
}

const theme = document.getElementById("theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
let stored = null;
try { stored = localStorage.getItem("theme"); } catch { /* a browser may keep nothing */ }
if (stored) document.documentElement.dataset.theme = stored;
theme.addEventListener("click", () => {
  const now = document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("theme", next); } catch { /* as above */ }
  dispatchEvent(new Event("theme"));
});
addEventListener("hashchange", show);
show();
