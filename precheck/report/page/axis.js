// Axes in either direction. A log axis has a lane at its low end for zero and one at its high end for Inf and NaN.

class Axis {
  /** From pixel `start`, where numbers are low, to `end`; `pad` is room beyond the extremes of `values`, in powers of `base`. */
  constructor(values, start, end, base, pad) {
    let [low, high] = [Infinity, 0];
    [this.zero, this.infinite] = [false, false];
    for (const value of values) {
      if (value > 0 && value < Infinity) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      } else if (value === 0) this.zero = true;
      else this.infinite = true;
    }
    if (!high) low = high = 1;
    const lane = Math.sign(end - start) * (LANE + 6);
    Object.assign(this, { base, from: start, to: end });
    this.start = start + (this.zero ? lane : 0);
    this.end = end - (this.infinite ? lane : 0);
    this.low = this.power(low) - pad;
    this.high = this.power(high) + pad;
  }

  power(value) {
    return this.base === 2 ? Math.log2(value) : Math.log10(value);
  }

  at(value) {
    const half = (Math.sign(this.to - this.from) * LANE) / 2;
    if (value === 0) return this.from + half;
    if (!(value < Infinity)) return this.to - half;
    return this.start + ((this.power(value) - this.low) / (this.high - this.low)) * (this.end - this.start);
  }

  /** [[pixel, label], …]: whole powers of the base, at most about `most`. */
  ticks(most) {
    const [first, last] = [Math.ceil(this.low), Math.floor(this.high)];
    const every = Math.max(1, Math.ceil((last - first + 1) / most));
    const found = [];
    for (let power = Math.ceil(first / every) * every; power <= last; power += every)
      found.push([this.at(this.base ** power), powerLabel(this.base, power)]);
    if (this.infinite) found.push([this.at(Infinity), "Inf"]);
    if (this.zero) found.push([this.at(0), "0"]);
    return found;
  }
}

function powerLabel(base, power) {
  return base === 2 ? "2" + raised(power) : powerOfTen(power);
}

/** A linear axis from pixel `start`, where numbers are low, to `end`, with `room` beyond the extremes as a share of what lies between. */
class LinearAxis {
  constructor(values, start, end, room = 0.06) {
    const known = values.filter(Number.isFinite);
    const [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
    const pad = (high - low || Math.abs(high) || 1) * room;
    Object.assign(this, { low: low - pad, high: high + pad, start, end });
  }

  at(value) {
    return this.start + ((value - this.low) / (this.high - this.low)) * (this.end - this.start);
  }

  /** Round numbers, at most about `most`, no closer together than `finest`. */
  ticks(most, finest = 0) {
    const rough = Math.max(finest, (this.high - this.low) / most);
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
