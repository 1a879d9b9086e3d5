// What each replica did when, on a canvas: equal parts of time, or its iterations one by one.

const KINDS = [
  ["prefill", "#e69f00", "Prefill"], ["decode", "#0072b2", "Decode"], ["mixed", "#009e73", "Mixed"],
  ["lost", "#d55e00", "Lost in a failure"], ["transfer", "#cc79a7", "KV transfer (strip below a row)"],
];
const [, , , LOST, TRANSFER] = KINDS.keys();
const ORDER = [0, 2, 1, LOST]; // from the bottom of a row to its top
const ROW = { height: 30, strip: 5, gap: 9, left: 118, top: 8, axis: 26 };

class Timeline {
  constructor(box, readout, values) {
    Object.assign(this, { readout, values });
    this.rows = values.rows.map((row, at) => ({
      ...row, cover: bytes(values.cover[at]), slices: Timeline.slices(values.slices[at]),
    }));
    this.marks = values.marks;
    this.view = [0, values.end_s];
    this.canvas = el("canvas", {
      tabindex: 0, role: "img", id: "timeline-canvas",
      "aria-label": "Timeline of replicas. Arrow keys move, plus and minus zoom, 0 shows all, N goes to the next failure or change.",
    });
    box.replaceChildren(this.canvas);
    this.listen();
    this.resize = new ResizeObserver(() => this.draw());
    this.resize.observe(box);
    this.draw();
  }

  static slices({ gap, length, kind, n, prefill, decodes }) {
    const start = summed(gap);
    return { start, end: start.map((at, i) => at + length[i]), kind, n, prefill, decodes };
  }

  get height() { return ROW.top + this.rows.length * (ROW.height + ROW.strip + ROW.gap) + ROW.axis; }
  top(row) { return ROW.top + row * (ROW.height + ROW.strip + ROW.gap); }
  x(s) { return ROW.left + (s - this.view[0]) / (this.view[1] - this.view[0]) * (this.width - ROW.left - 12); }
  time(x) { return this.view[0] + (x - ROW.left) / (this.width - ROW.left - 12) * (this.view[1] - this.view[0]); }

  draw() {
    const scale = window.devicePixelRatio || 1;
    this.width = this.canvas.parentNode.clientWidth;
    Object.assign(this.canvas, { width: this.width * scale, height: this.height * scale });
    this.canvas.style.height = `${this.height}px`;
    const pen = (this.pen = this.canvas.getContext("2d"));
    pen.scale(scale, scale);
    const { ink, paper } = scheme();
    pen.fillStyle = paper;
    pen.fillRect(0, 0, this.width, this.height);
    pen.font = `12px ${css("--stack")}`;
    this.rows.forEach((row, at) => this.drawRow(row, at, ink));
    this.drawMarks(ink);
    this.drawAxis(ink);
  }

  drawRow(row, at, ink) {
    const { pen } = this;
    const top = this.top(at);
    pen.fillStyle = ink;
    pen.textBaseline = "middle";
    pen.fillText(this.fitted(row.name), 8, top + ROW.height / 2);
    pen.save();
    pen.beginPath();
    pen.rect(ROW.left, top - 2, this.width - ROW.left - 12, ROW.height + ROW.strip + 4);
    pen.clip();
    this.drawThere(row, top);
    this.drawParts(row, top);
    this.drawSlices(row, top);
    pen.restore();
  }

  fitted(name) {
    let text = name;
    while (text.length > 1 && this.pen.measureText(text).width > ROW.left - 16) text = `${text.slice(0, -2)}…`;
    return text;
  }

  // Idle while it is there; hatched while it is down.
  drawThere(row, top) {
    const { pen } = this;
    const left = row.left_s ?? this.values.end_s;
    pen.fillStyle = state.printing ? "#eceff2" : css("--idle");
    pen.fillRect(this.x(row.joined_s), top, this.x(left) - this.x(row.joined_s), ROW.height);
    pen.strokeStyle = KINDS[LOST][1];
    for (const [begin, end] of row.down) {
      const [from, to] = [Math.max(ROW.left, this.x(begin)), Math.min(this.width, this.x(end))];
      pen.beginPath();
      for (let x = from - ROW.height; x < to; x += 7) { pen.moveTo(Math.max(x, from), top + ROW.height - Math.max(0, from - x)); pen.lineTo(Math.min(x + ROW.height, to), top + ROW.height - Math.min(ROW.height, to - x)); }
      pen.stroke();
    }
  }

  // Columns of the shares of each part of time. Where one part is wider than its iterations, these are drawn over it.
  drawParts(row, top) {
    const { pen, values: { parts, end_s: end } } = this;
    const part = end / parts;
    const first = Math.max(0, Math.floor(this.view[0] / part));
    const last = Math.min(parts - 1, Math.ceil(this.view[1] / part));
    for (let at = first; at <= last; at += 1) {
      const [from, to] = [this.x(at * part), this.x((at + 1) * part)];
      let bottom = top + ROW.height;
      for (const kind of this.exact(row) ? [] : ORDER) {
        const share = row.cover[kind * parts + at] / 255;
        if (!share) continue;
        pen.fillStyle = KINDS[kind][1];
        const tall = share * ROW.height;
        pen.fillRect(from, bottom - tall, Math.max(to - from, 0.5) + 0.3, tall);
        bottom -= tall;
      }
      const moving = row.cover[TRANSFER * parts + at] / 255;
      if (moving) {
        pen.globalAlpha = 0.3 + 0.7 * moving;
        pen.fillStyle = KINDS[TRANSFER][1];
        pen.fillRect(from, top + ROW.height + 1, Math.max(to - from, 1), ROW.strip);
        pen.globalAlpha = 1;
      }
    }
  }

  // Iterations are told apart where there are fewer than pixels to draw them on.
  exact(row) {
    const { start, end } = row.slices;
    const [from, to] = this.view.map((s) => s * 1e9);
    const few = firstBeyond(start, to) - firstBeyond(end, from) < this.width;
    return few && this.values.all;
  }

  drawSlices(row, top) {
    const { pen } = this;
    const { start, end, kind, n } = row.slices;
    const [from, to] = this.view.map((s) => s * 1e9);
    const [first, last] = [firstBeyond(end, from), firstBeyond(start, to)];
    if (last - first >= this.width) return;
    for (let at = first; at < last; at += 1) {
      const [x0, x1] = [this.x(start[at] / 1e9), this.x(end[at] / 1e9)];
      if (!this.values.all && x1 - x0 < 0.5) continue;
      pen.fillStyle = KINDS[Number(kind[at])][1];
      pen.fillRect(x0, top, Math.max(x1 - x0 - (x1 - x0 > 3 ? 0.7 : 0), 0.4), ROW.height);
      if ((x1 - x0) / Math.max(1, n[at]) > 4) this.drawTicks(x0, x1, n[at], top);
    }
  }

  drawTicks(x0, x1, n, top) {
    this.pen.fillStyle = "rgba(255,255,255,.55)";
    for (let k = 1; k < n; k += 1) this.pen.fillRect(x0 + k * (x1 - x0) / n, top + ROW.height * 0.7, 0.8, ROW.height * 0.3);
  }

  drawMarks(ink) {
    const { pen } = this;
    for (const mark of this.marks) {
      const row = this.rows.findIndex(({ replica }) => replica === mark.replica);
      const x = this.x(mark.at_s);
      if (row < 0 || x < ROW.left || x > this.width - 12) continue;
      pen.strokeStyle = pen.fillStyle = ink;
      pen.beginPath();
      pen.moveTo(x, this.top(row) - 3);
      pen.lineTo(x, this.top(row) + ROW.height + ROW.strip);
      pen.stroke();
      pen.fillText({ failed: "✕", restored: "▲", up: "▲", added: "+", draining: "▽", gone: "▽" }[mark.what] ?? "•", x + 2, this.top(row) + 5);
    }
  }

  drawAxis(ink) {
    const { pen } = this;
    const y = this.height - ROW.axis + 4;
    pen.fillStyle = pen.strokeStyle = ink;
    pen.beginPath();
    pen.moveTo(ROW.left, y);
    pen.lineTo(this.width - 12, y);
    pen.stroke();
    const step = niceStep((this.view[1] - this.view[0]) / Math.max(2, (this.width - ROW.left) / 110));
    const digits = Math.max(0, -Math.floor(Math.log10(step)));
    pen.textBaseline = "top";
    for (let s = Math.ceil(this.view[0] / step) * step; s <= this.view[1]; s += step) {
      const text = `${s.toFixed(digits)} s`;
      const x = Math.min(this.x(s), this.width - 12 - pen.measureText(text).width / 2);
      pen.fillRect(this.x(s), y, 1, 4);
      pen.fillText(text, x - pen.measureText(text).width / 2, y + 6);
    }
  }

  // --- moving

  zoom(factor, around = (this.view[0] + this.view[1]) / 2) {
    const [from, to] = this.view;
    this.show(around - (around - from) * factor, around + (to - around) * factor);
  }

  show(from, to) {
    const end = this.values.end_s || 1;
    const wide = Math.min(end, Math.max(to - from, 1e-6));
    const begin = Math.min(Math.max(0, from), end - wide);
    this.view = [begin, begin + wide];
    this.draw();
  }

  nextMark() {
    const middle = (this.view[0] + this.view[1]) / 2;
    const next = this.marks.find(({ at_s: at }) => at > middle + 1e-9) ?? this.marks[0];
    if (!next) return;
    const wide = Math.min(this.view[1] - this.view[0], 10);
    this.show(next.at_s - wide / 2, next.at_s + wide / 2);
    this.readout.textContent = `${next.at_s.toFixed(3)} s: ${this.told(next)}`;
  }

  told(mark) {
    const row = this.rows.find(({ replica }) => replica === mark.replica);
    const lost = mark.lost ? `, ${plural(mark.lost, "request")} lost` : "";
    return `${row ? row.name : "a replica"} ${mark.what}${lost}`;
  }

  listen() {
    const { canvas } = this;
    const keys = {
      ArrowLeft: () => this.shift(-0.2), ArrowRight: () => this.shift(0.2), "+": () => this.zoom(0.5), "=": () => this.zoom(0.5),
      "-": () => this.zoom(2), 0: () => this.show(0, this.values.end_s), n: () => this.nextMark(), N: () => this.nextMark(),
    };
    canvas.addEventListener("keydown", (event) => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      keys[event.key]();
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      this.zoom((event.deltaY || event.deltaX) > 0 ? 1.3 : 1 / 1.3, this.time(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      this.held = { x: event.offsetX, view: [...this.view] };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => (this.held ? this.drag(event) : this.read(event)));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { this.held = null; });
    canvas.addEventListener("dblclick", (event) => this.zoom(0.33, this.time(event.offsetX)));
  }

  shift(share) {
    const by = share * (this.view[1] - this.view[0]);
    this.show(this.view[0] + by, this.view[1] + by);
  }

  drag(event) {
    const { x, view } = this.held;
    const by = (x - event.offsetX) / (this.width - ROW.left - 12) * (view[1] - view[0]);
    this.show(view[0] + by, view[1] + by);
  }

  read(event) {
    const at = Math.floor((event.offsetY - ROW.top) / (ROW.height + ROW.strip + ROW.gap));
    const row = this.rows[at];
    const s = this.time(event.offsetX);
    if (!row || event.offsetX < ROW.left) return;
    const near = this.marks.find((mark) => mark.replica === row.replica && Math.abs(this.x(mark.at_s) - event.offsetX) < 5);
    this.readout.textContent = `${s.toFixed(4)} s, ${near ? this.told(near) : `${row.name}: ${this.contents(row, s)}`}`;
  }

  contents(row, s) {
    const { start, end, kind, n, prefill, decodes } = row.slices;
    const at = firstBeyond(end, s * 1e9);
    if (at < start.length && start[at] <= s * 1e9) {
      const parts = [prefill[at] && `${count(prefill[at])} prompt tokens`, decodes[at] && plural(decodes[at], "decode")].filter(Boolean);
      const runs = n[at] > 1 ? `${count(n[at])} iterations of ${span((end[at] - start[at]) / n[at])} each on average` : `an iteration of ${span(end[at] - start[at])}`;
      return `${KINDS[Number(kind[at])][2]}: ${runs}${parts.length ? `, ${parts.join(" and ")}` : ""}`;
    }
    if (this.values.all) return "idle";
    const part = Math.min(this.values.parts - 1, Math.floor(s / this.values.end_s * this.values.parts));
    const said = ORDER.concat(TRANSFER).map((code) => [KINDS[code][2], row.cover[code * this.values.parts + part]]).filter(([, share]) => share);
    return said.length ? said.map(([name, share]) => `${name} ${Math.round(share / 2.55)} %`).join(", ") : "idle";
  }
}

// The first place whose value is beyond a limit, of ascending values.
function firstBeyond(values, limit) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= limit) low = middle + 1; else high = middle;
  }
  return low;
}

let timeline = null;

function timelineSection(host) {
  const box = el("div", { class: "scroll canvas-box" });
  const readout = el("p", { class: "readout", "aria-live": "polite" });
  const said = el("p", { class: "note" });
  const button = (text, title, act) => el("button", { type: "button", title, onclick: act }, text);
  const tools = el("span", { class: "group" },
    button("Zoom in", "plus", () => timeline?.zoom(0.5)), button("Zoom out", "minus", () => timeline?.zoom(2)),
    button("All", "0", () => timeline?.show(0, timeline.values.end_s)), button("Next event", "N", () => timeline?.nextMark()));
  const show = (variant) => {
    const values = view().timelines[variant];
    timeline?.resize.disconnect();
    timeline = null;
    readout.textContent = "Point at a row to read it.";
    if (values.why) {
      box.replaceChildren(el("p", { style: "padding: .5rem 1rem" }, `Not shown: ${values.why}.`));
      said.textContent = "";
      return;
    }
    timeline = new Timeline(box, readout, values);
    const left = values.left_out ? ` ${plural(values.left_out, "more row")} left out.` : "";
    said.textContent = `Of ${VALUES.variants[variant].label} ${values.exact}.${left} A run of equal decode iterations is one block with a tick for each where there is room.`;
  };
  host.append(el("div", { class: "row noprint" }, variantSelect("Variant", "timeline-variant", show), tools,
    el("span", { class: "note" }, "Drag to move, double-click to zoom, Ctrl or Shift and wheel; keys: arrows, +, -, 0, N.")));
  host.append(el("div", { class: "legend" }, ...KINDS.map(([, fill, text]) => swatch(fill, text)), swatch("var(--idle)", "Idle"),
    el("span", {}, "✕ failed"), el("span", {}, "▲ up again"), el("span", {}, "+ added"), el("span", {}, "▽ leaves"), el("span", {}, "hatched: down")), box, readout, said);
  show(0);
}

function swatch(fill, text) {
  return el("span", {}, el("i", { style: `background: ${fill}; print-color-adjust: exact` }), text);
}
