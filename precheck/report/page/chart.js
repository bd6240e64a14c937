// The drift along the run: what is drawn of which table, choosing and zooming by pointer and keys.

const chart = { plot: null, view: new Stretch(0) };

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
  chart.plot = new Plot(byId("run-canvas"), series, chart.view.from, chart.view.to);
  chart.plot.draw(state.chosen[state.kind]);
}

function resetRun() {
  const data = current();
  chart.view = new Stretch(data ? data[state.kind].length : 0);
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
