"""What a call of a user's function makes itself: accused where one rounding of its own is what the result is off by, and many times."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from graph import Graph, above, given
from torch import nn
from torch.nn import functional

import precheck
from precheck.analysis.rounding.function_errors import outside
from precheck.findings import Finding

LOW = torch.bfloat16


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def errors(code: Callable[[], object]) -> list[Finding]:
    with precheck.watch() as report:
        kept = code()
    del kept
    return report.errors


def line_of(function: Callable[..., object], text: str) -> int:
    """The line of the first statement of a function that has that text in it."""
    lines, start = inspect.getsourcelines(function)
    return start + next(number for number, line in enumerate(lines) if text in line)


def scores() -> torch.Tensor:
    """Scores in float32 of features that are stored low."""
    features = normal(64, 32).to(LOW)
    return functional.normalize(features.float(), dim=-1) @ functional.normalize(normal(32, 64, seed=1), dim=0) * 3


def assigned(scores: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    heat = (scores / 0.05).to(low)
    q = torch.exp(heat.float())
    return q / q.sum(-1, keepdim=True)


def divergence(log_ratio: torch.Tensor) -> torch.Tensor:
    grown = torch.exp(log_ratio) - 1
    return grown - log_ratio


def unlikely(logits: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    p = functional.softmax(logits.float(), -1).to(low)
    return -torch.log((1 - p).float()).mean()


def test_a_cast_that_is_exponentiated() -> None:
    first = errors(lambda: assigned(scores(), LOW))[0]
    assert (first.rule, first.op) == ("amplified-rounding", "aten._to_copy.default")
    assert first.source.endswith(f"test_own_errors.py:{line_of(assigned, 'heat =')}")
    assert "assigned() is " in first.message
    assert "on the same inputs as the reference, " in first.message
    assert "on the same inputs as the reference, " in first.message


def test_the_same_in_float32() -> None:
    assert errors(lambda: assigned(scores(), torch.float32)) == []


def test_a_rounding_that_several_ops_amplify_together() -> None:
    first = errors(lambda: divergence((0.05 * normal(256, 4)).to(LOW)))[0]
    assert first.rule == "cancellation"
    assert "a difference of nearly equal numbers" in first.message
    assert first.source.rpartition(":")[2] in {str(line_of(divergence, text)) for text in ("grown =", "return grown")}


def test_the_same_divergence_by_its_own_function() -> None:
    assert errors(lambda: (lambda x: torch.expm1(x.float()) - x.float())((0.3 * normal(256, 4)).to(LOW))) == []


def test_a_mean_heals_nothing() -> None:
    """Each logarithm is off by a fourth, and their mean by less: what is added up is a statistic, and is wrong."""
    found = errors(lambda: unlikely(normal(480, 256).to(LOW), LOW))
    assert [error.rule for error in found] == ["amplified-rounding"]


def test_the_same_mean_of_wide_probabilities() -> None:
    assert errors(lambda: unlikely(normal(480, 256).to(LOW), torch.float32)) == []


class Attention(nn.Module):
    """Sharp scores, which a product makes low, as the precision has it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return attended(x, x, x)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.softmax(3 * q @ k.transpose(-1, -2) / 8, dim=-1) @ v


@pytest.mark.parametrize("size", [1.0, 2.0])
def test_sharp_attention_is_as_the_precision_has_it(size: float) -> None:
    assert errors(lambda: Attention()((size * normal(2, 32, 64)).to(LOW))) == []


def test_an_error_that_came_in_is_not_the_functions() -> None:
    """The exponent is off before the call: rounding it once more inside changes little."""

    def code() -> torch.Tensor:
        return assigned(scores().to(LOW).float(), LOW)

    assert all(error.source.rpartition(":")[2] != str(line_of(assigned, "q =")) for error in errors(code))


def test_numbers_that_become_zero_beside_an_eps_are_as_they_should_be() -> None:
    def normalised(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-4)

    assert errors(lambda: normalised((1e-4 * normal(16, 32)).half())) == []


def test_a_sum_that_cancels_is_not_judged_by_what_is_left() -> None:
    """The mean of advantages that were made to have none: relative to it every error is large."""

    def surrogate(advantages: torch.Tensor) -> torch.Tensor:
        centred = advantages - advantages.mean()
        return -(centred * 1.5).mean()

    assert errors(lambda: surrogate(normal(4096).to(LOW))) == []


def features(places: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    angles = (places * 4).to(low) * 3.14
    return torch.cat([torch.sin(angles), torch.cos(angles)], -1).float()


def test_what_is_joined_and_cast_before_it_is_given_out() -> None:
    """Several roundings on one line are one line to mend."""
    first = errors(lambda: features(10 + normal(64, 8), LOW))[0]
    assert first.source.endswith(f"test_own_errors.py:{line_of(features, 'angles =')}")
    assert errors(lambda: features(10 + normal(64, 8), torch.float32)) == []


def spread(x: torch.Tensor) -> torch.Tensor:
    """The variance by moments. Its difference is in float32, as autocast's squares are, and the mean alone is rounded."""
    mean = x.mean(-1, keepdim=True)
    variance = x.float().square().mean(-1, keepdim=True) - mean.float().square()
    return (x.float() - mean) * torch.rsqrt(variance.clamp(min=0) + 1e-5)


def centred_spread(x: torch.Tensor) -> torch.Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x.float() - mean).square().mean(-1, keepdim=True)
    return (x.float() - mean) * torch.rsqrt(variance + 1e-5)


def test_a_variance_by_moments_is_mended_where_the_square_of_the_mean_is_taken_off() -> None:
    """By m it changes as -2m, while the mean square of x - m does not change at all: there the same rounded mean does no harm."""
    offset = (8 + normal(16, 512)).to(LOW)
    first = errors(lambda: spread(offset))[0]
    assert first.source.endswith(f"test_own_errors.py:{line_of(spread, 'variance =')}")
    assert first.rule == "cancellation"
    assert errors(lambda: centred_spread(offset)) == []


def leftover(chances: torch.Tensor, drafted: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    more = (chances.to(low) - drafted.to(low)).clamp_min(0)
    return (more / more.sum(-1, keepdim=True)).float()


def alike() -> tuple[torch.Tensor, torch.Tensor]:
    """Two distributions that are 6 % apart, of logits that are products made low."""
    logits = (normal(96, 32).to(LOW) @ normal(32, 64, seed=1).to(LOW)).float()
    return logits.softmax(-1), (logits + 0.06 * normal(96, 64, seed=2)).softmax(-1)


def test_a_difference_of_what_a_function_is_given_and_casts() -> None:
    """The casts are the function's: a second shadow that began after them would see a difference without an error."""
    first = errors(lambda: leftover(*alike(), LOW))[0]
    assert first.rule == "cancellation"
    assert "leftover() is " in first.message
    assert first.source.endswith(f"test_own_errors.py:{line_of(leftover, 'more =')}")


def test_the_same_difference_in_float32() -> None:
    assert errors(lambda: leftover(*alike(), torch.float32)) == []


def weighed(given: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.softmax((given.to(LOW) @ weight.to(LOW)).float() * 4, -1)


def test_a_cast_for_a_product_is_asked_by_the_precision() -> None:
    given = (normal(64, 32).to(LOW) @ normal(32, 32, seed=3).to(LOW)).float()
    assert errors(lambda: weighed(given / 16, normal(32, 64, seed=1))) == []


def symlog(x: torch.Tensor) -> torch.Tensor:
    return torch.log1p(x)


def between(values: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    bins = torch.linspace(-20, 20, 121).to(low)
    x = symlog(values.to(low))
    below = (torch.searchsorted(bins, x) - 1).clamp(0, 119)
    return ((x - bins[below]) / (bins[below + 1] - bins[below])).float()


class Binned(nn.Module):
    def __init__(self, low: torch.dtype) -> None:
        super().__init__()
        self.low, self.linear = low, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return self.linear(x).float().mean() * between(values, self.low).mean()


def test_a_helper_that_is_called_with_low_numbers_is_not_to_be_mended() -> None:
    """It computes in the format that it is given. The caller has cast, and takes the difference."""
    values = 30 + 40 * torch.rand(160, generator=torch.Generator().manual_seed(0))
    given = {"x": normal(4, 4), "values": values}
    first = precheck.measure(Binned(LOW), given, precision="bf16-mixed").errors[0]
    assert first.source.rpartition(":")[2] in {str(line_of(between, text)) for text in ("bins =", "x =", "return")}
    assert precheck.measure(Binned(torch.float32), given, precision="bf16-mixed").errors == []


class Aside(nn.Module):
    """Gives a result that no loss reads."""

    def __init__(self, low: torch.dtype) -> None:
        super().__init__()
        self.low, self.linear = low, nn.Linear(32, 64)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.linear(x).float()
        drafted = logits + 0.06 * normal(96, 64, seed=2)
        return {"logits": logits, "rest": leftover(logits.softmax(-1), drafted.softmax(-1), self.low)}


@pytest.mark.parametrize(("low", "found"), [(LOW, ["cancellation"]), (torch.float32, [])])
def test_a_result_that_no_loss_reads_is_what_the_user_has(low: torch.dtype, found: list[str]) -> None:
    report = precheck.measure(Aside(low), 3 * normal(96, 32), loss=lambda out: out["logits"].square().mean(), precision="bf16-mixed")
    assert [each.cause_rule or each.rule for each in report.errors] == found


def gap(given: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    return (given.to(LOW) - made.to(LOW)).abs().mean()


def stepped(*, logged: bool) -> None:
    """A training step that computes how far two tensors are apart, which some programs log and others forget."""
    layer, given, made = nn.Linear(16, 16), 30 + 0.1 * normal(16), 30 + 0.1 * normal(16, seed=1)

    def forward() -> torch.Tensor:
        apart = gap(given, made)
        if logged:
            apart.item()
        with torch.autocast("cpu", LOW):
            return layer(normal(4, 16)).float().square().sum()

    forward().backward()


def test_what_a_forward_pass_makes_and_nobody_reads_does_no_harm() -> None:
    """Not even if it is summed up: the sum is dropped as well."""
    assert errors(lambda: stepped(logged=False)) == []
    (found,) = errors(lambda: stepped(logged=True))
    assert found.source.endswith(f":{line_of(gap, 'return')}")


@pytest.mark.parametrize(("own", "blamed"), [(1e-3, "outer"), (4 * 2.0**-8, "outer"), (above(4 * 2.0**-8), "inner"), (0.1, "inner"), (0.0, "inner")])
def test_nothing_in_a_function_is_to_blame_that_is_right_on_its_inputs(own: float, blamed: str) -> None:
    """0: not measured."""
    graph = Graph()
    outer = graph.op("_to_copy.default", given("float32"), makes={"drift": 2e-3})
    inner = graph.op("_to_copy.default", graph.op("mul.Tensor", outer, makes={"dtype": "float32", "drift": 2e-3}), makes={"drift": 2.6e-3})
    made = graph.op("log.default", inner, makes={"drift": 0.1, "call_error": own})
    for value in (inner, made):
        value.maker.call = 1
    found = outside(inner.maker, made.maker, made, graph.observation)
    assert found is {"outer": outer, "inner": inner}[blamed].maker


class Model(nn.Module):
    """A model whose forward pass is that function."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: object) -> torch.Tensor:
        return self.function(*inputs)


def turned(places: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """A function that computes wide what it rounds, of places that have no error."""
    angles = (places * 0.37).to(low)
    return angles.float().sin()


def decayed(low: torch.dtype, steps: int = 64) -> torch.Tensor:
    kept = torch.tensor(0.9973).to(low)
    return kept.float() ** torch.arange(steps)


def departed(data: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return data.to(low).float() - data.mean()


def test_a_cast_of_what_a_function_has_computed_of_exact_data_is_its_own() -> None:
    first = errors(lambda: Model(turned)(torch.arange(60.0), LOW))[0]
    assert first.rule == "amplified-rounding"
    assert first.source.endswith(f"test_own_errors.py:{line_of(turned, 'angles =')}")
    assert "turned() is " in first.message
    assert errors(lambda: Model(turned)(torch.arange(60.0), torch.float32)) == []


def test_what_a_program_computes_outside_of_its_model_may_be_data() -> None:
    assert errors(lambda: turned(torch.arange(60.0), LOW)) == []


def test_a_number_that_a_function_has_written_down_is_its_own() -> None:
    first = errors(lambda: decayed(LOW))[0]
    assert first.source.endswith(f"test_own_errors.py:{line_of(decayed, 'kept =')}")
    assert errors(lambda: decayed(torch.float32)) == []


@pytest.mark.parametrize("data", [normal(512) / 50 + 1, torch.full((512,), 1.003)])
def test_data_that_a_function_is_given_or_fills_in_are_not(data: torch.Tensor) -> None:
    """Data and random numbers are known to a rounding anyway, and a conversion of them is what low precision is."""
    assert errors(lambda: Model(departed)(data, LOW)) == []
    assert errors(lambda: Model(lambda x: departed(torch.stack([x, x]).relu(), LOW))(data)) == []


def test_random_numbers_that_are_drawn_in_the_block_are_not() -> None:
    torch.manual_seed(0)
    assert errors(lambda: Model(lambda: departed(torch.randn(512), LOW))()) == []


def soft_minimum(costs: torch.Tensor) -> torch.Tensor:
    return -3 * torch.log(torch.exp(-costs / 3).sum(0))


def soft_cost(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The soft cost of the best alignment of two series of nine steps."""
    table = (first[:, None] - second).square()
    far = torch.full_like(table[0, 0], 1e4)
    reached = [[far] * 10 for _ in range(10)]
    reached[0][0] = torch.zeros_like(far)
    for i in range(9):
        for j in range(9):
            reached[i + 1][j + 1] = table[i, j] + soft_minimum(torch.stack([reached[i][j], reached[i][j + 1], reached[i + 1][j]]))
    return reached[9][9]


@pytest.mark.parametrize("seed", [0, 15])
def test_a_sum_whose_error_its_logarithm_takes_back(seed: int) -> None:
    """The sums are 6 to 17 unit roundoffs off, and the logarithms of them up to 1.6: their ops are low and round too."""
    assert errors(lambda: soft_cost((0.7 * normal(9, 5, seed=seed)).to(torch.float16), (0.7 * normal(9, 5, seed=seed + 100)).to(torch.float16))) == []
