// How long a step of each parameter is beside what its format rounds away where its weights are: the dead zone.

const sizes = { points: [], plot: null, chosen: -1 };

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
    lost ? swatch("error", "less than half: lost", "ring") : "",
    lost < sizes.points.length ? swatch("good", "half or more", "dot") : "",
    zones.length ? swatch("zone", `dead zone of ${named}: steps that rounding takes away whole`) : "",
  );
  drawSizes();
  tellSize();
}

/** A parameter in words. */
function sizeWords(point) {
  const words = [el("b", { class: "name code" }, clipped(point.parameter) || "a parameter")];
  const [down, up] = (point.dead_zone ?? []).map(real);
  const zone = up === undefined ? "" : ` drops a change smaller than ${digits(up)}` + (up === down ? "" : ` up or ${digits(down)} down`);
  const where = clipped(point.dtype, 40) + (zone || " stores them");
  words.push(` · a step is ${digits(point.y)}; weights are ${digits(point.x)}, where ${where}`);
  words.push(` · ${percent(point.share)} of ${counted(point.steps, "step")} arrived`);
  if (typeof point.aged === "number") words.push(`, judged over ${counted(point.horizon, "step")} of the optimizer alone`);
  if (point.sampled) words.push(` · ${point.moved.toLocaleString("en")} of ${counted(point.sampled, "element")} moved`);
  return words;
}

function drawSizes() {
  if (!sizes.points.length) return;
  sizes.plot = new SizePlot(byId("sizes-canvas"), sizes.points);
  sizes.plot.draw(sizes.chosen);
}

function tellSize() {
  const point = sizes.points[sizes.chosen];
  byId("sizes-chosen").replaceChildren(...(point ? sizeWords(point) : []));
}

function chooseSize(place) {
  sizes.chosen = place;
  drawSizes();
  tellSize();
}

/** Chooses a parameter and brings the picture into view. */
function showSize(place) {
  chooseSize(place);
  byId("sizes-canvas").scrollIntoView({ block: "center" });
  byId("sizes-canvas").focus({ preventScroll: true });
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
    return sizes.plot?.pointAt(event.clientX - left, event.clientY - top) ?? -1;
  };
  canvas.addEventListener("keydown", (event) => sizes.points.length && pressed(event, sizeKeys()));
  canvas.addEventListener("pointermove", (event) => {
    const point = sizes.points[place(event)];
    if (point) tipAt(box, sizes.plot.x.at(point.x), sizes.plot.y.at(point.y) + 10, sizes.plot.width, sizeWords(point));
    else box.hidden = true;
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
