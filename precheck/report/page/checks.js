// The list of checks, worst first.

const MOST = 400; // checks listed at once; the filter reaches the others

function gravity(check) {
  return { refused: 4, none: 4, error: 3, warning: 2, good: check.counts?.note ? 1 : 0 }[check.verdict];
}

function excessOf(check) {
  return check.worst ? real(check.worst.r) / real(check.worst.allowed) : 0;
}

/** Indices of the checks: those with errors first, then by how close they came to their limit. */
function rankedChecks() {
  const { checks } = SUMMARY;
  const ranks = checks.map((check, index) => [Math.min(3, gravity(check)), excessOf(check), index]);
  return ranks.sort((a, b) => b[0] - a[0] || b[1] - a[1] || a[2] - b[2]).map(([, , index]) => index);
}

function drawChecks(text = "") {
  const sought = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = rankedChecks().filter((index) => {
    const words = (SUMMARY.checks[index].nodeid + " " + SUMMARY.checks[index].precision).toLowerCase();
    return sought.every((word) => words.includes(word));
  });
  const rows = found.slice(0, MOST).map(checkButton);
  if (found.length > MOST) rows.push(el("p", { class: "more" }, `${(found.length - MOST).toLocaleString("en")} more: filter to see them`));
  if (!found.length) rows.push(el("p", { class: "more" }, "None."));
  byId("check-list").replaceChildren(...rows);
  markCheck();
}

function checkButton(index) {
  const check = SUMMARY.checks[index];
  const [file, test] = split(check.nodeid, check.precision);
  const kind = ["good", "note", "warning", "error", "error"][gravity(check)];
  const sign = { good: "✓", note: SIGNS.note, warning: SIGNS.warning, error: SIGNS.error }[kind];
  const worst = check.worst ? "r " + digits(real(check.worst.r)) : check.verdict === "refused" ? "does not run" : check.error !== undefined ? "no verdict" : "";
  return el(
    "button",
    { type: "button", "data-check": index, title: clipped(check.nodeid, 300), onclick: () => openCheck(index) },
    el("span", { class: kind, "aria-label": { good: "no errors", note: "notes", warning: "warnings", error: "errors" }[kind] }, sign),
    el("span", { class: "test name" }, ...broken(clipped(test, 100))),
    el("span", { class: "precision" }, clipped(check.precision, 40)),
    el("span", { class: "worst", title: "worst r: error over what correct rounding explains" + (check.worst?.reason ? "; " + check.worst.reason : "") }, worst),
    file && el("span", { class: "file name" }, ...broken(clipped(shortFiles().get(file), 160))),
  );
}

/** Words that may break after a slash, an underscore, a dot or a bracket, so that a narrow list shows all of them. */
function broken(words) {
  return words.split(/(?<=[/_.[-])/).flatMap((part) => [part, el("wbr")]);
}

let shortened = null;

/** By path, as much of its end as tells the files of the session apart. */
function shortFiles() {
  if (shortened) return shortened;
  const files = [...new Set(SUMMARY.checks.map((check) => split(check.nodeid, check.precision)[0]))];
  const ends = new Map();
  for (const file of files) for (const end of endsOf(file)) ends.set(end, (ends.get(end) ?? 0) + 1);
  shortened = new Map(files.map((file) => [file, endsOf(file).find((end) => ends.get(end) === 1) ?? file]));
  return shortened;
}

/** Of "a/b/c.py": "c.py", "b/c.py" and the whole. */
function endsOf(file) {
  const parts = file.split("/").slice(-20);
  return parts.map((_, place) => parts.slice(-1 - place).join("/"));
}

/** File and test of a node id, the test without the precision among its parameters, which stands beside it. */
function split(nodeid, precision) {
  const at = nodeid.indexOf("::");
  const [file, test] = at < 0 ? ["", nodeid] : [nodeid.slice(0, at), nodeid.slice(at + 2)];
  return [file, test.replace(`[${precision}]`, "").replace(`[${precision}-`, "[")];
}

function markCheck() {
  for (const button of byId("check-list").querySelectorAll("button"))
    button.setAttribute("aria-current", String(Number(button.dataset.check) === state.check));
}

function openCheck(index) {
  if (location.hash !== "#" + index) history.replaceState(null, "", "#" + index);
  showCheck(index);
  window.scrollTo({ top: 0, behavior: "instant" });
}

function startChecks() {
  const input = el("input", {
    type: "search",
    placeholder: "filter checks",
    "aria-label": "Filter checks",
    oninput: (event) => drawChecks(event.target.value),
  });
  byId("checks").replaceChildren(input, el("div", { id: "check-list" }));
  const single = SUMMARY.checks.length < 2;
  byId("checks").hidden = single;
  document.querySelector(".frame").classList.toggle("single", single);
  drawChecks();
  on("check", markCheck);
}
