"""Healthy networks of suites/planted trained in one recipe beside bf16-mixed: whether an error of `coarse-recipe` says which do not train.

`python suites/quantised/trained_networks.py mxfp4` prints a line for each: the loss before and after 100 steps on its batch, and what `measure` says.
With `--gradients` it prints how far the recipe's gradient is off float32's along a training in bf16-mixed.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import precheck
from precheck.precisions import resolve

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "planted"))
from networks import names, network
from one_case import arguments

STEPS = 100
RATE = 1e-3
LOOKED_AT = (0, 3, 30, 60, 100)
"""Steps at which gradients are compared."""
TRAINED = 0.9
"""Share of what bfloat16 takes off the loss, below which a recipe has failed, as in trained_models.py."""


def loss_of(given: dict[str, Any], model: torch.nn.Module) -> torch.Tensor:
    inputs = given["inputs"]
    if isinstance(inputs, dict):
        made = model(**inputs)
    else:
        made = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    value: torch.Tensor = given["loss"](made) if given.get("loss") else made
    return value


def trained(code: ModuleType, precision: str) -> tuple[float, float]:
    """The loss on its batch in float32, before and after."""
    given, chosen = arguments(code), resolve(precision)
    model = given["model"]
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    with torch.no_grad():
        before = float(loss_of(given, model))
    with chosen.step():
        for _ in range(STEPS):
            with chosen.autocast():
                value = loss_of(given, model)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    with torch.no_grad():
        return before, float(loss_of(given, model))


def gradient(given: dict[str, Any], precision: str) -> torch.Tensor:
    """The gradient of all parameters, as one vector in float32."""
    model, chosen = given["model"], resolve(precision)
    model.zero_grad()
    torch.manual_seed(0)
    with chosen.step():
        with chosen.autocast():
            value = loss_of(given, model)
        value.backward()
    found = torch.cat([each.grad.detach().float().flatten() for each in model.parameters() if each.grad is not None])
    model.zero_grad()
    return found


def gradients(name: str, precision: str) -> str:
    """The relative error of the recipe's gradient and its cosine with float32's, at steps of a training in bf16-mixed."""
    given, chosen, told = arguments(network(name).code()), resolve("bf16-mixed"), []
    optimizer = torch.optim.Adam(given["model"].parameters(), lr=RATE)
    for step in range(STEPS + 1):
        if step in LOOKED_AT:
            exact, made = gradient(given, "32-true"), gradient(given, precision)
            error, cosine = float((made - exact).norm() / exact.norm()), float(torch.cosine_similarity(made, exact, 0))
            told.append(f"step {step}: error {error:.2f}, cosine {cosine:.2f}")
        with chosen.step():
            with chosen.autocast():
                value = loss_of(given, given["model"])
            optimizer.zero_grad()
            value.backward()
        optimizer.step()
    return "; ".join(told)


def line(name: str, precision: str) -> str:
    code = network(name).code()
    if hasattr(code, "step"):
        return "its loop is its own"
    try:
        before, best = trained(code, "bf16-mixed")
        after = trained(code, precision)[1]
        report = precheck.measure(**arguments(code), precision=precision)
    except Exception as error:  # a network that makes no scalar, or does not run so
        return f"not run: {type(error).__name__}: {error}".splitlines()[0][:120]
    share = (before - after) / (before - best) if before > best else float("nan")
    said = "; ".join(f"{each.rule}: {each.message}" for each in report.errors) or "passed"
    word = "trained" if share >= TRAINED else "FAILED"
    return f"{word} {share:.2f} of bf16 ({before:.4g} -> {best:.4g}, {precision} {after:.4g}) {said[:260]}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python suites/quantised/trained_networks.py", description=__doc__)
    parser.add_argument("precision")
    parser.add_argument("names", nargs="*", help="networks (default: all)")
    parser.add_argument("--gradients", action="store_true", help="compare gradients along the training")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in asked.names or names():
        print(f"{name:16} {(gradients if asked.gradients else line)(name, asked.precision)}", flush=True)


if __name__ == "__main__":
    main()
