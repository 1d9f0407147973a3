// A large sparse matrix on a canvas: moved, zoomed, and drawn from the rows and columns in sight alone.

const LABELS = 13;

/** Draws a head in compressed rows: { starts, columns, weights, halves }. */
export class Sheet {
  constructor(canvas, file, told) {
    Object.assign(this, { canvas, told, queries: file.queries, keys: file.keys, data: null, query: null, marks: [] });
    // what is in sight: the first row and column, and pixels for each
    Object.assign(this, { top: 0, left: 0, scale: 1, waiting: false });
    this.pointers = new Map();
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.up(event));
    canvas.addEventListener("pointerleave", () => told.hovered(null));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("dblclick", (event) => this.zoom(2.5, event.offsetX, event.offsetY));
    canvas.addEventListener("keydown", (event) => this.key(event));
    this.watch = new ResizeObserver(() => this.resize());
    this.watch.observe(canvas.parentElement || canvas);
    addEventListener("theme", () => this.paint());
  }

  resize() {
    const width = Math.round(this.canvas.clientWidth);
    if (!width) return;
    const ratio = Math.min(2, devicePixelRatio || 1);
    const height = Math.round(Math.min(width, innerHeight * 0.72));
    if (this.width === width && this.height === height) return;
    const first = this.width === undefined;
    Object.assign(this, { width, height, ratio });
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    this.canvas.style.height = `${height}px`;
    if (first) this.fit();
    else this.paint();
  }

  /** Room for words beside the weights, where rows are high enough for words. */
  get margin() {
    return this.scale >= LABELS ? 92 : 0;
  }

  show(data) {
    this.data = data;
    this.paint();
  }

  fit() {
    this.scale = Math.min(this.width / this.keys.length, this.height / this.queries.length);
    this.scale = Math.min(this.scale, 24);
    [this.top, this.left] = [0, 0];
    this.paint();
  }

  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const margin = this.margin;
    const [row, column] = [this.top + (y - margin) / this.scale, this.left + (x - margin) / this.scale];
    const least = Math.min(this.width / this.keys.length, this.height / this.queries.length, 24);
    this.scale = Math.max(least, Math.min(28, this.scale * factor));
    this.top = row - (y - this.margin) / this.scale;
    this.left = column - (x - this.margin) / this.scale;
    this.paint();
  }

  center(i, j) {
    if (this.scale < LABELS) this.scale = 16;
    this.top = i - (this.height - this.margin) / this.scale / 2;
    this.left = j - (this.width - this.margin) / this.scale / 2;
    this.paint();
  }

  choose(i) {
    this.query = i;
    this.paint();
  }

  mark(places) {
    this.marks = places;
    this.paint();
  }

  /** The keys and weights of a query. */
  row(i) {
    if (!this.data) return [];
    const found = [];
    for (let k = this.data.starts[i]; k < this.data.starts[i + 1]; k += 1) found.push([this.data.columns[k], this.data.halves[this.data.weights[k]]]);
    return found;
  }

  down(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    this.moved = 0;
  }

  move(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) {
      this.hover(event.offsetX, event.offsetY);
      return;
    }
    const now = [event.offsetX, event.offsetY];
    const [dx, dy] = [now[0] - before[0], now[1] - before[1]];
    this.moved += Math.abs(dx) + Math.abs(dy);
    if (this.pointers.size === 2) {
      const [other] = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
      const spread = (at) => Math.hypot(at[0] - other[0], at[1] - other[1]) || 1;
      this.zoom(spread(now) / spread(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    } else {
      this.left -= dx / this.scale;
      this.top -= dy / this.scale;
      this.paint();
    }
    this.pointers.set(event.pointerId, now);
  }

  up(event) {
    if (this.pointers.delete(event.pointerId) && event.type === "pointerup" && this.moved < 5) {
      const [i] = this.place(event.offsetX, event.offsetY);
      if (i !== null) this.told.chosen(i);
    }
  }

  /** Scrolling moves, with the control key, as pinching a touchpad gives it, it zooms; at an edge the page scrolls on. */
  wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * 0.004), event.offsetX, event.offsetY);
      return;
    }
    const [top, left] = [this.top, this.left];
    this.left += (event.shiftKey ? event.deltaY : event.deltaX) / this.scale;
    this.top += event.shiftKey ? 0 : event.deltaY / this.scale;
    this.bound();
    if (this.top === top && this.left === left) return;
    event.preventDefault();
    this.paint();
  }

  key(event) {
    const step = 48 / this.scale;
    const acts = {
      ArrowUp: () => { this.top -= step; },
      ArrowDown: () => { this.top += step; },
      ArrowLeft: () => { this.left -= step; },
      ArrowRight: () => { this.left += step; },
      PageUp: () => { this.top -= this.height / this.scale; },
      PageDown: () => { this.top += this.height / this.scale; },
    };
    if (acts[event.key]) acts[event.key]();
    else if (event.key === "+" || event.key === "=") this.zoom(1.6);
    else if (event.key === "-") this.zoom(1 / 1.6);
    else if (event.key === "0") this.fit();
    else if (event.key === "Enter") this.told.chosen(Math.max(0, Math.min(this.queries.length - 1, Math.round(this.top + this.height / this.scale / 2))));
    else return;
    event.preventDefault();
    this.paint();
  }

  place(x, y) {
    const [i, j] = [Math.floor(this.top + (y - this.margin) / this.scale), Math.floor(this.left + (x - this.margin) / this.scale)];
    const inside = i >= 0 && j >= 0 && i < this.queries.length && j < this.keys.length && x >= this.margin && y >= this.margin;
    return inside ? [i, j] : [null, null];
  }

  hover(x, y) {
    const [i, j] = this.place(x, y);
    if (i === null) this.told.hovered(null);
    else this.told.hovered(i, j, this.row(i).find(([column]) => column === j)?.[1] || 0);
  }

  /** Paint when the browser next does. */
  paint() {
    if (this.waiting || !this.width) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      const start = performance.now();
      this.bound();
      this.draw();
      this.canvas.dataset.milliseconds = (performance.now() - start).toFixed(1);
    });
  }

  /** No further than the edges. */
  bound() {
    const [rows, columns] = [(this.height - this.margin) / this.scale, (this.width - this.margin) / this.scale];
    this.top = Math.max(0, Math.min(this.top, this.queries.length - rows));
    this.left = Math.max(0, Math.min(this.left, this.keys.length - columns));
  }

  draw() {
    const context = this.canvas.getContext("2d");
    const style = getComputedStyle(this.canvas);
    const color = (name) => style.getPropertyValue(name).trim();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = color("--pmx-raised");
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    if (!this.data) return;
    const pixels = this.scale * this.ratio;
    const margin = this.margin * this.ratio;
    const field = [Math.min(this.canvas.width - margin, Math.ceil((this.keys.length - this.left) * pixels)), Math.min(this.canvas.height - margin, Math.ceil((this.queries.length - this.top) * pixels))];
    context.fillStyle = color("--pmx-paper");
    context.fillRect(margin, margin, field[0], field[1]);
    context.save();
    context.beginPath();
    context.rect(margin, margin, this.canvas.width, this.canvas.height);
    context.clip();
    if (pixels >= 3) this.cells(context, pixels, margin, color("--pmx-blue"));
    else this.dots(context, pixels, field, channels(color("--pmx-blue")), channels(color("--pmx-paper")));
    this.lines(context, pixels, margin, color);
    context.restore();
    if (margin) this.words(context, pixels, margin, color);
  }

  rowsInSight(margin, pixels) {
    return [Math.max(0, Math.floor(this.top)), Math.min(this.queries.length, Math.ceil(this.top + (this.canvas.height - margin) / pixels))];
  }

  /** The first weight of a row whose key is in sight. */
  from(i, column) {
    let [low, high] = [this.data.starts[i], this.data.starts[i + 1]];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.data.columns[middle] < column) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  cells(context, pixels, margin, color) {
    const { starts, columns, weights, halves } = this.data;
    const [first, last] = this.rowsInSight(margin, pixels);
    const [low, high] = [Math.floor(this.left), Math.ceil(this.left + (this.canvas.width - margin) / pixels)];
    const size = Math.max(1, pixels - (pixels > 6 ? 1 : 0));
    context.fillStyle = color;
    for (let i = first; i < last; i += 1) {
      const y = margin + (i - this.top) * pixels;
      for (let k = this.from(i, low); k < starts[i + 1] && columns[k] < high; k += 1) {
        context.globalAlpha = 0.12 + 0.88 * Math.sqrt(halves[weights[k]]);
        context.fillRect(margin + (columns[k] - this.left) * pixels, y, size, size);
      }
    }
    context.globalAlpha = 1;
  }

  /** Rows and columns thinner than a few pixels: the largest weight in each pixel. */
  dots(context, pixels, [width, height], ink, paper) {
    const { starts, columns, weights, halves } = this.data;
    const image = context.createImageData(Math.max(1, Math.round(width)), Math.max(1, Math.round(height)));
    const strongest = new Float32Array(image.width * image.height);
    const [first, last] = this.rowsInSight(0, pixels);
    const [low, high] = [Math.floor(this.left), Math.ceil(this.left + image.width / pixels)];
    const size = Math.max(1, Math.round(pixels));
    for (let i = first; i < last; i += 1) {
      const y = Math.floor((i - this.top) * pixels);
      for (let k = this.from(i, low); k < starts[i + 1] && columns[k] < high; k += 1) {
        const x = Math.floor((columns[k] - this.left) * pixels);
        const p = halves[weights[k]];
        for (let a = Math.max(0, y); a < y + size && a < image.height; a += 1) {
          for (let b = Math.max(0, x); b < x + size && b < image.width; b += 1) {
            if (p > strongest[a * image.width + b]) strongest[a * image.width + b] = p;
          }
        }
      }
    }
    const colors = Array.from({ length: 256 }, (_, k) => mixed(paper, ink, k === 0 ? 0 : 0.18 + 0.82 * Math.sqrt(k / 255)));
    const words = new Uint32Array(image.data.buffer);
    for (let k = 0; k < strongest.length; k += 1) words[k] = colors[Math.ceil(Math.min(1, strongest[k]) * 255)];
    context.putImageData(image, 0, 0);
  }

  lines(context, pixels, margin, color) {
    const line = (i, ink, alpha) => {
      context.globalAlpha = alpha;
      context.fillStyle = ink;
      context.fillRect(margin, margin + (i - this.top) * pixels, this.canvas.width, Math.max(this.ratio, pixels));
      context.globalAlpha = 1;
    };
    for (const i of this.marks) line(i, color("--pmx-4"), 0.22);
    if (this.query !== null) line(this.query, color("--pmx-warm"), 0.25);
  }

  words(context, pixels, margin, color) {
    context.fillStyle = color("--pmx-raised");
    context.fillRect(0, 0, margin, this.canvas.height);
    context.fillRect(0, 0, this.canvas.width, margin);
    context.fillStyle = color("--pmx-ink");
    context.font = `${12 * this.ratio}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    const room = margin - 8 * this.ratio;
    const [first, last] = this.rowsInSight(margin, pixels);
    context.textAlign = "right";
    for (let i = first; i < last; i += 1) {
      const y = margin + (i + 0.5 - this.top) * pixels;
      if (y > margin) context.fillText(this.queries[i], margin - 5 * this.ratio, y, room);
    }
    context.textAlign = "left";
    const high = Math.min(this.keys.length, Math.ceil(this.left + (this.canvas.width - margin) / pixels));
    for (let j = Math.max(0, Math.floor(this.left)); j < high; j += 1) {
      const x = margin + (j + 0.5 - this.left) * pixels;
      if (x < margin) continue;
      context.save();
      context.translate(x, margin - 5 * this.ratio);
      context.rotate(-Math.PI / 2);
      context.fillText(this.keys[j], 0, 0, room);
      context.restore();
    }
  }
}

function channels(color) {
  const parsed = /^#(..)(..)(..)$/.exec(color);
  return parsed ? parsed.slice(1).map((part) => parseInt(part, 16)) : [37, 88, 184];
}

/** A colour between two, as the four bytes of a pixel. */
function mixed(paper, ink, share) {
  const [red, green, blue] = paper.map((value, k) => Math.round(value + (ink[k] - value) * share));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** A head at a glance. */
export function thumbnail(canvas, data, file) {
  const context = canvas.getContext("2d");
  const [width, height] = [canvas.width, canvas.height];
  const strongest = new Float32Array(width * height);
  const { starts, columns, weights, halves } = data;
  for (let i = 0; i < file.queries.length; i += 1) {
    const y = Math.floor((i * height) / file.queries.length) * width;
    for (let k = starts[i]; k < starts[i + 1]; k += 1) {
      const at = y + Math.floor((columns[k] * width) / file.keys.length);
      strongest[at] = Math.max(strongest[at], halves[weights[k]]);
    }
  }
  const image = context.createImageData(width, height);
  const [red, green, blue] = channels(getComputedStyle(canvas).getPropertyValue("--pmx-blue").trim());
  strongest.forEach((p, k) => image.data.set([red, green, blue, p === 0 ? 0 : 40 + 215 * Math.sqrt(p)], 4 * k));
  context.putImageData(image, 0, 0);
}
