// Where the time of requests went: stacked bars of phases, grouped by colour and told apart by pattern.

const GROUP_COLORS = {
  queued: "#999999", prefill: "#e69f00", decode: "#0072b2", stalled: "#d55e00", "step extra": "#f0e442",
  memory: "#cc79a7", transfer: "#56b4e9", lost: "#444444", other: "#bbbbbb",
};
const PATTERNS = ["", "/", "x", ".", "-", "|", "\\", "+", ""];

const METRICS = [["e2e", "E2E"], ["ttft", "TTFT"], ["largest_itl", "Largest gap between tokens"]];

// Colour, pattern and name of every phase.
function phases() {
  const { groups, names: said } = VALUES.attribution;
  return new Map(groups.flatMap(([group, its]) => its.map((phase, at) =>
    [phase, { group, color: GROUP_COLORS[group], pattern: PATTERNS[at % PATTERNS.length], name: said[phase] }])));
}

function attribution(host) {
  const { variants, classes, groups } = VALUES.attribution;
  host.append(...notes([VALUES.one_run?.first]));
  const whys = new Map();
  variants.forEach(({ why }, at) => { if (why) whys.set(why, [...(whys.get(why) ?? []), at]); });
  const said = [...whys].map(([why, of]) => el("p", {}, `Not shown${of.length < variants.length ? ` of ${names(of)}` : ""}: ${why}.`));
  if (variants.every(({ why }) => why)) {
    host.append(...said);
    return;
  }
  const its = { key: "e2e", of: "", share: true };
  const node = el("div", { id: "attribution-bars" });
  const list = el("ul", { class: "shares" });
  const again = () => { drawAgain(node); list.replaceChildren(...sentences(its)); };
  const tools = el("div", { class: "row noprint" },
    chooser("Metric", METRICS.map(([, text]) => text), (at) => { [its.key] = METRICS[at]; again(); }),
    chooser("Unit", ["share", "seconds"], (at) => { its.share = at === 0; again(); }));
  if (classes.length) {
    const select = el("select", { onchange: () => { its.of = select.value; again(); } },
      el("option", { value: "" }, "all requests"), ...classes.map((name) => el("option", { value: name }, name)));
    tools.append(el("label", {}, "Class", select));
  }
  const used = new Set(variants.flatMap(({ bars }) => Object.values(bars ?? {}).flatMap((of) => Object.values(of).flat().flatMap(({ parts }) => parts.map(([phase]) => phases().get(phase).group)))));
  host.append(...said, tools, el("div", { class: "legend" }, ...groups.filter(([name]) => used.has(name)).map(([name]) => swatch(GROUP_COLORS[name], name))), node, list,
    ...notes(["Beside a bar stands the exact percentile. The bar is the mean over the requests within half a percent in rank of it, so that its length can be another. Parts of a group differ in their pattern; pointing at one names it. They add up to the whole exactly; a negative part stands left of 0."]));
  chart(node, () => attributionFigure(its));
  list.replaceChildren(...sentences(its));
}

function barsOf(its) {
  const { variants, percentiles } = VALUES.attribution;
  return shown().filter((at) => variants[at].bars?.[its.of]).flatMap((at) => percentiles.map((percentile, place) =>
    ({ at, percentile, ...variants[at].bars[its.of][its.key]?.[place] }))).filter(({ n }) => n);
}

function attributionFigure(its) {
  const bars = barsOf(its);
  const rows = bars.map(({ at, percentile }) => `${plain(short(VALUES.variants[at].label, 18))}  ${percentile}`);
  const traces = [...phases()].map(([phase, look]) => {
    const of = bars.map(({ parts }) => parts.find(([name]) => name === phase)?.[1] ?? 0);
    if (!of.some(Boolean)) return null;
    return {
      type: "bar", orientation: "h", y: bars.map((_, at) => at), meta: null,
      x: of.map((s, at) => (its.share ? 100 * s / bars[at].mean_s : s)), customdata: of.map((s, at) => [span(s * 1e9), number(100 * s / bars[at].mean_s), rows[at]]),
      marker: { color: look.color, line: { width: 0.5, color: scheme().paper }, pattern: { shape: look.pattern, fgcolor: "#222222", fillmode: "overlay", size: 6, solidity: 0.2, fgopacity: 0.5 } },
      hovertemplate: `%{customdata[2]}<br>${plain(look.name)}: %{customdata[0]} (%{customdata[1]} %)<extra></extra>`,
    };
  }).filter(Boolean);
  const totals = bars.map(({ exact_s: s }, at) => ({
    xref: "paper", x: 1, xanchor: "left", y: at, text: span(s * 1e9), showarrow: false, xshift: 6, font: { size: 12 },
  }));
  return {
    traces,
    layout: layout(80 + 30 * bars.length, {
      barmode: "relative", bargap: 0.25, annotations: totals, margin: { l: 190, r: 76, t: 30, b: 46 }, uirevision: `${its.key}${its.share}`,
      xaxis: axis(its.share ? `Share of ${METRICS.find(([key]) => key === its.key)[1]} (%)` : "Time (s)", { nticks: 9 }),
      yaxis: axis("", { tickvals: rows.map((_, at) => at), ticktext: rows, range: [bars.length - 0.5, -0.5], showgrid: false }),
    }),
  };
}

// In words, the largest parts of each variant's slow requests, and what one of them hung on.
function sentences(its) {
  const known = phases();
  return barsOf(its).filter(({ percentile }) => percentile !== "P50").map(({ at, n, percentile, exact_s: exact, mean_s: total, parts }) => {
    const most = [...parts].sort((a, b) => b[1] - a[1]).slice(0, 3).filter(([, s]) => s > 0.03 * total);
    const told = most.map(([phase, s]) => `${number(100 * s / total)} % ${known.get(phase).name}`).join(", ");
    const said = VALUES.attribution.variants[at].said?.[its.of]?.[its.key];
    return el("li", {}, `${VALUES.variants[at].label}: at ${percentile} (${span(exact * 1e9)})${n > 1 ? `, mean of ${count(n)} requests around it` : ""}: ${told}.`, said ? el("span", { class: "about" }, ` ${said}`) : "");
  });
}

// The phases of one request, or of a gap between its tokens, as one bar.
function partsBar(parts, of = "Its time") {
  if (!parts?.length) return "";
  const known = phases();
  const total = parts.reduce((sum, [, ns]) => sum + Math.max(0, ns), 0);
  const told = [...parts].sort((a, b) => b[1] - a[1]).map(([phase, ns]) => `${known.get(phase).name} ${span(ns)}`);
  return el("div", {}, el("div", { class: "parts", role: "img", "aria-label": told.join(", ") },
    ...parts.filter(([, ns]) => ns > 0).map(([phase, ns]) => el("span", { style: `flex: ${ns / total}; background: ${known.get(phase).color}; print-color-adjust: exact`, "data-about": `${known.get(phase).name}: ${span(ns)}` }))),
    el("p", { class: "note" }, `${of}, exactly: ${told.slice(0, 8).join(", ")}${told.length > 8 ? ` and ${plural(told.length - 8, "smaller part")}` : ""}.`));
}
