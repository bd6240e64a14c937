// Drawing sizes of steps over sizes of weights, and the dead zone of each format.

const SIZE_MARGIN = { left: 66, right: 14, top: 24, bottom: 36 };
const NEAR = 24; // pixels from a point at which the pointer still means it

/** The formats of these points, the widest dead zone first, with what a step must exceed on weights of a size. */
function zonesOf(points) {
  const known = [...new Set(points.map((point) => point.dtype))].filter((dtype) => Object.hasOwn(SUMMARY.formats, dtype));
  return known
    .map((dtype) => {
      const [precision, least] = SUMMARY.formats[dtype];
      return { dtype, precision, least, half: (power) => 2 ** (Math.max(power, least) - precision) };
    })
    .sort((a, b) => a.precision - b.precision);
}

/** How far up the dead zone reaches at the points; where that is far below every step, only the highest. */
function edgesOf(points) {
  const positive = (values) => values.filter((value) => value > 0 && value < Infinity);
  const edges = positive(points.flatMap((point) => (point.dead_zone ?? []).map(real)));
  const least = Math.min(...positive(points.map((point) => point.y)));
  const near = edges.filter((edge) => edge > least / 10);
  return near.length ? near : [Math.max(0, ...edges)].filter(Boolean);
}

function channels(colour) {
  return (colour.match(/[\d.]+/g) ?? []).slice(0, 3).map(Number);
}

/** From none (error) by half to all (good). */
function shareColour(share, colours) {
  const at = 2 * Math.max(0, Math.min(1, Number.isNaN(share) ? 0 : share));
  const [from, to] = (at < 1 ? ["error", "half"] : ["half", "good"]).map((name) => channels(colours[name]));
  const part = at < 1 ? at : at - 1;
  return `rgb(${from.map((value, place) => Math.round(value + part * (to[place] - value))).join(",")})`;
}

class SizePlot extends Sheet {
  /** `points` as pointsOf has them. */
  constructor(canvas, points) {
    super(canvas, SIZE_MARGIN);
    const [weights, steps] = ["x", "y"].map((axis) => points.map((point) => point[axis]));
    const x = new Axis(weights, this.left, this.right, 10, 0.35);
    const y = new Axis([...steps, ...edgesOf(points)], this.bottom, this.top, 10, 0.35);
    Object.assign(this, { points, x, y, zones: zonesOf(points), radius: points.length > 300 ? 3 : 4.5 });
  }

  draw(chosen) {
    this.within(() => this.zones.forEach((zone) => this.shade(this.stairs(zone))));
    this.across(this.y.ticks(8));
    this.pen.strokeStyle = this.colours.line;
    for (const [x, label] of this.x.ticks(10)) {
      this.line(Math.round(x) + 0.5, this.top, Math.round(x) + 0.5, this.bottom);
      this.word(label, x, this.bottom + 14, "center");
    }
    this.word("size of the weight (root mean square)", this.right, this.height - 4, "right");
    this.title("size of a step (root mean square)", this.top, this.bottom);
    this.within(() => {
      this.zones.forEach((zone) => this.edge(this.stairs(zone)));
      this.dots();
      const point = this.points[chosen];
      if (point) this.circle(this.x.at(point.x), this.y.at(point.y), this.radius + 4);
    });
    this.zones.forEach((zone) => this.nameZone(zone));
  }

  /** The top of a zone in pixels, [[x, y], …]: a stair for each binade in view. */
  stairs({ half }) {
    const { x, y } = this;
    const found = [];
    for (let power = Math.floor(x.low * Math.log2(10)); power < x.high * Math.log2(10); power++) {
      const height = y.at(half(power));
      found.push([Math.max(x.start, x.at(2 ** power)), height], [Math.min(x.end, x.at(2 ** (power + 1))), height]);
    }
    return found;
  }

  shade(stairs) {
    const { pen } = this;
    pen.beginPath();
    pen.moveTo(stairs[0][0], this.bottom);
    for (const [x, y] of stairs) pen.lineTo(x, y);
    pen.lineTo(stairs.at(-1)[0], this.bottom);
    pen.fillStyle = this.colours.zone;
    pen.fill();
  }

  edge(stairs) {
    const { pen } = this;
    pen.beginPath();
    for (const [x, y] of stairs) pen.lineTo(x, y);
    pen.strokeStyle = this.colours.warning;
    pen.lineWidth = 1.25;
    pen.stroke();
  }

  /** Under the highest stair that leaves room for it; readable above points, too. */
  nameZone(zone) {
    const { pen } = this;
    const words = "dead zone of " + zone.dtype;
    const room = this.right - pen.measureText(words).width - 12;
    const fits = ([x, y]) => y > this.top && y < this.bottom - 20 && x < room;
    const corner = this.stairs(zone).findLast((each, place) => place % 2 === 0 && fits(each));
    if (!corner) return;
    pen.textAlign = "left";
    pen.strokeStyle = this.colours.sheet;
    pen.lineWidth = 3;
    pen.lineJoin = "round";
    pen.strokeText(words, corner[0] + 6, corner[1] + 15);
    this.word(words, corner[0] + 6, corner[1] + 15, "left", "warning");
  }

  /** Those that arrived as dots, those that were lost as rings above them: the least arrived come first, and are drawn last. */
  dots() {
    const { pen } = this;
    pen.lineWidth = 2;
    for (const point of this.points.toReversed()) {
      pen.strokeStyle = pen.fillStyle = shareColour(point.share, this.colours);
      pen.beginPath();
      pen.arc(this.x.at(point.x), this.y.at(point.y), this.radius, 0, 7);
      if (point.share < LOST) pen.stroke();
      else pen.fill();
    }
  }

  /** The place of the point nearest to a pixel; -1 if none is near. */
  pointAt(x, y) {
    let [found, least] = [-1, NEAR * NEAR];
    this.points.forEach((point, place) => {
      const away = (this.x.at(point.x) - x) ** 2 + (this.y.at(point.y) - y) ** 2;
      if (away < least) [found, least] = [place, away];
    });
    return found;
  }
}
