"""Numbers that a format loses: zeros of a draw, digits below the normal numbers, logarithms of which few are read, differences in a row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precheck

HALF, LOW, TINY = torch.float16, torch.bfloat16, torch.float8_e4m3fn


def errors(code: Callable[[], Any], precision: str | None = None) -> list[precheck.Finding]:
    with precheck.watch(precision=precision) as report:
        kept = code()
    del kept
    return report.errors


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def raced(dtype: torch.dtype) -> torch.Tensor:
    """Winners of 30 races among 4096 numbers, of which five have a chance."""
    chances, winners = torch.zeros(4096, dtype=dtype), []
    chances[:5] = 0.2
    with torch.random.fork_rng():
        torch.manual_seed(20)
        for _ in range(30):
            winners.append(torch.argmax(chances / torch.empty_like(chances).exponential_(1)))
    return torch.stack(winners)


def test_a_zero_among_exponential_numbers_is_told_where_it_wins() -> None:
    (found,) = errors(lambda: raced(HALF))
    assert (found.rule, found.op) == ("underflow", "aten.exponential_.default")
    assert int(raced(HALF).max()) >= 5, "the seed draws a zero"
    assert not errors(lambda: raced(torch.float32))


@pytest.mark.parametrize("draw", [lambda x: x.exponential_(1), lambda x: x.log_normal_(-30.0, 4.0)])
def test_a_zero_that_is_added_to_something_is_noise(draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert not errors(lambda: 1 + draw(torch.empty(200_000, dtype=HALF)))


def stored(size: float, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    """A matrix of that size that is stored low, and multiplied."""
    kept = (size * scale * (1 + 0.05 * normal(24, 24))).to(dtype)
    return normal(8, 24, seed=1) @ (kept.float() / scale)


def test_a_cast_below_the_normal_numbers_is_told() -> None:
    (found,) = errors(lambda: stored(1.2e-3, TINY))
    assert found.rule == "underflow", found
    assert "subnormal or zero here, where float8_e4m3fn has few bits" in found.message


@pytest.mark.parametrize(("size", "dtype", "scale"), [(1.2e-3, TINY, 256.0), (0.3, TINY, 1.0), (1.2e-3, HALF, 1.0), (1e-6, LOW, 1.0)])
def test_a_cast_to_where_the_format_has_its_digits_is_not(size: float, dtype: torch.dtype, scale: float) -> None:
    assert not errors(lambda: stored(size, dtype, scale))


def ratio(widened: bool, read: str = "picked") -> torch.Tensor:
    """Ratios of two policies for six answers of forty tokens."""
    hidden, head = (normal(6, 40, 16) / 8).to(LOW), (0.4 * normal(4096, 16, seed=1)).to(LOW)
    heads = head, (head.float() + 0.02 * normal(4096, 16, seed=2)).to(LOW)
    tokens, sums = torch.arange(240).view(6, 40, 1) * 31 % 4096, []
    for each in heads:
        logits = hidden @ each.T
        log_probs = torch.log_softmax(logits.float() if widened else logits, -1)
        picked = log_probs.gather(-1, tokens).squeeze(-1).float()
        sums.append(picked.sum(-1))
        if read == "all":
            sums[-1] = sums[-1] + 0 * log_probs.float().mean()
    change = sums[1] - sums[0]
    return torch.softmax(change, 0) if read == "normalised" else change.exp()


def test_logarithms_of_which_few_are_read_are_told_where_they_become_an_exponent() -> None:
    (found,) = errors(lambda: ratio(widened=False))
    assert (found.rule, found.op) == ("amplified-rounding", "aten._log_softmax.default")
    assert "has shape [6, 40, 4096], of which 240 numbers are read, and is " in found.message
    assert "so few numbers cost nothing in float32" in found.message


@pytest.mark.parametrize("case", [{"widened": True}, {"widened": False, "read": "all"}])
def test_wide_logarithms_and_those_that_are_all_read_are_not(case: dict[str, Any]) -> None:
    assert not [found for found in errors(lambda: ratio(**case)) if "numbers are read" in found.message]


def standardised() -> torch.Tensor:
    """Energies less those of the atoms, and then less their own mean."""
    energies = 50_005.0 + 0.05 * normal(64)
    left = energies - torch.tensor([20_000.0, 30_000.0]).sum()  # the first difference
    return (left - left.mean()) / left.std()


def test_of_two_differences_in_a_row_the_one_that_loses_more_digits_is_named() -> None:
    (found,) = errors(standardised, "32-true")
    assert found.rule == "cancellation"
    assert "its rounding error grows at aten.sub.Tensor" in found.message
    line = Path(__file__).read_text(encoding="utf8").splitlines()[int(found.source.rpartition(":")[2]) - 1]
    assert line.endswith("# the first difference")


def log_density(terms: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Of a mixture whose components are as unlikely as e^-60; its mean has a square that float32 does not hold."""
    densities = torch.exp(terms).to(low)
    return torch.log(densities.float().mean(-1))


def test_zeros_are_traced_through_numbers_whose_squares_float32_does_not_hold() -> None:
    terms = -60 - normal(8, 16).abs()
    first = errors(lambda: log_density(terms, HALF) + 1)[0]
    assert (first.rule, first.source.rpartition(":")[2]) == ("underflow", str(log_density.__code__.co_firstlineno + 2))
    assert errors(lambda: log_density(terms, LOW) + 1) == []


def logged_distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Of vectors of one length, which makes the squared distance a difference; autocast has the product low."""
    squares = a.square().sum(-1)[:, None] + b.square().sum(-1)
    products = a @ b.T
    return torch.log(squares - 2 * products)


def test_a_difference_in_float32_that_falls_below_a_pole_is_blamed_on_the_product_that_was_stored_low() -> None:
    ends = torch.nn.functional.normalize(100 + normal(8, 32), dim=-1), torch.nn.functional.normalize(100 + normal(8, 32, seed=1), dim=-1)
    first = errors(lambda: logged_distances(*ends), "bf16-mixed")[0]
    assert first.source.rpartition(":")[2] == str(logged_distances.__code__.co_firstlineno + 3)
    with torch.autocast("cpu", enabled=False):
        assert errors(lambda: logged_distances(*ends)) == []


def alike(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The cosines between pairs of vectors."""
    lengths = a.float().norm(dim=-1) * b.float().norm(dim=-1)
    return (a * b).sum(-1).float() / lengths


def test_products_of_which_a_part_became_zero_are_told_where_they_are_made() -> None:
    """The products lose 17 % of their norm, a part of that to zero, and the sums 10 %."""
    small = [(2e-4 * normal(20, 48, seed=seed)).to(HALF) for seed in (0, 1)]
    (found,) = errors(lambda: alike(small[0], small[0] + small[1]))
    assert (found.rule, found.op) == ("underflow", "aten.mul.Tensor")
    assert found.source.rpartition(":")[2] == str(alike.__code__.co_firstlineno + 3)
    assert "subnormal or zero here, where float16 has few bits" in found.message
    assert errors(lambda: alike(small[0].float(), (small[0] + small[1]).float())) == []


def beside_an_eps(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


def penalised(x: torch.Tensor) -> torch.Tensor:
    x.square()
    return 1 + x.square().mean()


@pytest.mark.parametrize("code", [beside_an_eps, penalised])
def test_small_products_beside_something_larger_or_that_nobody_reads_are_not_worth_a_note(code: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with precheck.watch() as report:
        kept = code((1e-4 * normal(8, 64)).to(HALF))
    del kept
    assert report.findings == [], report.summary()
