// The loss scale along a watched run: what it was at each step, which steps were skipped, and what would have been safe.

const SCALER_MARGIN = { left: 50, right: 12, top: 12, bottom: 22 };
const scaler = { view: new Stretch(0), sheet: null, history: null, chosen: -1 };

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
  const key = [swatch("drift", "loss scale", "solid"), swatch("error", "step skipped", "✕")];
  if (calibration) key.push(swatch("scaler", "calibration"));
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

function drawScaler() {
  if (!scaler.history) return;
  const { view, history } = scaler;
  const sheet = new Sheet(byId("scaler-canvas"), SCALER_MARGIN);
  const told = current().scaler;
  const safe = typeof told.safe === "number" ? told.safe : NaN;
  const seen = [...new Set(history.scale.subarray(view.from, view.to))];
  const axis = new Axis(safe > 0 ? [...seen, safe] : seen, sheet.bottom, sheet.top, 2, 0.7);
  const step = (sheet.right - sheet.left) / (view.to - view.from);
  Object.assign(scaler, { sheet, axis, step });
  const calibrated = Math.min(view.to, told.calibration ?? 0);
  if (calibrated > view.from) {
    sheet.pen.fillStyle = sheet.colours.scaler;
    sheet.pen.fillRect(sheet.left, sheet.top, (calibrated - view.from) * step, sheet.bottom - sheet.top);
  }
  sheet.across(axis.ticks(7));
  stepTicks(sheet, view, step);
  sheet.within(() => {
    if (safe > 0) safeLine(sheet, axis.at(safe));
    scaleLine(sheet);
    skipMarks(sheet);
    if (scaler.chosen >= view.from && scaler.chosen < view.to) stepMark(sheet);
  });
}

function stepX(index) {
  return scaler.sheet.left + (index - scaler.view.from + 0.5) * scaler.step;
}

/** Numbers of steps, counted from 1, at round distances. */
function stepTicks(sheet, view, step) {
  const rough = 90 / step;
  const ten = 10 ** Math.floor(Math.log10(rough));
  const every = Math.max(1, [1, 2, 5, 10].map((part) => part * ten).find((each) => each >= rough));
  for (let number = Math.max(every, Math.ceil((view.from + 1) / every) * every); number <= view.to; number += every)
    sheet.word(number.toLocaleString("en"), Math.min(stepX(number - 1), sheet.right - 12), sheet.height - 7, "center");
  sheet.word("step", sheet.left - 6, sheet.height - 7, "right");
}

function safeLine(sheet, y) {
  sheet.pen.strokeStyle = sheet.colours.floor;
  sheet.pen.lineWidth = 1.5;
  sheet.pen.setLineDash([5, 3]);
  sheet.line(sheet.left, y, sheet.right, y);
  sheet.pen.setLineDash([]);
}

/** A stair for each change of the scale; where steps are narrower than pixels, all changes under one are one stroke. */
function scaleLine(sheet) {
  const { view, history, axis, step } = scaler;
  const { pen } = sheet;
  pen.strokeStyle = sheet.colours.drift;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.moveTo(sheet.left, axis.at(history.scale[view.from]));
  for (let index = view.from + 1; index < view.to; index++) {
    if (Object.is(history.scale[index], history.scale[index - 1])) continue;
    const x = sheet.left + (index - view.from) * step;
    pen.lineTo(x, axis.at(history.scale[index - 1]));
    pen.lineTo(x, axis.at(history.scale[index]));
  }
  pen.lineTo(sheet.right, axis.at(history.scale[view.to - 1]));
  pen.stroke();
}

/** A cross on each skipped step; of those at one place on paper, one. */
function skipMarks(sheet) {
  const { view, history, axis, step } = scaler;
  const { pen } = sheet;
  const size = Math.max(3, Math.min(4.5, step / 2));
  pen.strokeStyle = sheet.colours.error;
  pen.lineWidth = 1.75;
  pen.beginPath();
  const taken = new Set();
  for (const index of history.skips) {
    if (index < view.from || index >= view.to) continue;
    const [x, y] = [stepX(index), axis.at(history.scale[index])];
    const place = Math.round(x) * 4096 + Math.round(y);
    if (taken.has(place)) continue;
    taken.add(place);
    pen.moveTo(x - size, y - size);
    pen.lineTo(x + size, y + size);
    pen.moveTo(x - size, y + size);
    pen.lineTo(x + size, y - size);
  }
  pen.stroke();
}

function stepMark(sheet) {
  const { pen } = sheet;
  const [x, y] = [stepX(scaler.chosen), scaler.axis.at(scaler.history.scale[scaler.chosen])];
  pen.strokeStyle = sheet.colours.ink;
  pen.lineWidth = 1;
  sheet.line(x, sheet.top, x, sheet.bottom);
  pen.lineWidth = 2;
  pen.beginPath();
  pen.arc(x, y, 7, 0, 7);
  pen.stroke();
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

function tellStep() {
  const nothing = el("span", { class: "soft" }, "Nothing chosen.");
  byId("scaler-chosen").replaceChildren(...(scaler.chosen >= 0 ? stepWords(scaler.chosen) : [nothing]));
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

function zoomScaler(factor) {
  scaler.view.zoom(factor, scaler.view.hold(scaler.chosen));
  drawScaler();
}

/** Of the steps under a pixel one that was skipped, or else the first. */
function stepAt(x) {
  const { view, sheet, step, history } = scaler;
  const place = (pixel) => Math.max(view.from, Math.min(view.to - 1, view.from + Math.floor((pixel - sheet.left) / step)));
  const reach = step < 3 ? 1.5 : 0;
  for (let index = place(x - reach); index <= place(x + reach); index++) if (history.skipped[index]) return index;
  return place(x);
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
    tip: (x) => tipAt(byId("scaler-tip"), stepX(stepAt(x)), 8, scaler.sheet.width, stepWords(stepAt(x))),
    hide: () => (byId("scaler-tip").hidden = true),
    draw: drawScaler,
    sheet: () => scaler.sheet,
    click: (x) => chooseStep(stepAt(x)),
    select: (from, to) => {
      scaler.view.show(stepAt(from), stepAt(to) + 1);
      drawScaler();
    },
    all: () => zoomScaler(Infinity),
  });
  zoomButtons(byId("scaler-zoom"), "All steps", zoomScaler);
  on("check", resetScaler);
  on("theme", drawScaler);
  new ResizeObserver(drawScaler).observe(canvas.parentElement);
}
