// The table of ops and that of tensors: their columns, and which of their rows are wanted.

const grids = { grid: null, kind: "" };

function columnsOf(table, kind) {
  const words = (name, title, width, more = {}) => ({
    name,
    title,
    width,
    words: true,
    text: (i) => clipped(table.at(name, i)),
    sort: (i) => table.at(name, i),
    ...more,
  });
  const number = (name, title, width, more = {}) => ({
    name,
    title,
    width,
    text: (i) => digits(table.at(name, i)),
    sort: (i) => table.at(name, i),
    ...more,
  });
  const count = (name, title, width, more = {}) =>
    number(name, title, width, { text: (i) => table.at(name, i).toLocaleString("en"), ...more });
  const bad = { hot: (i) => table.at("nonfinite", i) > 0, help: "Elements that are Inf or NaN here and finite in the reference" };
  const beyond = (i) => table.at("excess", i) > 1 && !table.at("excused", i);
  if (kind === "rows") {
    return [
      number("r", "r", 66, { narrow: 56, help: "Relative error over noise floor", hot: beyond }),
      number("allowed", "allowed", 84),
      number("excess", "r / allowed", 118, { hot: beyond, help: "Above 1: beyond the limit; red where no closer look passed it" }),
      number("drift", "rel. error", 88, { narrow: 86, help: "Relative error: the L2 norm of the difference, over that of the reference" }),
      number("relativeFloor", "noise floor", 100, { help: "The relative error that correct rounding explains" }),
      count("nonfinite", "Inf/NaN", 74, bad),
      words("kind", "kind", 152, { plain: true }),
      words("tensor", "tensor", 0, { tail: true, narrow: 0, text: (i) => clipped(ofCall(table.at("tensor", i))) }),
      count("step", "step", 58, { rising: true }),
      words("dtype", "dtype", 72, { plain: true }),
      words("shape", "shape", 118, { plain: true }),
    ];
  }
  return [
    number("first", "#", 64, { text: (i) => String(table.at("first", i)), rising: true, help: "Number of its first call in the run" }),
    words("op", "op", 168, { narrow: 116 }),
    words("phase", "phase", 80, { plain: true }),
    words("module", "module", 0, { tail: true }),
    words("source", "line", 0, { tail: true, narrow: 0 }),
    words("dtype", "dtype", 72, { plain: true }),
    count("calls", "calls", 62),
    number("added", "added", 80, { help: "Relative error less that of its inputs: by how much it grew here. An op may only amplify the error of its inputs" }),
    number("inherited", "of inputs", 88, { help: "Relative error of the worst input of that call: what the op was given" }),
    number("drift", "rel. error", 88, { narrow: 86, help: "Relative error of the result, in the worst call: L2 norm of the difference, over that of the reference" }),
    count("nonfinite", "Inf/NaN", 74, bad),
    count("zeros", "zeros", 70, { optional: true, help: "Elements that are zero here and not in the reference" }),
    count("flips", "flips", 58, { optional: true, help: "Choices that came out otherwise" }),
    words("opaque", "not followed", 110, { optional: true, plain: true, help: "Why the reference could not follow" }),
  ];
}

/** "attn[1] in call 2" for the name "attn#2[1]", as on the terminal. */
function ofCall(tensor) {
  return tensor.replace(/#(\d+)(\[.*)?$/, (_, call, path) => `${path ?? ""} in call ${call}`);
}

/** The columns that say anything of these rows. */
function telling(columns, table) {
  const silent = (column) => {
    if (!column.optional) return false;
    const values = table.columns[column.name];
    return values.words ? values.words.every((word) => word === "") : values.every((value) => value === 0);
  };
  return columns.filter((column) => !silent(column));
}

/** Indices of the rows that the filter lets through. */
function wanted(table, kind) {
  const { text, phase, dtype, module, op } = state.filter;
  const sought = text.toLowerCase().split(/\s+/).filter(Boolean);
  const hits = sought.map((word) => hitsOf(table, kind, word));
  const found = [];
  for (let index = 0; index < table.length; index++) {
    if (phase && table.phase(index) !== phase) continue;
    if (dtype && table.at("dtype", index) !== dtype) continue;
    if (op && kind === "ops" && table.at("op", index) !== op) continue;
    if (module !== null && !within(table.module(index), module)) continue;
    if (hits.every((hit) => hit(index))) found.push(index);
  }
  return found;
}

/** Whether any column of words holds `word`: each distinct text is looked at once. */
function hitsOf(table, kind, word) {
  const names = kind === "rows" ? ["tensor", "kind", "dtype", "shape"] : ["op", "phase", "module", "source", "dtype", "opaque"];
  const columns = names.map((name) => [table.columns[name].at, table.words(name).map((text) => text.toLowerCase().includes(word))]);
  return (index) => columns.some(([at, yes]) => yes[at[index]]);
}

function within(module, folder) {
  return folder === "" || module === folder || module.startsWith(folder + ".");
}

function buildTable() {
  const data = current();
  byId("table").hidden = !data || !(data.ops.length || data.rows.length);
  if (byId("table").hidden) return;
  const table = data[state.kind];
  const title = state.kind === "ops" ? "Every op" : "Every tensor at a module boundary";
  byId("table-title").textContent = title;
  const columns = telling(columnsOf(table, state.kind), table);
  grids.grid = new Grid(byId("grid"), columns, title, choose, {
    enter: () => byId("run-canvas").focus(),
    leads: "shows in the chart",
    length: table.length,
  });
  buildSelects(table);
  grids.grid.order = wanted(table, state.kind);
  const first = state.kind === "ops" ? "added" : "excess";
  grids.grid.sortBy(
    columns.find((column) => column.name === first),
    true,
  );
  tellFilter();
}

function buildSelects(table) {
  const phases = [...new Set(Array.from({ length: table.length }, (_, index) => table.phase(index)))];
  const select = (name, words, options) => {
    const made = el(
      "select",
      { onchange: (event) => filterBy({ [name]: event.target.value }) },
      el("option", { value: "" }, "all"),
      ...options.map((value) => el("option", { value }, value)),
    );
    made.id = "select-" + name;
    return el("label", {}, words, made);
  };
  byId("table-selects").replaceChildren(select("phase", "Phase", phases), select("dtype", "Dtype", table.words("dtype").filter(Boolean)));
}

function applyFilter() {
  const data = current();
  if (!data || !grids.grid) return;
  grids.grid.show(wanted(data[state.kind], state.kind));
  tellFilter();
}

function tellFilter() {
  const data = current();
  const { text, phase, dtype, module, op } = state.filter;
  if (byId("filter").value !== text) byId("filter").value = text;
  for (const [name, value] of Object.entries({ phase, dtype })) if (byId("select-" + name)) byId("select-" + name).value = value;
  const chips = [];
  const chip = (words, wish) =>
    chips.push(el("button", { type: "button", class: "plain", title: "Remove", onclick: () => filterBy(wish) }, words + " ✕"));
  if (module !== null) chip("module " + (clipped(module, 60) || "the model itself"), { module: null });
  if (op) chip(clipped(op, 60), { op: "" });
  byId("table-within").replaceChildren(...chips);
  const total = data[state.kind].length;
  const left = grids.grid.order.length;
  byId("table-count").textContent = left === total ? counted(total, "row") : `${left.toLocaleString("en")} of ${counted(total, "row")}`;
}

function focusTable() {
  grids.grid?.box.focus();
}

function startTable() {
  byId("filter").addEventListener("input", (event) => filterBy({ text: event.target.value }));
  byId("filter").addEventListener("keydown", (event) => {
    if (event.key === "Escape") filterBy({ text: "" });
    if (event.key === "ArrowDown" || event.key === "Enter") focusTable();
  });
  on("check", buildTable);
  on("kind", buildTable);
  on("filter", applyFilter);
  on("chosen", () => grids.grid?.mark(state.chosen[state.kind]));
}
