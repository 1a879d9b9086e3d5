// The page: its sections, the bar of variants, schemes and printing.

const SECTIONS = [
  ["summary", "Summary", (host) => host.append(summaryTable(), ...notes(VALUES.table.notes), intervals(), notesOfRuns())],
  ["latency", "Latency distributions", cdfSection,
    "The share of requests, or of gaps, whose value is at most x. Drag to zoom, double-click to go back; pointing at a curve shows its variant in all charts."],
  ["time", "Where the time went", attribution],
  ["over", "Over time", perRun("over", overTime)],
  ["classes", "By request class", byClass],
  ["replicas", "Replicas, iteration by iteration", perRun("replicas", timelineSection)],
  ["worst", "The ten worst requests", perRun("worst", worstSection)],
  ["config", "Configs and hashes", (host) => host.append(...provenance()), "Each is the whole experiment of its variant, with nothing left to defaults: phasewise run takes it."],
  ["definitions", "Definitions", (host) => host.append(definitions())],
];

function notesOfRuns() {
  if (!VALUES.notes.length) return "";
  return el("details", {}, el("summary", {}, `Notes of the runs (${VALUES.notes.length})`), ...notes(VALUES.notes));
}

function header() {
  document.getElementById("title").textContent = VALUES.title;
  document.getElementById("about").append(
    ...VALUES.about.filter(Boolean).map((text) => el("p", { class: "about" }, text)),
    ...VALUES.answers.map((text) => el("p", { class: "answer" }, text)));
}

function chips() {
  const host = document.getElementById("variants");
  host.replaceChildren(...VALUES.variants.map((its, at) => el("button", {
    type: "button", class: "chip", "data-variant": at, "aria-pressed": String(!state.hidden.has(at)),
    onclick: () => toggle(at), onmouseenter: () => light(at), onmouseleave: () => light(null),
    onfocus: () => light(at), onblur: () => light(null),
  }, sample(at), el("span", {}, its.label), its.mark ? el("span", { class: "mark" }, its.mark) : null)));
}

function toggle(variant) {
  if (state.hidden.has(variant)) state.hidden.delete(variant); else state.hidden.add(variant);
  document.querySelector(`#variants [data-variant="${variant}"]`).setAttribute("aria-pressed", String(!state.hidden.has(variant)));
  readPercentile();
  drawAgain();
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  const button = document.getElementById("theme");
  button.textContent = name === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-pressed", String(name === "dark"));
}

function redrawAll() {
  chips();
  for (const line of document.querySelectorAll("#table tbody svg")) {
    line.replaceWith(sample(line.closest("tr").sectionRowIndex));
  }
  readPercentile();
  drawAgain();
  timeline?.draw();
}

// On paper: the light scheme, and charts as wide as their columns there.
function printing(now) {
  if (state.printing === now) return;
  const root = document.documentElement;
  if (now) state.theme = root.dataset.theme;
  root.dataset.theme = now ? "light" : state.theme;
  root.classList.toggle("printing", now);
  state.printing = now;
  redrawAll();
}

function start() {
  const wantsDark = window.matchMedia("(prefers-color-scheme: dark)");
  setTheme(wantsDark.matches ? "dark" : "light");
  header();
  chips();
  listenForTips();
  const main = document.getElementById("main");
  for (const [id, title, fill, said] of SECTIONS) {
    const host = el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), said ? el("p", { class: "about noprint" }, said) : null);
    main.append(host);
    document.getElementById("sections").append(el("a", { href: `#${id}` }, title));
    fill(host);
  }
  const change = (name) => { setTheme(name); redrawAll(); };
  wantsDark.addEventListener("change", (event) => change(event.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => change(dark() ? "light" : "dark"));
  document.getElementById("print").addEventListener("click", () => window.print());
  window.addEventListener("beforeprint", () => printing(true));
  window.addEventListener("afterprint", () => printing(false));
  window.matchMedia("print").addEventListener("change", (event) => printing(event.matches));
  document.documentElement.dataset.ready = "yes";
}

start();
