"""The verb `compare`: runs two models that should be the same function, and says whether their difference is rounding or a bug."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from precheck import arguments, interpreter, interrupts
from precheck.findings import Report
from precheck.judge import allowances
from precheck.measurement import job_of
from precheck.observe.containers import add_note
from precheck.observe.job import InputError, Job
from precheck.observe.listeners import doing
from precheck.pairs import reporting
from precheck.pairs.callables import as_module, gives_float32
from precheck.pairs.comparison import Comparison
from precheck.pairs.matching import checked, matched
from precheck.pairs.recorded_side import Against
from precheck.pairs.recording import read
from precheck.pairs.sides import Planted, Side
from precheck.precisions import Precision, resolve
from precheck.shared_runs.evidence import given_nan


@arguments.explained
@interrupts.held()
@interpreter.spared
def compare(
    model: torch.nn.Module | Callable[..., Any],
    other: torch.nn.Module | Callable[..., Any] | str | Path,
    inputs: Any,
    *,
    precision: str | Precision = "32-true",
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    steps: int = 1,
    seed: int = 0,
    match: Mapping[str, str] | None = None,
    allow: Mapping[str, str] | None = None,
) -> Report:
    """Runs `model` and `other` on the same inputs and random numbers, and says whether they are the same function.

    Compared are the outputs (containers by position and name), the loss, the gradients of all parameters and of inputs that require one, and
    buffers that both forward passes write. With an `optimizer` the weights after `steps` are compared too. The exact result is that of
    float64, or of float32 under a low precision. The limit is how far correct rounding moves `model` from it.

    Args:
        model: The reference: a module, a function of tensors, what torch.compile or torch.export made of one, or an ONNX Runtime session.
        other: What is judged: the same kinds, or a file that `precheck.record` wrote. A file has no exact run of its own, so what is
            beyond the floor is `different`.
        inputs: What the model is called with. A tensor is one argument, a tuple positional arguments, a dict keyword arguments. Any shapes.
        precision: The precision of both runs.
        loss: Takes what the model returns, gives a scalar tensor. Without it only the forward pass runs.
        optimizer: Takes a list of parameters and makes an optimizer, as in `lambda params: torch.optim.AdamW(params, lr=1e-3)`. Needs `loss`.
        steps: How many training steps are taken, from 1.
        seed: The seed of torch's random numbers, which is set before each run.
        match: Names of parts and parameters of `other`, or their prefixes, to names of `model`. The rest is matched by name, then by
            what weights hold.
        allow: Rules whose errors become notes, each with your reason: `{"lost-update": "one step only"}`.

    Returns:
        A report whose `verdict` is the gravest of "bitwise", "rounding", "less accurate", "different" and "undecidable". `different` and
        `less-accurate` are errors where `other` is to blame, and notes otherwise; `module` and `source` of findings are those of `other`.
        Both models and all random states are bit for bit as they were.

    Raises:
        InputError: An argument cannot be compared; the message says what is accepted.
        PrecisionError: There is no such precision.
        Exception: Whatever the models themselves raise.
    """
    allowed = allowances.checked(allow)
    pair = Pair(model, other, inputs, precision, match, {"loss": loss, "optimizer": optimizer, "steps": steps, "seed": seed})
    comparison = pair.comparison()
    report = reporting.report(comparison, comparison.judged())
    made = comparison.model.low().captured.of("result").values() if isinstance(comparison, Comparison) else ()
    if any(bool(tensor.isnan().any()) for tensor in made) and (found := given_nan(pair.ours)):
        report.facts["given_nan"] = found
    allowances.apply(report, allowed)
    return report


class Pair:
    """What `compare` was asked, as sides that can be compared several times. The runs of `model` are made once."""

    def __init__(self, model: Any, other: Any, inputs: Any, precision: str | Precision, match: Mapping[str, str] | None,
                 settings: dict[str, Any]) -> None:  # fmt: skip
        self.precision = resolve(precision)
        self.ours, self.match = _job(model, inputs, "model", settings), match
        self.recording = read(Path(other)) if isinstance(other, (str, Path)) else None
        self.theirs = self.ours if self.recording is not None else _job(other, inputs, "other", settings)
        models = self.ours.model, self.theirs.model
        if self.precision.name == "64-true" and any(map(gives_float32, models)):
            raise InputError("precision='64-true': an ONNX graph computes in its own formats, here float32 or lower; pass precision='32-true'")
        self.matching = matched(*models, checked(match, *models)) if self.recording is None else None
        self.model = Side(self.ours, self.precision)

    def comparison(self, planted: Planted | None = None) -> Comparison | Against:
        """A comparison. `planted` puts a fault into `other` for each of its runs, or into `model` if `other` is a recording."""
        around = contextlib.nullcontext if planted is None else lambda: planted(self.theirs.model)
        side = Side(self.theirs, self.precision, around=around)
        if self.recording is not None:
            return Against(side, self.recording, self.match if isinstance(self.match, Mapping) else {}, self.precision)
        assert self.matching is not None
        self.model.keeps = planted is not None
        with doing("running both models"):
            self.model.low()
            try:
                side.low()
            except Exception as refused:
                add_note(refused, "raised by other, on inputs that model takes")
                raise
        return Comparison(self.model, side, self.matching, self.precision)


def _job(given: Any, inputs: Any, name: str, settings: dict[str, Any]) -> Job:
    try:
        return job_of(as_module(given, name), inputs, **settings)
    except InputError as error:
        raise InputError(str(error) if name in str(error) else f"{name}: {error}") from None
