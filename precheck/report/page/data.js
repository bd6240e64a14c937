// What is in the page's data elements: a line for each check at once, its tables when they are first asked for.

const SUMMARY = JSON.parse(byId("summary").textContent);
const PHASE_OF_KIND = { gradient: "backward", "parameter-gradient": "backward", update: "optimizer" };

/** A table by column, as precheck/report/html.py writes it. */
class Columns {
  constructor(raw) {
    this.columns = {};
    this.length = 0;
    for (const [name, column] of Object.entries(raw)) {
      const words = !Array.isArray(column);
      this.columns[name] = words ? column : Float64Array.from(column, real);
      this.length = words ? column.at.length : column.length;
    }
  }

  words(name) {
    return this.columns[name].words;
  }

  /** A word of a column of words, a number of one of numbers. */
  at(name, index) {
    const column = this.columns[name];
    return column.words ? column.words[column.at[index]] : column[index];
  }

  numbers(name) {
    return this.columns[name];
  }

  derive(name, make) {
    this.columns[name] = Float64Array.from({ length: this.length }, (_, index) => make(index));
  }
}

const decoded = new Map();

/** The tables of a check: {findings, ops, rows, losses, exponents, counts, updates, scaler, cure, layers, facts}; null for one that came to no report. */
function checkData(index) {
  if (SUMMARY.checks[index].error !== undefined) return null;
  if (!decoded.has(index)) {
    const raw = JSON.parse(byId("check-" + index).textContent);
    decoded.set(index, { ...raw, ops: decodedOps(raw.ops), rows: decodedRows(raw.rows), exponents: new Columns(raw.exponents) });
  }
  return decoded.get(index);
}

function decodedOps(raw) {
  const ops = new Columns(raw);
  const drift = ops.numbers("drift");
  const inherited = ops.numbers("inherited");
  ops.derive("added", (index) => Math.max(0, drift[index] - inherited[index]) || 0);
  ops.derive("floor", (index) => SUMMARY.roundings[ops.at("dtype", index)] ?? NaN);
  ops.phase = (index) => ops.at("phase", index);
  ops.module = (index) => ops.at("module", index);
  return ops;
}

function decodedRows(raw) {
  const rows = new Columns(raw);
  const r = rows.numbers("r");
  const allowed = rows.numbers("allowed");
  const relative = rows.numbers("relative");
  rows.derive("excess", (index) => r[index] / allowed[index]);
  rows.columns.drifted = rows.columns.drift; // Euclidean; what is drawn and shown is relative to the reference's norm
  rows.columns.drift = relative;
  rows.derive("relativeFloor", (index) => (r[index] > 0 && Number.isFinite(r[index]) ? relative[index] / r[index] : NaN));
  rows.derive("limit", (index) => rows.at("relativeFloor", index) * allowed[index]);
  rows.phase = (index) => PHASE_OF_KIND[rows.at("kind", index)] ?? "forward";
  rows.module = (index) => moduleOf(rows.at("tensor", index), rows.at("kind", index));
  return rows;
}

/** The module that a tensor belongs to: a boundary's own name without call and path, a parameter's owner. */
function moduleOf(tensor, kind) {
  if (kind === "parameter-gradient" || kind === "update") return tensor.slice(0, Math.max(0, tensor.lastIndexOf(".")));
  if (tensor === "output" || tensor === "loss" || tensor.startsWith("output[")) return "";
  return tensor.split("[")[0].split("#")[0];
}
