// What all charts share: variants that are hidden, colours of the scheme, and drawing again.

const state = { hidden: new Set(), logarithmic: true, percentile: "99", printing: false };
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

function axis(title, more = {}) {
  const { ink, grid } = scheme();
  return {
    title: { text: title, font: { size: 13 }, standoff: 8 },
    linecolor: ink, tickcolor: ink, gridcolor: grid, zeroline: false, showline: true,
    ticks: "outside", ticklen: 4, tickfont: { size: 12 }, automargin: false, ...more,
  };
}

function layout(height, more = {}) {
  const { ink, paper } = scheme();
  return {
    height, template: "none", autosize: true, showlegend: false, hovermode: "closest",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: css("--stack"), size: 13, color: ink },
    hoverlabel: { bgcolor: paper, bordercolor: ink, font: { color: ink, size: 13 }, namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: scheme().muted, activecolor: ink },
    margin: { l: 62, r: 34, t: 30, b: 46 }, uirevision: "kept", dragmode: "zoom", ...more,
  };
}

const CONFIG = {
  responsive: true, displaylogo: false,
  modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d"],
};

// The node is already on the page. `onZoom(range)` may give changes of the layout for a new x range.
function chart(node, make, onZoom = null) {
  node.classList.add("chart");
  const entry = { node, make };
  charts.push(entry);
  const { traces, layout: its } = make();
  Plotly.newPlot(node, traces, its, CONFIG);
  node.on("plotly_hover", (event) => light(event.points[0].data.meta ?? null));
  node.on("plotly_unhover", () => light(null));
  if (onZoom) node.on("plotly_relayout", (change) => zoomed(node, change, onZoom));
  return entry;
}

function zoomed(node, change, onZoom) {
  if (!Object.keys(change).some((key) => key.startsWith("xaxis.range") || key.startsWith("xaxis.auto"))) return;
  const range = node.layout.xaxis.range;
  if (range) Plotly.relayout(node, onZoom(range));
}

function drawAgain(node = null) {
  for (const each of charts) {
    if ((node && each.node !== node) || !each.node.isConnected) continue;
    const { traces, layout: its } = each.make();
    Plotly.react(each.node, traces, its, CONFIG);
  }
}

function forget(node) {
  const at = charts.findIndex((each) => each.node === node);
  if (at >= 0) charts.splice(at, 1);
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

// Ticks of a logarithmic axis, given its range in decades: few enough to stand beside each other.
function logTicks([low, high]) {
  const decades = high - low;
  const within = (value) => Math.log10(value) >= low - 1e-9 && Math.log10(value) <= high + 1e-9;
  let steps = decades > 5 ? [1] : decades > 2.2 ? [1, 3] : decades > 0.8 ? [1, 2, 5] : null;
  let values = [];
  if (steps === null) {
    const [least, most] = [10 ** low, 10 ** high];
    const rough = (most - least) / 5;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * unit).find((each) => each >= rough);
    for (let k = Math.ceil(least / step); k * step <= most; k += 1) values.push(Number((k * step).toPrecision(10)));
  } else {
    const every = Math.max(1, Math.ceil(decades / 10));
    for (let e = Math.floor(low); e <= Math.ceil(high); e += 1) {
      if (e % every === 0) values.push(...steps.map((k) => Number((k * 10 ** e).toPrecision(10))));
    }
  }
  values = values.filter(within);
  return { tickmode: "array", tickvals: values, ticktext: values.map(tick) };
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
