// What of a histogram of exponents lies in a format's range. Binade e holds 2^e <= |x| < 2^(e + 1).

const PARTS = ["flushed", "subnormal", "normal", "beyond"];

/** The range of a format for values that are under a loss scale of 2^shift, told without the scale. */
function shifted(range, shift) {
  const { subnormal, normal, largest } = range;
  return { ...range, shift, subnormal: subnormal - shift, normal: normal - shift, largest: largest - shift, max: range.max / 2 ** shift };
}

/** Into which part of the range a binade falls. Above half the smallest subnormal, numbers are rounded up to it. */
function partOf(exponent, range) {
  if (exponent > range.largest) return "beyond";
  if (exponent >= range.normal) return "normal";
  return exponent >= range.subnormal - 1 ? "subnormal" : "flushed";
}

/** How many elements fall into each part: {flushed, subnormal, normal, beyond}. */
function partsOf({ least, counts }, range) {
  const parts = Object.fromEntries(PARTS.map((part) => [part, 0]));
  counts.forEach((count, place) => (parts[partOf(least + place, range)] += count));
  return parts;
}

/** How ill at home a tensor is in a format: the share that it does not hold, and with little weight what it holds with fewer digits. */
function foreign(histogram, range) {
  const { flushed, beyond, subnormal, normal } = partsOf(histogram, range);
  return (flushed + beyond + subnormal / 100) / (flushed + beyond + subnormal + normal || 1);
}

/** The exact power of two in words: 2⁻²⁴. */
function power(exponent) {
  return "2" + raised(exponent);
}

/** A share of elements: 0.31%. */
function shareWords(count, whole) {
  return digits((100 * count) / whole) + "%";
}

/** What a format makes of a histogram, in words. */
function rangeWords(histogram, range) {
  const parts = partsOf(histogram, range);
  const whole = PARTS.reduce((sum, part) => sum + parts[part], 0);
  if (!whole) return "nothing to hold but zeros";
  const told = [];
  if (parts.beyond) told.push(`${shareWords(parts.beyond, whole)} beyond ${Number(range.max.toPrecision(5))}`);
  if (parts.flushed) told.push(`${shareWords(parts.flushed, whole)} becomes zero, below ${power(range.subnormal - 1)}`);
  if (parts.subnormal) told.push(`${shareWords(parts.subnormal, whole)} subnormal, with fewer digits, below ${power(range.normal)}`);
  return told.join(" · ") || "holds all of it with all its digits";
}
