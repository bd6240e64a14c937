// Under a recipe: signal to quantisation noise of each layer's products, in decibels.

const PRODUCTS = ["forward", "input gradient", "weight gradient"];
const FEW_LAYERS = 24; // shown before the rest is asked for
const FAINT = 10; // decibels: noise is a third of the product
const DROWNED = 3; // noise has half the product's energy

function drawLayers() {
  const layers = current()?.layers ?? [];
  byId("layers").hidden = !layers.length;
  if (!layers.length) return;
  renderLayers(layers, FEW_LAYERS);
  renderRecipes(current().recipes, FEW_LAYERS);
}

/** The same test under each recipe: the decibels of each layer's worst product. */
function renderRecipes(found, most) {
  byId("recipes").replaceChildren();
  if (!found) return;
  const head = el("thead", {}, el("tr", {}, ...["layer", ...found.recipes].map((title) => el("th", { scope: "col" }, clipped(title, 40)))));
  const rows = found.rows
    .slice(0, most)
    .map(([layer, ...values]) =>
      el("tr", {}, el("th", { scope: "row", class: "code", title: clipped(layer, 400) }, clipped(layer, 60) || "the model"), ...values.map(decibelCell)),
    );
  const more =
    found.rows.length > most
      ? el("button", { type: "button", class: "plain jump", onclick: () => renderRecipes(found, Infinity) }, `Show all ${found.rows.length} layers`)
      : "";
  byId("recipes").append(
    el("p", { class: "help" }, "This test under each recipe: decibels of the layer's worst product."),
    el("div", { class: "scroll map" }, el("table", { "aria-label": "Worst product of each layer by recipe" }, head, el("tbody", {}, ...rows)), more),
  );
}

function renderLayers(layers, most) {
  const products = PRODUCTS.filter((product) => layers.some((layer) => layer[product] !== undefined));
  const head = el("thead", {}, el("tr", {}, ...["layer", ...products, "rounded to zero", "outlier"].map((title) => el("th", { scope: "col" }, title))));
  const rows = layers
    .slice(0, most)
    .map((layer) =>
      el(
        "tr",
        {},
        el("th", { scope: "row", class: "code", title: clipped(layer.layer, 400) }, clipped(layer.layer, 60) || "the model"),
        ...products.map((product) => decibelCell(layer[product])),
        el("td", {}, layer.flushed ? `${(100 * layer.flushed).toFixed(1)}%` : ""),
        el("td", {}, layer.outlier === null ? "" : `channel ${layer.outlier}`),
      ),
    );
  const more =
    layers.length > most
      ? el("button", { type: "button", class: "plain jump", onclick: () => renderLayers(layers, Infinity) }, `Show all ${layers.length} layers`)
      : "";
  byId("decibels").replaceChildren(
    el("div", { class: "scroll map" }, el("table", { "aria-label": "Signal to quantisation noise by layer" }, head, el("tbody", {}, ...rows)), more),
  );
  renderBlocks(layers, FEW_LAYERS);
}

/** Of each operand the blocks that share a scale: the share that clips something, and that rounds something to zero, in each step. */
function renderBlocks(layers, most) {
  const all = layers.flatMap((layer) => (layer.blocks ?? []).map((found) => ({ layer: layer.layer, ...found })));
  all.sort((a, b) => Math.max(...b.clipping) - Math.max(...a.clipping) || Math.max(...b.flushed) - Math.max(...a.flushed));
  byId("blocks").replaceChildren();
  if (!all.length) return;
  const titles = ["layer", "product", "operand", "blocks", "blocks that clip", "blocks that flush", "elements clipped", "elements flushed"];
  const head = el("thead", {}, el("tr", {}, ...titles.map((title) => el("th", { scope: "col" }, title))));
  const rows = all
    .slice(0, most)
    .map((found) =>
      el(
        "tr",
        {},
        el("th", { scope: "row", class: "code", title: clipped(found.layer, 400) }, clipped(found.layer, 60) || "the model"),
        ...[found.product, found.operand, String(found.blocks)].map((words) => el("td", {}, clipped(words, 40))),
        ...["clipping", "flushing", "clipped", "flushed"].map((which) => el("td", {}, overSteps(found[which]))),
      ),
    );
  const more =
    all.length > most
      ? el("button", { type: "button", class: "plain jump", onclick: () => renderBlocks(layers, Infinity) }, `Show all ${all.length} operands`)
      : "";
  byId("blocks").append(
    el("div", { class: "scroll map" }, el("table", { "aria-label": "Blocks that clip or flush" }, head, el("tbody", {}, ...rows)), more),
  );
}

/** "3.1%", or over several steps "0.0 to 3.1%, most in step 4". */
function overSteps(shares) {
  const percent = (share) => (100 * share).toFixed(1);
  const least = Math.min(...shares);
  const most = Math.max(...shares);
  if (percent(least) === percent(most)) return `${percent(most)}%`;
  return `${percent(least)} to ${percent(most)}%, most in step ${shares.indexOf(most) + 1}`;
}

/** What a recipe leaves alone, or a product that was not made, has no number. */
function decibelCell(value) {
  if (value === undefined || value === null) return el("td");
  const kind = value < DROWNED ? "over" : value < FAINT ? "near" : "calm";
  return el("td", {}, el("span", { class: "heat " + kind }, value.toFixed(1)));
}

function startLayers() {
  on("check", drawLayers);
}
