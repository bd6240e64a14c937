"""A step is one, whether torch's `Optimizer` makes it or a loop of the user's own: its noise is another one in each step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import precheck

LOW = torch.bfloat16
Moves = Callable[[nn.Parameter, dict[str, torch.Tensor], int], torch.Tensor]


class Model(nn.Module):
    """A small language model, as it is before training."""

    def __init__(self, size: int, depth: int) -> None:
        super().__init__()
        self.word, self.place, self.last = nn.Embedding(97, size), nn.Embedding(32, size), nn.LayerNorm(size)
        self.mixes = nn.ModuleList(nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 3 * size)) for _ in range(depth))
        self.outs = nn.ModuleList(nn.Linear(size, size) for _ in range(depth))
        for weight in self.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, word: torch.Tensor) -> torch.Tensor:
        x = self.word(word) + self.place.weight[: word.shape[1]]
        for mix, out in zip(self.mixes, self.outs, strict=True):
            query, key, value = mix(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            x = x + out(nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))
        return self.last(x) @ self.word.weight.T


def trained(moves: Moves, *, steps: int, least: int = 1, seed: int = 0, size: int = 48, depth: int = 2) -> nn.Module:
    """In bfloat16 with float32 master weights, which a plain loop moves."""
    torch.manual_seed(seed)
    model = Model(size, depth).to(LOW)
    masters = [weight.detach().float() for weight in model.parameters()]
    states: list[dict[str, torch.Tensor]] = [{} for _ in masters]
    for step in range(1, steps + 1):
        model.zero_grad()
        word = torch.randint(97, (4, 33))
        nn.functional.cross_entropy(model(word[:, :-1]).float().flatten(0, 1), word[:, 1:].flatten()).backward()
        with torch.no_grad():
            for weight, master, state in zip(model.parameters(), masters, states, strict=True):
                if weight.ndim >= least and weight.grad is not None:
                    master -= moves(weight, state, step)
                    weight.copy_(master)
    return model


def adam(weight: nn.Parameter, state: dict[str, torch.Tensor], step: int) -> torch.Tensor:
    gradient = weight.grad.float()
    mean, square = state.get("mean", 0) * 0.9 + 0.1 * gradient, state.get("square", 0) * 0.99 + 0.01 * gradient.square()
    state.update(mean=mean, square=square)
    return 1e-2 * (mean / (1 - 0.9**step)) / ((square / (1 - 0.99**step)).sqrt() + 1e-8)


def orthogonal(gradient: torch.Tensor) -> torch.Tensor:
    """Newton and Schulz in bfloat16, as Muon has it."""
    x = gradient.to(LOW)
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x.float()


def muon(weight: nn.Parameter, state: dict[str, torch.Tensor], step: int) -> torch.Tensor:
    state["mean"] = 0.95 * state.get("mean", 0) + weight.grad.float()
    return 2e-2 * orthogonal(state["mean"])


def variance(gradient: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
    """Of a gradient about its mean, by a difference of two moments that are kept low."""
    state["mean"] = (0.99 * state.get("mean", gradient) + 0.01 * gradient).to(LOW)
    state["square"] = (0.99 * state.get("square", gradient.square()) + 0.01 * gradient.square()).to(LOW)
    return (state["square"] - state["mean"].square()).float()


def centred(weight: nn.Parameter, state: dict[str, torch.Tensor], step: int) -> torch.Tensor:
    gradient = weight.grad.float() + 1
    return 1e-3 * gradient / (variance(gradient, state).clamp_min(0) + 1e-8).sqrt()


@pytest.mark.parametrize(("moves", "options"), [
    (adam, {"steps": 2, "size": 32, "depth": 1}), (muon, {"steps": 1, "least": 2, "seed": 1}),
])  # fmt: skip
def test_noise_of_a_written_step_is_no_fault(moves: Moves, options: dict[str, int]) -> None:
    with precheck.watch() as report:
        model = trained(moves, **options)
    assert report.errors == [], report.summary()
    del model


def test_a_step_of_which_nothing_is_left_is_one() -> None:
    with precheck.watch() as report:
        model = trained(centred, steps=2, size=32, depth=1)
    (found,) = report.errors
    assert (found.rule, int(found.source.rpartition(":")[2])) == ("cancellation", variance.__code__.co_firstlineno + 4)
    del model


def kahan(weight: nn.Parameter, lost: torch.Tensor, move: torch.Tensor) -> None:
    """The remainder is taken of the rounded sum, and added to what was to be added."""
    lost.add_(move.to(LOW))
    before = weight.detach().clone()
    weight.add_(lost)
    lost.add_(before.sub_(weight))


def test_what_a_sum_has_lost_is_kept_in_two_steps() -> None:
    torch.manual_seed(0)
    model = Model(32, 1).to(LOW)
    states, lost = [{} for _ in model.parameters()], [torch.zeros_like(weight) for weight in model.parameters()]
    with precheck.watch() as report:
        for step in range(1, 5):
            model.zero_grad()
            word = torch.randint(97, (4, 33))
            nn.functional.cross_entropy(model(word[:, :-1]).float().flatten(0, 1), word[:, 1:].flatten()).backward()
            with torch.no_grad():
                for weight, state, rest in zip(model.parameters(), states, lost, strict=True):
                    kahan(weight, rest, -0.1 * adam(weight, state, step))
    assert report.errors == [], report.summary()


def decay(step: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """How much an average takes of the weights. It keeps 0.9998, which is one in bfloat16."""
    kept = ((1 + step.float()) / (10 + step.float())).to(dtype)
    return 1 - kept.float()


@pytest.mark.parametrize("dtype", [LOW, torch.float32])
def test_a_number_that_is_cast_before_it_is_taken_from_one(dtype: torch.dtype) -> None:
    """No model runs here, so the step counts as data. Before the cast the difference costs nothing."""
    average, weight = torch.zeros(64), torch.ones(64)
    with precheck.watch() as report, torch.no_grad():
        average.lerp_(weight, decay(torch.tensor(40_000), dtype).item())
    assert [(found.rule, found.source.rpartition(":")[2]) for found in report.errors] == (
        [("amplified-rounding", str(decay.__code__.co_firstlineno + 2))] if dtype is LOW else []
    )
