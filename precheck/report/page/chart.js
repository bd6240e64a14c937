// The drift along the run: what is drawn of which table, choosing and zooming by pointer and keys.

const chart = { plot: null, from: 0, to: 0, drag: null };
const CLICK = 5; // pixels that a pointer may move and still have clicked

/** What is drawn: ops with one rounding of their dtype as floor, tensors with their own floor and what they are allowed. */
function seriesOf(data, kind) {
  const table = data[kind];
  const tensors = kind === "rows";
  const at = tensors ? "at_row" : "at_op";
  return {
    length: table.length,
    phase: table.phase,
    drift: table.numbers("drift"),
    floor: table.numbers(tensors ? "relativeFloor" : "floor"),
    limit: tensors ? table.numbers("limit") : null,
    nonfinite: table.numbers("nonfinite"),
    marks: data.findings.filter((finding) => finding[at] >= 0).map((finding) => ({ index: finding[at], severity: finding.severity })),
  };
}

function drawRun() {
  const data = current();
  const shownHere = Boolean(data && data[state.kind].length);
  byId("run").hidden = !shownHere;
  if (!shownHere) return;
  const series = seriesOf(data, state.kind);
  chart.from = Math.max(0, Math.min(chart.from, series.length - 1));
  chart.to = Math.max(chart.from + 1, Math.min(chart.to, series.length));
  chart.plot = new Plot(byId("run-canvas"), series, chart.from, chart.to);
  chart.plot.draw(state.chosen[state.kind]);
}

function resetRun() {
  const data = current();
  [chart.from, chart.to] = [0, data ? data[state.kind].length : 0];
  runKey();
  runLabel();
  drawRun();
  tellChosen();
}

function runLabel() {
  const data = current();
  if (!data) return;
  const what = state.kind === "ops" ? "ops" : "tensors";
  const marks = data.findings.filter((finding) => finding[state.kind === "ops" ? "at_op" : "at_row"] >= 0).length;
  byId("run-canvas").setAttribute(
    "aria-label",
    `Drift of ${data[state.kind].length} ${what} in the order of the run, ${counted(marks, "finding")} marked`,
  );
  const kinds = [
    ["ops", `Ops (${data.ops.length.toLocaleString("en")})`, !data.ops.length],
    ["rows", `Tensors (${data.rows.length.toLocaleString("en")})`, !data.rows.length],
  ];
  choice(byId("run-kind"), "run-kind", kinds, state.kind, showKind);
}

function runKey() {
  const swatch = (name, words, kind = "") => {
    const sign = el("i", { class: kind });
    sign.style[kind === "stroke" ? "borderColor" : "background"] = `var(--${name})`;
    return el("li", {}, sign, words);
  };
  const tensors = state.kind === "rows";
  const lines = tensors
    ? [
        swatch("drift", "drift over the tensor's norm", "dot"),
        swatch("floor", "floor: what correct rounding explains", "stroke"),
        swatch("limit", "limit", "stroke"),
      ]
    : [
        swatch("drift", "drift over the result's norm, the worst call's", "dot"),
        swatch("floor", "one rounding in the op's dtype", "stroke"),
      ];
  const findings = Object.entries(SIGNS).map(([severity, sign]) => el("li", { class: severity }, sign + " " + severity));
  byId("run-key").replaceChildren(
    ...lines,
    swatch("limit", tensors ? "beyond the limit, or Inf or NaN" : "Inf or NaN", "dot"),
    ...findings,
  );
}

function tellChosen() {
  const data = current();
  const index = data ? state.chosen[state.kind] : -1;
  byId("run-chosen").replaceChildren(...(index >= 0 ? told(data[state.kind], index) : [el("span", { class: "soft" }, "Nothing chosen.")]));
}

/** One op or tensor in words. */
function told(table, index) {
  const text = (name) => clipped(table.at(name, index));
  const number = (name) => digits(table.at(name, index));
  if (state.kind === "rows") {
    const place = placed(table.at("tensor", index), table.at("kind", index), table.at("step", index));
    return [
      el("b", { class: "name" }, place),
      ` · r ${number("r")} of ${number("allowed")} allowed · drift ${number("drift")}, floor ${number("relativeFloor")} · ${text("dtype")} [${text("shape")}]`,
    ];
  }
  const bad = table.at("nonfinite", index);
  const parts = [
    el("b", { class: "name code" }, text("op")),
    ` · drift ${number("drift")}, of it inherited ${number("inherited")} · ${text("dtype")} · ${counted(table.at("calls", index), "call")} · `,
  ];
  parts.push(
    el("span", { class: "name code" }, text("source") || "no line"),
    " · ",
    el("span", { class: "name code" }, text("module") || "the model itself"),
  );
  if (bad) parts.push(el("b", { class: "error" }, ` · ${counted(bad, "element")} Inf or NaN`));
  if (table.at("opaque", index)) parts.push(` · not followed: ${text("opaque")}`);
  return parts;
}

function zoom(factor, around) {
  const length = current()[state.kind].length;
  const size = Math.max(Math.min(8, length), Math.min(length, Math.round((chart.to - chart.from) * factor)));
  const share = (around - chart.from) / Math.max(1, chart.to - chart.from);
  chart.from = Math.max(0, Math.min(length - size, Math.round(around - share * size)));
  chart.to = chart.from + size;
  drawRun();
}

/** Chooses and, where it is out of view, moves the view. */
function chooseInView(index) {
  const length = current()[state.kind].length;
  const wanted = Math.max(0, Math.min(length - 1, index));
  if (wanted < chart.from || wanted >= chart.to) {
    const size = chart.to - chart.from;
    chart.from = Math.max(0, Math.min(length - size, wanted - Math.floor(size / 2)));
    chart.to = chart.from + size;
  }
  choose(wanted);
}

function runKeys(event) {
  const index = state.chosen[state.kind];
  const middle = index >= 0 ? index : Math.floor((chart.from + chart.to) / 2);
  const page = Math.max(1, Math.round((chart.to - chart.from) / 20));
  const acts = {
    ArrowLeft: () => chooseInView(index - 1),
    ArrowRight: () => chooseInView(index + 1),
    PageUp: () => chooseInView(index - page),
    PageDown: () => chooseInView(index + page),
    Home: () => chooseInView(0),
    End: () => chooseInView(Infinity),
    "+": () => zoom(0.5, middle),
    "=": () => zoom(0.5, middle),
    "-": () => zoom(2, middle),
    0: () => zoom(Infinity, middle),
    Enter: () => focusTable(),
  };
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in acts)) return;
  event.preventDefault();
  acts[event.key]();
}

function runPointer(canvas) {
  const at = (event) => event.clientX - canvas.getBoundingClientRect().left;
  canvas.addEventListener("pointerdown", (event) => {
    chart.drag = { from: at(event), to: at(event) };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!chart.plot) return;
    if (!chart.drag) return tip(at(event));
    chart.drag.to = at(event);
    drawRun();
    const { pen, bottom, colours } = chart.plot;
    pen.fillStyle = colours.accent;
    pen.globalAlpha = 0.15;
    pen.fillRect(Math.min(chart.drag.from, chart.drag.to), MARGIN.top, Math.abs(chart.drag.to - chart.drag.from), bottom - MARGIN.top);
    pen.globalAlpha = 1;
  });
  canvas.addEventListener("pointerup", () => {
    const drag = chart.drag;
    chart.drag = null;
    if (!drag || !chart.plot) return;
    if (Math.abs(drag.to - drag.from) < CLICK) return choose(chart.plot.worstAt(drag.to));
    const [from, to] = [drag.from, drag.to].sort((a, b) => a - b).map((x) => chart.plot.indexAt(x));
    [chart.from, chart.to] = [from, Math.max(to + 1, from + Math.min(8, chart.plot.series.length - from))];
    drawRun();
  });
  canvas.addEventListener("pointerleave", () => (byId("run-tip").hidden = true));
  canvas.addEventListener("dblclick", () => zoom(Infinity, 0));
}

function tip(x) {
  const index = chart.plot.worstAt(x);
  const box = byId("run-tip");
  box.hidden = false;
  box.replaceChildren(...told(current()[state.kind], index));
  const middle = chart.plot.x(index);
  box.style.top = "26px";
  box.style.left = middle < chart.plot.width / 2 ? middle + 12 + "px" : "auto";
  box.style.right = middle < chart.plot.width / 2 ? "auto" : chart.plot.width - middle + 12 + "px";
}

function startChart() {
  const canvas = byId("run-canvas");
  canvas.addEventListener("keydown", runKeys);
  runPointer(canvas);
  const button = (sign, words, act) =>
    el("button", { type: "button", class: "plain", "aria-label": words, title: words, onclick: act }, sign);
  const middle = () => (state.chosen[state.kind] >= 0 ? state.chosen[state.kind] : Math.floor((chart.from + chart.to) / 2));
  byId("run-zoom").replaceChildren(
    button("+", "Zoom in", () => zoom(0.5, middle())),
    button("−", "Zoom out", () => zoom(2, middle())),
    button("all", "Whole run", () => zoom(Infinity, 0)),
  );
  on("check", resetRun);
  on("kind", resetRun);
  on("chosen", () => {
    drawRun();
    tellChosen();
  });
  new ResizeObserver(drawRun).observe(canvas.parentElement);
}
