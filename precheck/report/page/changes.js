// What changed between two sessions: a table, worst first, of which a row is told in full when it is chosen.

const CHANGES = new Columns(SUMMARY.changes);
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
    words("kind", "what", 100, { plain: true, sort: (i) => i, help: "Worst first", hot: (i) => hue(i) === "error" }),
    words("nodeid", "check", 300, { tail: true }),
    words("precision", "precision", 100, { plain: true }),
    words("words", "how", 0, { plain: true }),
    { name: "factor", title: "r × ", width: 80, text: factorWords, sort: (i) => CHANGES.at("factor", i), help: "A tensor's r now over what it was" },
  ];
}

function hue(index) {
  return KINDS[CHANGES.at("kind", index)] ?? "soft";
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
    const whole = ["kind", "nodeid", "precision", "words"].map((name) => CHANGES.at(name, index).toLowerCase());
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
    el("b", { class: hue(index) }, text("kind")),
    " · ",
    el("span", { class: "name code" }, text("nodeid")),
    text("precision") && ` · ${text("precision")}`,
    el("p", { class: "message name" }, text("words")),
  );
}

function startChanges() {
  byId("changes-title").textContent = SUMMARY.headline;
  byId("totals").textContent = `from ${counted(SUMMARY.checks[0], "check")} to ${counted(SUMMARY.checks[1], "check")}`;
  byId("changes").hidden = !CHANGES.length;
  if (!CHANGES.length) return;
  const columns = changeColumns();
  changes.grid = new Grid(byId("grid"), columns, "Changes", tellChange);
  const kinds = CHANGES.words("kind").map((kind) => el("option", { value: kind }, kind));
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
  new ResizeObserver(() => changes.grid.draw()).observe(changes.grid.box);
}

startTheme();
startKeys();
startPrint(() => changes.grid);
startChanges();
