// What the page shows now, and who wants to know when that changes.

const state = {
  check: -1,
  kind: "ops", // which table: ops or rows (tensors)
  chosen: { ops: -1, rows: -1 },
  filter: { text: "", phase: "", dtype: "", module: null, op: "" },
};
const listeners = { check: [], kind: [], chosen: [], filter: [], theme: [] };

function on(what, listener) {
  listeners[what].push(listener);
}

function changed(what) {
  for (const listener of listeners[what]) listener();
}

function current() {
  return state.check < 0 ? null : checkData(state.check);
}

function showCheck(index) {
  state.check = index;
  state.chosen = { ops: -1, rows: -1 };
  state.filter = { text: "", phase: "", dtype: "", module: null, op: "" };
  const data = current();
  state.kind = data && !data.ops.length && data.rows.length ? "rows" : "ops";
  changed("check");
}

function showKind(kind) {
  if (state.kind === kind) return;
  state.kind = kind;
  Object.assign(state.filter, { phase: "", dtype: "", op: "" });
  changed("kind");
}

function choose(index) {
  state.chosen[state.kind] = index;
  changed("chosen");
}

function filterBy(wish) {
  Object.assign(state.filter, wish);
  changed("filter");
}

/** A row of radio buttons that look like one switch. */
function choice(fieldset, name, options, chosen, act) {
  fieldset.hidden = options.length < 2;
  fieldset.querySelectorAll("label").forEach((label) => label.remove());
  for (const [value, words, disabled] of options) {
    const input = el("input", { type: "radio", name, value, disabled: Boolean(disabled), onchange: () => act(value) });
    input.checked = value === chosen;
    fieldset.append(el("label", {}, input, words));
  }
}
