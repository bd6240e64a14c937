// What changed between two sessions: a table, worst first, of which a row is told in full when it is chosen.

const CHANGES = new Columns(SUMMARY.changes);
const NAMES = {
  error: "new error",
  warning: "new warning",
  further: "error grew",
  nearer: "error shrank",
  gone: "check gone",
  new: "new check",
  verdict: "verdict again",
  mended: "finding gone",
};
const KINDS = { "no verdict": "error", error: "error", warning: "warning", further: "warning", mended: "good", nearer: "good", verdict: "good" };
const changes = { grid: null, text: "", kind: "" };

function changeColumns() {
  const words = (name, title, width, more = {}) => ({
    name,
    title,
    width,
    words: true,
    text: (i) => clipped(CHANGES.at(name, i), 400),
    sort: (i) => CHANGES.at(name, i),
    ...more,
  });
  return [
    words("kind", "what", 112, { plain: true, narrow: 104, text: kindWords, sort: (i) => i, help: "Worst first", hot: (i) => hue(i) === "error" }),
    words("nodeid", "check", 300, { tail: true, narrow: 104, text: checkWords }),
    words("precision", "precision", 100, { plain: true }),
    words("words", "how", 0, { plain: true, narrow: 0 }),
    { name: "factor", title: "r × ", width: 80, text: factorWords, sort: (i) => CHANGES.at("factor", i), help: "A tensor's r now over what it was" },
  ];
}

function hue(index) {
  return KINDS[CHANGES.at("kind", index)] ?? "soft";
}

/** A check without its precision, which has a column of its own. */
function checkWords(index) {
  const precision = CHANGES.at("precision", index);
  return clipped(CHANGES.at("nodeid", index).replace(`[${precision}]`, "").replace(`[${precision}-`, "["), 400);
}

function kindWords(index) {
  const kind = CHANGES.at("kind", index);
  return NAMES[kind] ?? kind;
}

function factorWords(index) {
  const factor = CHANGES.at("factor", index);
  return factor === 1 ? "" : digits(factor);
}

function wantedChanges() {
  const sought = changes.text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  for (let index = 0; index < CHANGES.length; index++) {
    if (changes.kind && CHANGES.at("kind", index) !== changes.kind) continue;
    const whole = [kindWords(index), ...["nodeid", "precision", "words"].map((name) => CHANGES.at(name, index))].map((text) => text.toLowerCase());
    if (sought.every((word) => whole.some((text) => text.includes(word)))) found.push(index);
  }
  return found;
}

function drawChanges() {
  const found = wantedChanges();
  changes.grid.show(found);
  const all = counted(CHANGES.length, "row");
  byId("changes-count").textContent = found.length === CHANGES.length ? all : `${found.length.toLocaleString("en")} of ${all}`;
}

function tellChange(index) {
  changes.grid.mark(index);
  const text = (name) => clipped(CHANGES.at(name, index), 4000);
  byId("changes-chosen").replaceChildren(
    el("b", { class: hue(index) }, kindWords(index)),
    " · ",
    el("span", { class: "name code" }, text("nodeid")),
    text("precision") && ` · ${text("precision")}`,
    el("p", { class: "message name" }, text("words")),
  );
}

function startChanges() {
  byId("changes").hidden = !CHANGES.length;
  if (!CHANGES.length) return;
  const columns = changeColumns();
  changes.grid = new Grid(byId("grid"), columns, "Changes", tellChange, { length: CHANGES.length });
  const kinds = CHANGES.words("kind").map((kind) => el("option", { value: kind }, NAMES[kind] ?? kind));
  byId("changes-kind").replaceChildren(el("option", { value: "" }, "all"), ...kinds);
  byId("changes-kind").addEventListener("change", (event) => {
    changes.kind = event.target.value;
    drawChanges();
  });
  byId("filter").addEventListener("input", (event) => {
    changes.text = event.target.value;
    drawChanges();
  });
  drawChanges();
}

startTheme();
startKeys();
startPrint(() => changes.grid);
startChanges();
