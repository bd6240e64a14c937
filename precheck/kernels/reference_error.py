"""Measures the error of a reference at slightly smaller inputs, as more samples of what a correct implementation may give.

A reference rounds what it stores, and one run shows one sample of that error. A kernel that stores the same value (attention's result, for its
backward pass) has another sample, which may be larger. A gradient may also be discontinuous at these inputs, which neighbouring inputs show.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from precheck.analysis.noise_floor.kernel_floor import UNSURE
from precheck.kernels import running
from precheck.kernels.trials import Made, Trial
from precheck.torch_support.dense_parts import continuous

if TYPE_CHECKING:
    from precheck.kernels.bench import Bench
    from precheck.kernels.trial_result import Judged, Reference

SAMPLES = 8
"""The number of samples. It is unlikely (2^-8) that an event with probability 1/2 occurs in none of them."""
PAIRS = 4
"""Steps to either side, so that each of two equal values is the larger one once."""
LOST = 2.0**-54
"""Share of a typical number that is lost where it is added to one, even in float64."""
FLAT = 2.0**-10
"""Share of a jump by which a result may change behind it, between half of a step and all of it."""
STEP = 2.0**-30
"""Size of a step relative to an element: far below the resolution of any tested format, and far above the roundoff of float64."""


def sampled(bench: Bench, trial: Trial, reference: Reference) -> None:
    """Adds the samples to the floors of a reference. Each is compared with the exact result of the same inputs."""
    made = reference.made or bench.make(trial)
    for seed in range(SAMPLES):
        generator = torch.Generator().manual_seed(7919 + seed)
        moved = Made([_moved(each, generator) for each in made.values], made.numbers)
        native = running.run(bench.reference, bench.example, moved.values, moved.numbers, bench.wishes_of(trial))
        exact = native if native.error else bench.exact_of(trial, moved)
        for name, floored in reference.floors.items():
            value, right = native.values.get(name), exact.values.get(name)
            if exact.error or value is None or right is None or not right.is_floating_point() or right.shape != floored.exact.shape:
                continue
            error = value.double() - right.double()
            floored.add(floored.exact + torch.where(error.isfinite(), error, 0.0))
    _jumps(bench, trial, made, reference)


def may_tell(bench: Bench, judged: Judged, reference: Reference) -> bool:
    """Whether nearby inputs could explain the error: it is in a few elements, or in whole numbers, each of which is a decision, or in many elements
    of a gradient whose inputs hold equal numbers, so that choices among equals may have caused it."""
    whole = (each.ratio > 1 for name, each in judged.distances.items() if not continuous(reference.floors[name].exact))
    if not judged.everywhere or any(whole):
        return True
    made = reference.made or bench.make(judged.trial)
    return judged.backward and any(each.is_floating_point() and each.unique().numel() < each.numel() for each in made.values)


def _jumps(bench: Bench, trial: Trial, made: Made, reference: Reference) -> None:
    """Adds exact gradients and whole numbers very close to these inputs. At a corner, or among equal values, they differ, and none is more correct:
    the reference's depends on how it is written. A whole number at a tie of exact numbers has one right value, unless noise runs differ there. Beside
    what is lost all is right, and a zero with a sign may count as below zero."""
    whole = {name: floored.unknown.clone() for name, floored in reference.floors.items() if not continuous(floored.exact)}
    names = {name for name, floored in reference.floors.items() if "gradient" in name and floored.exact.is_floating_point()} | whole.keys()
    for alone in (False, True):
        if names if not alone else whole and any(bool(_free(each).any()) for each in made.values):
            for exact in beside(bench, trial, made, alone=alone):
                for name in whole if alone else names:
                    other, right = exact.values.get(name), reference.floors[name].exact
                    if exact.error is None and other is not None and other.shape == right.shape:
                        tied = not alone and name in whole
                        reference.floors[name].jumped((torch.where(whole[name], other, right) if tied else other).double())
    for leaf, value in zip(bench.example.leaves, made.values, strict=True):
        floored = reference.floors.get(f"gradient of inputs{leaf.path}")
        if floored is not None and floored.exact.shape == value.shape:
            floored.shared_by_equals(value)


def beside(bench: Bench, trial: Trial, made: Made, *, alone: bool = False) -> Iterator[running.Outcome]:
    """Exact results beside these inputs, on both sides. `alone`: only what is lost is moved, or a zero with a sign."""
    for seed in range(-1, PAIRS):
        for sign in (1, -1):
            generator = torch.Generator().manual_seed(4177 + seed) if seed >= 0 else None
            moved = [stepped(each, generator, sign) for each in made.values]
            if alone:
                moved = [torch.where(_free(each), other, each) for each, other in zip(made.values, moved, strict=True)]
            yield bench.exact_of(trial, Made(moved, made.numbers))


def doubted(bench: Bench, trial: Trial, reference: Reference) -> bool:
    """Whether float64 is not exact enough for a verdict: the candidate in float64 differs too, by less than the rounding of float64 for numbers as
    large as the inputs. For example, `1 + tanh(x)` is 0 for -20, and its true value is no rounding of 0. Such a difference is allowed from then
    on."""
    made = reference.made or bench.make(trial)
    wide = running.run(bench.candidate, bench.example, made.values, made.numbers, bench.wishes_of(trial), kind="exact")
    if wide.error is not None:
        return False
    sizes = [each.double().abs().nan_to_num(posinf=0.0).max() for each in made.values if each.is_floating_point() and each.numel()]
    room, found = UNSURE * float(max(sizes, default=0.0)), False
    for name, floored in reference.floors.items():
        other = wide.values.get(name)
        if other is None or other.shape != floored.exact.shape or not floored.exact.is_floating_point() or not other.is_floating_point():
            continue
        near = (other - floored.exact).abs() <= room
        if bool((near & (other != floored.exact)).any()):
            floored.jumped(torch.where(near, 2 * other.double() - floored.exact, floored.exact))  # twice as far, since the stored value is rounded
            found = True
    return found


def jumps_at_lost(bench: Bench, trial: Trial, reference: Reference) -> bool:
    """Whether a result jumps where a number of the inputs is lost, which then counts as either side.

    1 + x is 1 in float64 for an x of -1e-39, so that a reference that rounds it down takes x for zero. A kernel that compares x itself has it
    below zero, and is right too. It gives what the reference gives for numbers that are not lost and have the same signs. Functions that are
    steep there, as a root or a logarithm, do not jump: half of such a number gives another result.
    """
    made, found = reference.made or bench.make(trial), False
    if not any(bool(_free(each).any()) for each in made.values):
        return False
    whole, half = (bench.exact_of(trial, Made([_found_again(each, share) for each in made.values], made.numbers)) for share in (1.0, 0.5))
    for name, floored in reference.floors.items():
        one, two = whole.values.get(name), half.values.get(name)
        if one is None or two is None or not one.shape == two.shape == floored.exact.shape or not floored.exact.is_floating_point():
            continue
        jump = ((one - two).abs() <= FLAT * (one - floored.exact).abs()) & (one != floored.exact)
        if bool(jump.any()):
            floored.jumped(torch.where(jump, one, floored.exact))
            found = True
    return found


def _found_again(value: torch.Tensor, share: float) -> torch.Tensor:
    """The numbers, of which those that are lost are as far from zero as a step of typical ones, with the signs that they have."""
    if not value.is_floating_point() or not value.numel():
        return value
    wide = value.double()
    away = share * STEP * _typical(wide) * torch.where(wide.signbit(), -1.0, 1.0)
    return torch.where(_free(value), away, wide)


def stepped(value: torch.Tensor, generator: torch.Generator | None, sign: int) -> torch.Tensor:
    """Each element moved independently, what is zero or lost by as much as typical elements. Without a generator, the step grows from element to
    element: among equals the last is the largest, or the first, which are the choices of implementations."""
    if not value.is_floating_point() or not value.numel():
        return value
    wide = value.double()
    size = torch.where(lost(value), _typical(wide), wide.abs())
    drawn = torch.linspace(0, 1, wide.numel(), dtype=torch.float64).view(wide.shape) if generator is None else torch.rand(
        wide.shape, generator=generator, dtype=torch.float64)  # fmt: skip
    moved = wide + sign * STEP * size * (drawn - 0.5)
    return torch.where(wide.isfinite(), moved, wide)


def lost(value: torch.Tensor) -> torch.Tensor:
    """Elements that are zero beside typical ones, even in float64."""
    return value.double().abs() <= LOST * _typical(value.double()) if value.is_floating_point() else torch.zeros(value.shape, dtype=torch.bool)


def _free(value: torch.Tensor) -> torch.Tensor:
    """What is lost, but for a zero without a sign: that is one number to every implementation."""
    return lost(value) & ((value != 0) | value.signbit()) if value.is_floating_point() else lost(value)


def _typical(wide: torch.Tensor) -> torch.Tensor:
    return wide.nan_to_num(posinf=0.0, neginf=0.0).square().mean().sqrt()


def _moved(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The values reduced by a random share of up to 1/32, the same for all elements, so that averages are rounded differently too."""
    if not value.is_floating_point():
        return value
    return value * (1 - float(torch.rand((), generator=generator, dtype=torch.float64)) / 32)
