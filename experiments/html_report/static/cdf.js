// Distributions: the share of requests whose value is at most x, and the floors that none can beat.

function rangeOf(curves, logarithmic) {
  const ends = curves.flatMap(({ x }) => [x[0], x[x.length - 1]]).filter((x) => !logarithmic || x > 0);
  if (!ends.length) return logarithmic ? [-1, 1] : [0, 1];
  let [low, high] = [Math.min(...ends), Math.max(...ends)];
  if (!logarithmic) return [0, high * 1.03 || 1];
  [low, high] = [Math.log10(low), Math.log10(high)];
  const margin = Math.max(0.03, 0.03 * (high - low));
  return [low - margin, high + margin];
}

function stairs(curve, variant, width, name, unit) {
  const { x, share } = curve;
  const keep = x.map((value, at) => [value, share[at]]);
  keep.unshift([x[0], 0]);
  const points = state.logarithmic ? keep.filter(([value]) => value > 0) : keep;
  return {
    x: points.map(([value]) => value), y: points.map(([, y]) => y), meta: variant,
    mode: "lines", line: { color: color(variant), width, dash: dash(variant, width), shape: "hv" },
    name: plain(name), hovertemplate: `${plain(short(name))}<br>%{x:,.4~r} ${unit}: %{y:.2%}<extra></extra>`,
  };
}

// Where the true share lies at each x, over all runs of a variant.
function bandTraces(curve, variant) {
  if (!curve.band) return [];
  const { low, high } = curve.band;
  const kept = curve.x.map((x, at) => [x, low[at], high[at]])
    .filter(([x, least]) => least !== null && (x > 0 || !state.logarithmic));
  const common = {
    x: kept.map(([x]) => x), meta: variant, mode: "lines", hoverinfo: "skip",
    line: { width: 0, shape: "hv", color: color(variant) },
  };
  return [
    { ...common, y: kept.map(([, , most]) => most) },
    { ...common, y: kept.map(([, least]) => least), fill: "tonexty", fillcolor: `${color(variant)}33` },
  ];
}

function percentileMark(curve, variant, unit, name) {
  const at = VALUES.percentiles.indexOf(state.percentile);
  const value = curve.exact?.[at];
  const share = Number(state.percentile) / 100;
  if (value === undefined || value === null || (state.logarithmic && value <= 0)) return null;
  return {
    x: [value], y: [share], meta: variant, mode: "markers", cliponaxis: false,
    marker: { color: color(variant), symbol: VALUES.variants[variant].symbol, size: 9, line: { color: scheme().paper, width: 1 } },
    hovertemplate: `${plain(short(name))}<br>P${state.percentile}: %{x:,.4~r} ${unit}<extra></extra>`,
  };
}

// The area above all floors: no request can be there. Above the quickest of several.
function unreachable(floors, range) {
  const left = state.logarithmic ? 10 ** range[0] : range[0];
  const xs = [...new Set(floors.flatMap(({ x }) => x))].filter((x) => x > left).sort((a, b) => a - b);
  const most = xs.map((x) => Math.max(...floors.map((floor) => shareAt(floor, x))));
  const path = { x: [left, left], y: [1, 0] };
  let below = 0;
  xs.forEach((x, at) => {
    path.x.push(x, x);
    path.y.push(below, most[at]);
    below = most[at];
  });
  const { muted } = scheme();
  return {
    ...path, mode: "lines", fill: "toself", line: { width: 0 }, hoverinfo: "skip", meta: null, name: "not reachable",
    fillcolor: "rgba(0,0,0,0)", fillpattern: { shape: "/", fgcolor: muted, fgopacity: 0.45, size: 9, solidity: 0.12 },
  };
}

function shareAt({ x, share }, value) {
  let [low, high] = [0, x.length]; // the first place beyond the value
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] <= value) low = middle + 1; else high = middle;
  }
  return low ? share[low - 1] : 0;
}

function floorTraces(floors, range, unit) {
  const visible = floors.curves.filter(({ of }) => of.some((at) => !state.hidden.has(at)));
  if (!visible.length) return [];
  const { muted } = scheme();
  const lines = visible.map(({ x, share, of }) => ({
    x: [x[0], ...x], y: [0, ...share], mode: "lines", meta: null,
    line: { color: muted, width: 2.5, shape: "hv" },
    hovertemplate: `floor of ${plain(of.length === VALUES.variants.length ? "all variants"
      : of.map((at) => short(VALUES.variants[at].label, 20)).join(", "))}<br>%{x:,.4~r} ${unit}: %{y:.2%}<extra></extra>`,
  }));
  return [unreachable(visible, range), ...lines];
}

function cdfFigure(of, node, height = 330, target = null) {
  const drawn = shown().filter((at) => of.curves[at]);
  const floors = of.floors?.curves.filter(({ of: its }) => its.some((at) => !state.hidden.has(at))) ?? [];
  const every = [...drawn.map((at) => of.curves[at]), ...floors];
  if (target !== null) every.push({ x: [target] });
  const range = rangeOf(every, state.logarithmic);
  const bands = drawn.flatMap((at) => bandTraces(of.curves[at], at));
  const lines = drawn.map((at) => stairs(of.curves[at], at, 2, VALUES.variants[at].label, of.unit));
  const marks = drawn.map((at) => percentileMark(of.curves[at], at, of.unit, VALUES.variants[at].label)).filter(Boolean);
  const share = Number(state.percentile) / 100;
  const { ink, muted } = scheme();
  const shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: share, y1: share, layer: "below", line: { color: muted, width: 1, dash: "dot" } }];
  if (target !== null) shapes.push({ type: "line", x0: target, x1: target, yref: "paper", y0: 0, y1: 1, line: { color: ink, width: 1.2, dash: "dash" } });
  return {
    traces: [...(of.floors ? floorTraces(of.floors, range, of.unit) : []), ...bands, ...lines, ...marks],
    layout: layout(height, {
      shapes, uirevision: state.logarithmic ? "log" : "linear",
      xaxis: axis(`${of.title} (${of.unit})`, {
        type: state.logarithmic ? "log" : "linear", range,
        ...(state.logarithmic ? logTicks(range, across(node)) : { nticks: 7, tickmode: "auto" }),
      }),
      yaxis: axis(`Share of ${of.what ?? "requests"}`, { range: [0, 1.02], tickvals: [0, 0.25, 0.5, 0.75, 1], tickformat: ".0%", showgrid: false }),
    }),
  };
}

function cdfTicks(range, width) {
  const ticks = state.logarithmic ? logTicks(range, width) : {};
  return Object.fromEntries(Object.entries(ticks).map(([name, value]) => [`xaxis.${name}`, value]));
}

function floorNotes(floors) {
  if (!floors) return [];
  const said = floors.why.map(([text, of]) => `${VALUES.variants.length > of.length ? `${names(of)}: ` : ""}${text}`);
  said.push(...floors.beaten.map(([at, requests]) =>
    `${VALUES.variants[at].label}: ${plural(requests, "request")} beat the floor of the data sheet: the measured step times do.`));
  if (floors.curves.length) said.unshift("Grey: each request's own floor, from the peaks of the data sheet alone; the hatched area cannot be reached.");
  return said;
}

function names(of) {
  return of.map((at) => VALUES.variants[at].label).join(", ");
}

function cdfSection(host) {
  const scale = (text, logarithmic) => el("button", {
    type: "button", class: "scale", "aria-pressed": String(state.logarithmic === logarithmic),
    onclick: (event) => {
      state.logarithmic = logarithmic;
      for (const other of host.querySelectorAll("button.scale")) other.setAttribute("aria-pressed", String(other === event.target));
      drawAgain();
    },
  }, text);
  host.append(el("div", { class: "row noprint" }, slider(),
    el("span", { class: "group", role: "group", "aria-label": "Scale of the latencies" }, scale("log", true), scale("linear", false))));
  host.append(el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Percentiles" }, el("table", { id: "percentiles" })));
  if (VALUES.cdfs.some((of) => of.curves.some((curve) => curve?.band))) {
    host.append(...notes(["Curves and percentiles are of all runs of a variant together. Shaded: where the true share lies at each x alone, with 95 % confidence."]));
  }
  const grid = el("div", { class: "grid" });
  host.append(grid);
  const nodes = VALUES.cdfs.map((of) => el("div", { id: `cdf-${of.key}` }));
  grid.append(...VALUES.cdfs.map((of, at) => el("div", { class: "card" },
    el("h3", {}, about(el("span", {}, of.title), of.about)), nodes[at], ...notes(floorNotes(of.floors)))));
  VALUES.cdfs.forEach((of, at) => chart(nodes[at], () => cdfFigure(of, nodes[at]), cdfTicks));
  readPercentile();
}

function slider() {
  const input = el("input", {
    type: "range", class: "slow", id: "percentile", min: 0, max: VALUES.percentiles.length - 1,
    value: VALUES.percentiles.indexOf(state.percentile), "aria-label": "Percentile",
    oninput: () => {
      state.percentile = VALUES.percentiles[Number(input.value)];
      readPercentile();
      drawAgain();
    },
  });
  return el("label", {}, "Percentile", input, el("output", { id: "chosen", for: "percentile" }));
}

function readPercentile() {
  const at = VALUES.percentiles.indexOf(state.percentile);
  document.getElementById("chosen").textContent = `P${state.percentile}`;
  document.getElementById("percentile").setAttribute("aria-valuetext", `P${state.percentile}`);
  const head = el("tr", {}, el("th", { class: "words" }, `P${state.percentile}`),
    ...VALUES.cdfs.map((of) => el("th", { scope: "col" }, about(el("span", {}, `${of.title} (${of.unit})`), of.about))));
  const rows = shown().map((variant) => el("tr", {},
    el("th", { class: "words label", scope: "row" }, sample(variant), " ", VALUES.variants[variant].label),
    ...VALUES.cdfs.map((of) => el("td", {}, number(of.curves[variant]?.exact[at])))));
  document.getElementById("percentiles").replaceChildren(el("thead", {}, head), el("tbody", {}, ...rows));
}
