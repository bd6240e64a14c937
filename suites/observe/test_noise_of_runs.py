"""The disturbance of a noise run: as large as one rounding, where the run rounds, and nowhere else."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

from precheck.formats import BF16, FP16, TF32, Format
from precheck.observe import noise as noise_module
from precheck.observe.noise import ONE_ROUNDING, Noise

U = BF16.unit_roundoff
SIZE = 40_000


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def noise(seed: int = 1, **options: object) -> Noise:
    return Noise(seed, U, {"a": 1, "b": 9}, **options)  # type: ignore[arg-type]


def relative(disturbed: torch.Tensor, exact: torch.Tensor) -> float:
    """Of the Euclidean norm, in unit roundoffs."""
    return float((disturbed - exact).double().norm() / exact.double().norm()) / U


def output(made: Noise, key: str, value: torch.Tensor) -> torch.Tensor:
    copy = value.clone()
    made.output(key, copy)
    return copy


def test_it_is_as_large_as_one_rounding() -> None:
    """Of n independent draws the root mean square has a relative deviation of sqrt(kurtosis' - 1)/(2 sqrt n): below 0.9/200 here."""
    assert relative(output(noise(), "a", normal(SIZE)), normal(SIZE)) == pytest.approx(ONE_ROUNDING, rel=4 * 0.9 / math.sqrt(SIZE))


def test_and_so_is_one_rounding() -> None:
    """0.378 for uniform numbers, 0.392 for a logarithmic spread, 0.430 for normal ones: one constant within 12 % of each."""
    logarithmic = torch.exp2(torch.rand(SIZE, generator=torch.Generator().manual_seed(0)) * 8)
    for values in (normal(SIZE), torch.rand(SIZE, generator=torch.Generator().manual_seed(0)), logarithmic):
        assert relative(values.bfloat16().float(), values) == pytest.approx(ONE_ROUNDING, rel=0.12)
    # 1/sqrt(3) of half a spacing, which is u to u/2 of the number: sqrt((1/3) / (3 / (2 ln 2))) where its logarithm is uniform
    assert relative(logarithmic.bfloat16().float(), logarithmic) == pytest.approx(math.sqrt((1 / 3) / (3 / (2 * math.log(2)))), rel=0.02)


def test_it_is_uniform_and_bounded() -> None:
    ratio = ((output(noise(), "a", normal(SIZE)) / normal(SIZE)).double() - 1) / U
    bound = ONE_ROUNDING * math.sqrt(3)
    assert float(ratio.abs().max()) <= bound * 1.0001
    counts = numpy.histogram(ratio.numpy(), bins=10, range=(-bound, bound))[0]
    assert abs(counts - SIZE / 10).max() < 5 * math.sqrt(SIZE / 10)  # five standard deviations of a count


def test_a_closer_run_adds_no_more_than_the_run_shows() -> None:
    """Of nine roundings inside its module two are left at the output, since the others have been forgotten."""
    made = noise(chained=True, shown={"b": 2.0, "a": 5.0})
    assert relative(output(made, "b", normal(SIZE)), normal(SIZE)) == pytest.approx(math.sqrt(2) * ONE_ROUNDING, rel=0.05)
    assert relative(output(made, "a", normal(SIZE)), normal(SIZE)) == pytest.approx(ONE_ROUNDING, rel=0.05)


@pytest.mark.parametrize(("chained", "expected"), [(False, 1.0), (True, 3.0)])
def test_chained_roundings_add_up_in_quadrature(chained: bool, expected: float) -> None:
    """Nine of them. Chained noise is rounding on a shifted grid, so of the size of one rounding only to within the 12 % above."""
    sizes = [relative(output(noise(seed, chained=chained), "b", normal(SIZE)), normal(SIZE)) for seed in range(8)]
    assert sum(sizes) / len(sizes) == pytest.approx(expected * ONE_ROUNDING, rel=0.12)


def test_chained_noise_gives_equal_values_equal_errors() -> None:
    rows = normal(1, 50).expand(200, 50).contiguous()
    disturbed = output(noise(chained=True), "a", rows)
    assert torch.equal(disturbed, disturbed[:1].expand(200, 50))
    assert not torch.equal(disturbed, rows)


def test_only_what_the_run_stored_low_is_disturbed() -> None:
    value = normal(100)
    assert torch.equal(output(noise(), "elsewhere", value), value)
    assert noise().gradient("elsewhere", value) is value
    assert not torch.equal(noise().gradient("a", value), value)
    assert torch.equal(noise().input(value), value)
    assert not torch.equal(noise(inputs=True).input(value), value)
    assert torch.equal(noise(parameters=frozenset({"w"})).parameter("v", value), value)
    assert not torch.equal(noise(parameters=frozenset({"w"})).parameter("w", value), value)
    assert not torch.equal(noise().parameter("any", value), value)


def test_a_gradient_is_a_new_tensor_and_an_output_the_same() -> None:
    value = normal(100)
    kept = value.clone()
    assert noise().gradient("a", value) is not value
    assert torch.equal(value, kept)
    noise().output("a", value)
    assert not torch.equal(value, kept)


@pytest.mark.parametrize("value", [torch.arange(50.0), torch.zeros(9), torch.ones(3, 3), normal(1, 5).expand(4, 5)])
def test_whole_numbers_and_expanded_tensors_are_exact(value: torch.Tensor) -> None:
    made, copy = noise(), value.clone() if value.stride(0) else value
    before = value.clone()
    made.output("a", copy)
    assert torch.equal(copy, before)


def test_a_whole_prefix_does_not_make_a_tensor_whole() -> None:
    value = torch.cat([torch.arange(100.0), torch.tensor([0.5])])
    assert not torch.equal(output(noise(), "a", value), value)


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("value", [math.inf, -math.inf, -3e38, 1e36])
def test_masks_stay_masks(value: float, chained: bool) -> None:
    disturbed = float(output(noise(chained=chained), "a", torch.tensor([value, 0.5]))[0])
    assert disturbed == pytest.approx(value, rel=2 * U, abs=0)


def test_complex_tensors_are_disturbed_too() -> None:
    value = torch.complex(normal(SIZE), normal(SIZE, seed=1))
    for chained in (False, True):
        error = float((output(noise(chained=chained), "a", value) - value).abs().norm() / value.abs().norm()) / U
        assert error == pytest.approx(ONE_ROUNDING, rel=0.03)


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_near_zero_it_moves_in_float16s_last_steps(scale: float) -> None:
    tiny = normal(1000) * 2.0**-20 / scale
    disturbed = noise(chained=True, bottom=FP16, scale=scale).gradient("a", tiny)
    steps = disturbed.double() * scale / 2.0**-24
    assert torch.equal(steps, steps.round())


def test_formats_of_float32s_range_lose_what_is_subnormal() -> None:
    tiny = torch.tensor([1e-39, 1e-37])
    disturbed = noise(chained=True, bottom=BF16).gradient("a", tiny)
    assert disturbed[0] == 0
    assert float(disturbed[1]) == pytest.approx(1e-37, rel=2 * U, abs=0)


def test_the_models_random_numbers_stay_its_own_and_runs_differ() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = (output(noise(seed), "a", normal(100)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_autograd_takes_no_notice() -> None:
    """What a backward needs may be disturbed in place, as rounding would have, without an error about versions."""
    leaf = normal(100).requires_grad_()
    out = leaf.exp()  # saves its result
    noise().output("a", out)
    out.sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, out.detach())


def test_operands_of_products_are_disturbed_for_formats_that_round_there() -> None:
    a, b = normal(64, 64), normal(64, 64, seed=1)
    with noise(gemm=TF32).products():
        result = a @ b
    # both operands by one rounding each, and products of independent errors do not add up
    assert relative(result, a @ b) * U / TF32.unit_roundoff == pytest.approx(ONE_ROUNDING * math.sqrt(2), rel=0.1)
    with noise().products():
        assert torch.equal(a @ b, torch.mm(a, b))


def test_whole_inputs_are_exact_and_others_disturbed() -> None:
    """A mask of zeros and ones is multiplied by -10000 next: one rounding of a one would be off by what no rounding does."""
    mask, made = torch.tensor([0.0, 1.0, 1.0]), noise(inputs=True)
    assert torch.equal(made.input(mask), mask)
    assert not torch.equal(made.input(mask * 0.3), mask * 0.3)


@pytest.mark.parametrize("bottom", [None, BF16, FP16])
@pytest.mark.parametrize("scale", [1.0, 2.0**16])
def test_few_numbers_are_rounded_to_the_same_bits_as_many(bottom: Format | None, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numpy rounds few numbers of a CPU, and torch all others."""

    def rounded(*, few: bool) -> torch.Tensor:
        with monkeypatch.context() as patched:
            if not few:
                patched.setattr(noise_module, "_few", lambda value: False)
            made, whole = noise(chained=True, everywhere=True, bottom=bottom, scale=scale), normal(4096)
            values = whole * torch.exp2(16 * normal(4096, seed=1))
            values[:8] = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 3.3e38, 1e-40, -1e-45])
            parts = [values[:2000], values[2000:].reshape(16, 131).t()]
            for part in parts:
                made.output("a", part)
                made.output("b", part)
            return values.view(torch.int32)

    assert torch.equal(rounded(few=True), rounded(few=False))


def test_a_gradient_that_is_differentiated_again_keeps_its_graph() -> None:
    """A penalty on a gradient, under the noise of a closer look: the derivative of a rounded number is one."""
    x = normal(64).requires_grad_()
    (gradient,) = torch.autograd.grad(x.square().sum(), x, create_graph=True)
    noise(chained=True).gradient("a", gradient).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((64,), 2.0))
    assert relative(output(noise(chained=True), "a", normal(64)), normal(64)) < 1
