"""How others judge kernels: constants and ratios, on twenty random inputs in the shapes of the example, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from precheck.kernels import dimensions, examples, running
from precheck.kernels.bench import Bench
from precheck.kernels.running import Wishes
from precheck.kernels.trials import Trial

DRAWS = 20


def _close(got: torch.Tensor, own: torch.Tensor, exact: torch.Tensor) -> bool:
    try:
        torch.testing.assert_close(got, own, equal_nan=True)
    except AssertionError:
        return False
    return True


def _ratio(got: torch.Tensor, own: torch.Tensor, exact: torch.Tensor) -> bool:
    """flash-linear-attention's `assert_close`: in its CI only a warning below 1 %, or where no element is off by 0.3."""
    off = (got.double() - own.double()).abs()
    norm = own.double().square().mean().sqrt()
    return bool(off.amax() <= 0.3) or bool(off.square().mean().sqrt() <= 0.01 * norm)


def _hundredth(got: torch.Tensor, own: torch.Tensor, exact: torch.Tensor) -> bool:
    return torch.allclose(got.double(), own.double(), rtol=1e-2, atol=1e-2, equal_nan=True)


def _twice(got: torch.Tensor, own: torch.Tensor, exact: torch.Tensor) -> bool:
    """flash-attention's: no more than twice the error of the reference in the same format."""
    off, allowed = (got.double() - exact).abs().amax(), (own.double() - exact).abs().amax()
    return bool(off <= 2 * allowed + 1e-6 * exact.abs().amax())


JUDGES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], bool]] = {
    "assert_close": _close, "FLA's ratio": _ratio, "1e-2": _hundredth, "2 × the reference": _twice,
}  # fmt: skip


def verdicts(candidate: Callable[..., object], reference: Callable[..., object], inputs: object, *, gradients: bool = True) -> dict[str, bool]:
    """Which of them accuse the candidate."""
    example = examples.read(inputs, None, gradients)[0]
    bench = Bench(candidate, reference, example, dimensions.of(example), Wishes(gradients=gradients))
    accused = dict.fromkeys(JUDGES, False)
    for got, own, exact in _results(bench):
        for name, judge in JUDGES.items():
            accused[name] |= got.shape != own.shape or got.dtype != own.dtype or not judge(got, own, exact)
    return accused


def _results(bench: Bench) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Every tensor of every draw: the candidate's, the reference's, the exact one."""
    for seed in range(DRAWS):
        trial = Trial(seed=seed, fill="")
        made, wishes = bench.make(trial), bench.wishes_of(trial)
        copies = [each.clone() for each in made.values]
        got = running.run(bench.candidate, bench.example, copies, made.numbers, wishes)
        reference = bench.of(trial, made)
        for name, own in reference.native.values.items():
            exact, value = reference.exact.values.get(name), got.values.get(name)
            if own is None or exact is None or not own.is_floating_point() or not own.numel():
                continue
            yield torch.full_like(own, torch.nan) if value is None else value, own, exact
