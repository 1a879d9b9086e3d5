// Text and elements. All text from configs and traces goes through these: as text, never as markup.

const VALUES = JSON.parse(document.getElementById("values").textContent);

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// plotly reads some markup in labels and hover texts.
function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;")
    .replace(/\$/g, "&#36;");
}

function short(label, most = 34) {
  return label.length > most ? `${label.slice(0, most - 1)}…` : label;
}

// Three significant digits, as in the table.
function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(2);
  const rounded = Number(value.toPrecision(3));
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(rounded))));
  return rounded.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function count(value) {
  return value.toLocaleString("en");
}

function plural(value, word) {
  return `${count(value)} ${word}${value === 1 ? "" : "s"}`;
}

// A length of time in its best unit.
function span(ns) {
  const size = Math.abs(ns);
  if (size >= 1e9) return `${number(ns / 1e9)} s`;
  if (size >= 1e6) return `${number(ns / 1e6)} ms`;
  return `${number(ns / 1e3)} µs`;
}

// Adds up steps from one number to the next.
function summed(steps) {
  let total = 0;
  return steps.map((step) => (total += step));
}

function bytes(base64) {
  const raw = atob(base64);
  return Uint8Array.from(raw, (letter) => letter.charCodeAt(0));
}

function notes(texts) {
  return texts.filter(Boolean).map((text) => el("p", { class: "note" }, text));
}
