// Drawing losses beside the reference's, and below how far apart they are.

const LOSS_MARGIN = { left: 66, right: 12, top: 14, bottom: 22 };
const BETWEEN = 30; // pixels between the two

/** A plain axis from pixel `start`, where numbers are low, to `end`. */
class LinearAxis {
  constructor(values, start, end) {
    const known = values.filter(Number.isFinite);
    const [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
    const pad = (high - low || Math.abs(high) || 1) * 0.06;
    Object.assign(this, { low: low - pad, high: high + pad, start, end });
  }

  at(value) {
    return this.start + ((value - this.low) / (this.high - this.low)) * (this.end - this.start);
  }

  /** Round numbers, at most about `most`. */
  ticks(most) {
    const rough = (this.high - this.low) / most;
    const ten = 10 ** Math.floor(Math.log10(rough));
    const every = [1, 2, 5, 10].map((part) => part * ten).find((each) => each >= rough);
    const places = Math.max(0, -Math.floor(Math.log10(every)));
    const found = [];
    for (let count = Math.ceil(this.low / every); count * every <= this.high; count++) {
      const value = count * every;
      const plain = Math.abs(value) < 1e6 && places < 7;
      found.push([this.at(value), plain ? value.toFixed(places) : value.toExponential(1)]);
    }
    return found;
  }
}

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
    this.word("loss", 4, 11);
    this.word("difference, relative", 4, this.middle + 16);
    this.numbers("step");
    this.within(() => {
      this.curve(reference, (value) => this.losses.at(value), "floor", 5);
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
