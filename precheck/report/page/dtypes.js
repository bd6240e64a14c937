// Which op ran in which dtype, and how often.

const FEW = 24; // ops shown before the rest is asked for

function drawDtypes() {
  const data = current();
  byId("dtypes").hidden = !data || !data.ops.length;
  if (!byId("dtypes").hidden) renderDtypes(data.ops, FEW);
}

/** {op: {dtype: calls}}, ops with most calls first. */
function countDtypes(ops) {
  const byOp = new Map();
  for (let index = 0; index < ops.length; index++) {
    const op = ops.at("op", index);
    if (!byOp.has(op)) byOp.set(op, new Map());
    const dtype = ops.at("dtype", index);
    byOp.get(op).set(dtype, (byOp.get(op).get(dtype) ?? 0) + ops.at("calls", index));
  }
  const total = (calls) => [...calls.values()].reduce((sum, each) => sum + each, 0);
  return [...byOp].sort((a, b) => total(b[1]) - total(a[1]));
}

function renderDtypes(ops, most) {
  const counts = countDtypes(ops);
  const dtypes = ops.words("dtype");
  const highest = Math.max(1, ...counts.map(([, calls]) => Math.max(...calls.values())));
  const head = el(
    "thead",
    {},
    el(
      "tr",
      {},
      el("th", { scope: "col" }, el("span", { class: "unseen" }, "op")),
      ...dtypes.map((dtype) => el("th", { scope: "col" }, clipped(dtype, 40) || "none")),
    ),
  );
  const rows = counts
    .slice(0, most)
    .map(([op, calls]) =>
      el(
        "tr",
        {},
        el("th", { scope: "row", class: "code", title: clipped(op, 400) }, clipped(op, 60)),
        ...dtypes.map((dtype) => callsCell(op, dtype, calls.get(dtype) ?? 0, highest)),
      ),
    );
  const more =
    counts.length > most
      ? el("button", { type: "button", class: "plain jump", onclick: () => renderDtypes(ops, Infinity) }, `Show all ${counts.length} ops`)
      : "";
  byId("map").replaceChildren(
    el("div", { class: "scroll map" }, el("table", { "aria-label": "Calls by op and dtype" }, head, el("tbody", {}, ...rows)), more),
  );
}

function callsCell(op, dtype, calls, highest) {
  if (!calls) return el("td");
  const pick = () => {
    showKind("ops");
    filterBy({ op, dtype });
    byId("table").scrollIntoView({ block: "nearest" });
  };
  const button = el(
    "button",
    { type: "button", onclick: pick, "aria-label": `${counted(calls, "call")} of ${clipped(op, 60)} in ${clipped(dtype, 40)}` },
    calls.toLocaleString("en"),
  );
  button.style.setProperty("--share", `${Math.round(8 + (52 * Math.log1p(calls)) / Math.log1p(highest))}%`);
  return el("td", {}, button);
}

function startDtypes() {
  on("check", drawDtypes);
}
