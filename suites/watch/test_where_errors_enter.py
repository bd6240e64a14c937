"""Where an error entered: constants beside other roundings, errors that two terms share, scores that became equal earlier, numbers cut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import precheck
from precheck.findings import Finding, Report

LINES = Path(__file__).read_text(encoding="utf8").splitlines()


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def on(finding: Finding, mark: str) -> bool:
    """Whether it is on a line that ends in that mark."""
    return LINES[int(finding.source.rpartition(":")[2]) - 1].endswith(f"# {mark}")


def watched(code: Callable[[], torch.Tensor], precision: str | None = "32-true") -> Report:
    with precheck.watch(precision=precision) as report:
        report.facts["result"] = float(code().double().norm())
    return report


def gap(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """How far the two roots of a quadratic equation lie apart."""
    return (b * b - 4 * a * c).clamp_min(0).sqrt() / a  # the difference


def near_roots() -> torch.Tensor:
    """Roots that nearly meet. The constant is rounded, and so are the squares and products."""
    b = 28 + seeded(40)
    c = b * b / (4 * 4.905) * (1 - 1e-6)
    return gap(torch.full((40,), 4.905), b, c)  # the constant


def test_a_constant_that_made_a_part_of_an_error_does_not_stand_for_all_of_it() -> None:
    finding = next(iter(watched(near_roots).errors))
    assert on(finding, "the difference")
    assert finding.rule == "cancellation"


def apart(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return one - other


def stored_times() -> torch.Tensor:
    """Times that are whole seconds and parts of a second in float64, stored as float32 before they are subtracted elsewhere."""
    times = 1.7e9 + 3600 * torch.arange(50, dtype=torch.float64) + seeded(50).double()
    kept = times.float()  # the cast
    return apart(kept[1:], kept[:-1]) - 3600


def test_a_cast_that_made_all_of_it_is_named() -> None:
    assert on(next(iter(watched(stored_times).errors)), "the cast")


def stamp(seconds: int, nanos: torch.Tensor) -> torch.Tensor:
    return torch.tensor(seconds).float() + 1e-9 * nanos.float()  # the sum


def since_the_first() -> torch.Tensor:
    """Times within one second. The cast of the second is the same for both, and cancels. The sums are rounded, elsewhere than they are subtracted."""
    nanos = 103_000_000 + 16_000_000 * torch.arange(50)
    first = stamp(1_624_868_412, nanos[0])
    return torch.stack([apart(stamp(1_624_868_412, each), first) for each in nanos[1:]])


def test_where_both_terms_have_a_casts_error_the_sum_that_was_stored_is_named() -> None:
    finding = next(iter(watched(since_the_first).errors))
    assert on(finding, "the sum")
    assert finding.op == "aten.add.Tensor"


def push(ways: torch.Tensor) -> torch.Tensor:
    """A force that is large where a way is short."""
    return (0.1 / ways) ** 8


def forces(*, sparse: bool) -> torch.Tensor:
    """Forces of all pairs, less those of pairs that a bond holds. The same function has computed these twice."""
    ways = 0.1 + 0.05 * seeded(32).abs()
    ways[:16] = 0.008 + 0.0005 * seeded(16, seed=1).abs()
    atoms = torch.arange(32) % 16
    if sparse:
        total = torch.zeros(16).index_add(0, atoms, push(ways))
        return total.index_add(0, atoms[:16], -push(ways[:16]))  # what is taken away
    total = push(ways[:16]) + push(ways[16:])
    return total - push(ways[:16].clone())  # what is taken away


@pytest.mark.parametrize("sparse", [True, False])
def test_an_error_that_both_terms_have_is_not_named(sparse: bool) -> None:
    assert on(next(iter(watched(lambda: forces(sparse=sparse)).errors)), "what is taken away")


def test_forces_of_one_size_are_left_in_peace() -> None:
    def total() -> torch.Tensor:
        ways, atoms = 0.1 + 0.05 * seeded(32).abs(), torch.arange(32) % 16
        return torch.zeros(16).index_add(0, atoms, push(ways)).index_add(0, atoms[:8], -push(ways[:8]))

    assert not watched(total).errors


def chosen(kind: torch.dtype, *, cast: bool = False) -> torch.Tensor:
    """The four experts of 256 that a router chooses for each of 600 tokens, by a softmax in float32. `cast`: its logits are stored in `kind`, else
    its product is computed in it."""
    tokens, weight = seeded(600, 32), seeded(256, 32, seed=1) / 6
    if cast:
        logits = (tokens @ weight.T).to(kind)  # the scores
    else:
        logits = tokens.to(kind) @ weight.to(kind).T
    return torch.softmax(logits.float(), -1).topk(4, -1).indices.double()


def test_scores_that_became_equal_before_a_softmax_are_told_of() -> None:
    finding = next(iter(watched(lambda: chosen(torch.bfloat16, cast=True), None).errors))
    assert finding.rule == "decision-flip"
    assert on(finding, "the scores")


@pytest.mark.parametrize(("kind", "cast"), [(torch.float32, True), (torch.bfloat16, False)])
def test_scores_in_float32_and_those_of_a_low_product_are_left_in_peace(kind: torch.dtype, cast: bool) -> None:
    assert not watched(lambda: chosen(kind, cast=cast), None).errors


def kept(keys: torch.Tensor) -> torch.Tensor:
    """Keys in eight bits, as a cache keeps them."""
    return keys.to(torch.float8_e4m3fn).float()  # the cache


def test_numbers_beyond_a_format_are_cut_off_and_not_too_small() -> None:
    keys = seeded(40, 32)
    keys[:, 5] += 900
    finding = next(iter(watched(lambda: seeded(12, 32, seed=1) @ kept(keys).T, None).errors))
    assert (finding.rule, on(finding, "the cache")) == ("clipping", True)


def descended() -> torch.Tensor:
    """How far weights in bfloat16 have gone after small steps, whose other sixteen bits are kept apart."""
    start = (0.4 + 0.1 * seeded(64).abs()).to(torch.bfloat16)
    weight, tail = start.clone(), torch.zeros(64, dtype=torch.int32)
    for turn in range(10):
        wide = ((weight.view(torch.int16).to(torch.int32) << 16) | tail).view(torch.float32)
        bits = (wide - 4e-4 * (1 + 0.1 * seeded(64, seed=turn))).view(torch.int32)
        weight.copy_((bits >> 16).to(torch.int16).view(torch.bfloat16))
        tail = bits & 0xFFFF
    return ((weight.view(torch.int16).to(torch.int32) << 16) | tail).view(torch.float32) - start.float()


def test_a_number_whose_last_bits_are_kept_apart_is_the_same_number() -> None:
    assert not watched(descended, None).errors
