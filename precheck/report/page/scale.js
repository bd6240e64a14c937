// From drifts to heights, on a log scale with a lane above for what is Inf or NaN and one below for nothing.

const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const LANE = 18; // pixels

class LogScale {
  /** `arrays` are all that is to be drawn between `top` and `bottom`. */
  constructor(arrays, top, bottom) {
    let low = Infinity;
    let high = 0;
    this.infinite = false;
    this.zero = false;
    for (const values of arrays) {
      for (const value of values) {
        if (value > 0 && value < Infinity) {
          if (value < low) low = value;
          if (value > high) high = value;
        } else if (value === 0) this.zero = true;
        else if (value === Infinity) this.infinite = true;
      }
    }
    if (!high) [low, high] = [1e-4, 1];
    this.high = Math.ceil(Math.log10(high) + 0.05);
    this.low = Math.max(Math.min(Math.floor(Math.log10(low)), this.high - 2), this.high - 12);
    this.laneTop = top;
    this.laneBottom = bottom;
    this.top = top + (this.infinite ? LANE + 8 : 0);
    this.lane = this.zero || Math.log10(low) < this.low;
    this.bottom = bottom - (this.lane ? LANE + 8 : 4);
  }

  y(value) {
    if (value === Infinity) return this.laneTop + LANE / 2;
    const at = (this.high - Math.log10(value)) / (this.high - this.low);
    if (!(value > 0) || at > 1) return this.laneBottom - LANE / 2;
    return this.top + at * (this.bottom - this.top);
  }

  /** [[height, label], …], a line for each power of ten, or each second or third where there are many. */
  ticks() {
    const every = Math.ceil((this.high - this.low) / 7);
    const found = [];
    for (let power = this.low; power <= this.high; power += every) found.push([this.y(10 ** power), powerOfTen(power)]);
    if (this.infinite) found.push([this.laneTop + LANE / 2, "Inf"]);
    if (this.lane) found.push([this.laneBottom - LANE / 2, "0"]);
    return found;
  }
}

function powerOfTen(power) {
  if (power >= 0 && power <= 2) return String(10 ** power);
  return "10" + raised(power);
}

function raised(power) {
  return String(power).replace(/./g, (sign) => SUPERSCRIPT[sign]);
}
