// Drawing the loss scale along the steps of a run.

const SCALER_MARGIN = { left: 62, right: 12, top: 12, bottom: 22 };

class ScalePlot extends StepSheet {
  /** `history` as historyOf has it, `told` the report's scaler, `view` the stretch of steps to draw. */
  constructor(canvas, history, told, view) {
    super(canvas, SCALER_MARGIN, view);
    const safe = typeof told.safe === "number" && told.safe > 0 ? told.safe : NaN;
    const seen = [...new Set(history.scale.subarray(this.from, this.to)), ...(safe > 0 ? [safe] : [])];
    const axis = new Axis(seen, this.bottom, this.top, 2, 0.7);
    Object.assign(this, { history, safe, axis, calibration: Math.min(this.to, told.calibration ?? 0) });
  }

  /** Of the steps under a pixel one that was skipped, or else the one in the middle. */
  stepAt(x) {
    const reach = this.step < 3 ? 1.5 : 0;
    const last = this.indexAt(x + reach);
    for (let index = this.indexAt(x - reach); index <= last; index++) if (this.history.skipped[index]) return index;
    return this.indexAt(x);
  }

  draw(chosen) {
    if (this.calibration > this.from) {
      this.pen.fillStyle = this.colours.scaler;
      this.pen.fillRect(this.left, this.top, (this.calibration - this.from) * this.step, this.bottom - this.top);
    }
    this.across(this.axis.ticks(7));
    this.title("loss scale", this.top, this.bottom);
    this.numbers("step");
    this.within(() => {
      if (this.safe > 0) this.safeLine(this.axis.at(this.safe));
      this.stairs();
      this.skips();
      if (chosen >= this.from && chosen < this.to) this.mark(chosen);
    });
  }

  safeLine(y) {
    this.pen.strokeStyle = this.colours.floor;
    this.pen.lineWidth = 1.5;
    this.pen.setLineDash([5, 3]);
    this.line(this.left, y, this.right, y);
    this.pen.setLineDash([]);
  }

  /** A stair for each change of the scale. */
  stairs() {
    const { pen, axis } = this;
    const { scale } = this.history;
    pen.strokeStyle = this.colours.drift;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.moveTo(this.left, axis.at(scale[this.from]));
    for (let index = this.from + 1; index < this.to; index++) {
      if (Object.is(scale[index], scale[index - 1])) continue;
      const x = this.left + (index - this.from) * this.step;
      pen.lineTo(x, axis.at(scale[index - 1]));
      pen.lineTo(x, axis.at(scale[index]));
    }
    pen.lineTo(this.right, axis.at(scale[this.to - 1]));
    pen.stroke();
  }

  /** A cross on each skipped step; of those at one pixel, one. */
  skips() {
    const { pen } = this;
    const size = Math.max(3, Math.min(4.5, this.step / 2));
    const taken = new Set();
    pen.strokeStyle = this.colours.error;
    pen.lineWidth = 1.75;
    pen.beginPath();
    for (const index of this.history.skips) {
      if (index < this.from || index >= this.to) continue;
      const [x, y] = [this.x(index), this.axis.at(this.history.scale[index])];
      const pixel = `${Math.round(x)} ${Math.round(y)}`;
      if (taken.has(pixel)) continue;
      taken.add(pixel);
      pen.moveTo(x - size, y - size);
      pen.lineTo(x + size, y + size);
      pen.moveTo(x - size, y + size);
      pen.lineTo(x + size, y - size);
    }
    pen.stroke();
  }

  mark(index) {
    this.pen.strokeStyle = this.colours.ink;
    this.pen.lineWidth = 1;
    this.line(this.x(index), this.top, this.x(index), this.bottom);
    this.circle(this.x(index), this.axis.at(this.history.scale[index]), 7);
  }
}
