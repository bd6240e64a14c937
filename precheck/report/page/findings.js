// The verdict on a check, and its findings with their lines, numbers and cures.

function drawVerdict() {
  const line = SUMMARY.checks[state.check];
  const data = current();
  byId("check-title").textContent = clipped(line.nodeid, 400);
  const facts = [el("span", { class: "tag" }, clipped(line.precision || "its own precision", 80))];
  if (!data) facts.push(el("span", { class: "error" }, line.verdict === "refused" ? "does not run" : "no verdict"));
  else {
    for (const severity of ["error", "warning", "note"]) {
      if (line.counts[severity])
        facts.push(el("span", { class: severity }, SIGNS[severity] + " " + counted(line.counts[severity], severity)));
    }
    if (line.counts.allowed) facts.push(el("span", { class: "note" }, `${line.counts.allowed} expected or allowed`));
    if (line.verdict === "warning") facts.push(el("span", { class: "warning" }, "passed with warnings"));
    if (line.verdict === "good") {
      const others = line.counts.allowed ? "other errors" : "errors";
      facts.push(el("span", { class: "good" }, `✓ no ${others} or warnings`));
    }
    if (data.rows.length) facts.push(el("span", {}, counted(data.rows.length, "tensor") + " compared"));
    if (data.followed) facts.push(el("span", {}, data.followed));
  }
  byId("check-facts").replaceChildren(...facts);
}

function drawFindings() {
  const line = SUMMARY.checks[state.check];
  const data = current();
  const host = byId("findings");
  if (!data) {
    host.replaceChildren(
      el(
        "article",
        { class: "finding error" },
        el("h4", {}, line.verdict === "refused" ? "This model does not run in this precision" : "This check came to no verdict"),
        el("p", { class: "message name" }, clipped(line.error, 4000)),
      ),
      ...toSeeAgain(line),
    );
    return;
  }
  const cards = data.findings.map((finding) => findingCard(finding, data.tolerated[finding.rule]));
  if (data.cure)
    cards.push(
      el(
        "article",
        { class: "cure" },
        el("b", {}, "With this the check passes (tried):"),
        el("pre", { role: "group", tabindex: "0", "aria-label": "Code that keeps modules in float32" }, spelled(data.cure)),
      ),
    );
  if (data.findings.length) cards.push(...toSeeAgain(line));
  if (!data.findings.length) cards.push(el("p", { class: "panel none" }, el("b", { class: "good" }, "✓ Nothing found. "), closest(line)));
  host.replaceChildren(...cards);
}

/** The command that repeats this check alone; nothing where the report does not have it. */
function toSeeAgain(line) {
  if (!line.again) return [];
  return [el("p", { class: "again" }, el("b", {}, "To see this again: "), el("code", {}, clipped(line.again, 4000)))];
}

/** Code with its line breaks, and all else that is unseen made visible. */
function spelled(code) {
  return code.split("\n").map(shown).join("\n");
}

function closest(line) {
  if (!line.worst) return "";
  const { tensor, kind, r, allowed, reason } = line.worst;
  return `Closest to its limit: ${placed(tensor, kind, 1)}, r ${digits(real(r))} of ${digits(real(allowed))} allowed${reason ? ` (${reason})` : ""}.`;
}

/** `why`: the reason for which the test tolerates the rule; undefined if it does not. */
function findingCard(finding, why) {
  const severity = el("span", { class: "severity" }, (SIGNS[finding.severity] ?? "") + " " + finding.severity);
  const moment = el("span", { class: "soft" }, finding.phase + (finding.step > 1 ? `, step ${finding.step}` : ""));
  const excuse =
    why === undefined
      ? ""
      : el("span", { class: "tag name" }, why === "expected" ? "expected by the test" : "allowed by the test: " + clipped(why));
  const parts = [
    el("h4", {}, severity, el("span", { class: "code name" }, shown(finding.rule)), moment, excuse),
    el("p", { class: "soft" }, finding.meaning),
    el("p", { class: "message name" }, clipped(finding.message, 4000)),
    whereabouts(finding),
    excerptOf(finding),
  ];
  if (finding.cause) parts.push(el("p", { class: "message name" }, el("span", { class: "soft" }, "by "), clipped(finding.cause, 4000)));
  if (finding.remedy && finding.severity !== "note") parts.push(el("p", { class: "cure" }, el("b", {}, "Cure: "), finding.remedy));
  const jumps = [];
  if (finding.at_op >= 0)
    jumps.push(
      el("button", { type: "button", class: "plain jump", onclick: () => jumpTo("ops", finding.at_op) }, "Show the op in the run"),
    );
  if (finding.at_row >= 0)
    jumps.push(
      el("button", { type: "button", class: "plain jump", onclick: () => jumpTo("rows", finding.at_row) }, "Show the tensor in the run"),
    );
  if (finding.at_binades >= 0)
    jumps.push(
      el("button", { type: "button", class: "plain jump", onclick: () => jumpToBinades(finding.at_binades) }, "Show its exponents"),
    );
  jumps.push(...pictured(finding));
  if (jumps.length) parts.push(el("p", { class: "where" }, ...jumps));
  return el("article", { class: "finding " + finding.severity }, ...parts);
}

function whereabouts(finding) {
  const parts = [];
  const add = (title, text) => text && parts.push(el("span", {}, title + " ", el("b", { class: "code name" }, clipped(text))));
  add("module", finding.module);
  add("op", finding.op);
  add("tensor", callWords(finding.tensor).join(""));
  add("line", finding.source);
  add("in", finding.via);
  if (finding.ranks?.length) add("ranks", finding.ranks.join(", "));
  return parts.length ? el("p", { class: "where" }, ...parts) : "";
}

function excerptOf(finding) {
  const { first, line, lines } = finding.excerpt;
  if (!lines) return "";
  const rows = lines.map((text, place) =>
    el(
      "span",
      { class: first + place === line ? "hit" : "" },
      el("i", {}, String(first + place)),
      shown(text.replaceAll("\t", "    ")) || " ",
    ),
  );
  return el("pre", { class: "excerpt", role: "group", tabindex: "0", "aria-label": `Source around line ${line}` }, ...rows);
}

/** Chooses an op or a tensor, in the chart and in the table, and brings the chart into view. */
function jumpTo(kind, index) {
  showKind(kind);
  if (!grids.grid.order.includes(index)) filterBy({ text: "", phase: "", dtype: "", module: null, op: "" });
  chooseInView(index);
  byId("run").scrollIntoView({ block: "start" });
  byId("run-canvas").focus({ preventScroll: true });
}

/** Buttons that lead to the picture of what a finding tells: the loss scale, or the sizes of steps. */
function pictured(finding) {
  const lead = (words, go) => [el("button", { type: "button", class: "plain jump", onclick: go }, words)];
  if (finding.rule === "scaler-skip" && historyOf(current())) return lead("Show the loss scale", showSkip);
  const points = finding.rule === "lost-update" ? pointsOf(rankedUpdates()) : [];
  const place = points.findIndex((point) => point.parameter === finding.tensor);
  return points.length ? lead("Show the sizes of its steps", () => showSize(Math.max(0, place))) : [];
}

function startFindings() {
  on("check", drawVerdict);
  on("check", drawFindings);
}
