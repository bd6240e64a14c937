// Drawing the run on a canvas: phases as shades, drift as dots or, where ops are narrower than dots, as one stroke a pixel.

const MARGIN = { left: 62, right: 10, top: 20, bottom: 20 };
const DOT = 2.5; // pixels an op needs to be a dot of its own
const SIGNS = { error: "▲", warning: "◆", note: "●" };

/** The colour of a point: "limit" beyond its limit or with Inf or NaN, "half" where a closer look passed it, else "drift". */
function judged(series, index) {
  if (series.nonfinite[index] > 0) return "limit";
  if (series.limit === null || !(series.drift[index] > series.limit[index])) return "drift";
  return series.excused[index] ? "half" : "limit";
}

class Plot extends Sheet {
  /** `series`: {length, phase(i), drift, floor, limit or null, marks: [{index, severity}]}; `from` to `to` is what is in view. */
  constructor(canvas, series, from, to) {
    super(canvas, MARGIN);
    Object.assign(this, { series, from, to });
    const drawn = [series.drift, series.floor, series.limit].filter(Boolean);
    this.scale = new LogScale(
      drawn.map((values) => values.subarray(from, to)),
      MARGIN.top,
      this.bottom,
    );
    this.step = (this.right - this.left) / Math.max(1, to - from);
  }

  x(index) {
    return this.left + (index - this.from + 0.5) * this.step;
  }

  indexAt(x) {
    const index = this.from + Math.floor((x - this.left) / this.step);
    return Math.max(this.from, Math.min(this.to - 1, index));
  }

  /** Of the ops under a pixel, the one that drifts most. */
  worstAt(x) {
    const first = this.indexAt(x - 0.5);
    const last = Math.max(first, this.indexAt(x + 0.5));
    let worst = first;
    for (let index = first; index <= last; index++) if (this.series.drift[index] > this.series.drift[worst]) worst = index;
    return worst;
  }

  draw(chosen) {
    this.pen.clearRect(0, 0, this.width, this.height);
    this.shades();
    this.across(this.scale.ticks());
    this.title("relative error", this.top, this.bottom);
    this.pen.save();
    this.pen.beginPath();
    this.pen.rect(this.left, 0, this.right - this.left, this.bottom);
    this.pen.clip();
    if (this.series.limit) this.stairs(this.series.limit, "limit", [2, 3]);
    this.stairs(this.series.floor, "floor", [5, 3]);
    if (this.step < DOT) this.strokes();
    else this.dots();
    if (chosen >= this.from && chosen < this.to) this.cross(chosen);
    this.pen.restore();
    this.marks();
  }

  shades() {
    const pen = this.pen;
    for (let start = this.from; start < this.to;) {
      const phase = this.series.phase(start);
      let end = start + 1;
      while (end < this.to && this.series.phase(end) === phase) end++;
      const x = this.left + (start - this.from) * this.step;
      const width = (end - start) * this.step;
      pen.fillStyle = this.colours[phase];
      pen.fillRect(x, MARGIN.top, width, this.bottom - MARGIN.top);
      pen.fillStyle = this.colours.soft;
      pen.textAlign = "left";
      if (width > pen.measureText(phase).width + 8) pen.fillText(phase, x + 4, this.height - 6);
      start = end;
    }
  }

  /** A line at the height of each value, broken where there is none; of those under one pixel, the highest. */
  stairs(values, name, dashes) {
    const pen = this.pen;
    const each = Math.max(1, Math.floor(1 / this.step));
    pen.strokeStyle = this.colours[name];
    pen.lineWidth = 2;
    pen.setLineDash(dashes);
    pen.beginPath();
    let down = true;
    for (let index = this.from; index < this.to; index += each) {
      let value = NaN;
      for (let k = index; k < Math.min(this.to, index + each); k++) if (values[k] > 0 && !(values[k] <= value)) value = values[k];
      if (Number.isNaN(value) || value === Infinity) down = true;
      else {
        const x = this.left + (index - this.from) * this.step;
        const y = this.scale.y(value);
        if (down) pen.moveTo(x, y);
        else pen.lineTo(x, y);
        pen.lineTo(x + each * this.step, y);
        down = false;
      }
    }
    pen.stroke();
    pen.setLineDash([]);
  }

  dots() {
    const { pen, scale, series } = this;
    pen.strokeStyle = this.colours.drift;
    pen.globalAlpha = 0.35;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let index = this.from; index < this.to; index++) {
      if (index === this.from) pen.moveTo(this.x(index), scale.y(series.drift[index]));
      else pen.lineTo(this.x(index), scale.y(series.drift[index]));
    }
    pen.stroke();
    pen.globalAlpha = 1;
    const radius = Math.min(4, Math.max(1.5, this.step / 2.5));
    for (let index = this.from; index < this.to; index++) {
      pen.fillStyle = this.colours[judged(series, index)];
      pen.beginPath();
      pen.arc(this.x(index), scale.y(series.drift[index]), radius, 0, 7);
      pen.fill();
    }
  }

  strokes() {
    const { pen, scale, series } = this;
    const calm = this.colours.drift;
    for (let x = this.left; x < this.right; x++) {
      const first = this.indexAt(x);
      const last = Math.max(first + 1, this.from + Math.ceil((x + 1 - this.left) / this.step));
      let [low, top, none, colour] = [Infinity, 0, false, "drift"];
      for (let index = first; index < Math.min(last, this.to); index++) {
        const drift = series.drift[index];
        if (drift > 0) low = Math.min(low, drift);
        else none = true;
        top = Math.max(top, drift);
        const each = judged(series, index);
        if (each === "limit" || colour === "drift") colour = each;
      }
      if (none) {
        pen.fillStyle = calm;
        pen.globalAlpha = 0.6;
        pen.fillRect(x, scale.y(0) - 1, 1, 2);
        pen.globalAlpha = 1;
      }
      if (!(top > 0)) continue;
      const [y, bottom] = [scale.y(top), scale.y(low)];
      pen.fillStyle = calm;
      pen.globalAlpha = 0.4;
      pen.fillRect(x, y, 1, Math.max(1, bottom - y));
      pen.globalAlpha = 1;
      pen.fillStyle = this.colours[colour];
      pen.fillRect(x, y - 1, 1.5, 2.5);
    }
  }

  cross(index) {
    const { pen } = this;
    pen.strokeStyle = pen.fillStyle = this.colours.ink;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(this.x(index), MARGIN.top);
    pen.lineTo(this.x(index), this.bottom);
    pen.stroke();
    pen.beginPath();
    pen.arc(this.x(index), this.scale.y(this.series.drift[index]), 5, 0, 7);
    pen.lineWidth = 2;
    pen.stroke();
  }

  /** Findings, above the op or tensor that they blame. */
  marks() {
    const { pen } = this;
    pen.textAlign = "center";
    for (const { index, severity } of this.series.marks) {
      if (index < this.from || index >= this.to) continue;
      pen.fillStyle = pen.strokeStyle = this.colours[severity];
      pen.fillText(SIGNS[severity] ?? SIGNS.note, this.x(index), MARGIN.top - 6);
      pen.globalAlpha = 0.5;
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(this.x(index), MARGIN.top - 3);
      pen.lineTo(this.x(index), this.bottom);
      pen.stroke();
      pen.globalAlpha = 1;
    }
  }
}
