// The drift along the run: what is drawn of which table, choosing and zooming by pointer and keys.

const chart = { plot: null, series: null, view: new Stretch(0) };

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
    excused: tensors ? table.numbers("excused") : null,
    marks: data.findings.filter((finding) => finding[at] >= 0).map((finding) => ({ index: finding[at], severity: finding.severity })),
  };
}

function drawRun() {
  const data = current();
  const shownHere = Boolean(data && data[state.kind].length);
  byId("run").hidden = !shownHere;
  if (!shownHere) return;
  chart.plot = new Plot(byId("run-canvas"), chart.series, chart.view.from, chart.view.to);
  chart.plot.draw(state.chosen[state.kind]);
}

function resetRun() {
  const data = current();
  chart.view = new Stretch(data ? data[state.kind].length : 0);
  chart.series = data && seriesOf(data, state.kind);
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
    `Relative error of ${data[state.kind].length} ${what} in the order of the run, ${counted(marks, "finding")} marked`,
  );
  const kinds = [
    ["ops", `Ops (${data.ops.length.toLocaleString("en")})`],
    ["rows", `Tensors (${data.rows.length.toLocaleString("en")})`],
  ].filter(([kind]) => data[kind].length);
  choice(byId("run-kind"), "run-kind", kinds, state.kind, showKind);
}

/** A legend of what the chart shows of this run, and of nothing else. */
function runKey() {
  const { series } = chart;
  if (!series) return;
  const tensors = state.kind === "rows";
  const any = (test) => series.drift.some((_, index) => test(index));
  const drawn = (values) => Boolean(values?.some((value) => value > 0 && value < Infinity));
  const key = [swatch("drift", tensors ? "relative error of a tensor (L2)" : "relative error of an op's result (L2), of its worst call", "dot")];
  if (drawn(series.floor))
    key.push(swatch("floor", tensors ? "noise floor: what correct rounding explains" : "one rounding in the op's dtype", "stroke"));
  if (drawn(series.limit)) key.push(swatch("limit", "limit", "stroke"));
  if (any((index) => series.nonfinite[index] > 0)) key.push(swatch("limit", "has Inf or NaN", "dot"));
  if (any((index) => judged(series, index) === "limit" && !(series.nonfinite[index] > 0)))
    key.push(swatch("limit", "beyond its limit", "dot"));
  if (any((index) => judged(series, index) === "half")) key.push(swatch("half", "beyond its limit, but passed on a closer look", "dot"));
  const marked = new Set(series.marks.map(({ severity }) => severity));
  const findings = Object.keys(SIGNS).filter((severity) => marked.has(severity));
  byId("run-key").replaceChildren(...key, ...findings.map((severity) => swatch(severity, severity, SIGNS[severity])));
}

function tellChosen() {
  const data = current();
  const index = data ? state.chosen[state.kind] : -1;
  for (const place of ["run-chosen", "table-chosen"]) byId(place).replaceChildren(...(index >= 0 ? told(data[state.kind], index) : []));
}

/** One op or tensor in words. */
function told(table, index) {
  const text = (name) => clipped(table.at(name, index));
  const number = (name) => digits(table.at(name, index));
  if (state.kind === "rows") {
    const place = placed(table.at("tensor", index), table.at("kind", index), table.at("step", index));
    const excused = table.at("excused", index) ? " · passed on a closer look" : "";
    return [
      el("b", { class: "name" }, place),
      ` · r ${number("r")} of ${number("allowed")} allowed${excused} · relative error ${number("drift")}, noise floor ${number("relativeFloor")}`,
      ` · ${text("dtype")} [${text("shape")}]`,
    ];
  }
  const bad = table.at("nonfinite", index);
  const parts = [
    el("b", { class: "name code" }, text("op")),
    ` · relative error ${number("drift")}, its inputs' ${number("inherited")} · ${text("dtype")} · ${counted(table.at("calls", index), "call")} · `,
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

function zoom(factor) {
  chart.view.zoom(factor, chart.view.hold(state.chosen[state.kind]));
  drawRun();
}

/** Chooses and, where it is out of view, moves the view. */
function chooseInView(index) {
  choose(chart.view.reach(index));
}

function tip(x) {
  const index = chart.plot.worstAt(x);
  tipAt(byId("run-tip"), chart.plot.x(index), 26, chart.plot.width, told(current()[state.kind], index));
}

function startChart() {
  const canvas = byId("run-canvas");
  const keys = () => ({ ...strides(chart.view, state.chosen[state.kind], { reach: chooseInView, zoom }), Enter: focusTable });
  canvas.addEventListener("keydown", (event) => pressed(event, keys()));
  followPointer(canvas, {
    ready: () => chart.plot !== null,
    tip,
    hide: () => (byId("run-tip").hidden = true),
    draw: drawRun,
    sheet: () => chart.plot,
    click: (x) => choose(chart.plot.worstAt(x)),
    select: (from, to) => {
      chart.view.show(chart.plot.indexAt(from), chart.plot.indexAt(to) + 1);
      drawRun();
    },
    all: () => zoom(Infinity),
  });
  zoomButtons(byId("run-zoom"), "Whole run", zoom);
  on("check", resetRun);
  on("kind", resetRun);
  on("theme", drawRun);
  on("chosen", () => {
    drawRun();
    tellChosen();
  });
  new ResizeObserver(drawRun).observe(canvas.parentElement);
}
