// Words and elements. Whatever comes from a test goes in as text, never as markup.

const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Text with line breaks, control characters and marks of direction made visible. */
function shown(text) {
  return String(text).replace(UNSEEN, (sign) => (sign === "\n" ? "⏎" : "\\u" + sign.charCodeAt(0).toString(16).padStart(4, "0")));
}

/** As shown, with the middle left out of what is longer than `most`. */
function clipped(text, most = 160) {
  const whole = shown(text);
  return whole.length <= most ? whole : whole.slice(0, most / 2) + " … " + whole.slice(-most / 2);
}

/** An element: el("p", {class: "help", onclick: f, "aria-label": "…"}, "text", child). Strings become text. */
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (typeof value === "boolean" && name.startsWith("aria-")) made.setAttribute(name, String(value));
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

/** Two or three digits: 0.00391, 3.9e-5, 51.7, 1.2e+7; "inf" and "NaN" as they are. */
function digits(value) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e5 ? String(Number(value.toPrecision(3))) : value.toExponential(1);
}

/** A number that may have come as "inf", "-inf" or "nan", as JSON has none. */
function real(value) {
  if (typeof value === "number") return value;
  return { inf: Infinity, "-inf": -Infinity }[value] ?? NaN;
}

function counted(number, noun) {
  return number.toLocaleString("en") + " " + noun + (number === 1 ? "" : "s");
}

/** A tensor's name without the number of the call, and this number in words: "attn[1]" and " in call 2" for "attn#2[1]". */
function callWords(tensor) {
  const call = /#(\d+)(?=\[|$)/.exec(tensor);
  return call ? [clipped(tensor.replace(call[0], "")), " in call " + call[1]] : [clipped(tensor), ""];
}

/** What a tensor is, in words: "gradient of layers.0", "update of head.weight, step 3", "what turned() returns". */
function placed(tensor, kind, step) {
  const whole = tensor === kind || tensor === "output";
  const [name, call] = callWords(tensor);
  const plain = whole ? kind : kind.replace("parameter-", "") + " of " + name + call;
  const what = kind === "returned" ? `what ${name} returns${call}` : plain;
  return step > 1 ? what + ", step " + step : what;
}
