"""What a fault explains, and what it no longer explains: errors that a larger term hides, integers that a `where` discards, operands of steep ops."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from graph import Graph, given, value

import precheck
from precheck.analysis.propagation.output_impact import dropped_values

LOW = torch.bfloat16


def rules(report: precheck.Report) -> list[str]:
    return [finding.rule for finding in report.errors]


def wrapped_phases(dtype: torch.dtype) -> torch.Tensor:
    """Phases that advance by many turns a frame. The step is wrapped into one turn, which is a difference that the advance outweighs again."""
    generator = torch.Generator().manual_seed(0)
    advance = torch.linspace(0, 200, 64)[:, None].to(dtype)
    angles = (6 * torch.rand(64, 40, generator=generator) - 3).to(dtype)
    step = angles[:, 1:] - angles[:, :-1] - advance
    step = step - 2 * math.pi * torch.round(step / (2 * math.pi)) + advance
    return torch.polar(torch.ones(64, 39), step.cumsum(1).float()).real


def test_an_error_that_a_larger_term_hides_does_not_explain_what_a_later_op_amplifies() -> None:
    with precheck.watch() as report:
        kept = wrapped_phases(LOW)
    assert kept.isfinite().all()
    assert "amplified-rounding" in rules(report), report.summary()
    assert "aten.polar" in report.errors[0].message
    with precheck.watch() as report:
        kept = wrapped_phases(torch.float32)
    assert not report.errors, report.summary()


def test_of_two_operands_the_one_that_a_steep_op_amplifies_is_named() -> None:
    """A length rounded as often as an angle is passed on as it is: the angle is to be mended."""
    generator = torch.Generator().manual_seed(0)
    with precheck.watch() as report:
        length = (1 + torch.rand(512, generator=generator)).to(LOW) * 1.5
        angle = (300 * torch.rand(512, generator=generator)).to(LOW)
        kept = torch.polar(length.float(), angle.float())
    assert kept.isfinite().all()
    (error,) = report.errors
    assert error.rule == "amplified-rounding"
    assert error.op.startswith("aten._to_copy"), error


def buckets(distance: torch.Tensor, *, far: bool) -> torch.Tensor:
    """T5's buckets: distances below 16 are their own buckets, longer ones go by their logarithm, which is taken of all."""
    logarithm = 16 + torch.log(distance.clamp(min=1).to(LOW) / 16) / math.log(8) * 16
    return torch.where(distance < 16, distance, logarithm.long().clamp(max=31)) if far else logarithm.long()


@pytest.mark.parametrize(("longest", "far", "accused"), [(16, True, False), (16, False, True), (120, True, True)])
def test_integers_that_a_where_discards_are_not_asked_about(longest: int, far: bool, accused: bool) -> None:
    table = torch.randn(64, generator=torch.Generator().manual_seed(0))
    with precheck.watch() as report:
        distance = (torch.arange(longest)[:, None] - torch.arange(longest)).clamp(min=0)
        kept = table[buckets(distance, far=far)]
    assert kept.isfinite().all()
    assert ("integer-rounding" in rules(report)) is accused, report.summary()


@pytest.mark.parametrize("shift", [0.0, 0.25])
def test_a_wide_product_that_cancels_names_the_line_that_stored_its_terms_low(shift: float) -> None:
    """The momentum of populations near 1/4: a product with ±1 of numbers that were stored in float16, or of their difference from 1/4."""
    ways = torch.tensor([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.0, -1.0]]).repeat(1, 4)
    small = 1e-4 * torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    with precheck.watch() as report:
        populations = (0.25 + small - shift).half()  # stored
        velocity = ways @ (populations.float() + shift)
        kept = velocity * 1.0
    assert kept.isfinite().all()
    assert bool(report.errors) is (shift == 0), report.summary()
    if report.errors:
        assert report.errors[0].rule in ("cancellation", "amplified-rounding")


@pytest.mark.parametrize("read", [False, True])
def test_mantissas_that_nothing_reads_are_no_result_beside_their_exponents(read: bool) -> None:
    """Weights less a step that was rounded low. Eight are nearly zero, and their mantissas show that they have no digit."""
    generator = torch.Generator().manual_seed(0)
    step = 0.05 * torch.rand(384, generator=generator)
    weight = torch.randn(384, generator=generator)
    weight[:8] = step[:8] + 1e-4
    with precheck.watch() as report:
        low = step.to(LOW)
        parts = torch.frexp(weight - low)
        kept = parts.mantissa * 1.0 if read else torch.ldexp(torch.ones(384), parts.exponent - 8)
        del parts
    assert kept.isfinite().all()
    assert (rules(report) == ["amplified-rounding"]) is read, report.summary()


def corrected(*, start: float) -> torch.Tensor:
    """A number that is corrected by a residual in float16, most of which becomes zero there."""
    residual = 3e-9 * torch.randn(24, generator=torch.Generator().manual_seed(0))
    mixed = torch.eye(24) + torch.randn(24, 24, generator=torch.Generator().manual_seed(1)) / 12
    return start + (mixed.half() @ (5 * residual).half()).float()


@pytest.mark.parametrize(("start", "accused"), [(1.0, False), (0.0, True)])
def test_lost_numbers_whose_sums_a_larger_number_hides_do_no_harm(start: float, accused: bool) -> None:
    with precheck.watch() as report:
        kept = corrected(start=start) * 1.0
    assert kept.isfinite().all()
    assert ("underflow" in rules(report)) is accused, report.summary()
HALVED = torch.linspace(-2, 2, 64).repeat(8, 1) + torch.arange(8)[:, None] / 7


def bisected(*, added: bool) -> torch.Tensor:
    """The threshold beyond which the squares of a row add up to one. In float16 the last steps are subnormal, and nothing beside the threshold."""
    scores = HALVED.half()
    low = scores.amax(-1, keepdim=True) - 1
    step = torch.full_like(low, 0.7)
    for _ in range(30):
        step /= 2
        middle = low + step
        low = torch.where((scores - middle).clamp(min=0).square().sum(-1, keepdim=True) >= 1, middle, low)
    return low if added else torch.stack([low, 1e6 * step])


def nudged(*, added: bool) -> torch.Tensor:
    """Steps of few bits, and a third of each, are added to numbers near one."""
    step = torch.linspace(0.5, 1, 64).half() * 2e-7
    third = step / 3
    return torch.stack([1 + step, 1 + third if added else 1e6 * third])


@pytest.mark.parametrize(("program", "rule"), [(bisected, "accumulated-drift"), (nudged, "underflow")])
def test_a_step_and_its_parts_are_nothing_beside_what_they_are_added_to(program: Callable[..., torch.Tensor], rule: str) -> None:
    for added in (True, False):
        with precheck.watch() as report:
            kept = program(added=added)
        assert kept.isfinite().all()
        assert rules(report) == ([] if added else [rule]), report.summary()


def weighted_spectrum(seed: int, *, near: float) -> torch.Tensor:
    """Focal frequency loss: each difference of spectra is weighted by its own size. That the weights are in range is checked by the smallest."""
    generator = torch.Generator().manual_seed(seed)
    image, kernel = torch.rand(2, 3, 16, 16, generator=generator), torch.randn(3, 3, 3, 3, generator=generator) / 5
    with torch.autocast("cpu", LOW):
        restored = torch.nn.functional.conv2d(image, kernel, padding=1)
    target = torch.nn.functional.conv2d(image, kernel, padding=1) * (1 + near) if near else torch.rand(2, 3, 16, 16, generator=generator)
    one, other = (torch.view_as_real(torch.fft.fft2(each.float(), norm="ortho")) for each in (restored, target))
    difference = (one - other).square().sum(-1).sqrt()
    weight = difference / difference.max()
    assert weight.min().item() >= 0
    return (weight * difference.square()).mean()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_smallest_of_many_numbers_is_no_more_wrong_than_it_was_among_them(seed: int) -> None:
    for near in (0.0, 1e-4):  # one target is unlike the image, the other nearly equal to it
        with precheck.watch() as report:
            kept = weighted_spectrum(seed, near=near)
        assert kept.isfinite()
        assert rules(report) == (["amplified-rounding"] if near else []), report.summary()
        assert not near or "rounding error grows at aten.sub" in report.errors[0].message


def gated(*, whole: bool) -> torch.Tensor:
    """A number is split into its size and its sign, which is lost where products of bfloat16 cancel. SE(3) transformers multiply both again.

    A later line loses digits of its own, so that the result is wrong in any case.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 2, generator=generator)
    weight[:2] = torch.tensor([1.0042, -1.0116])  # both round to 1.0078
    with torch.autocast("cpu", dtype=LOW):
        features = torch.nn.functional.linear(torch.ones(1, 2), weight).float()
    size = features.abs().clamp(min=1e-12)
    gate = features / size * (torch.nn.functional.gelu(size) if whole else size + 1)
    return (gate + 300).to(LOW) - 300


@pytest.mark.parametrize("whole", [True, False])
def test_a_wrong_sign_does_no_harm_where_it_is_multiplied_by_a_size_near_zero(whole: bool) -> None:
    with precheck.watch() as report:
        kept = gated(whole=whole)
    assert kept.isfinite().all()
    assert rules(report) == (["cancellation"] if whole else ["amplified-rounding"]), report.summary()


def rounds_of_hashes(dtype: torch.dtype) -> torch.Tensor:
    """The weights of two rounds of hashing, as in Reformer. A token that is alone in its bucket has a score of -50000."""
    angles = torch.linspace(0, 6, 128).view(2, 64).to(LOW)
    alone = torch.zeros(2, 64, dtype=torch.bool)
    alone[0, :40], alone[1, 36:60] = True, True  # four tokens are alone in both rounds
    logits = (4 * angles.sin()).masked_fill(alone, -5e4).to(dtype)
    return torch.exp(logits - torch.logsumexp(logits, 0, keepdim=True))


def test_what_rounds_an_exponent_is_not_looked_for_among_numbers_whose_exponential_is_zero() -> None:
    with precheck.watch() as report:
        kept = rounds_of_hashes(LOW)
    assert kept[:, 36:40].eq(1).all()  # each of two weights
    (error,) = report.errors
    assert error.rule == "amplified-rounding"
    assert error.op.startswith("aten.sub"), error
    assert "amplified" in error.message
    assert "aten.exp" in error.message
    with precheck.watch() as report:
        kept = rounds_of_hashes(torch.float32)
    assert kept.isfinite().all()
    assert not report.errors, report.summary()


def votes(*, signs: bool) -> torch.Tensor:
    """An embedding adds up its gradients, on a CPU in bfloat16: a sum of 4096 terms stands still. Their signs may be all that counts."""
    generator = torch.Generator().manual_seed(0)
    terms = (1 + torch.rand(4096, 8, generator=generator)).to(LOW)
    added = torch.ops.aten.embedding_dense_backward(terms, torch.zeros(4096, dtype=torch.long), 1, -1, False)
    return added.sign() if signs else added * 1


@pytest.mark.parametrize("signs", [True, False])
def test_a_sum_that_stands_still_does_no_harm_where_its_sign_is_all_that_counts(signs: bool) -> None:
    with precheck.watch() as report:
        kept = votes(signs=signs)
    assert kept.isfinite().all()
    assert rules(report) == ([] if signs else ["local-drift"]), report.summary()


def sent_in_turns(*, kept: bool) -> torch.Tensor:
    """A thousandth of each gradient is sent in bfloat16. `kept`: what the rounding left out is added to the next gradient."""
    total, rest = torch.zeros(32), torch.zeros(32)
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        told = 1e-3 * torch.randn(32, generator=generator) + rest
        sent = told.to(LOW)
        rest = told - sent.float() if kept else rest
        total = total - sent.float()
    return total


@pytest.mark.parametrize("kept", [True, False])
def test_what_rounding_cut_off_is_no_difference_that_lost_its_digits(kept: bool) -> None:
    with precheck.watch() as report:
        total = sent_in_turns(kept=kept)
    assert total.isfinite().all()
    assert not report.errors, report.summary()


def test_a_change_from_what_was_stored_before_has_lost_its_digits() -> None:
    """It looks alike, and subtracts another number's rounding."""
    with precheck.watch() as report:
        before = torch.linspace(3, 4, 256)
        stored = before.to(LOW)
        moved = before + 1e-4 * torch.linspace(1, 2, 256)
        change = moved - stored.float()
    assert change.isfinite().all()
    assert rules(report) in (["cancellation"], ["amplified-rounding"]), report.summary()


@pytest.mark.parametrize("kept", [True, False])
def test_results_beside_one_that_is_wanted_are_dropped(kept: bool) -> None:
    """A solver gives its factors, too. Where nothing reads them and nobody keeps them, their errors are nobody's."""
    graph = Graph()
    solved = graph.op("_linalg_solve_ex.default", given("float32"), makes={"dtype": "float32"})
    factors = value(graph.last, "float32", alive=kept)
    graph.last.outputs = (solved, factors)
    graph.op("mul.Tensor", solved, makes={"alive": True})
    assert dropped_values(graph.observation) == (set() if kept else {factors})


@pytest.mark.parametrize(("read", "said"), [
    (0.002, "its rounding (0.16%) is amplified"), (0.02, "its rounding leads to an error of 2%, which is amplified 45 times by"),
])  # fmt: skip
def test_a_rounding_is_not_given_the_error_that_it_leads_to(read: float, said: str) -> None:
    graph = Graph()
    stored = graph.op("_to_copy.default", given("float32", kept_low=False), makes={"drift": 0.0016, "alive": False})
    raised = graph.op("pow.Tensor_Scalar", stored, makes={"drift": read})
    graph.op("sin.default", raised, makes={"drift": 0.9, "dead": 0.7, "alive": True})
    messages = [finding.message for finding in graph.found() if finding.rule == "amplified-rounding"]
    assert any(said in message for message in messages), messages
