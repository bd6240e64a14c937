"""Finds products that a recipe makes too inaccurate, although the program follows the recipe.

For each product two numbers are measured: the signal-to-quantisation-noise ratio, and the share of the product that comes from elements which are
rounded to zero.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator

from precheck.analysis.limit import Limit
from precheck.findings import Finding, Severity
from precheck.observe.shadow.operations import Phase
from precheck.recipes.survey import Place
from precheck.rules.rule import Rule
from precheck.words import of_norm

DROWNED = Limit(3.0, "decibels")
"""The ratio of signal to quantisation noise below which the product is lost: the noise has half of its energy. A product whose operands are rounded
to zero has 0."""
BEHIND = Limit(10.0, "decibels")
"""A layer is too far below the median of the same product in the other layers if it keeps a tenth of what they keep."""
FAINT = Limit(10.0, "decibels")
"""A layer with a larger ratio of signal to noise is not reported, however good the other layers are. The noise is less than a third of the
product."""
MISSING_ENERGY = Limit(0.1, "share of a product's energy")
"""The largest share of a product that may come from elements which the recipe rounds to zero. Their part is missing in every step, whatever the
random draw. Training does not average it out, and the layer explains that much less of the variance. From a tenth, recipes fail in
docs/formats.md."""
PHASES: dict[str, Phase] = {"forward": "forward", "input gradient": "backward", "weight gradient": "backward"}


class CoarseRecipe(Rule):
    limits = (DROWNED, BEHIND, FAINT, MISSING_ENERGY)


def coarse(places: Iterable[Place], recipe: str) -> Iterator[Finding]:
    """An error for each product with more noise than signal, or with a large share lost to zeros. A warning for a product that is much less accurate
    than the same product of other layers."""
    places = [place for place in places if place.signal]
    for place in places:
        others = [other.decibels(recipe) for other in places if other.product == place.product and other is not place]
        own, missing = place.decibels(recipe), place.share_lost(recipe)
        if own < DROWNED:
            yield _finding(place, recipe, own, others, "error", DROWNED)
        elif missing >= MISSING_ENERGY:
            yield _lacking(place, recipe, missing)
        elif others and own < min(statistics.median(others) - BEHIND, FAINT):
            yield _finding(place, recipe, own, others, "warning", FAINT)


def _lacking(place: Place, recipe: str, missing: float) -> Finding:
    text = f"{_layer(place)}: {recipe} rounds elements to zero that make up {missing:.0%} of {_product(place)}, in every step{_outlier(place)}"
    return _worded(place, text, "error", missing, MISSING_ENERGY)


def _finding(place: Place, recipe: str, own: float, others: list[float], severity: Severity, limit: Limit) -> Finding:
    text = f"{_layer(place)}: under {recipe} {_product(place)} is off by {of_norm(10 ** (-own / 20))} (signal to noise: {own:.0f} dB)"
    if others and statistics.median(others) < float("inf"):
        text += f"; the median of the other layers is {statistics.median(others):.0f} dB"
    return _worded(place, text + _outlier(place), severity, own, limit)


def _worded(place: Place, text: str, severity: Severity, measured: float, limit: Limit) -> Finding:
    phase = PHASES[place.product]
    return Finding("coarse-recipe", severity, text, phase=phase, module=place.layer, tensor=place.layer, measured=measured, limit=float(limit))


def _layer(place: Place) -> str:
    return place.layer or "the model"  # the model is a single layer


def _product(place: Place) -> str:
    return "its result" if place.product == "forward" else f"its {place.product}"


def _outlier(place: Place) -> str:
    return "" if place.channel is None else f"; input channel {place.channel} is {place.excess:.0f} times as large as the median channel"
