"""Dairies: training in few bits: gradients cut while they are scaled, steps that are too small, losses and squares that vanish."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW = torch.float16, torch.bfloat16
EXACT = "32-true"


class Engine:
    """Scales losses and steps for a runner."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.optimizer = model, torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)

    def backward(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()

    def unscale(self) -> None:
        self.scaler.unscale_(self.optimizer)

    def step(self) -> None:
        self.scaler.step(self.optimizer)  # culprit: limit-of-a-runner
        self.scaler.update()
        self.optimizer.zero_grad()


def run(unscaled: bool) -> torch.Tensor:
    """How far a network goes in six batches whose gradients a callback cuts at length one."""
    torch.manual_seed(3101)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 4))
    engine, start = Engine(model), nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    for turn in range(6):
        with torch.autocast("cpu", HALF):
            scores = model(normal(16, 10, seed=3102 + turn))
        engine.backward(functional.cross_entropy(scores.float(), (4 * uniform(16, seed=3112 + turn)).long()))
        if unscaled:
            engine.unscale()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # culprit: limit-of-a-runner
        engine.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach() - start


class AnyPrecision(torch.optim.Optimizer):
    """Adam whose weights are bfloat16, with or without what each step's rounding left over."""

    def __init__(self, parameters: list[nn.Parameter], rate: float, kept: bool) -> None:
        super().__init__(parameters, {"rate": rate})
        self.kept = kept

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["turn"], state["rest"] = 0, torch.zeros_like(weight)
                    state["mean"] = torch.zeros_like(weight, dtype=torch.float32)
                    state["square"] = torch.zeros_like(weight, dtype=torch.float32)
                state["turn"] += 1
                slope, mean, square = weight.grad.float(), state["mean"], state["square"]
                mean.lerp_(slope, 0.1)
                square.mul_(0.999).addcmul_(slope, slope, value=0.001)
                rate = group["rate"] * (1 - 0.999 ** state["turn"]) ** 0.5 / (1 - 0.9 ** state["turn"])
                change = -rate * mean / (square.sqrt() + 1e-8)
                if self.kept:
                    state["rest"].add_(change.to(weight.dtype))
                    before = weight.clone()
                    weight.add_(state["rest"])
                    state["rest"].add_(before.sub_(weight))
                else:
                    weight.add_(change.to(weight.dtype))  # culprit: steps-without-a-remainder


def small_steps(kept: bool) -> torch.Tensor:
    """How far weights of about one go in forty steps of a ten-thousandth. They stand still."""
    weight = nn.Parameter((1 + 0.2 * normal(64, seed=3121)).to(LOW))
    start, optimizer = weight.detach().float().clone(), AnyPrecision([weight], 1e-4, kept)
    for turn in range(40):
        weight.grad = (1 + 0.1 * normal(64, seed=3122 + turn)).to(LOW)
        optimizer.step()
    return (weight.detach().float() + optimizer.state[weight]["rest"].float()) - start


def weighted_loss(wide: bool) -> torch.Tensor:
    """A task's loss and its gradient, where the task counts a ten-millionth of the sum. It counts nothing."""
    scores = (normal(32, 6, seed=3131)).to(HALF).requires_grad_()
    loss = functional.cross_entropy(scores, (6 * uniform(32, seed=3132)).long())
    if wide:
        loss = loss.float()
    share = loss * 1e-8  # culprit: loss-with-a-small-weight
    (share * 2.0**10).backward()
    return share.detach().float()


class Decoder(nn.Module):
    """A layer of a detector's decoder, which refines queries."""

    def __init__(self, bounded: bool) -> None:
        super().__init__()
        torch.manual_seed(3141)
        self.bounded, self.first, self.second, self.norm = bounded, nn.Linear(24, 96), nn.Linear(96, 24), nn.LayerNorm(24)

    def forward(self, target: torch.Tensor) -> torch.Tensor:
        inner = self.second(functional.relu(self.first(target)))
        total = target + inner  # culprit: boxes-that-are-decoded
        if self.bounded:
            total = total.clamp(min=-65504, max=65504)
        return self.norm(total)


def decoded(bounded: bool) -> torch.Tensor:
    """Queries of a detector under autocast, some of which have grown beyond forty thousand."""
    layer = Decoder(bounded)
    with torch.no_grad():
        layer.second.bias[5] = 3.4e4
        target = normal(12, 24, seed=3142)
        target[:, 5] = 33_000 + 200 * normal(12, seed=3143)
        with torch.autocast("cpu", HALF):
            return layer(target.to(HALF)).float()


def factored(slope: torch.Tensor, guard: float) -> torch.Tensor:
    """The step that an optimizer takes which keeps means of squares by row and by column."""
    square = slope.square() + guard  # culprit: squares-of-a-dead-row
    rows, columns = square.mean(-1), square.mean(-2)
    by_row = (rows / rows.mean(-1, keepdim=True)).rsqrt()[:, None]  # culprit: squares-of-a-dead-row
    return slope * by_row * columns.rsqrt()[None, :]


def dead_rows(guarded: bool) -> torch.Tensor:
    """A step for weights whose gradients are of the order of 10^-24. Not a number."""
    return factored(1e-24 * normal(12, 16, seed=3151), 1e-30 if guarded else 0.0)


class Copier(nn.Module):
    """Words' chances as a mixture of a vocabulary and of the source's words."""

    def __init__(self, like: bool) -> None:
        super().__init__()
        torch.manual_seed(3161)
        self.like, self.head, self.attention = like, nn.Linear(16, 40), nn.Linear(16, 10)

    def forward(self, words: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        scores, shares = self.head(words), torch.softmax(self.attention(words), -1, dtype=torch.float32)  # culprit: sources-of-another-kind
        if self.like:
            shares = shares.type_as(scores)
        return scores.scatter_add(1, source.expand(len(words), -1), shares)  # culprit: sources-of-another-kind


def copied(like: bool) -> torch.Tensor:
    """Scores of a translator's words, in half. Torch refuses to add float32 shares to them."""
    model = Copier(like).to(HALF)
    with torch.no_grad():
        return model(normal(6, 16, seed=3162).to(HALF), (40 * uniform(1, 10, seed=3163)).long()).float()


BUGS = (
    Bug("limit-of-a-runner", "catalyst-team/catalyst#1319", ("scaler-order",), "",
        lambda: run(unscaled=False), lambda: run(unscaled=True), phase="scaler"),
    Bug("steps-without-a-remainder", "pytorch/torchdistx#52", ("lost-update", "absorption", "accumulated-drift"), "",
        lambda: small_steps(kept=False), lambda: small_steps(kept=True), phase="optimizer"),
    Bug("loss-with-a-small-weight", "facebookresearch/pytext#581", ("underflow", "vanished-constant"), "aten.mul.Tensor",
        lambda: weighted_loss(wide=False), lambda: weighted_loss(wide=True)),
    Bug("boxes-that-are-decoded", "Peterande/D-FINE#199", ("overflow",), "aten.add.Tensor",
        lambda: decoded(bounded=False), lambda: decoded(bounded=True)),
    Bug("squares-of-a-dead-row", "microsoft/LLM2CLIP#64", ("underflow", "nan"), "aten.pow.Tensor_Scalar or aten.div.Tensor",
        lambda: dead_rows(guarded=False), lambda: dead_rows(guarded=True), precision=EXACT),
    Bug("sources-of-another-kind", "pytorch/translate#583", ("dtype-leak",), "aten.scatter_add.default",
        lambda: copied(like=False), lambda: copied(like=True), raises=RuntimeError),
)  # fmt: skip
