// Curves over time below each other, and distributions of each request class.

function overTime(host) {
  const { panels, notes: said } = VALUES.series;
  if (panels.length) {
    const node = el("div", { id: "over-time" });
    host.append(node);
    chart(node, () => timeFigure(panels));
  }
  host.append(...notes(said));
  host.append(el("p", { class: "note" }, "Zooming one panel zooms all. ", ...panels.map((each) => about(el("span", { style: "margin-right:1em" }, each.title), each.about))));
}

function timeFigure(panels) {
  const gap = 0.22 / panels.length;
  const height = (1 - gap * (panels.length - 1)) / panels.length;
  const its = layout(panels.length * 165 + 70, { margin: { l: 76, r: 20, t: 30, b: 46 } });
  const traces = [];
  panels.forEach((panel, row) => {
    const suffix = row ? row + 1 : "";
    const top = 1 - row * (height + gap);
    its[`yaxis${suffix}`] = axis(`${panel.title}<br>(${panel.unit})`, {
      domain: [Math.max(0, top - height), top], rangemode: "tozero", anchor: "x", nticks: 5, tickformat: "~s",
    });
    const same = new Set(panel.curves.filter(Boolean).map((curve) => JSON.stringify([curve.x, curve.y]))).size === 1;
    for (const variant of same && shown().length > 1 ? shown().slice(0, 1) : shown()) {
      const curve = panel.curves[variant];
      if (!curve) continue;
      traces.push({
        x: curve.x, y: curve.y, meta: same ? null : variant, yaxis: `y${suffix}`, mode: "lines",
        line: { color: same ? scheme().ink : color(variant), width: 1.6, dash: same ? "solid" : dash(variant, 1.6), shape: panel.key === "arrivals" ? "hvh" : "linear" },
        hovertemplate: `${plain(same ? "all variants" : short(VALUES.variants[variant].label))}<br>%{x:.4~g} s: %{y:.4~g} ${panel.unit}<extra></extra>`,
      });
    }
  });
  its.xaxis = axis("Time (s)", { rangemode: "tozero", anchor: `y${panels.length > 1 ? panels.length : ""}`, nticks: 10 });
  return { traces, layout: its };
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
  host.append(...notes([VALUES.classes.note, "A dashed vertical line is the target."]));
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
