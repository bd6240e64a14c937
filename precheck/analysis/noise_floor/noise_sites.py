"""Finds where a run rounds, and creates the `Noise` that noise runs add at these places."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from precheck.analysis.labels import module_of
from precheck.analysis.noise_floor import noise as yardstick
from precheck.observe.decisions.log import DecisionLog
from precheck.observe.noise import Noise
from precheck.observe.recording.module_hooks import LOW
from precheck.observe.records import Record, Trace
from precheck.precisions import Precision


def noise_for(model: torch.nn.Module, trace: Trace, log: DecisionLog, precision: Precision, *, seed: int) -> Noise:
    """The noise that models correct rounding under `precision`, at the places where the low run `trace` stored low values.

    Autocast leaves an input in float32, except for ops that read a cast of it. If `log` has recorded the run, it knows these ops.
    """
    outputs = [record for record in trace.records.values() if record.kind == "output"]
    names = _stored_names(precision)
    stored = {record.key: max(1, record.roundings) for record in outputs if record.dtype in names or record.roundings}
    return Noise(
        seed=seed,
        roundoff=yardstick.roundoff(precision.compute.unit_roundoff),
        rounded=stored,
        parameters=_rounded_parameters(model, outputs, precision),
        inputs=precision.is_low and not (precision.autocasts and log.recorded),
        gemm=precision.gemm,
    )


def _stored_names(precision: Precision) -> set[str]:
    """The formats of results that are rounded under a precision."""
    if precision.compute_dtype in LOW:
        return {"bfloat16", "float16"}
    return {"float32", "bfloat16", "float16"}


def _rounded_parameters(model: torch.nn.Module, outputs: Sequence[Record], precision: Precision) -> frozenset[str] | None:
    """The names of the parameters that are rounded, or None for all. Autocast rounds only the weights of modules with low outputs."""
    if not precision.is_low or (precision.gemm is not None and not precision.autocasts):
        return frozenset()
    if not precision.autocasts:
        return None
    answers: dict[str, bool] = {}
    for record in outputs:
        module = module_of(record.name, "output")
        answers[module] = answers.get(module, False) or record.low
    first = {id(param): name for name, param in model.named_parameters()}
    return frozenset(
        first[id(param)]
        for name, param in model.named_parameters(remove_duplicate=False)
        if _nearest(answers, name.rpartition(".")[0])
    )


def _nearest(answers: dict[str, bool], module: str) -> bool:
    """Whether the output of the module, or of its nearest parent with a recorded output, is low."""
    while module and module not in answers:
        module = module.rpartition(".")[0]
    return answers.get(module, True)
