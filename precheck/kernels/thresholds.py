"""Finds the numbers with which a reference compares numbers of its inputs: there its result may jump, and a kernel may be on the other side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.kernels.trials import Made, Trial
from precheck.observe.exact import Exact
from precheck.ops import base_name
from precheck.torch_internals import in_backward, schema

if TYPE_CHECKING:
    from precheck.kernels.bench import Bench
    from precheck.kernels.trial_result import Judged

_MOST = 2**16
"""The most elements of a tensor that is compared."""
_FEW = 4
"""The most numbers that are tried for each input."""
_NAMES = ("other", "threshold", "lambd")
"""Names of the arguments that an op compares its first one with. An op without such an argument compares with zero."""


class _Compared(Exact):
    """float64, noting for each input the numbers with which its own are compared, up to their sign. `zero`: whether any is compared with zero."""

    def __init__(self, made: Made) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        real = {place: each for place, each in enumerate(made.values) if each.is_floating_point() and each.numel() <= _MOST}
        self.own = {place: each.double().abs().flatten() for place, each in real.items()}
        self.found: dict[int, dict[float, None]] = {place: {} for place in real}
        self.zero = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if base_name(func.overloadpacket.__name__) in ops.JUMPING and not in_backward() and isinstance(args[0], torch.Tensor):
            self._note(args[0], _number(func, args, kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _note(self, compared: torch.Tensor, number: float | None) -> None:
        if number is None or not compared.is_floating_point() or not 0 < compared.numel() <= _MOST:
            return
        self.zero |= number == 0
        sizes = compared.detach().cpu().double().abs().flatten()
        for place, own in self.own.items():
            if len(self.found[place]) < _FEW and bool(torch.isin(sizes, own).all()):
                self.found[place][number] = None


def _number(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """The number that an op compares its first argument with. None if these are several."""
    arguments = schema(func).arguments
    place = next((place for place, each in enumerate(arguments) if each.name in _NAMES), None)
    if place is None:
        return 0.0
    other = args[place] if place < len(args) else kwargs.get(arguments[place].name, arguments[place].default_value)
    if isinstance(other, torch.Tensor):
        return float(other) if other.dim() == 0 and not other.is_complex() else None
    return float(other) if isinstance(other, (bool, int, float)) else None


def compared(bench: Bench, trial: Trial, made: Made) -> dict[int, dict[float, None]]:
    """For each input of real numbers, the numbers with which the reference compares it, given these inputs."""
    return _traced(bench, trial, made).found


def _traced(bench: Bench, trial: Trial, made: Made) -> _Compared:
    mode = _Compared(made)
    bench.under(mode, trial, made=made)
    return mode


def trials(bench: Bench) -> list[Trial]:
    """Trials with numbers at the thresholds of each input and next to them, and with some at them alone.

    And where the reference compares anything with zero, an input of zeros alone: its sum, its length and its largest are exactly zero too.
    """
    trial = Trial(seed=63)
    mode = _traced(bench, trial, bench.make(trial))
    jumps = [(place, each) for place, numbers in mode.found.items() for each in numbers]
    found = [trial.but(seed=64, family="threshold", leaf=place, number=each) for place, each in jumps]
    found += [trial.but(seed=66, family="threshold itself", leaf=place, number=each) for place, each in jumps if each]
    return found + [trial.but(seed=65, family="only zeros", leaf=place) for place in mode.found if mode.zero]


def explains(bench: Bench, judged: Judged) -> str:
    """Where all that is wrong is, in words: at numbers of an input with which the reference compares it. "" if it is elsewhere."""
    wrong = judged.fault.distance.wrong if judged.fault is not None and judged.fault.distance is not None else None
    made = bench.make(judged.trial)
    if wrong is None or not bool(wrong.any()) or not any(each.shape == wrong.shape for each in made.values):
        return ""
    for place, numbers in compared(bench, judged.trial, made).items():
        value, path = made.values[place].double().abs(), bench.example.leaves[place].path
        met = [each for each in numbers if each and value.shape == wrong.shape and bool(wrong[value == abs(each)].any())]
        at = torch.isin(value, torch.tensor(met, dtype=torch.float64).abs())
        if met and not bool((wrong & ~at).any()):
            return f"where inputs{path} is {' or '.join(f'{each:g}' for each in met)}, with which the reference compares it"
    return ""
