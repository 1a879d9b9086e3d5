// What all charts share: variants that are hidden, colours of the scheme, and drawing again.

const state = { hidden: new Set(), logarithmic: true, percentile: "99", printing: false, run: 0 };
const charts = []; // {node, make}: make() gives traces and layout of now

function dark() {
  return !state.printing && document.documentElement.dataset.theme === "dark";
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function scheme() {
  if (state.printing) return { ink: "#1a1d21", muted: "#5a626c", grid: "#e6e9ed", paper: "#ffffff" };
  return { ink: css("--ink"), muted: css("--muted"), grid: css("--grid"), paper: css("--paper") };
}

function color(variant) {
  return dark() ? VALUES.variants[variant].dark : VALUES.variants[variant].color;
}

function dash(variant, width) {
  const lengths = VALUES.variants[variant].dash;
  return lengths.length ? lengths.map((length) => `${length * width}px`).join(",") : "solid";
}

function shown() {
  return VALUES.variants.map((_, at) => at).filter((at) => !state.hidden.has(at));
}

const PLAIN = ",~f"; // of ticks: never "500m" for a half

function axis(title, more = {}) {
  const { ink, grid } = scheme();
  return {
    title: { text: title, font: { size: 13 }, standoff: 8 },
    linecolor: ink, tickcolor: ink, gridcolor: grid, zeroline: false, showline: true,
    ticks: "outside", ticklen: 4, tickfont: { size: 12 }, automargin: false, exponentformat: "none", ...more,
  };
}

function layout(height, more = {}) {
  const { ink, paper } = scheme();
  return {
    height, template: "none", autosize: true, showlegend: false, hovermode: "closest",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: css("--stack"), size: 13, color: ink },
    hoverlabel: { bgcolor: paper, bordercolor: ink, font: { family: css("--stack"), color: ink, size: 13 }, namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: scheme().muted, activecolor: ink },
    margin: { l: 62, r: 34, t: 30, b: 46 }, uirevision: "kept", dragmode: "zoom", ...more,
  };
}

const CONFIG = {
  displaylogo: false,
  modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d"],
};

// The node is already on the page. `onZoom(range)` may give changes of the layout for a new x range.
function chart(node, make, onZoom = null) {
  node.classList.add("chart");
  const entry = { node, make, onZoom };
  charts.push(entry);
  draw(entry, Plotly.newPlot);
  widths.observe(node);
  node.on("plotly_hover", (event) => light(event.points[0].data.meta ?? null));
  node.on("plotly_unhover", () => light(null));
  if (onZoom) node.on("plotly_relayout", (change) => zoomed(node, change, onZoom));
  return entry;
}

function draw({ node, make, onZoom }, how) {
  const { traces, layout: its } = make();
  node.drawnWidth = Math.round(node.clientWidth);
  const asked = String(its.xaxis.range);
  how(node, traces, { ...its, width: node.drawnWidth || undefined }, CONFIG);
  const range = node.layout.xaxis.range;
  if (onZoom && range && String(range) !== asked) Plotly.relayout(node, onZoom(range, across(node)));
}

function zoomed(node, change, onZoom) {
  if (!Object.keys(change).some((key) => key.startsWith("xaxis.range") || key.startsWith("xaxis.auto"))) return;
  const range = node.layout.xaxis.range;
  if (range) Plotly.relayout(node, onZoom(range, across(node)));
}

// A chart is as wide as its place, whenever that changes, and its ticks follow.
const widths = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    if (contentRect.width && Math.round(contentRect.width) !== target.drawnWidth) drawAgain(target);
  }
});

function drawAgain(node = null) {
  for (const each of charts) {
    if ((node && each.node !== node) || !each.node.isConnected) continue;
    draw(each, Plotly.react);
  }
}

function forget(node) {
  const at = charts.findIndex((each) => each.node === node);
  if (at >= 0) charts.splice(at, 1);
  widths.unobserve(node);
  Plotly.purge(node);
}

// One variant stands out in all charts, and the others step back.
let lit = null;
function light(variant) {
  if (variant === lit) return;
  lit = variant;
  for (const { node } of charts) {
    for (const trace of node._fullData ?? []) {
      const of = trace.meta ?? null;
      if (of === null) continue;
      const opacity = variant === null || of === variant ? "" : "0.15";
      for (const drawn of node.querySelectorAll(`.trace${trace.uid}`)) drawn.style.opacity = opacity;
    }
  }
  for (const chip of document.querySelectorAll("#variants .chip")) {
    chip.style.borderColor = Number(chip.dataset.variant) === variant ? css("--accent") : "";
  }
}

// Ticks of a logarithmic axis, given its range in decades and its length: those that are closest
// to each other without touching.
function logTicks([low, high], width) {
  const place = (value) => (Math.log10(value) - low) / (high - low) * width;
  const apart = (values) => values.every((value, at) => at === 0
    || place(value) - place(values[at - 1]) > 4 * (tick(value).length + tick(values[at - 1]).length) + 10);
  const within = (value) => place(value) >= -0.5 && place(value) <= width + 0.5;
  for (const values of tickChoices(low, high)) {
    const shown = values.filter(within);
    if (apart(shown)) return { tickmode: "array", tickvals: shown, ticktext: shown.map(tick) };
  }
  return { tickmode: "array", tickvals: [], ticktext: [] };
}

// Ever fewer round values; evenly apart where the range is short.
function* tickChoices(low, high) {
  const decades = high - low;
  if (decades < 0.8) {
    const [least, most] = [10 ** low, 10 ** high];
    for (const parts of [6, 4, 2.5, 1.5]) {
      const step = niceStep((most - least) / parts);
      const first = Math.ceil(least / step);
      yield Array.from({ length: Math.floor(most / step) - first + 1 }, (_, k) => Number(((first + k) * step).toPrecision(10)));
    }
  }
  for (const [steps, every] of [[[1, 2, 5], 1], [[1, 3], 1], [[1], 1], [[1], 2], [[1], 3], [[1], 5]]) {
    const values = [];
    for (let e = Math.floor(low); e <= Math.ceil(high); e += 1) {
      if (e % every === 0) values.push(...steps.map((k) => Number((k * 10 ** e).toPrecision(10))));
    }
    yield values;
  }
}

function niceStep(rough) {
  const unit = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((k) => k * unit).find((step) => step >= rough * 0.999);
}

// Width of the axes of a chart.
function across(node, margins = 96) {
  return Math.max(100, (node.clientWidth || 500) - margins);
}

function tick(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential().replace("e+", "e");
  return String(Number(value.toPrecision(6)));
}

function sample(variant) {
  const its = VALUES.variants[variant];
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const set = { x1: 0, x2: 34, y1: 5, y2: 5, stroke: color(variant), "stroke-width": 2.5 };
  if (its.dash.length) set["stroke-dasharray"] = its.dash.map((length) => length * 2).join(" ");
  for (const [name, value] of Object.entries(set)) line.setAttribute(name, value);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries({ width: 34, height: 10, "aria-hidden": "true" })) svg.setAttribute(name, value);
  svg.append(line);
  return svg;
}
