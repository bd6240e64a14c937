"""The function `record`: runs a model and writes its results to a file, which `compare` takes in place of a second model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from precheck import arguments, interrupts
from precheck.measurement import job_of
from precheck.observe.job import InputError
from precheck.pairs import recording
from precheck.pairs.callables import as_module
from precheck.pairs.module_dataflow import Passages
from precheck.pairs.sides import Side
from precheck.precisions import Precision, resolve
from precheck.words import described


@arguments.explained
@interrupts.held()
def record(
    path: str | Path,
    model: torch.nn.Module | Callable[..., Any] | Mapping[str, Any],
    inputs: Any = None,
    *,
    precision: str | Precision = "32-true",
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    steps: int = 1,
    seed: int = 0,
    whole: int = recording.WHOLE,
) -> Path:
    """Writes what `model` gives on `inputs` to a file, which `precheck.compare` takes as `other`: in another process, on another machine.

    Args:
        path: The file, which ends in .safetensors.
        model: As in `compare`. Of another engine, a mapping of names to tensors or what torch.as_tensor takes: "output" or
            "output[logits]", "loss", "gradient:head.weight", "input-gradient[0]", "update:head.weight", and "module:layers.0" for the
            result of a module, which is only looked at to name the first module that differs.
        inputs: As in `compare`, and so are `precision`, `loss`, `optimizer`, `steps` and `seed`. None for a mapping.
        whole: Elements up to which a tensor is written in full. Larger ones are written as sketches of 127 numbers.

    Returns:
        The path.

    Raises:
        InputError: An argument cannot be recorded; the message says what is accepted.
        OSError: The file cannot be written.
    """
    if not isinstance(path, (str, Path)):
        raise InputError(f"path is {described(path)}; pass the file first, as in precheck.record('run.safetensors', model, inputs)")
    target = Path(path)
    if target.suffix != ".safetensors":
        raise InputError(f"path={str(path)!r}; a recording ends in .safetensors")
    if isinstance(whole, bool) or not isinstance(whole, int) or whole < 0:
        raise InputError(f"whole={whole!r}; pass a number of elements from 0")
    origin = {"torch": str(torch.__version__)}
    if isinstance(model, Mapping):
        if inputs is not None or loss is not None:
            raise InputError("tensors by name are recorded as they are; leave inputs and loss out")
        seen, passages = recording.captured(model)
        origin["given"] = "tensors"
    else:
        chosen = resolve(precision)
        job = job_of(as_module(model, "model"), inputs, loss=loss, optimizer=optimizer, steps=steps, seed=seed)
        side = Side(job, chosen)
        with contextlib.ExitStack() as stack:
            passages = [] if side.compiled else stack.enter_context(Passages(job.model, sketches=True).followed())
            seen = side.low().captured
        ends = [place for place, each in enumerate(passages) if (each.kind, each.module) == ("out", "")]
        passages = passages[: ends[0] + 1] if ends else []  # those of the first step
        origin["precision"] = chosen.name
    recording.write(target, seen, origin, passages=passages, whole=whole)
    return target
