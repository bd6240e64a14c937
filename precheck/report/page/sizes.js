// How long a step of each parameter is beside what its format rounds away where its weights are: the dead zone.

const SIZE_MARGIN = { left: 58, right: 14, top: 24, bottom: 36 };
const NEAR = 24; // pixels from a point at which the pointer still means it
const sizes = { points: [], sheet: null, chosen: -1 };

/** Points of a check's updates, the least arrived first: their rows with `x`, `y` sizes and `share`. Measured runs give none. */
function pointsOf(rows) {
  const sized = rows.filter((row) => row.weight !== undefined && row.step !== undefined);
  return sized.map((row) => ({ ...row, x: real(row.weight), y: real(row.step) }));
}

function resetSizes() {
  sizes.points = pointsOf(rankedUpdates());
  sizes.chosen = -1;
  byId("sizes").hidden = !sizes.points.length;
  if (!sizes.points.length) return;
  const lost = sizes.points.filter((point) => point.share < LOST).length;
  const zones = zonesOf(sizes.points);
  const named = zones.map(({ dtype }) => dtype).join(", of ");
  byId("sizes-canvas").setAttribute(
    "aria-label",
    `Size of a step against size of the weight, of ${counted(sizes.points.length, "parameter")}, ${lost.toLocaleString("en")} of them lost`,
  );
  const ramp = el("li", {}, el("i", { class: "ramp" }), "arrived, from none to all");
  byId("sizes-key").replaceChildren(
    ramp,
    swatch("error", "less than half: lost", "ring"),
    swatch("good", "half or more", "dot"),
    zones.length ? swatch("zone", `dead zone of ${named}: steps that rounding takes away whole`) : "",
  );
  drawSizes();
  tellSize();
}

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

function drawSizes() {
  if (!sizes.points.length) return;
  const sheet = new Sheet(byId("sizes-canvas"), SIZE_MARGIN);
  const { points } = sizes;
  const x = new Axis(points.map((point) => point.x), sheet.left, sheet.right, 10, 0.35);
  const y = new Axis([...points.map((point) => point.y), ...edgesOf(points)], sheet.bottom, sheet.top, 10, 0.35);
  Object.assign(sizes, { sheet, x, y });
  sheet.within(() => zonesOf(points).forEach((zone) => shadeZone(sheet, stairsOf(x, y, zone))));
  sheet.across(y.ticks(8));
  sheet.pen.strokeStyle = sheet.colours.line;
  for (const [place, label] of x.ticks(10)) {
    sheet.line(Math.round(place) + 0.5, sheet.top, Math.round(place) + 0.5, sheet.bottom);
    sheet.word(label, place, sheet.bottom + 14, "center");
  }
  sheet.word("size of the weight (root mean square)", sheet.right, sheet.height - 4, "right");
  sheet.word("size of a step", 4, 13);
  sheet.within(() => {
    zonesOf(points).forEach((zone) => outline(sheet, stairsOf(x, y, zone)));
    drawPoints(sheet);
  });
  zonesOf(points).forEach((zone) => zoneName(sheet, x, y, zone));
}

/** The top of a zone in pixels, [[x, y], …]: a stair for each binade in view. */
function stairsOf(x, y, { half }) {
  const low = Math.floor(x.low * Math.log2(10));
  const high = Math.ceil(x.high * Math.log2(10));
  const found = [];
  for (let power = low; power < high; power++) {
    const edge = y.at(half(power));
    found.push([Math.max(x.start, x.at(2 ** power)), edge], [Math.min(x.end, x.at(2 ** (power + 1))), edge]);
  }
  return found;
}

function shadeZone(sheet, stairs) {
  const { pen } = sheet;
  pen.beginPath();
  pen.moveTo(stairs[0][0], sheet.bottom);
  for (const [left, top] of stairs) pen.lineTo(left, top);
  pen.lineTo(stairs.at(-1)[0], sheet.bottom);
  pen.fillStyle = sheet.colours.zone;
  pen.fill();
}

function outline(sheet, stairs) {
  const { pen } = sheet;
  pen.beginPath();
  for (const [left, top] of stairs) pen.lineTo(left, top);
  pen.strokeStyle = sheet.colours.warning;
  pen.lineWidth = 1.25;
  pen.stroke();
}

/** Its name, under the highest stair that leaves room for it; readable above points, too. */
function zoneName(sheet, x, y, zone) {
  const words = "dead zone of " + zone.dtype;
  const fits = ([left, top]) => top > sheet.top && top < sheet.bottom - 20 && left + sheet.pen.measureText(words).width + 12 < sheet.right;
  const corner = stairsOf(x, y, zone).findLast((each, place) => place % 2 === 0 && fits(each));
  if (!corner) return;
  sheet.pen.textAlign = "left";
  sheet.pen.strokeStyle = sheet.colours.sheet;
  sheet.pen.lineWidth = 3;
  sheet.pen.lineJoin = "round";
  sheet.pen.strokeText(words, corner[0] + 6, corner[1] + 15);
  sheet.word(words, corner[0] + 6, corner[1] + 15, "left", "warning");
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

/** Those that arrived as dots, those that were lost as rings above them. */
function drawPoints(sheet) {
  const { pen } = sheet;
  const radius = sizes.points.length > 300 ? 3 : 4.5;
  for (let place = sizes.points.length - 1; place >= 0; place--) {
    const point = sizes.points[place];
    pen.strokeStyle = pen.fillStyle = shareColour(point.share, sheet.colours);
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(sizes.x.at(point.x), sizes.y.at(point.y), radius, 0, 7);
    if (point.share < LOST) pen.stroke();
    else pen.fill();
  }
  const chosen = sizes.points[sizes.chosen];
  if (!chosen) return;
  pen.strokeStyle = sheet.colours.ink;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.arc(sizes.x.at(chosen.x), sizes.y.at(chosen.y), radius + 4, 0, 7);
  pen.stroke();
}

/** A parameter in words. */
function sizeWords(point) {
  const words = [el("b", { class: "name code" }, clipped(point.parameter) || "a parameter")];
  const [down, up] = (point.dead_zone ?? []).map(real);
  const zone = up === undefined ? "" : ` rounds away less than ${digits(up)}` + (up === down ? "" : ` up, ${digits(down)} down`);
  const where = clipped(point.dtype, 40) + (zone || " stores them");
  words.push(` · a step is ${digits(point.y)}; weights are ${digits(point.x)}, where ${where}`);
  words.push(` · ${percent(point.share)} of ${counted(point.steps, "step")} arrived`);
  if (typeof point.aged === "number") words.push(`, judged over ${counted(point.horizon, "step")} of the optimizer alone`);
  if (point.sampled) words.push(` · ${point.moved.toLocaleString("en")} of ${counted(point.sampled, "element")} moved`);
  return words;
}

function tellSize() {
  const point = sizes.points[sizes.chosen];
  byId("sizes-chosen").replaceChildren(...(point ? sizeWords(point) : [el("span", { class: "soft" }, "Nothing chosen.")]));
}

function chooseSize(place) {
  sizes.chosen = place;
  drawSizes();
  tellSize();
}

/** The place of the point nearest to a pixel; -1 if none is near. */
function pointAt(x, y) {
  let [found, least] = [-1, NEAR * NEAR];
  sizes.points.forEach((point, place) => {
    const away = (sizes.x.at(point.x) - x) ** 2 + (sizes.y.at(point.y) - y) ** 2;
    if (away < least) [found, least] = [place, away];
  });
  return found;
}

/** To the point that is next along `axis` ("x" or "y"), by `way` places. */
function walkSizes(axis, way) {
  const order = sizes.points.map((_, place) => place).sort((a, b) => sizes.points[a][axis] - sizes.points[b][axis] || a - b);
  const at = sizes.chosen < 0 ? (way > 0 ? -1 : order.length) : order.indexOf(sizes.chosen);
  chooseSize(order[Math.max(0, Math.min(order.length - 1, at + way))]);
}

function sizeKeys() {
  return {
    ArrowLeft: () => walkSizes("x", -1),
    ArrowRight: () => walkSizes("x", 1),
    ArrowDown: () => walkSizes("y", -1),
    ArrowUp: () => walkSizes("y", 1),
    Home: () => walkSizes("x", -Infinity),
    End: () => walkSizes("x", Infinity),
    Enter: () => sizes.chosen >= 0 && showUpdate(sizes.points[sizes.chosen].place),
  };
}

function startSizes() {
  const canvas = byId("sizes-canvas");
  const box = byId("sizes-tip");
  const place = (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    return pointAt(event.clientX - left, event.clientY - top);
  };
  canvas.addEventListener("keydown", (event) => sizes.points.length && pressed(event, sizeKeys()));
  canvas.addEventListener("pointermove", (event) => {
    const point = sizes.points[place(event)];
    box.hidden = !point;
    if (point) tipAt(box, sizes.x.at(point.x), sizes.y.at(point.y) + 10, sizes.sheet.width, sizeWords(point));
  });
  canvas.addEventListener("pointerleave", () => (box.hidden = true));
  canvas.addEventListener("click", (event) => {
    const found = place(event);
    if (found < 0) return;
    chooseSize(found);
    showUpdate(sizes.points[found].place);
  });
  on("check", resetSizes);
  on("theme", drawSizes);
  new ResizeObserver(drawSizes).observe(canvas.parentElement);
}
