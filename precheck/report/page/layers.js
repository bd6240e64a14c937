// Under a recipe: signal to quantisation noise of each layer's products, in decibels.

const PRODUCTS = ["forward", "input gradient", "weight gradient"];
const FEW_LAYERS = 24; // shown before the rest is asked for
const FAINT = 10; // decibels: noise is a third of the product
const DROWNED = 3; // noise has half the product's energy

function drawLayers() {
  const layers = current()?.layers ?? [];
  byId("layers").hidden = !layers.length;
  if (layers.length) renderLayers(layers, FEW_LAYERS);
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
        el("td", {}, layer.flushed ? `${(100 * layer.flushed).toFixed(1)} %` : ""),
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
