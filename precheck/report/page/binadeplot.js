// Drawing how many elements of a tensor lie in each binade, over the ranges of the formats.

const BRACKET = 17; // pixels of a format's row
const LABEL = 34; // pixels of a label below the bars
const SHORTEST = 3; // pixels of a bar that can be seen
const EDGE = 2; // binades of room at either end
const WIDEST = 64; // binades of a format that is shown whole: bfloat16 has four times as many
const BINADE_MARGIN = { left: 122, right: 16, top: 24 };
const PART_COLOURS = { flushed: "error", beyond: "error", subnormal: "half", normal: "drift" };

/** Counts from zero up where the shortest bar can be seen so; else on a log scale, which has no zero. */
function countAxis(counts, bottom, top) {
  const [least, most] = [Math.min(...counts), Math.max(1, ...counts)];
  if (((bottom - top) * least) / most < SHORTEST) return new Axis([1, ...counts], bottom, top, 10, 0.15);
  return new LinearAxis([0, most], bottom, top + 6, 0);
}

class BinadePlot extends Sheet {
  /** `histogram` as binadesOf has it, `ranges` the brackets below, of which the first colours the bars. */
  constructor(canvas, histogram, ranges) {
    super(canvas, { ...BINADE_MARGIN, bottom: 26 + BRACKET * ranges.length });
    const { least, counts, zeros, nonfinite } = histogram;
    const [lead] = ranges;
    const last = least + counts.length - 1;
    const view = lead.largest - lead.subnormal < WIDEST ? lead : ranges.find((range) => range.dtype === "float16");
    this.low = Math.min(view.subnormal, counts.length ? least : Infinity) - EDGE - (zeros ? 2 : 0);
    this.high = Math.max(view.largest, counts.length ? last : -Infinity) + EDGE + (nonfinite ? 2 : 0);
    const seen = [...counts, zeros, nonfinite].filter(Boolean);
    this.axis = countAxis(seen, this.bottom, this.top);
    Object.assign(this, { histogram, ranges, lead, step: (this.right - this.left) / (this.high - this.low + 1) });
  }

  /** Where a binade begins. */
  x(exponent) {
    return this.left + (exponent - this.low) * this.step;
  }

  /** The place among the counts of the binade under a pixel; -1 if none is there. */
  placeAt(x) {
    const place = this.low + Math.floor((x - this.left) / this.step) - this.histogram.least;
    return place >= 0 && place < this.histogram.counts.length ? place : -1;
  }

  draw(chosen) {
    this.across(this.axis.ticks(6, 1));
    this.title(this.axis instanceof Axis ? "elements (log scale)" : "elements", this.top, this.bottom, this.left - 46);
    this.word("magnitude", this.left - 20, this.bottom + 15, "right");
    this.numbers();
    const { least, counts, zeros, nonfinite } = this.histogram;
    counts.forEach((count, place) => this.bar(least + place, count, PART_COLOURS[partOf(least + place, this.lead)]));
    if (zeros) this.lane(this.low, zeros, "zero", "soft");
    if (nonfinite) this.lane(this.high, nonfinite, "Inf, NaN", "error");
    if (counts[chosen]) this.mark(least + chosen, counts[chosen]);
    this.ranges.forEach((range, place) => this.bracket(range, this.bottom + 26 + BRACKET * (place + 0.5)));
  }

  bar(exponent, count, colour) {
    if (!count) return;
    const y = this.axis.at(count);
    const gap = this.step > 6 ? 1 : 0;
    this.pen.fillStyle = this.colours[colour];
    this.pen.fillRect(this.x(exponent) + gap, y, Math.max(1, this.step - 2 * gap), this.bottom - y);
  }

  lane(exponent, count, words, colour) {
    this.bar(exponent, count, colour);
    this.word(words, this.x(exponent) + this.step / 2, this.bottom + 13, "center");
  }

  mark(exponent, count) {
    this.pen.strokeStyle = this.colours.ink;
    this.pen.lineWidth = 2;
    const y = this.axis.at(count) - 2;
    this.pen.strokeRect(this.x(exponent), y, this.step, this.bottom - y);
  }

  /** Powers of two, at the beginnings of their binades. */
  numbers() {
    const every = [1, 2, 4, 8, 16, 32].find((each) => each * this.step > LABEL) ?? 64;
    const beside = Math.ceil(LABEL / this.step); // binades that the name of a lane takes
    const from = this.low + (this.histogram.zeros ? beside : 0);
    const to = this.high - (this.histogram.nonfinite ? beside : 0);
    this.pen.strokeStyle = this.colours.line;
    for (let exponent = Math.ceil(from / every) * every; exponent <= to; exponent += every) {
      const x = Math.round(this.x(exponent)) + 0.5;
      this.line(x, this.bottom, x, this.bottom + 4);
      this.word(power(exponent), x, this.bottom + 15, "center");
    }
  }

  /** A thick line where the format has all its digits, a thin one where it has fewer, an end wherever it is in view. */
  bracket(range, y) {
    const { pen } = this;
    const inView = (x) => Math.max(this.left, Math.min(this.right, x));
    const [from, normal, to] = [range.subnormal, range.normal, range.largest + 1].map((exponent) => this.x(exponent));
    this.word(rangeName(range), this.left - 8, y + 4, "right", range === this.lead ? "ink" : "soft");
    pen.strokeStyle = this.colours[range === this.lead ? "accent" : "floor"];
    pen.lineWidth = 1;
    if (inView(from) < inView(normal)) this.line(inView(from), y, inView(normal), y);
    for (const end of [from, to]) if (end === inView(end)) this.line(end, y - 5, end, y + 5);
    pen.lineWidth = 4;
    if (inView(normal) < inView(to)) this.line(inView(normal), y, inView(to), y);
    pen.lineWidth = 1;
  }
}

/** "float16", or "float16 × 2¹⁶" of values under a loss scale. */
function rangeName({ dtype, shift }) {
  return dtype.replace("float8_", "fp8 ") + (shift ? ` × ${power(shift)}` : "");
}
