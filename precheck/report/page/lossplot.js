// Drawing losses beside the reference's, and below how far apart they are.

const LOSS_MARGIN = { left: 66, right: 12, top: 14, bottom: 22 };
const BETWEEN = 30; // pixels between the two

class LossPlot extends StepSheet {
  /** `series` as seriesOfLosses has it, `view` the stretch of it to draw. */
  constructor(canvas, series, view) {
    super(canvas, LOSS_MARGIN, view);
    const part = (values) => values.slice(this.from, this.to);
    this.middle = this.top + 0.6 * (this.bottom - this.top);
    this.losses = new LinearAxis([...part(series.low), ...part(series.reference)], this.middle - 6, this.top + 6);
    this.apart = new LogScale([part(series.apart), part(series.floor)], this.middle + BETWEEN, this.bottom);
    this.series = series;
  }

  draw(chosen) {
    const { low, reference, apart, floor } = this.series;
    this.across(this.losses.ticks(5));
    this.across(this.apart.ticks());
    this.title("loss", this.top, this.middle);
    this.title("relative error", this.middle + BETWEEN, this.bottom);
    this.numbers("step");
    this.within(() => {
      this.curve(reference, (value) => this.losses.at(value), "reference", 7);
      this.curve(low, (value) => this.losses.at(value), "drift", 1.5);
      this.curve(floor, (value) => this.apart.y(value), "floor", 1.5, [5, 3]);
      this.curve(apart, (value) => this.apart.y(value), "drift", 1.5);
      this.lost(low);
      if (chosen >= this.from && chosen < this.to) this.mark(chosen);
    });
  }

  /** A line through what is finite, with dots where there is room, and where a neighbour is not finite. */
  curve(values, height, colour, width, dashes = []) {
    const { pen } = this;
    const known = (index) => index >= this.from && index < this.to && Number.isFinite(values[index]);
    pen.strokeStyle = pen.fillStyle = this.colours[colour];
    pen.lineWidth = width;
    pen.setLineDash(dashes);
    const alone = [];
    pen.beginPath();
    for (let index = this.from; index < this.to; index++) {
      if (!known(index)) continue;
      const [x, y] = [this.x(index), height(values[index])];
      if (known(index - 1)) pen.lineTo(x, y);
      else pen.moveTo(x, y);
      if (this.step > 14 || (!known(index - 1) && !known(index + 1))) alone.push([x, y]);
    }
    pen.stroke();
    pen.setLineDash([]);
    if (!dashes.length) for (const [x, y] of alone) this.dot(x, y, 1.5 + width / 2);
  }

  dot(x, y, radius) {
    this.pen.beginPath();
    this.pen.arc(x, y, radius, 0, 7);
    this.pen.fill();
  }

  /** A cross at the top where the run's loss is Inf or NaN. */
  lost(low) {
    const { pen } = this;
    const y = this.top + 8;
    pen.strokeStyle = this.colours.error;
    pen.lineWidth = 1.75;
    pen.beginPath();
    for (let index = this.from; index < this.to; index++) {
      if (Number.isFinite(low[index])) continue;
      const x = this.x(index);
      pen.moveTo(x - 4, y - 4);
      pen.lineTo(x + 4, y + 4);
      pen.moveTo(x - 4, y + 4);
      pen.lineTo(x + 4, y - 4);
    }
    pen.stroke();
  }

  mark(index) {
    this.pen.strokeStyle = this.colours.ink;
    this.pen.lineWidth = 1;
    this.line(this.x(index), this.top, this.x(index), this.bottom);
    const value = this.series.low[index];
    if (Number.isFinite(value)) this.circle(this.x(index), this.losses.at(value), 7);
  }
}
