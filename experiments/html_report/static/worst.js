// The worst requests, and the life of one of them, step by step.

const PHASES = [["Waiting", "#999999"], ["Prefill", "#e69f00"], ["To the decode replica", "#cc79a7"], ["Decode", "#0072b2"]];

const PREEMPTED = {
  preempted: "is preempted: its KV is dropped, to be computed again", swapped_out: "is preempted: its KV goes to host memory",
  admitted_again: "is admitted again",
};

function worstSection(host) {
  const list = el("div", {});
  const life = el("div", { class: "life", id: "life" });
  const its = { variant: 0, list: 0, row: null };
  const showRow = (row) => {
    its.row = row;
    for (const button of list.querySelectorAll("td button")) button.setAttribute("aria-pressed", String(Number(button.dataset.row) === row));
    showLife(life, its.variant, row);
  };
  const showList = () => {
    const worst = view().worst[its.variant];
    const of = worst.lists[its.list];
    if (!of.rows.length) {
      list.replaceChildren(el("p", {}, "No request has a value."));
      life.replaceChildren();
      return;
    }
    list.replaceChildren(worstTable(worst, of, showRow));
    showRow(of.rows[0][0]);
  };
  host.append(el("div", { class: "row noprint" },
    variantSelect("Variant", "worst-variant", (variant) => { its.variant = variant; showList(); }),
    chooser("By", view().worst[0].lists.map(({ title }) => title), (at) => { its.list = at; showList(); })));
  host.append(el("div", { class: "two" }, list, life));
  showList();
}

function worstTable(worst, of, choose) {
  const rows = of.rows.map(([row, value], at) => {
    const life = worst.lives[row];
    return el("tr", {},
      el("td", {}, el("button", { type: "button", "data-row": row, "aria-label": `Request ${life.index}, number ${at + 1}`, onclick: () => choose(row) }, `#${life.index}`)),
      el("td", {}, span(value * 1e9)), el("td", {}, count(life.prompt_tokens)), el("td", {}, count(life.emitted_tokens)), el("td", { class: "words" }, life.state));
  });
  const heads = ["Request", of.title, "Prompt", "Output", "State"].map((text, at) => el("th", { class: at === 4 ? "words" : null, scope: "col" }, about(el("span", {}, text), at === 1 ? of.about : "")));
  return el("div", { class: "wide" }, el("table", { class: "worst" }, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows)));
}

function showLife(host, variant, row) {
  for (const node of host.querySelectorAll(".chart")) forget(node);
  const { lives, steps, tokens } = view().worst[variant];
  const life = lives[row];
  const events = eventsOf(life, steps);
  const node = el("div", { id: "ladder" });
  const items = events.map((event, at) => el("li", { onclick: () => go(at) }, el("time", {}, `${(event.at / 1e9).toFixed(4)} s`), " ", event.text));
  const order = el("ol", { tabindex: 0, "aria-label": "Events of this request" }, ...items);
  let now = 0;
  const go = (at) => {
    now = Math.max(0, Math.min(events.length - 1, at));
    items.forEach((item, place) => (place === now ? item.setAttribute("aria-current", "step") : item.removeAttribute("aria-current")));
    order.scrollTop = items[now].offsetTop - order.clientHeight / 2;
    Plotly.relayout(node, { "shapes[0].x0": events[now].at / 1e9, "shapes[0].x1": events[now].at / 1e9 });
  };
  const step = (text, by) => el("button", { type: "button", onclick: () => go(now + by) }, text);
  order.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -events.length, End: events.length }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    go(now + by);
  });
  const zoom = (text, from) => el("button", { type: "button", onclick: () => Plotly.relayout(node, lifeRange(life, from)) }, text);
  host.replaceChildren(
    el("h3", {}, `Request ${life.index} of ${VALUES.variants[variant].label}`), el("p", { class: "note" }, described(life)),
    partsBar(life.parts), partsBar(life.gap?.parts, `Its largest gap, before token ${count(life.gap?.token ?? 0)}`), el("div", { class: "legend" }, ...PHASES.map(([text, fill]) => swatch(`${fill}66`, text)), swatch("#d55e0088", "Stall")), node,
    el("div", { class: "row noprint" }, step("Previous", -1), step("Next", 1), el("span", { class: "note" }, "or the arrow keys in the list"),
      el("span", { class: "group" }, zoom("Whole life", 0), zoom("From its first iteration on", life.first_scheduled_ns ?? 0))), order,
    ...notes([
      !tokens && "This bundle does not say when tokens came (it has no tokens.parquet): no decode ladder; run its config.yaml again.",
      !steps && "No steps were recorded (record.steps: false): what ran in its prefill and stalls is not told.",
      steps && "Iterations count the tokens of all requests in them; the bundle does not say whose they were.",
      "A stall is a gap of more than twice this request's median gap between tokens; the twelve longest are told.",
    ]));
  chart(node, () => ladderFigure(life, events[now].at));
  go(0);
}

function described(life) {
  const parts = [
    life.request_class && `class ${life.request_class}`, life.tenant && `tenant ${life.tenant}`, life.session && `session ${life.session}`,
    `${count(life.prompt_tokens)} prompt tokens`, life.cached_tokens && `${count(life.cached_tokens)} of them found cached`,
    `${count(life.emitted_tokens)} of ${count(life.output_tokens)} output tokens`,
    life.preemptions && `preempted ${plural(life.preemptions, "time")}`, life.recomputed_tokens && `${count(life.recomputed_tokens)} tokens computed again`,
    life.swap_outs && `swapped out ${plural(life.swap_outs, "time")}`, life.rerouted && `re-routed ${plural(life.rerouted, "time")}`,
    life.migrations && `migrated ${plural(life.migrations, "time")}`, `arrived at ${(life.arrival_ns / 1e9).toFixed(3)} s`,
  ];
  return `${parts.filter(Boolean).join(", ")}.`;
}

function eventsOf(life, steps) {
  const [first, last] = life.places;
  const events = [{ at: 0, text: "arrives" }];
  const add = (at, text, order = 0) => { if (at !== null && at !== undefined) events.push({ at, text, order }); };
  add(life.first_scheduled_ns, `is first scheduled on ${first}, after ${span(life.first_scheduled_ns ?? 0)} in the queue`);
  if (steps) for (const each of prefillSteps(life)) add(each[0], `its replica runs ${iteration(each)}`, 1);
  add(life.prefill_end_ns, "its prefill is over", 2);
  for (const [at, what] of life.preempted) add(at, PREEMPTED[what], 2.5);
  for (const each of life.transfers) {
    add(each.start, `its KV, ${number(each.bytes / 1e6)} MB, leaves ${each.source}`, 3);
    add(each.end, `and has come to ${each.target}, ${span(each.end - each.start)} later`, 3);
  }
  add(life.first_token_ns, `first token (TTFT ${span(life.first_token_ns ?? 0)})`, 4);
  for (const stall of life.stalls) add(stall.end, `token ${count(stall.token)}, ${span(stall.end - stall.start)} after the one before (median gap ${span(life.median_gap_ns)})${inside(life, stall, steps)}`, 5);
  if (life.emitted_tokens > 1) add(life.last_token_ns, `token ${count(life.emitted_tokens)}, the last${last && last !== first ? ` from ${last}` : ""}`, 6);
  add(life.end_ns, `${life.state}${life.reason ? `: ${life.reason}` : ""}`, 7);
  return events.sort((a, b) => a.at - b.at || (a.order ?? 0) - (b.order ?? 0));
}

function prefillSteps(life) {
  if (life.prefill_end_ns === null || life.first_scheduled_ns === null) return [];
  return life.around.filter(([start, end, , prefill]) => prefill && start < life.prefill_end_ns && end > life.first_scheduled_ns).slice(0, 200);
}

function iteration([start, end, n, prefill, decodes]) {
  const what = [prefill && `${count(prefill)} prompt tokens`, decodes && plural(decodes, "decode")].filter(Boolean).join(" and ");
  if (n > 1) return `some of ${count(n)} iterations, each of ${what}, ${span((end - start) / n)} each on average`;
  return `${n === 0 ? "an iteration that is lost" : "an iteration"} of ${what || "nothing"}, ${span(end - start)}`;
}

function inside(life, stall, steps) {
  if (!steps) return "";
  const those = life.around.filter(([start, end]) => start < stall.end && end > stall.start);
  const told = those.slice(0, 4).map(iteration);
  if (those.length > told.length) told.push(`${those.length - told.length} more`);
  return told.length ? `; in it ran ${told.join("; ")}` : "; its replica ran nothing in it";
}

function endOf(life) {
  return life.last_token_ns ?? life.end_ns ?? life.prefill_end_ns ?? life.first_scheduled_ns ?? 1;
}

function lifeRange(life, from) {
  const wide = (endOf(life) - from) / 1e9 || 1;
  return { "xaxis.range": [from / 1e9 - 0.01 * wide, endOf(life) / 1e9 + 0.02 * wide] };
}

function ladderFigure(life, now) {
  const { ink } = scheme();
  const s = (ns) => ns / 1e9;
  const band = (from, to, fill, opacity) => ({ type: "rect", x0: s(from), x1: s(to), yref: "paper", y0: 0, y1: 1, fillcolor: fill, opacity, line: { width: 0 }, layer: "below" });
  const end = endOf(life);
  const shapes = [{ type: "line", x0: s(now), x1: s(now), yref: "paper", y0: 0, y1: 1, line: { color: ink, width: 1.5 } }];
  const begun = life.first_scheduled_ns ?? end;
  const done = life.prefill_end_ns ?? end;
  const there = life.transfers.length ? life.transfers[life.transfers.length - 1].end : done;
  for (const [from, to, phase] of [[0, begun, 0], [begun, done, 1], [done, there, 2], [there, end, 3]]) {
    if (to > from) shapes.push(band(from, to, PHASES[phase][1], phase === 3 ? 0.12 : 0.3));
  }
  for (const stall of life.stalls) shapes.push(band(stall.start, stall.end, "#d55e00", 0.45));
  const ladder = life.ladder ?? { token: [], gap: [] };
  const times = summed(ladder.gap);
  return {
    traces: [{
      x: times.map(s), y: ladder.token, mode: times.length > 150 ? "lines" : "lines+markers", meta: null,
      line: { color: ink, width: 1.6, shape: "hv" }, marker: { size: 4, color: ink },
      hovertemplate: "token %{y:,}<br>%{x:.4f} s after arrival<extra></extra>",
    }],
    layout: layout(300, {
      shapes, uirevision: String(life.index), margin: { l: 66, r: 24, t: 30, b: 46 },
      xaxis: axis("Since arrival (s)", { range: lifeRange(life, 0)["xaxis.range"], nticks: 9 }),
      yaxis: axis("Tokens", { rangemode: "tozero", nticks: 5, ...(times.length ? {} : { range: [0, 1], tickvals: [] }) }),
    }),
  };
}
