// What of each parameter's update arrived; and the facts of how all of it was measured.

const WIDE = 1.25; // the share at the right end of a track: a little more than all of it may arrive
const LOST = 0.5; // as analysis/training/displacements.py has it
const FIRST = 20; // parameters shown before the rest is asked for
let rendered = 0; // parameters shown now

function drawUpdates() {
  const data = current();
  byId("updates").hidden = !data || !data.updates.length;
  if (!byId("updates").hidden) renderUpdates(rankedUpdates(), FIRST);
}

/** The present check's updates, the least arrived first, with the `share` that did and the `place` in this order. */
function rankedUpdates() {
  const rows = (current()?.updates ?? []).map((row) => ({ ...row, share: arrivedOf(row) }));
  return rows.sort((a, b) => compared(a.share, b.share)).map((row, place) => ({ ...row, place }));
}

/** Of several accounts of what arrived the best, as judgement takes it. */
function arrivedOf(row) {
  if (row.held && typeof row.aged === "number") return row.aged;
  return Math.max(...[row.arrived, row.edq, row.aged].filter((value) => value !== undefined && value !== null).map(real));
}

function renderUpdates(rows, most) {
  const more =
    rows.length > most
      ? el(
          "button",
          { type: "button", class: "plain jump", onclick: () => renderUpdates(rows, Infinity) },
          `Show all ${counted(rows.length, "parameter")}`,
        )
      : "";
  rendered = Math.min(most, rows.length);
  byId("update-rows").replaceChildren(...rows.slice(0, most).map(updateRow), more);
}

function updateRow(row) {
  const width = (share) => Math.max(0, Math.min(100, (100 * share) / WIDE)) + "%";
  const fill = el("span", { class: row.share < LOST ? "fill lost" : "fill" });
  fill.style.width = width(row.share);
  const track = el(
    "span",
    { class: "track", role: "img", "aria-label": `${percent(row.share)} arrived` },
    fill,
    el("span", { class: "half" }),
  );
  if (row.uncertainty) {
    const whisker = el("span", { class: "whisker" });
    whisker.style.left = width(row.share - row.uncertainty);
    whisker.style.width = `calc(${width(row.share + row.uncertainty)} - ${width(row.share - row.uncertainty)})`;
    track.append(whisker);
  }
  const told = [percent(row.share) + ` of ${counted(row.steps, "step")}`];
  if (row.absorbed) told.push(`${percent(row.absorbed)} in the dead zone`);
  if (row.rate) told.push(`lr ${digits(row.rate)}`);
  if (row.held) told.push("a remainder is kept");
  return el(
    "div",
    { class: "update", role: "group", tabindex: "-1", "aria-label": clipped(row.parameter) || "a parameter", "data-place": row.place },
    el("span", { class: "label", title: clipped(row.parameter, 400) }, clipped(row.parameter) || "a parameter"),
    track,
    el("span", { class: "told" }, told.join(" · ")),
  );
}

/** Brings a parameter's row into view, as a chart's point asks for it. */
function showUpdate(place) {
  if (place >= rendered) renderUpdates(rankedUpdates(), Infinity);
  const row = byId("update-rows").children[place];
  row.scrollIntoView({ block: "center" });
  row.focus({ preventScroll: true });
}

function percent(share) {
  return Number.isFinite(share) ? Math.round(100 * share) + "%" : digits(share);
}

function drawFacts() {
  const data = current();
  const pairs = data?.facts ?? [];
  byId("facts").hidden = !pairs.length;
  byId("fact-rows").replaceChildren(
    ...pairs.flatMap(([name, words]) => [el("dt", {}, clipped(name)), el("dd", { class: "name" }, clipped(words, 2000))]),
  );
}

function startUpdates() {
  byId("update-rows").addEventListener("keydown", (event) => {
    const place = sizes.points.findIndex((point) => String(point.place) === event.target.dataset.place);
    if (place >= 0) pressed(event, { Enter: () => showSize(place) });
  });
  on("check", drawUpdates);
  on("check", drawFacts);
}
