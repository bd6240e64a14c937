"""The decibels of one test under several recipes: a row for each layer, a column for each recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PRODUCTS = ("forward", "input gradient", "weight gradient")


def by_recipe(tests: Sequence[dict[str, Any]]) -> list[dict[str, Any] | None]:
    """For each test of a session {"recipes": precisions, "rows": [[layer, decibels, ...], ...]}. None for one that ran under fewer than two recipes.

    The decibels are those of the worst product of the layer: None if the recipe leaves it alone. The layer with the worst of all comes first.
    """
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for test in tests:
        if layers := _layers(test):
            groups.setdefault(_name(test), {})[test["precision"]] = layers
    tables = {name: _table(group) for name, group in groups.items() if len(group) > 1}
    return [tables.get(_name(test)) if _layers(test) else None for test in tests]


def _name(test: dict[str, Any]) -> str:
    """The test's node id without its precision."""
    nodeid, precision = str(test["nodeid"]), str(test["precision"])
    return nodeid.replace(f"[{precision}-", "[", 1) if f"[{precision}-" in nodeid else nodeid.replace(f"[{precision}]", "", 1)


def _layers(test: dict[str, Any]) -> list[dict[str, Any]]:
    facts: dict[str, Any] = (test.get("report") or {}).get("facts", {})
    return list(facts.get("layers", ()))


def _table(group: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    worst = {recipe: {layer["layer"]: _worst(layer) for layer in layers} for recipe, layers in group.items()}
    rows = [[layer, *(found.get(layer) for found in worst.values())] for layer in dict.fromkeys(name for found in worst.values() for name in found)]
    rows.sort(key=lambda row: min((value for value in row[1:] if value is not None), default=float("inf")))
    return {"recipes": list(worst), "rows": rows}


def _worst(layer: dict[str, Any]) -> float | None:
    return min((layer[product] for product in PRODUCTS if layer.get(product) is not None), default=None)
