// The loss of each step beside the reference's.

const losses = { view: new Stretch(0), plot: null, series: null, source: "", chosen: -1 };

/** The losses taken at a line: {length, step, low, reference, apart, floor}, the last two over the reference's size. */
function seriesOfLosses(data, source) {
  const taken = data.losses.filter((loss) => loss[4] === source);
  const column = (place) => taken.map((loss) => (loss[place] === null ? NaN : real(loss[place])));
  const [step, low, reference, floor] = [0, 1, 2, 3].map(column);
  const over = (value, index) => value / Math.abs(reference[index]);
  return {
    length: taken.length,
    step,
    low,
    reference,
    apart: low.map((value, index) => (value === reference[index] ? 0 : over(Math.abs(value - reference[index]), index))),
    floor: floor.map(over),
  };
}

function resetLosses() {
  const data = current();
  byId("losses").hidden = !data?.losses.length;
  losses.series = null;
  if (byId("losses").hidden) return;
  const sources = [...new Set(data.losses.map((loss) => loss[4]))];
  byId("losses-line").hidden = sources.length < 2;
  byId("losses-of").replaceChildren(...sources.slice(0, LISTED).map((source) => el("option", { value: source }, clipped(source, 80) || "no line")));
  showLosses(sources[0]);
}

function showLosses(source) {
  Object.assign(losses, { source, series: seriesOfLosses(current(), source), chosen: -1 });
  const { length, low, reference, apart, floor } = losses.series;
  losses.view = new Stretch(length);
  const worst = apart.reduce((found, value, index) => (value > apart[found] || Number.isNaN(apart[found]) ? index : found), 0);
  const lost = low.filter((value, index) => !Number.isFinite(value) && Number.isFinite(reference[index])).length;
  const facts = length > 1 ? [`${length.toLocaleString("en")} losses; furthest apart: `, ...lossWords(worst)] : lossWords(0);
  if (lost && length > 1) facts.push(el("b", { class: "error" }, ` · ${lost.toLocaleString("en")} of them Inf or NaN where the reference is finite`));
  byId("losses-facts").replaceChildren(...facts);
  for (const part of ["canvas", "help", "chosen", "zoom", "key"]) byId("losses-" + part).hidden = length < 2;
  byId("losses-canvas").setAttribute("aria-label", `Loss over ${counted(length, "step")}, beside the reference's`);
  const key = [swatch("drift", "this run", "solid"), swatch("reference", "reference", "band")];
  if (floor.some(Number.isFinite)) key.push(swatch("floor", "relative error that correct rounding explains", "stroke"));
  if (low.some((value) => !Number.isFinite(value))) key.push(swatch("error", "Inf or NaN", "✕"));
  byId("losses-key").replaceChildren(...key);
  drawLosses();
  tellLoss();
}

/** A step's loss in words. */
function lossWords(index) {
  const { step, low, reference, apart, floor } = losses.series;
  const value = (each) => (Number.isFinite(each) ? String(Number(each.toPrecision(6))) : digits(each));
  const words = [el("b", {}, `step ${step[index].toLocaleString("en")}`), ` · loss ${value(low[index])}, in the reference ${value(reference[index])}`];
  if (Number.isFinite(apart[index])) words.push(` · ${digits(100 * apart[index])}% apart`);
  if (Number.isFinite(floor[index])) words.push(`, rounding explains ${digits(100 * floor[index])}%`);
  return words;
}

function drawLosses() {
  if (!losses.series || losses.series.length < 2) return;
  losses.plot = new LossPlot(byId("losses-canvas"), losses.series, losses.view);
  losses.plot.draw(losses.chosen);
}

function tellLoss() {
  byId("losses-chosen").replaceChildren(...(losses.chosen >= 0 ? lossWords(losses.chosen) : []));
}

function chooseLoss(index) {
  losses.chosen = losses.view.reach(index);
  drawLosses();
  tellLoss();
}

function zoomLosses(factor) {
  losses.view.zoom(factor, losses.view.hold(losses.chosen));
  drawLosses();
}

function startLosses() {
  const canvas = byId("losses-canvas");
  canvas.addEventListener("keydown", (event) => {
    if (losses.series) pressed(event, strides(losses.view, losses.chosen, { reach: chooseLoss, zoom: zoomLosses }));
  });
  followPointer(canvas, {
    ready: () => losses.series !== null,
    tip: (x) => {
      const index = losses.plot.indexAt(x);
      tipAt(byId("losses-tip"), losses.plot.x(index), 8, losses.plot.width, lossWords(index));
    },
    hide: () => (byId("losses-tip").hidden = true),
    draw: drawLosses,
    sheet: () => losses.plot,
    click: (x) => chooseLoss(losses.plot.indexAt(x)),
    select: (from, to) => {
      losses.view.show(losses.plot.indexAt(from), losses.plot.indexAt(to) + 1);
      drawLosses();
    },
    all: () => zoomLosses(Infinity),
  });
  zoomButtons(byId("losses-zoom"), "All steps", zoomLosses);
  byId("losses-of").addEventListener("change", (event) => showLosses(event.target.value));
  on("check", resetLosses);
  on("theme", drawLosses);
  new ResizeObserver(drawLosses).observe(canvas.parentElement);
}
