"""The function `quantised`: compares a quantised model with the original layer by layer, and says whether the difference is rounding or a bug."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from precheck import arguments, formats, interpreter, interrupts
from precheck.analysis.quantisation import quantised_layers
from precheck.findings import Report
from precheck.judge import allowances
from precheck.observe.job import InputError
from precheck.observe.recording import effective_weight
from precheck.rules.wrong_scale.rule import misproduced, misquantised
from precheck.words import described


@arguments.explained
@interrupts.held()
@interpreter.spared
def quantised(original: torch.nn.Module, model: torch.nn.Module, inputs: Any, *, allow: Mapping[str, str] | None = None) -> Report:
    """Compares `model`, in which linear layers have been quantised, layer by layer with `original`, from which it was made.

    The layers are those of `original` of class nn.Linear for which `model` has something else under the same name. That may be another class, or a
    weight of a tensor subclass, as torchao's `quantize_` leaves. The format in which a layer stores its weight does not matter: its weight is read
    from its results for unit vectors. Scales that were moved from one layer into another on purpose (SmoothQuant, rotations) must be in `original`
    too.

    Each layer is tested for two things. Its dequantised weight is compared with the original: rounding is allowed and reported in decibels, a
    wrong scale, zero point or order is an error. Its results are compared with those of its own dequantised weight in float32: a
    difference that rounding does not explain is an error of the kernel.

    Args:
        original: The model before.
        model: The model after.
        inputs: What `model` is called with. A tensor is one argument, a tuple positional arguments, a dict keyword arguments.
        allow: Rules whose errors become notes, each with your reason.

    Returns:
        A report. `facts["quantised"]` has a row for each layer: its name, signal to quantisation noise of its weight and of its result
        (decibels), and the verdict.

    Raises:
        InputError: No layer is quantised.
        Exception: Whatever the models themselves raise.
    """
    allowed, names = allowances.checked(allow), _names(original, model)
    report = Report(precision="quantised", facts={"quantised": []})
    training = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        seen, _ = effective_weight.passing(model, names, inputs)
        for name in names:
            _judge_layer(report, name, original.get_submodule(name), model.get_submodule(name), seen.get(name))
    finally:
        for module, was in training:
            module.training = was
    allowances.apply(report, allowed)
    return report


def _names(original: Any, model: Any) -> list[str]:
    for each, what in ((original, "original"), (model, "model")):
        if not isinstance(each, torch.nn.Module):
            raise InputError(f"{what} is {described(each)}; pass a torch.nn.Module")
    others = dict(model.named_modules())
    linear: dict[str, torch.nn.Linear] = {name: each for name, each in original.named_modules() if isinstance(each, torch.nn.Linear)}
    names = [name for name, module in linear.items() if name in others and _differs(module, others[name])]
    if not names:
        raise InputError(
            f"none of the {len(linear)} nn.Linear of original is quantised in model: under the same name it has the same class with a plain weight; "
            "pass the float model first, and keep the names of its layers"
        )
    return names


def _differs(module: torch.nn.Linear, other: torch.nn.Module) -> bool:
    if module is other:
        return False
    weight = getattr(other, "weight", None)
    plain = isinstance(weight, torch.Tensor) and type(weight.data) is torch.Tensor and weight.is_floating_point()
    return type(other) is not type(module) or not plain


def _judge_layer(report: Report, name: str, layer: Any, other: torch.nn.Module, seen: effective_weight.InputAndResult | None) -> None:
    dtype = seen.given.dtype if seen is not None else layer.weight.dtype
    weight, bias = effective_weight.effective(other, layer.in_features, dtype, layer.weight.device)
    fit = quantised_layers.fitted(layer.weight.detach(), weight)
    row = {"layer": name, "weight_db": round(fit.decibels, 1), "verdict": "rounding"}
    report.facts["quantised"].append(row)
    off = 0.0 if layer.bias is None else float((bias - layer.bias.detach().float()).norm() / layer.bias.detach().float().norm().clamp_min(1e-30))
    biased = off > quantised_layers.BIAS
    if fit.misfit is not None and not (biased and fit.misfit.what == "zero point"):  # a bias that is off shifts what unit vectors make
        row["verdict"] = fit.misfit.what
        report.add([misquantised(name, fit)])
    if biased:
        row["verdict"] = "bias"
        report.add([misquantised(name, fit, bias=off)])
    if seen is not None and len(seen.given):
        _judge_kernel(report, name, row, seen, weight, bias)


def _judge_kernel(
    report: Report, name: str, row: dict[str, Any], seen: effective_weight.InputAndResult, weight: torch.Tensor, bias: torch.Tensor
) -> None:
    roundoff = max(formats.of_dtype(seen.made.dtype).unit_roundoff, formats.BF16.unit_roundoff)  # many kernels keep their scales in bfloat16
    result, _, explained = quantised_layers.expected(seen.given, weight, bias, roundoff)
    off = float((seen.made.float() - result).norm() / result.norm().clamp_min(1e-30))
    row["result_db"] = round(-20 * math.log10(max(off, 1e-12)), 1)
    if off > quantised_layers.KERNEL * explained and not quantised_layers.reproduced(seen.given, weight, bias, seen.made, roundoff):
        row["verdict"] = "kernel"
        report.add([misproduced(name, off, explained)])
