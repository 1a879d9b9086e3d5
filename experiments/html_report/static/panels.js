// Curves over time below each other, and distributions of each request class.

function overTime(host) {
  const { panels, changes, notes: said } = view().series;
  if (panels.length) {
    const node = el("div", { id: "over-time" });
    host.append(node);
    chart(node, () => timeFigure(panels, changes));
  }
  const marked = changes.some((marks) => marks.length);
  const absent = panels.map(({ title, curves }) => [title, curves.flatMap((curve, at) => (curve ? [] : [at]))]).filter(([, of]) => of.length);
  host.append(...notes([...said, ...absent.map(([title, of]) => `${title}: no curve of ${of.length > 8 ? plural(of.length, "variant") : names(of)}.`), marked && "Changes of the cluster: ✕ failed, ▲ up again, + added, ▼ leaves, ○ other; a row for each variant, and lines through all panels."]));
  host.append(el("p", { class: "note" }, "Zooming one panel zooms all. ", ...panels.map((each) => about(el("span", { style: "margin-right:1em" }, each.title), each.about))));
}

function timeFigure(panels, changes) {
  const marked = shown().filter((variant) => changes[variant].length);
  const strip = marked.length ? Math.max(70, 18 * marked.length + 16) : 0;
  const body = state.printing ? Math.min(400, panels.length * 165 - 6) : panels.length * 165 - 6; // a page of paper has no more
  const free = strip ? 1 - (strip + 24) / (body + strip + 24) : 1; // of the panels, below the strip
  const gap = free * 0.22 / panels.length;
  const height = (free - gap * (panels.length - 1)) / panels.length;
  const most = panels.flatMap(({ curves }) => curves.filter(Boolean)).reduce((so_far, { y }) => y.reduce((a, b) => Math.max(a, b), so_far), 0);
  const digits = count(Math.ceil(most)).length;
  const its = layout(body + (strip && strip + 24) + 76, { margin: { l: 76 + 7 * Math.max(0, digits - 4), r: 20, t: 30, b: 46 } });
  const traces = [];
  panels.forEach((panel, row) => {
    const suffix = row ? row + 1 : "";
    const top = free - row * (height + gap);
    its[`yaxis${suffix}`] = axis(`${panel.title}<br>(${panel.unit})`, {
      domain: [Math.max(0, top - height), top], rangemode: "tozero", anchor: "x", nticks: 5, tickformat: PLAIN,
    });
    const same = panel.curves.every(Boolean) && panel.curves.length > 1 && new Set(panel.curves.map((curve) => JSON.stringify([curve.x, curve.y]))).size === 1;
    const drawn = shown().filter((variant) => panel.curves[variant]);
    // Without a trace plotly draws no axis, and moves the others.
    if (!drawn.length) traces.push({ x: [null], y: [null], meta: null, yaxis: `y${suffix}`, mode: "lines", hoverinfo: "skip" });
    for (const variant of same ? drawn.slice(0, 1) : drawn) {
      const curve = panel.curves[variant];
      traces.push({
        x: curve.x, y: curve.y, meta: same ? null : variant, yaxis: `y${suffix}`, mode: "lines",
        line: { color: same ? scheme().ink : color(variant), width: 1.6, dash: same ? "solid" : dash(variant, 1.6), shape: panel.key === "arrivals" ? "hvh" : "linear" },
        hovertemplate: `${plain(same ? "all variants" : short(VALUES.variants[variant].label))}<br>%{x:,.4~r} s: %{y:,.4~r} ${panel.unit}<extra></extra>`,
      });
    }
  });
  if (strip) addChanges(its, traces, changes, marked, panels.length + 1, [1 - (1 - free) * strip / (strip + 24), 1]);
  its.xaxis = axis("Time (s)", { rangemode: "tozero", anchor: `y${panels.length > 1 ? panels.length : ""}`, nticks: 10 });
  return { traces, layout: its };
}

const SYMBOLS = { failed: "x", restored: "triangle-up", up: "triangle-up", added: "cross", draining: "triangle-down", gone: "triangle-down" };
const MOST_LINES = 60;

// What befell the clusters: a strip with a row for each variant, and lines through all panels.
function addChanges(its, traces, changes, marked, number, domain) {
  its[`yaxis${number}`] = axis("Changes", { domain, anchor: "x", range: [marked.length - 0.5, -0.5], tickvals: [], showgrid: false });
  const lines = [];
  marked.forEach((variant, row) => {
    const marks = changes[variant];
    traces.push({
      x: marks.map(({ at_s: at }) => at), y: marks.map(() => row), meta: variant, yaxis: `y${number}`, mode: "markers", cliponaxis: false,
      marker: { symbol: marks.map(({ what }) => SYMBOLS[what] ?? "circle-open"), size: 9, color: color(variant), line: { width: 0 } },
      text: marks.map(({ replica, what, lost }) => plain(`${replica} ${what}${lost ? `, ${plural(lost, "request")} lost` : ""}`)),
      hovertemplate: `${plain(short(VALUES.variants[variant].label))}<br>%{x:,.4~r} s: %{text}<extra></extra>`,
    });
    for (const { at_s: at, what } of marks) lines.push({ at, failed: what === "failed" });
  });
  const drawn = lines.length > MOST_LINES ? lines.filter(({ failed }) => failed).slice(0, MOST_LINES) : lines;
  its.shapes = drawn.map(({ at, failed }) => ({
    type: "line", x0: at, x1: at, yref: "paper", y0: 0, y1: domain[0], opacity: 0.6,
    line: { width: 1, color: failed ? "#d55e00" : scheme().muted, dash: failed ? "solid" : "dot" },
  }));
}

// Of variants with replications: which run is shown, and another one where it is chosen.
function view() { return VALUES.views[state.run]; }

function runChooser(id) {
  if (!VALUES.one_run) return "";
  const { names, note } = VALUES.one_run;
  const select = el("select", { id: `run-${id}`, onchange: () => showRun(Number(select.value)) }, ...names.map((name, at) => el("option", { value: at }, name)));
  select.value = state.run;
  return el("p", { class: "row one-run" }, el("label", {}, "Shows one run:", select), el("span", { class: "note" }, note));
}

function showRun(run) {
  state.run = run;
  for (const fill of ofOneRun) fill();
}

// A section that is of one run, and is filled again with another.
const ofOneRun = [];
function perRun(id, fill) {
  return (host) => {
    const inside = el("div", {});
    host.append(runChooser(id), inside);
    const again = () => {
      for (const node of inside.querySelectorAll(".chart")) forget(node);
      const select = document.getElementById(`run-${id}`);
      if (select) select.value = state.run;
      inside.replaceChildren();
      fill(inside);
    };
    ofOneRun.push(again);
    again();
  };
}

function byClass(host) {
  if (VALUES.classes.why) {
    host.append(el("p", {}, VALUES.classes.why));
    return;
  }
  const grid = el("div", { class: "grid" });
  const draw = (metric) => {
    for (const node of grid.querySelectorAll(".chart")) forget(node);
    const nodes = metric.classes.map(() => el("div", {}));
    grid.replaceChildren(...metric.classes.map(({ name }, at) => el("div", { class: "card" }, el("h3", {}, name), nodes[at])));
    metric.classes.forEach((its, at) => chart(nodes[at],
      () => cdfFigure({ ...metric, curves: its.curves, floors: null }, nodes[at], 270, its.target), cdfTicks));
  };
  host.append(chooser("Metric", VALUES.classes.metrics.map(({ title }) => title), (at) => draw(VALUES.classes.metrics[at])), grid);
  draw(VALUES.classes.metrics[0]);
  host.append(...notes([VALUES.classes.note, VALUES.one_run && "Of all runs of each variant together.", "A dashed vertical line is the target."]));
}

// Buttons of which one is pressed.
function chooser(label, texts, choose) {
  const group = el("span", { class: "group noprint", role: "group", "aria-label": label });
  texts.forEach((text, at) => group.append(el("button", {
    type: "button", "aria-pressed": String(at === 0),
    onclick: (event) => {
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === event.target));
      choose(at);
    },
  }, text)));
  return el("div", { class: "row" }, group);
}

function variantSelect(label, id, choose) {
  const select = el("select", { id, onchange: () => choose(Number(select.value)) },
    ...VALUES.variants.map(({ label: name }, at) => el("option", { value: at }, name)));
  return el("label", {}, label, select);
}
