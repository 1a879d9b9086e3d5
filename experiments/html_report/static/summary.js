// The table of variants, definitions on hover, the configs.

function about(node, text) {
  if (!text) return node;
  node.dataset.about = text;
  node.tabIndex = 0;
  node.setAttribute("aria-describedby", "tip");
  return node;
}

function showTip(target) {
  const tip = document.getElementById("tip");
  tip.textContent = target.dataset.about;
  tip.hidden = false;
  const box = target.getBoundingClientRect();
  const left = Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(8, left) + window.scrollX}px`;
  const below = box.bottom + tip.offsetHeight + 8 < window.innerHeight;
  tip.style.top = `${(below ? box.bottom + 6 : box.top - tip.offsetHeight - 6) + window.scrollY}px`;
}

function listenForTips() {
  const hide = () => { document.getElementById("tip").hidden = true; };
  for (const [on, off] of [["mouseover", "mouseout"], ["focusin", "focusout"]]) {
    document.addEventListener(on, (event) => {
      const target = event.target.closest?.("[data-about]");
      if (target) showTip(target);
    });
    document.addEventListener(off, hide);
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
}

function summaryTable() {
  const { columns, rows, best, verdicts } = VALUES.table;
  const head = columns.map((column) => {
    const better = { lower: "Lower is better.", higher: "Higher is better." }[column.better] ?? "";
    const name = about(el("span", {}, column.group), [column.about, better].filter(Boolean).join(" "));
    return el("th", { scope: "col", class: column.words ? "words" : null }, name,
      column.part ? el("span", { class: "part" }, column.part) : null);
  });
  const body = rows.map((row, at) => el("tr", {}, ...row.map((text, place) => {
    const column = columns[place];
    const classes = [column.words && "words", place === 0 && "label", best[place].includes(at) && "best"];
    if (column.group === "Verdict") classes.push(`verdict-${text.replace(/ /g, "-")}`);
    const cell = el(place === 0 ? "th" : "td", {
      class: classes.filter(Boolean).join(" "), scope: place === 0 ? "row" : null,
    }, text);
    if (place === 0) cell.prepend(sample(at), " ");
    return column.group === "Verdict" ? about(cell, verdicts[at]) : cell;
  })));
  return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Summary table" },
    el("table", { id: "table" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)));
}

// What all runs of variants with replications say together.
function intervals() {
  if (!VALUES.runs) return "";
  const { notes: said, columns, rows } = VALUES.runs;
  const head = columns.map((text) => el("th", { scope: "col", class: "words" }, text));
  const body = rows.map((row) => el("tr", {}, ...row.map((text, place) =>
    el(place ? "td" : "th", { class: "words", scope: place ? null : "row" }, text))));
  return el("div", { id: "runs" }, ...notes(said),
    el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Intervals over all runs" },
      el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body))));
}

function provenance() {
  return VALUES.provenance.map((its) => el("details", {},
    el("summary", {}, its.label),
    el("div", { class: "wide" }, el("table", {}, el("tbody", {}, ...its.environment.map(([name, value]) =>
      el("tr", {}, el("th", { class: "words", scope: "row" }, name), el("td", { class: "words" }, value || "-")))))),
    el("pre", {}, its.config)));
}

function definitions() {
  return el("dl", {}, ...VALUES.definitions.flatMap(({ title, text }) => [el("dt", {}, title), el("dd", {}, text)]));
}
