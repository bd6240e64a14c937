// A canvas to draw on, in the colours of the page's present theme.

const PAPER_RATIO = 3; // dots a pixel on paper: 288 an inch
const COLOURS = [
  "ink",
  "soft",
  "line",
  "accent",
  "sheet",
  "drift",
  "reference",
  "floor",
  "limit",
  "good",
  "half",
  "error",
  "warning",
  "note",
  "forward",
  "backward",
  "optimizer",
  "scaler",
  "zone",
  "data",
];

/** The colours of the page's style, in its present theme, as a canvas wants them. */
function palette(canvas) {
  const found = {};
  for (const name of COLOURS) {
    canvas.style.color = `var(--${name})`;
    found[name] = getComputedStyle(canvas).color;
  }
  canvas.style.color = "";
  return found;
}

/** The canvas, wiped, with what is drawn between its margins: {left, right, top, bottom} in pixels of the page. */
class Sheet {
  constructor(canvas, margin) {
    const paper = document.documentElement.classList.contains("paper");
    const ratio = paper ? PAPER_RATIO : window.devicePixelRatio || 1;
    Object.assign(this, { canvas, width: canvas.clientWidth, height: canvas.clientHeight, colours: palette(canvas) });
    canvas.width = Math.round(this.width * ratio);
    canvas.height = Math.round(this.height * ratio);
    this.pen = canvas.getContext("2d");
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.pen.font = "11px " + getComputedStyle(document.body).fontFamily;
    this.left = margin.left;
    this.right = this.width - margin.right;
    this.top = margin.top;
    this.bottom = this.height - margin.bottom;
  }

  /** Draws between the margins only. */
  within(draw) {
    this.pen.save();
    this.pen.beginPath();
    this.pen.rect(this.left, this.top, this.right - this.left, this.bottom - this.top);
    this.pen.clip();
    draw();
    this.pen.restore();
  }

  line(x, y, toX, toY) {
    this.pen.beginPath();
    this.pen.moveTo(x, y);
    this.pen.lineTo(toX, toY);
    this.pen.stroke();
  }

  /** Around what is chosen. */
  circle(x, y, radius) {
    this.pen.strokeStyle = this.colours.ink;
    this.pen.lineWidth = 2;
    this.pen.beginPath();
    this.pen.arc(x, y, radius, 0, 7);
    this.pen.stroke();
  }

  word(text, x, y, align = "left", colour = "soft") {
    this.pen.fillStyle = this.colours[colour];
    this.pen.textAlign = align;
    this.pen.fillText(text, x, y);
  }

  /** What an axis measures, along it between two heights. */
  title(words, top, bottom, x = 13) {
    this.pen.save();
    this.pen.translate(x, (top + bottom) / 2);
    this.pen.rotate(-Math.PI / 2);
    this.word(words, 0, 0, "center");
    this.pen.restore();
  }

  /** Lines across, with their labels at the left. */
  across(ticks) {
    this.pen.strokeStyle = this.colours.line;
    this.pen.lineWidth = 1;
    this.pen.textBaseline = "middle";
    for (const [y, label] of ticks) {
      this.line(this.left, Math.round(y) + 0.5, this.right, Math.round(y) + 0.5);
      this.word(label, this.left - 6, y, "right");
    }
    this.pen.textBaseline = "alphabetic";
  }
}

/** A sample of what is drawn, for the key: of a kind "" (a shade), "dot", "stroke", "solid", "band", "ring" or a sign. */
function swatch(name, words, kind = "") {
  const known = ["", "dot", "stroke", "solid", "band", "ring"].includes(kind);
  const sign = el("i", { class: known ? kind : "sign" }, known ? "" : kind);
  sign.style[["", "dot", "band"].includes(kind) ? "background" : known ? "borderColor" : "color"] = `var(--${name})`;
  return el("li", {}, sign, words);
}
