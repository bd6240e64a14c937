"""A reference run takes the decisions and draws of the run that it is compared with, and counts what it would have done itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import precheck
from precheck.observe.decisions.log import DecisionLog, Recording
from precheck.observe.decisions.modes import UNDECIDED, undecided
from precheck.observe.decisions.replay import DecisionReplay
from precheck.observe.recording.module_hooks import Position

Model = Callable[[torch.Tensor], torch.Tensor]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# A pair of inputs on which the decisions differ: `low` and `high` are a rounding apart, and lie on either side of a tie.
LOW = torch.tensor([[1.00, 1.01, 0.5, -0.01], [0.3, 2.0, -0.02, 1.99]])
HIGH = torch.tensor([[1.01, 1.00, 0.5, 0.01], [0.3, 1.99, 0.02, 2.0]])


def recorded(model: Model, x: torch.Tensor) -> tuple[torch.Tensor, DecisionLog]:
    log = DecisionLog()
    with Recording(log, Position()):
        return model(x), log


def followed(model: Model, x: torch.Tensor, log: DecisionLog, *, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, DecisionReplay]:
    mode = DecisionReplay(log, Position(), dtype)
    with mode:
        return model(x), mode


def largest(x: torch.Tensor) -> torch.Tensor:
    values, where = x.topk(2, -1)
    return torch.cat([values, where.float()], -1)


DECISIONS: dict[str, tuple[Model, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    # the model, and what it must give on HIGH with the decisions of LOW
    "top-k": (largest, lambda low, high: torch.cat([high.gather(-1, low.topk(2, -1)[1]), low.topk(2, -1)[1].float()], -1)),
    "max with indices": (lambda x: x.max(-1)[0], lambda low, high: high.gather(-1, low.argmax(-1, keepdim=True))[:, 0]),
    "min, dimension kept": (lambda x: (-x).min(-1, keepdim=True)[0], lambda low, high: -high.gather(-1, (-low).min(-1, keepdim=True)[1])),
    "argmax": (lambda x: x.argmax(-1), lambda low, high: low.argmax(-1)),
    "places of a sort": (lambda x: x.sort(-1)[1], lambda low, high: low.argsort(-1)),
    "places of a descending sort": (lambda x: x.sort(-1, True)[1], lambda low, high: low.argsort(-1, descending=True)),
    "argsort": (lambda x: x.argsort(-1), lambda low, high: low.argsort(-1)),
    "comparison": (lambda x: (x > 0).float() * x, lambda low, high: (low > 0).float() * high),
    "where": (lambda x: torch.where(x > 0, x, 2 * x), lambda low, high: torch.where(low > 0, high, 2 * high)),
    "round": (lambda x: (100 * x / 2).round(), lambda low, high: (100 * low / 2).round()),
    "floor": (lambda x: x.floor(), lambda low, high: low.floor()),
    "sign": (torch.sign, lambda low, high: low.sign()),
    "cast to integers": (lambda x: (x * 100).long(), lambda low, high: (low * 100).long()),
    "bucketize": (lambda x: torch.bucketize(x, torch.tensor([0.0, 1.005])), lambda low, high: torch.bucketize(low, torch.tensor([0.0, 1.005]))),
    "max-pool": (lambda x: F.max_pool1d(x[:, None], 2)[:, 0],
                 lambda low, high: high.gather(-1, F.max_pool1d(low[:, None], 2, return_indices=True)[1][:, 0])),
    "median": (lambda x: x[:, :3].median(-1)[0], lambda low, high: high.gather(-1, low[:, :3].median(-1, True)[1])[:, 0]),
    "k-th value": (lambda x: x.kthvalue(4, -1)[0], lambda low, high: high.gather(-1, low.kthvalue(4, -1, True)[1])[:, 0]),
    "max over all": (lambda x: x.flatten().max(0)[0], lambda low, high: high.flatten()[low.flatten().argmax()]),
}  # fmt: skip


@pytest.mark.parametrize("descending", [False, True])
def test_sorted_numbers_stay_in_order(descending: bool) -> None:
    """By the places of another run they would not be, and a distance between neighbours would be negative."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return x.sort(-1, descending)[0]

    _, log = recorded(model, LOW)
    result, _ = followed(model, HIGH, log)
    assert torch.equal(result, model(HIGH))
    assert not torch.equal(result, HIGH.gather(-1, LOW.sort(-1, descending)[1]))


@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_are_taken_over_and_values_are_the_runs_own(name: str) -> None:
    model, expected = DECISIONS[name]
    _, log = recorded(model, LOW)
    result, mode = followed(model, HIGH, log)
    assert torch.equal(result, expected(LOW, HIGH))
    assert not torch.equal(model(HIGH), result)  # left to itself it decides otherwise
    assert sum(flipped for flipped, _ in mode.flips.values()) > 0


@pytest.mark.parametrize("name", DECISIONS)
def test_a_run_that_decides_alike_is_left_bit_for_bit_alone(name: str) -> None:
    model, _ = DECISIONS[name]
    _, log = recorded(model, HIGH)
    result, mode = followed(model, HIGH, log)
    assert torch.equal(result, model(HIGH))
    assert sum(flipped for flipped, _ in mode.flips.values()) == 0


@pytest.mark.parametrize("name", DECISIONS)
def test_recording_changes_nothing(name: str) -> None:
    assert torch.equal(recorded(DECISIONS[name][0], LOW)[0], DECISIONS[name][0](LOW))


STEPS: dict[str, Model] = {
    "rounding in place": lambda x: (50 * x).round_(),
    "floor in place": lambda x: x.clone().floor_(),
    "comparison in place": lambda x: x.clone().gt_(0),
    "floor division": lambda x: x // 1.005,
    "truncated division": lambda x: torch.div(x, 1.005, rounding_mode="trunc"),
}


@pytest.mark.parametrize("name", STEPS)
def test_every_spelling_of_a_step_function_is_followed(name: str) -> None:
    low, log = recorded(STEPS[name], LOW)
    assert not torch.equal(STEPS[name](HIGH), low)
    assert torch.equal(followed(STEPS[name], HIGH, log)[0], low)


GATED = {
    "relu": F.relu,
    "threshold": lambda x: F.threshold(x, 0.0, -1.0),
    "hardtanh": lambda x: F.hardtanh(x, -1.005, 1.005),
    "softshrink": lambda x: F.softshrink(x, 1.005),
    "hardshrink": lambda x: F.hardshrink(x, 1.005),
}


@pytest.mark.parametrize("name", GATED)
def test_gradients_pass_where_they_passed_in_the_run(name: str) -> None:
    model = GATED[name]

    def gradient(x: torch.Tensor) -> torch.Tensor:
        leaf = x.clone().requires_grad_()
        model(leaf).backward(torch.full_like(leaf, 3.0))
        assert leaf.grad is not None
        return leaf.grad

    own, log = recorded(gradient, LOW)
    result, _ = followed(gradient, HIGH, log)
    assert torch.equal(result, own)
    assert not torch.equal(gradient(HIGH), own)


DRAWS: dict[str, Model] = {
    "randn": lambda x: x + torch.randn(x.shape, dtype=x.dtype),
    "rand_like": lambda x: x * torch.rand_like(x),
    "normal_": lambda x: x + torch.empty_like(x).normal_(),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    "dropout": lambda x: F.dropout(x, 0.5),
    "native dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "multinomial": lambda x: torch.multinomial(x.float().softmax(-1), 2).float(),
    "randint": lambda x: x + torch.randint(0, 9, x.shape),
    "randperm": lambda x: x[:, torch.randperm(x.shape[1])],
    "exponential_": lambda x: x + torch.empty_like(x).exponential_(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_the_low_run_although_its_format_draws_others(name: str) -> None:
    model, x = DRAWS[name], normal(16, 16)
    torch.manual_seed(0)
    low, log = recorded(model, x.bfloat16())
    torch.manual_seed(1)
    result, mode = followed(model, x.bfloat16().float(), log)
    # one rounding of the low run's result, and one of each of its draws: 2 u of the greatest that it went through
    torch.testing.assert_close(result, low.float(), rtol=2 * 2**-8, atol=2 * 2**-8 * float(low.abs().max()))
    assert mode.flips == {}  # a draw is nobody's mistake


def test_draws_alone_can_be_followed() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return (x + torch.rand(x.shape)).argmax(-1).float() * 100 + torch.rand(2)

    torch.manual_seed(0)
    _, log = recorded(model, LOW)
    torch.manual_seed(0)
    alone = model(HIGH)
    torch.manual_seed(5)
    assert torch.equal(followed(model, HIGH, log.draws())[0], alone)
    assert {key[1] for key in log.draws().entries} == {"aten.rand"}


def test_what_the_code_says_lower_is_done_in_the_references_dtype() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        small = x.to(torch.bfloat16) + torch.ones(4, dtype=torch.bfloat16).mul_(0.1)
        return torch.zeros(2, 4, dtype=torch.float16).copy_(small).half() @ torch.eye(4, dtype=torch.float16)

    for dtype in (torch.float32, torch.float64):
        result, _ = followed(model, LOW.to(dtype), DecisionLog(), dtype=dtype)
        assert result.dtype is dtype
        assert torch.equal(result, LOW.to(dtype) + torch.full((4,), 0.1, dtype=dtype))


def test_another_shape_or_another_path_is_not_followed() -> None:
    _, log = recorded(lambda x: x.argmax(-1), LOW)
    assert followed(lambda x: x.argmax(-1), HIGH[:1], log)[0].tolist() == HIGH[:1].argmax(-1).tolist()
    assert followed(lambda x: x.argmin(-1), HIGH, log)[0].tolist() == HIGH.argmin(-1).tolist()


def test_the_same_op_twice_is_told_apart_by_order() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.argmax(-1), (-x).argmax(-1)])

    low, log = recorded(model, LOW)
    assert torch.equal(followed(model, HIGH, log)[0], low)


@settings(max_examples=50, deadline=None, database=None)
@given(st.integers(0, 10_000), st.sampled_from([torch.bfloat16, torch.float16]))
def test_a_chain_of_decisions_is_followed_whole(seed: int, dtype: torch.dtype) -> None:
    """Routing as in a mixture of experts: with the low run's choices the float32 result stays within rounding of it."""
    x, gate, experts = normal(64, 8, seed=seed), normal(8, 4, seed=seed + 1), normal(4, 8, 8, seed=seed + 2)

    def model(x: torch.Tensor) -> torch.Tensor:
        weight, chosen = (x @ gate.to(x.dtype)).softmax(-1).topk(2, -1)
        out = torch.einsum("bi,bkij->bkj", x, experts.to(x.dtype)[chosen]).relu()
        return (out * weight[..., None]).sum(1)

    low, log = recorded(model, x.to(dtype))
    result, _ = followed(model, x.to(dtype).float(), log)
    u = torch.finfo(dtype).eps / 2
    # some seven roundings follow each other; without following, a flipped route of 64 is off by 1/8 of the norm
    assert float((result - low.float()).norm() / result.norm()) < 7 * 2 * u


def test_a_gradient_that_a_mask_stops_is_zero_even_where_it_is_infinite() -> None:
    """relu's own kernel gives 0 where it is closed; a product with the mask would give NaN for the infinite slope of sqrt at 0."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    for precision in ("32-true", "bf16-mixed"):
        report = precheck.measure(model, torch.randn(16, 8), precision=precision, loss=lambda out: out.float().sqrt().sum())
        assert report.findings == [], report.summary()


OPTIONS = {
    torch.optim.SGD: [{"lr": 0.1, "momentum": 0.9, "nesterov": True}, {"lr": 0.1, "weight_decay": 0.1, "maximize": True}],
    torch.optim.Adam: [{"amsgrad": True}, {"foreach": True}, {"weight_decay": 0.1}],
    torch.optim.AdamW: [{"amsgrad": True}, {"foreach": True}],
    torch.optim.RMSprop: [{"centered": True, "momentum": 0.9}],
}


@pytest.mark.parametrize("kind", sorted(UNDECIDED, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float32])
def test_optimizers_that_are_left_out_decide_and_draw_nothing(kind: type[torch.optim.Optimizer], low: torch.dtype) -> None:
    for options in [{}, {"foreach": True}, *OPTIONS.get(kind, [])]:
        weights = [torch.nn.Parameter(normal(4, 4, seed=seed).to(low)) for seed in range(2)]
        optimizer, log = kind(weights, **options), DecisionLog()
        for seed in range(3):
            for weight in weights:
                weight.grad = normal(4, 4, seed=seed).to(low)
            with Recording(log, Position()):
                optimizer.step()
        assert not log.entries, (options, log.entries.keys())


def test_who_leads_a_run_lets_such_a_step_pass_and_leads_again() -> None:
    """With another mode before it, as the shadow is, it stays where it is and does nothing."""
    weight = torch.nn.Parameter(normal(4))
    for around in (contextlib.nullcontext(), Recording(DecisionLog(), Position())):
        with DecisionReplay(DecisionLog(), Position(), torch.float32) as following, around:
            with undecided(torch.optim.SGD([weight]), following, None):
                passed = normal(3).to(torch.bfloat16)
            with undecided(torch.optim.Rprop([weight]), following):
                led = normal(3).to(torch.bfloat16)
            after = normal(3).to(torch.bfloat16)
        assert (passed.dtype, led.dtype, after.dtype) == (torch.bfloat16, torch.float32, torch.float32)


def test_a_step_of_rprop_decides_and_is_recorded_and_the_mode_comes_back() -> None:
    weight = torch.nn.Parameter(normal(4, 4))
    weight.grad = normal(4, 4, seed=1)
    for kind, decides in ((torch.optim.Rprop, True), (torch.optim.SGD, False)):
        log = DecisionLog()
        with Recording(log, Position()) as recording:
            with undecided(kind([weight]), recording):
                kind([weight]).step()
            assert bool(log.entries) is decides
            assert (normal(3) > 0).shape == (3,)
        assert ("aten.gt", (3,)) in {key[1:3] for key in log.entries}, "the mode is back"


@pytest.mark.parametrize(
    ("model", "idle"),
    [
        (lambda x: (x @ x).sum(), {"forward", "backward"}),
        (lambda x: x.relu().sum(), {"forward"}),
        (lambda x: (x * (x > 0)).sum(), {"backward"}),
        (lambda x: F.dropout(x, 0.5).sum(), {"backward"}),
        (lambda x: x.to(torch.bfloat16).float().sum(), {"backward"}),
        (lambda x: torch.zeros(4, dtype=torch.float16).add(x).sum(), {"backward"}),
    ],
)
def test_a_pass_in_which_there_was_nothing_to_do_is_not_led_again(model: Model, idle: set[str]) -> None:
    x, low = normal(4, 4).requires_grad_(), normal(4, 4).to(torch.bfloat16).requires_grad_()
    log = DecisionLog()
    with Recording(log, Position()):
        model(low).backward()
    results = []
    for _ in range(2):
        x.grad = None
        with DecisionReplay(log, Position(), torch.float32) as following:
            with following.during("forward"):
                loss = model(x)
            forward = set(following.met)
            with following.during("backward"):
                loss.backward()
        results.append((loss.detach(), x.grad))
        led = forward | (following.met & {"backward"})
        following.ended()
    assert log.idle == {(torch.float32, place) for place in idle}
    assert led == {"forward", "backward"} - idle, "the second run"
    assert all(torch.equal(first, second) for first, second in zip(*results, strict=True))


def test_a_run_in_float64_is_led_where_one_in_float32_had_nothing_to_do() -> None:
    log = DecisionLog(idle={(torch.float32, "forward")})
    with DecisionReplay(log, Position(), torch.float64) as following, following.during("forward"):
        assert torch.zeros(3, dtype=torch.float32).dtype is torch.float64
    assert following.met == {"forward"}


def test_a_pass_that_is_disturbed_is_led() -> None:
    log = DecisionLog(idle={(torch.float32, "forward")})
    with DecisionReplay(log, Position(), torch.float32, disturb=lambda tensor: None) as following, following.during("forward"):
        normal(3).add(1)
    assert following.met == {"forward"}
