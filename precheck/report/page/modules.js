// The tree of modules with the worst r of each; where no floor was measured, with the error that their ops added.

const OPENED = 3; // levels that are open in any case; beyond, only the way to what is beyond its limit
const tree = { root: null, open: new Set(), focus: "", shown: [] };

/** {name, path, children: Map, output, gradient, worst, added} from the modules that tensors and ops name. */
function buildTree(data) {
  const root = moduleNode("", "");
  for (let index = 0; index < data.rows.length; index++) if (data.rows.at("determined", index)) countRow(root, data.rows, index);
  for (let index = 0; index < data.ops.length; index++) {
    const added = data.ops.at("nonfinite", index) > 0 ? Infinity : data.ops.at("added", index);
    for (const node of pathTo(root, data.ops.module(index))) node.added = Math.max(node.added, added);
  }
  return root;
}

function moduleNode(name, path) {
  return { name, path, children: new Map(), output: null, gradient: null, worst: null, added: 0 };
}

/** The nodes from the root to a module; those that are not there yet are made. */
function pathTo(root, module) {
  const nodes = [root];
  let path = "";
  for (const name of module ? module.split(".") : []) {
    path = path ? path + "." + name : name;
    const parent = nodes[nodes.length - 1];
    if (!parent.children.has(name)) parent.children.set(name, moduleNode(name, path));
    nodes.push(parent.children.get(name));
  }
  return nodes;
}

function countRow(root, rows, index) {
  const excess = rows.at("excess", index);
  const seen = { r: rows.at("r", index), excess: rows.at("excused", index) ? Math.min(1, excess) : excess };
  const worse = (one) => (one === null || seen.excess > one.excess ? seen : one);
  const nodes = pathTo(root, rows.module(index));
  for (const node of nodes) node.worst = worse(node.worst);
  const own = nodes[nodes.length - 1];
  const kind = rows.at("kind", index);
  if (kind === "gradient" || kind === "parameter-gradient") own.gradient = worse(own.gradient);
  else own.output = worse(own.output);
}

function drawTree() {
  const data = current();
  byId("modules").hidden = !data || !(data.rows.length || data.ops.length);
  if (byId("modules").hidden) return;
  tree.root = buildTree(data);
  tree.slim = !tree.root.worst;
  tree.open = new Set([""]);
  for (let node = tree.root; node;) {
    tree.open.add(node.path);
    const inside = [...node.children.values()].filter((child) => child.children.size);
    node = inside.sort((a, b) => weight(b) - weight(a))[0];
    if (node && !tree.slim && weight(node) < 1 && tree.open.size > OPENED) break;
  }
  tree.focus = "";
  byId("modules-help").textContent = tree.slim
    ? "By how much the relative error grew in an op of the module; no noise floor was measured, so there is no r."
    : "r is the error over what correct rounding explains: of the module's output, of its gradients, and the worst of all inside it. Click to filter the tables.";
  renderTree();
}

function weight(node) {
  return node.worst ? node.worst.excess : node.added;
}

function renderTree(refocus = false) {
  tree.shown = [];
  const walk = (node, level) => {
    tree.shown.push([node, level]);
    if (tree.open.has(node.path)) for (const child of node.children.values()) walk(child, level + 1);
  };
  walk(tree.root, 1);
  const titles = tree.slim ? ["module", "error added"] : ["module", "output", "gradients", "inside"];
  const head = el("div", { class: "head", "aria-hidden": "true" }, ...titles.map((title) => el("span", {}, title)));
  const list = el("div", { role: "tree", "aria-label": "Modules", onkeydown: treeKeys }, ...tree.shown.map(treeItem));
  const box = byId("tree").querySelector(".scroll");
  const top = box ? box.scrollTop : 0;
  byId("tree").replaceChildren(el("div", { class: "scroll tree" + (tree.slim ? " slim" : "") }, head, list));
  byId("tree").firstChild.scrollTop = top;
  if (refocus) list.querySelector('[tabindex="0"]')?.focus();
}

function treeItem([node, level]) {
  const inside = node.children.size > 0;
  const open = tree.open.has(node.path);
  const label = el(
    "span",
    { class: "label", title: clipped(node.path, 400) },
    el("span", { class: "caret", "aria-hidden": "true", onclick: (event) => toggle(event, node) }, inside ? (open ? "▾" : "▸") : ""),
    node.path ? clipped(node.name, 80) : "the model",
  );
  label.style.paddingLeft = (level - 1) * 14 + "px";
  const cells = tree.slim ? [addedCell(node.added)] : [heatCell(node.output), heatCell(node.gradient), heatCell(node.worst)];
  return el(
    "div",
    {
      role: "treeitem",
      "aria-level": level,
      "aria-expanded": inside ? String(open) : null,
      tabindex: node.path === tree.focus ? "0" : "-1",
      "data-path": clipped(node.path),
      onclick: () => filterModule(node),
    },
    label,
    ...cells,
  );
}

function toggle(event, node) {
  event.stopPropagation();
  if (!tree.open.delete(node.path)) tree.open.add(node.path);
  tree.focus = node.path;
  renderTree();
}

function filterModule(node) {
  tree.focus = node.path;
  filterBy({ module: node.path || null });
  byId("table").scrollIntoView({ block: "nearest" });
}

function heatCell(seen) {
  if (!seen) return el("span", { class: "heat" });
  const kind = seen.excess > 1 ? "over" : seen.excess > 2 / 3 ? "near" : "calm";
  return el("span", { class: "heat " + kind, title: { over: "beyond its limit", near: "near its limit, or passed on a closer look", calm: "within its limit" }[kind] }, digits(seen.r));
}

function addedCell(added) {
  const kind = added >= 0.1 ? "over" : added >= 0.01 ? "near" : "calm";
  return el("span", { class: "heat " + kind }, digits(added));
}

function treeKeys(event) {
  const at = tree.shown.findIndex(([node]) => node.path === tree.focus);
  const [node] = tree.shown[Math.max(0, at)];
  const go = (place) => (tree.focus = tree.shown[Math.max(0, Math.min(tree.shown.length - 1, place))][0].path);
  const acts = {
    ArrowDown: () => go(at + 1),
    ArrowUp: () => go(at - 1),
    Home: () => go(0),
    End: () => go(Infinity),
    ArrowRight: () => (node.children.size && !tree.open.has(node.path) ? tree.open.add(node.path) : go(at + 1)),
    ArrowLeft: () => tree.open.delete(node.path) || (tree.focus = node.path.slice(0, Math.max(0, node.path.lastIndexOf(".")))),
    Enter: () => filterModule(node),
    " ": () => filterModule(node),
  };
  if (!(event.key in acts)) return;
  event.preventDefault();
  acts[event.key]();
  renderTree(true);
}

function startModules() {
  on("check", drawTree);
}
