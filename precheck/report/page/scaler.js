// The loss scale along a watched run: what it was at each step, which steps were skipped, and what would have been safe.

const scaler = { view: new Stretch(0), plot: null, history: null, chosen: -1 };

/** {length, scale, skipped, skips: places of the skipped} of the data's {runs: [[scale, steps], …], skipped: [place, …]}, or null. */
function historyOf(data) {
  const told = data?.scaler.history;
  if (!told?.runs?.length) return null;
  const length = told.runs.reduce((sum, [, steps]) => sum + steps, 0);
  const history = { length, scale: new Float64Array(length), skipped: new Uint8Array(length), skips: told.skipped };
  let place = 0;
  for (const [scale, steps] of told.runs) history.scale.fill(real(scale), place, (place += steps));
  for (const skip of told.skipped) history.skipped[skip] = 1;
  return history;
}

function resetScaler() {
  const data = current();
  scaler.history = historyOf(data);
  scaler.chosen = -1;
  byId("scaler").hidden = !scaler.history;
  if (!scaler.history) return;
  scaler.view = new Stretch(scaler.history.length);
  scalerWords(data);
  drawScaler();
  tellStep();
}

function scalerWords(data) {
  const { safe, calibration, interval, tightest } = data.scaler;
  const { length, skips } = scaler.history;
  const counts = `${counted(length, "step")}, ${skips.length.toLocaleString("en")} skipped`;
  const first = calibration ? `, ${calibration} of them while the scale came down from where it began` : "";
  const growth = interval ? `; it grows after ${counted(interval, "step")} in a row without a skip.` : ".";
  byId("scaler-facts").textContent = counts + first + growth;
  const key = [swatch("drift", "loss scale", "solid")];
  if (skips.length) key.push(swatch("error", "step skipped", "✕"));
  if (calibration) key.push(swatch("scaler", "calibration: the scale comes down from where it began"));
  const by = tightest ? ", by " + clipped(tightest) : "";
  if (typeof safe === "number") key.push(swatch("floor", `largest safe scale, ${scaleText(safe)}${by}`, "stroke"));
  byId("scaler-key").replaceChildren(...key);
  const jump = { type: "button", class: "plain jump", onclick: () => jumpTo("ops", data.scaler.at_op) };
  byId("scaler-jump").replaceChildren(data.scaler.at_op >= 0 ? el("button", jump, "Show the op that sets the safe scale") : "");
  byId("scaler-canvas").setAttribute("aria-label", `Loss scale over ${counts}`);
}

/** 2¹⁸ for a power of two, "249,102, that is 2¹⁷ and more" for another number. */
function scaleText(value) {
  if (!(value > 0 && value < Infinity)) return digits(value);
  const power = Math.floor(Math.log2(value));
  const plain = value >= 1 && value < 1e15 ? Math.round(value).toLocaleString("en") : digits(value);
  return 2 ** power === value ? `2${raised(power)} (${plain})` : `${plain} (between 2${raised(power)} and 2${raised(power + 1)})`;
}

/** A step in words. */
function stepWords(index) {
  const { scale, skipped } = scaler.history;
  const { safe, calibration } = current().scaler;
  const words = [el("b", {}, `step ${(index + 1).toLocaleString("en")}`), ` · loss scale ${scaleText(scale[index])} · `];
  words.push(skipped[index] ? el("b", { class: "hit" }, "skipped") : "taken");
  if (index < calibration) words.push(" · calibration");
  if (typeof safe === "number" && scale[index] > safe) words.push(` · ${digits(scale[index] / safe)} times the largest safe scale`);
  return words;
}

function drawScaler() {
  if (!scaler.history) return;
  scaler.plot = new ScalePlot(byId("scaler-canvas"), scaler.history, current().scaler, scaler.view);
  scaler.plot.draw(scaler.chosen);
}

function tellStep() {
  byId("scaler-chosen").replaceChildren(...(scaler.chosen >= 0 ? stepWords(scaler.chosen) : []));
}

function chooseStep(index) {
  scaler.chosen = scaler.view.reach(index);
  drawScaler();
  tellStep();
}

/** To the next skipped step, or the one before: `way` is 1 or -1. */
function chooseSkip(way) {
  const { skips } = scaler.history;
  const found = way > 0 ? skips.find((skip) => skip > scaler.chosen) : skips.findLast((skip) => skip < scaler.chosen);
  if (found !== undefined) chooseStep(found);
}

/** Chooses the first skipped step after calibration, or else the first, and brings the picture into view. */
function showSkip() {
  const { skips } = scaler.history;
  chooseStep(skips.find((skip) => skip >= (current().scaler.calibration ?? 0)) ?? skips[0] ?? 0);
  byId("scaler-canvas").scrollIntoView({ block: "center" });
  byId("scaler-canvas").focus({ preventScroll: true });
}

function zoomScaler(factor) {
  scaler.view.zoom(factor, scaler.view.hold(scaler.chosen));
  drawScaler();
}

function startScaler() {
  const canvas = byId("scaler-canvas");
  const keys = () => ({
    ...strides(scaler.view, scaler.chosen, { reach: chooseStep, zoom: zoomScaler }),
    ArrowDown: () => chooseSkip(1),
    ArrowUp: () => chooseSkip(-1),
  });
  canvas.addEventListener("keydown", (event) => scaler.history && pressed(event, keys()));
  followPointer(canvas, {
    ready: () => scaler.history !== null,
    tip: (x) => {
      const step = scaler.plot.stepAt(x);
      tipAt(byId("scaler-tip"), scaler.plot.x(step), 8, scaler.plot.width, stepWords(step));
    },
    hide: () => (byId("scaler-tip").hidden = true),
    draw: drawScaler,
    sheet: () => scaler.plot,
    click: (x) => chooseStep(scaler.plot.stepAt(x)),
    select: (from, to) => {
      scaler.view.show(scaler.plot.indexAt(from), scaler.plot.indexAt(to) + 1);
      drawScaler();
    },
    all: () => zoomScaler(Infinity),
  });
  zoomButtons(byId("scaler-zoom"), "All steps", zoomScaler);
  on("check", resetScaler);
  on("theme", drawScaler);
  new ResizeObserver(drawScaler).observe(canvas.parentElement);
}
