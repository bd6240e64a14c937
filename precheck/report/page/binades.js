// How the magnitudes of a tensor of the reference lie in the ranges of the formats: its exponents.

const FIRST_SCALE = 16; // exponent of GradScaler's first loss scale
const LISTED = 500; // tensors to choose from; all are reached by keys, and from the table
const binades = { at: -1, chosen: -1, lead: "", plot: null };

/** A histogram of the check: its row of the table, with `counts`. */
function binadesOf(data, index) {
  const row = Object.fromEntries(Object.keys(data.exponents.columns).map((name) => [name, data.exponents.at(name, index)]));
  return { ...row, counts: data.counts[index] };
}

/** The formats to draw, the one that colours the bars first; of gradients float16 under a loss scale, too. */
function rangesOf(histogram) {
  const plain = SUMMARY.ranges.map((range) => shifted(range, 0));
  const lead = plain.find((range) => range.dtype === binades.lead) ?? plain[0];
  const rest = plain.filter((range) => range !== lead);
  if (!backwards(histogram)) return [lead, ...rest];
  const scaled = shifted(SUMMARY.ranges.find((range) => range.dtype === "float16"), scaleOf(histogram) || FIRST_SCALE);
  return lead.dtype === "float16" && scaleOf(histogram) ? [scaled, lead, ...rest] : [lead, scaled, ...rest];
}

function backwards({ kind, phase }) {
  return kind === "gradient" || kind === "parameter-gradient" || phase === "backward";
}

/** The exponent of the loss scale that the run's tensor was under; 0 if none. */
function scaleOf({ scale }) {
  return scale > 0 && scale < Infinity ? Math.round(Math.log2(scale)) : 0;
}

function histogramName(row) {
  if (row.kind !== "op") return placed(row.tensor || "a parameter", row.kind, row.step);
  return `result of ${clipped(row.op, 60)}` + (row.source ? ` at ${clipped(row.source, 80)}` : "") + (row.step > 1 ? `, step ${row.step}` : "");
}

/** The tensor that is least at home in the format that it is stored in; of equals, the one with most elements. */
function oddest(data) {
  let [found, most, elements] = [0, -1, -1];
  for (let index = 0; index < data.exponents.length; index++) {
    const histogram = binadesOf(data, index);
    binades.lead = leadOf(histogram);
    const share = foreign(histogram, rangesOf(histogram)[0]);
    if (share < most || (share === most && histogram.elements <= elements)) continue;
    [found, most, elements] = [index, share, histogram.elements];
  }
  return found;
}

/** The format that colours the bars at first: the tensor's own, or what the precision computes in. */
function leadOf({ dtype }) {
  if (SUMMARY.ranges.some((range) => range.dtype === dtype)) return dtype;
  return /^bf16|^fp8/.test(SUMMARY.checks[state.check].precision) ? "bfloat16" : "float16";
}

function resetBinades() {
  const data = current();
  byId("binades").hidden = !data?.exponents.length;
  binades.at = -1;
  if (byId("binades").hidden) return;
  const listed = Math.min(LISTED, data.exponents.length);
  const options = Array.from({ length: listed }, (_, index) => el("option", { value: index }, histogramName(binadesOf(data, index))));
  byId("binades-of").replaceChildren(...options);
  const left = data.exponents.length - listed;
  byId("binades-more").textContent = left ? `and ${left.toLocaleString("en")} more, by ↓ in the picture or from the table of tensors` : "";
  showBinades(oddest(data));
}

function showBinades(index) {
  const data = current();
  binades.at = Math.max(0, Math.min(data.exponents.length - 1, index));
  binades.chosen = -1;
  const histogram = binadesOf(data, binades.at);
  binades.lead = leadOf(histogram);
  byId("binades-of").value = String(binades.at);
  const formats = SUMMARY.ranges.map(({ dtype }) => [dtype, rangeName({ dtype })]);
  choice(byId("binades-lead"), "binades-lead", formats, binades.lead, (dtype) => {
    binades.lead = dtype;
    tellBinades();
  });
  tellBinades();
}

function tellBinades() {
  const histogram = binadesOf(current(), binades.at);
  const ranges = rangesOf(histogram);
  byId("binades-canvas").setAttribute("aria-label", `Elements of the ${histogramName(histogram)} by power of two`);
  byId("binades-facts").replaceChildren(...aboutWords(histogram));
  const held = ranges.map((range) => [el("dt", {}, rangeName(range)), el("dd", {}, rangeWords(histogram, range))]);
  byId("binades-held").replaceChildren(...held.flat());
  byId("binades-key").replaceChildren(...rangeKey(histogram, ranges));
  tellBinade();
  drawBinades();
}

/** A legend of the colours that the bars have, and of ranges under a loss scale. */
function rangeKey(histogram, [lead, ...rest]) {
  const parts = partsOf(histogram, lead);
  const key = [];
  if (parts.normal) key.push(swatch("drift", `all digits in ${rangeName(lead)}`));
  if (parts.subnormal) key.push(swatch("half", `subnormal in ${rangeName(lead)}: fewer digits`));
  if (parts.flushed) key.push(swatch("error", `too small for ${rangeName(lead)}: becomes zero`));
  if (parts.beyond) key.push(swatch("error", `beyond the largest number of ${rangeName(lead)}`));
  if (histogram.zeros) key.push(swatch("soft", "zero"));
  if (histogram.nonfinite) key.push(swatch("error", "Inf or NaN"));
  const scaled = [lead, ...rest].find((range) => range.shift);
  if (scaled) key.push(el("li", {}, `${rangeName(scaled)}: its range under a loss scale of ${power(scaled.shift)}`));
  return key;
}

function aboutWords(row) {
  const looked = row.counts.reduce((sum, count) => sum + count, 0) + row.zeros + row.nonfinite;
  const words = [el("b", { class: "name" }, histogramName(row)), ` · ${counted(row.elements, "element")}, stored as ${clipped(row.dtype, 40)}`];
  if (looked < row.elements) words.push(`, ${looked.toLocaleString("en")} of them looked at`);
  if (row.zeros) words.push(` · ${shareWords(row.zeros, looked)} zero`);
  if (row.nonfinite) words.push(el("b", { class: "error" }, ` · ${counted(row.nonfinite, "element")} Inf or NaN in the reference too`));
  if (row.scale !== 1) words.push(` · under a loss scale of ${scaleText(row.scale)}, divided out here`);
  return words;
}

/** A binade in words. */
function binadeWords(place) {
  const histogram = binadesOf(current(), binades.at);
  const [exponent, count] = [histogram.least + place, histogram.counts[place]];
  const whole = histogram.counts.reduce((sum, each) => sum + each, 0);
  const [lead] = rangesOf(histogram);
  const fate = { flushed: "becomes zero", subnormal: "subnormal", normal: "held with all digits", beyond: "beyond the largest" };
  return [
    el("b", {}, `${power(exponent)} to ${power(exponent + 1)}`),
    ` (${digits(2 ** exponent)} to ${digits(2 ** (exponent + 1))}) · ${counted(count, "element")}, ${shareWords(count, whole)} · `,
    `in ${rangeName(lead)} ${fate[partOf(exponent, lead)]}`,
  ];
}

function tellBinade() {
  byId("binades-chosen").replaceChildren(...(binades.chosen >= 0 ? binadeWords(binades.chosen) : []));
}

function chooseBinade(place) {
  const { counts } = binadesOf(current(), binades.at);
  binades.chosen = Math.max(0, Math.min(counts.length - 1, place));
  if (!counts.length) binades.chosen = -1;
  drawBinades();
  tellBinade();
}

function drawBinades() {
  if (binades.at < 0) return;
  const histogram = binadesOf(current(), binades.at);
  binades.plot = new BinadePlot(byId("binades-canvas"), histogram, rangesOf(histogram));
  binades.plot.draw(binades.chosen);
}

/** Shows a tensor's exponents and brings them into view. */
function jumpToBinades(index) {
  showBinades(index);
  byId("binades").scrollIntoView({ block: "start" });
  byId("binades-canvas").focus({ preventScroll: true });
}

function binadeKeys() {
  return {
    ArrowLeft: () => chooseBinade(binades.chosen - 1),
    ArrowRight: () => chooseBinade(binades.chosen + 1),
    Home: () => chooseBinade(0),
    End: () => chooseBinade(Infinity),
    ArrowDown: () => showBinades(binades.at + 1),
    ArrowUp: () => showBinades(binades.at - 1),
  };
}

function startBinades() {
  const canvas = byId("binades-canvas");
  const box = byId("binades-tip");
  const place = (event) => binades.plot?.placeAt(event.clientX - canvas.getBoundingClientRect().left) ?? -1;
  canvas.addEventListener("keydown", (event) => binades.at >= 0 && pressed(event, binadeKeys()));
  canvas.addEventListener("pointermove", (event) => {
    const found = place(event);
    if (found >= 0) tipAt(box, event.clientX - canvas.getBoundingClientRect().left, 30, binades.plot.width, binadeWords(found));
    else box.hidden = true;
  });
  canvas.addEventListener("pointerleave", () => (box.hidden = true));
  canvas.addEventListener("click", (event) => place(event) >= 0 && chooseBinade(place(event)));
  byId("binades-of").addEventListener("change", (event) => showBinades(Number(event.target.value)));
  on("check", resetBinades);
  on("theme", drawBinades);
  on("chosen", () => {
    const chosen = state.kind === "rows" ? (current()?.rows.numbers("binades")[state.chosen.rows] ?? -1) : -1;
    if (chosen >= 0) showBinades(chosen);
  });
  new ResizeObserver(drawBinades).observe(canvas.parentElement);
}
