"""Optimizers as people write them: factored and layerwise squares, a climb that is undone, an average, a scale, states of eight bits, rounds."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def linear(rows: int, columns: int, dtype: torch.dtype, size: float = 1.0) -> nn.Linear:
    """A layer without a bias, of weights that bfloat16 holds."""
    layer = nn.Linear(columns, rows, bias=False)
    with torch.no_grad():
        layer.weight.copy_((size * normal(rows, columns, seed=50) / columns**0.5).to(LOW))
    return layer.to(dtype)


def moved(layer: nn.Linear, start: torch.Tensor) -> torch.Tensor:
    return wider(layer.weight.detach()) - wider(start)


class Adafactor(torch.optim.Optimizer):
    """Steps by mean squares of rows and of columns, of which each entry's own is made."""

    def __init__(self, parameters: object, rate: float, widened: bool) -> None:
        super().__init__(parameters, {"lr": rate})  # type: ignore[arg-type]
        self.widened = widened

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            gradient, state = wider(weight.grad) if self.widened else weight.grad, self.state[weight]
            if not state:
                state.update(step=0, row=torch.zeros_like(gradient[:, 0]), column=torch.zeros_like(gradient[0]))
            state["step"] += 1
            decay = 1 - state["step"] ** -0.8
            square = gradient.square() + 1e-30  # culprit: factored-squares
            row = state["row"].mul_(decay).add_(square.mean(1), alpha=1 - decay)
            column = state["column"].mul_(decay).add_(square.mean(0), alpha=1 - decay)
            update = gradient * (row / row.mean()).rsqrt()[:, None] * column.rsqrt()
            weight.add_(update.to(weight.dtype), alpha=-self.param_groups[0]["lr"])


def factored(dtype: torch.dtype, widened: bool, size: float = 4e-4) -> torch.Tensor:
    """How far a layer moves in three steps, whose gradients are some 2e-4; their squares are one or no step of half. Off by 50 %."""
    layer = linear(12, 16, dtype)
    start, optimizer = layer.weight.detach().clone(), Adafactor(layer.parameters(), 0.03, widened)
    for seed in range(3):
        optimizer.zero_grad()
        (layer(normal(24, 16, seed=seed).to(LOW).to(dtype)) * (size / 5 * normal(24, 12, seed=seed + 9)).to(dtype)).sum().backward()
        optimizer.step()
    return moved(layer, start)


class NovoGrad:
    """Steps by gradients over their layer's own norm, which is averaged."""

    def __init__(self, weights: list[nn.Parameter], rate: float, widened: bool) -> None:
        self.weights, self.rate, self.widened = weights, rate, widened
        self.first = [torch.zeros_like(each) for each in weights]
        self.second: list[torch.Tensor] = []

    @torch.no_grad()
    def step(self) -> None:
        for place, weight in enumerate(self.weights):
            gradient = wider(weight.grad) if self.widened else weight.grad
            square = gradient.square().sum()
            if len(self.second) <= place:
                self.second.append(square)
            else:
                self.second[place] = 0.98 * self.second[place] + 0.02 * square
            size = self.second[place].sqrt() + 1e-8  # culprit: layer-without-a-gradient
            self.first[place].mul_(0.95).add_((gradient / size).to(weight.dtype))
            weight.sub_(self.rate * self.first[place])


class TwoHeads(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.body, self.left, self.right = linear(16, 16, dtype), linear(4, 16, dtype), linear(4, 16, dtype)

    def forward(self, x: torch.Tensor, right: float) -> torch.Tensor:
        inner = torch.tanh(self.body(x))
        return self.left(inner) + right * self.right(inner)


def layerwise(dtype: torch.dtype, widened: bool, right: float = 0.0) -> tuple[torch.Tensor, ...]:
    """How far two heads move in two steps, one of which no sample reads: in half the lift of 1e-8 is nought, and nought by nought is NaN."""
    model = TwoHeads(dtype)
    start = [model.left.weight.detach().clone(), model.right.weight.detach().clone()]
    optimizer = NovoGrad(list(model.parameters()), 0.02, widened)
    for seed in range(2):
        model.zero_grad(set_to_none=False)
        out = model(normal(8, 16, seed=seed).to(LOW).to(dtype), right)
        (out - normal(8, 4, seed=seed + 5).to(LOW).to(dtype)).square().mean().backward()
        optimizer.step()
    return moved(model.left, start[0]), moved(model.right, start[1])


class Residual(nn.Module):
    """A branch that begins small: what it gives is multiplied by a gain of a few thousandths."""

    def __init__(self, dtype: torch.dtype, gain: float) -> None:
        super().__init__()
        self.inner = linear(12, 12, dtype)
        self.gain = nn.Parameter((gain * (1 + uniform(12))).to(LOW).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * self.inner(x)


def climbed(dtype: torch.dtype, kept: bool, gain: float = 2e-3, turns: int = 6) -> torch.Tensor:
    """Gains after steps of SAM, which goes uphill by a tenth and comes back. In bfloat16 the way back is not the way up. Off by 7 %."""
    model = Residual(dtype, gain)
    target, weights = normal(32, 12, seed=9).to(LOW).to(dtype), list(model.parameters())
    for seed in range(turns):
        x = normal(32, 12, seed=seed).to(LOW).to(dtype)
        for parameter, rate in ((None, 0.0), (weights, 2e-4)):
            model.zero_grad()
            functional.mse_loss(model(x), x + 0.5 * target).backward()
            with torch.no_grad():
                if parameter is None:
                    before = [each.clone() for each in weights]
                    norm = torch.stack([wider(each.grad).norm() for each in weights]).norm()
                    climb = [(0.1 / norm).to(dtype) * each.grad for each in weights]
                    for each, way in zip(weights, climb, strict=True):
                        each.add_(way)  # culprit: climb-and-return
                    continue
                for each, way, old in zip(weights, climb, before, strict=True):
                    if kept:
                        each.copy_(old)
                    else:
                        each.sub_(way)  # culprit: climb-and-return
                    each.sub_(rate * each.grad)
    return wider(model.gain.detach())


class ScheduleFree:
    """A fast sequence `z`, its running mean `x`, and weights between the two, at which gradients are taken."""

    def __init__(self, weight: nn.Parameter, rate: float, average: torch.dtype) -> None:
        self.weight, self.rate, self.steps = weight, rate, 0
        self.z = wider(weight.detach()).clone()
        self.x = weight.detach().to(average, copy=True)

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        self.z.sub_(wider(self.weight.grad), alpha=self.rate)
        self.x.lerp_(self.z.to(self.x.dtype), 1 / self.steps)  # culprit: mean-of-all-weights
        self.weight.copy_(0.9 * wider(self.x) + 0.1 * self.z)


def averaged(dtype: torch.dtype, widened: bool, steps: int = 320) -> torch.Tensor:
    """The mean of a layer's weights over 320 steps away from where they began; a bfloat16 mean stops after some hundred. Off by 16 %."""
    layer = linear(4, 8, dtype, 4.0)
    optimizer = ScheduleFree(layer.weight, 2e-3, torch.promote_types(dtype, WIDE) if widened else dtype)
    x = normal(16, 8).to(LOW).to(dtype)
    for _ in range(steps):
        layer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()
    return wider(optimizer.x)


def unscaled(dtype: torch.dtype, widened: bool, size: float = 3e-6) -> torch.Tensor:
    """What float32 masters move in four steps of Adam. Gradients in half are divided by their scale before they are widened. Off by 61 %."""
    layer, scale = linear(6, 12, dtype), 8192.0
    master = nn.Parameter(wider(layer.weight.detach()).clone())
    start, optimizer = master.detach().clone(), torch.optim.Adam([master], lr=0.01, eps=1e-15)
    for seed in range(4):
        layer.zero_grad()
        out = wider(layer(normal(16, 12, seed=seed).to(LOW).to(dtype)))
        (scale * size * (out * normal(16, 6, seed=seed + 7)).mean()).backward()
        gradient = layer.weight.grad
        assert gradient is not None
        master.grad = wider(gradient) / scale if widened else wider(gradient / scale)  # culprit: divided-before-it-is-widened
        optimizer.step()
        with torch.no_grad():
            layer.weight.copy_(master)
    return master.detach() - start


class SmallStates:
    """Adam whose mean squares are kept as bytes: shares of the largest of a block, or of its root, which then rounds up."""

    def __init__(self, weight: torch.Tensor, byte: bool, by_roots: bool) -> None:
        self.byte, self.by_roots, self.steps = byte, by_roots, 0
        self.first, self.kept, self.scale = torch.zeros_like(weight), torch.zeros_like(weight), weight.new_ones(())

    def read(self) -> torch.Tensor:
        share = self.kept.to(self.first.dtype) / 255 if self.byte else self.kept
        return (share * self.scale).square() if self.by_roots else share * self.scale

    def write(self, second: torch.Tensor) -> None:
        second = second.sqrt() if self.by_roots else second
        self.scale = second.max()
        share = second / self.scale
        if self.byte:
            share = 255 * share
            share = (share.ceil() if self.by_roots else share.round()).to(torch.uint8)  # culprit: mean-squares-in-bytes
        self.kept = share

    def step(self, weight: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.write(0.99 * self.read() + 0.01 * gradient.square())
        first, second = self.first / (1 - 0.9**self.steps), self.read() / (1 - 0.99**self.steps)
        return weight - 0.01 * first / (second.sqrt() + 1e-8)


def in_bytes(byte: bool, by_roots: bool, spread: float = 2.0) -> torch.Tensor:
    """Forty weights after three steps, whose gradients are between a thousandth and one; small squares become no byte. Off by 70 000."""
    weight = normal(40)
    size, optimizer = 10 ** (-spread * uniform(40, seed=1)), SmallStates(weight, byte, by_roots)
    for seed in range(3):
        weight = optimizer.step(weight, size * (1 + 0.2 * normal(40, seed=seed + 2)))
    return weight


def rounds(sent: torch.dtype, early: bool, rate: float = 1e-3) -> torch.Tensor:
    """What three outer rounds of DiLoCo move a model by: two workers step by themselves and send their differences in bfloat16. Off by 51 %."""
    shared = linear(6, 12, WIDE)
    start, outer = shared.weight.detach().clone(), torch.optim.SGD(shared.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    for turn in range(3):
        sum_of_all = torch.zeros_like(start)
        for worker in range(2):
            local = copy.deepcopy(shared)
            inner = torch.optim.SGD(local.parameters(), lr=rate)
            for seed in range(5):
                inner.zero_grad()
                x = normal(16, 12, seed=100 * turn + 10 * worker + seed)
                functional.mse_loss(local(x), x[:, :6]).backward()
                inner.step()
            with torch.no_grad():
                if early:
                    sum_of_all += (shared.weight.to(sent) - local.weight.to(sent)).float()  # culprit: differences-that-are-sent
                else:
                    sum_of_all += (shared.weight - local.weight).to(sent).float()
        shared.weight.grad = sum_of_all / 2
        outer.step()
    return shared.weight.detach() - start


BUGS = (
    Bug("factored-squares", "", ("underflow", "vanished-constant"), "aten.pow.Tensor_Scalar", lambda: factored(HALF, False),
        lambda: factored(HALF, True), phase="optimizer"),
    Bug("layer-without-a-gradient", "google-deepmind/optax#1789", ("vanished-constant", "nan", "underflow"), "aten.add.Tensor",
        lambda: layerwise(HALF, False), lambda: layerwise(HALF, True), phase="data"),
    Bug("climb-and-return", "davda54/sam#7", ("lost-update", "absorption", "cancellation", "amplified-rounding"), "aten.add_.Tensor",
        lambda: climbed(LOW, False), lambda: climbed(LOW, True), phase="optimizer", module="inner"),
    Bug("mean-of-all-weights", "", ("absorption", "accumulated-drift"), "aten.lerp_.Scalar", lambda: averaged(LOW, False),
        lambda: averaged(LOW, True), phase="data"),
    Bug("divided-before-it-is-widened", "", ("underflow", "gradient-underflow"), "aten.div.Tensor", lambda: unscaled(HALF, False),
        lambda: unscaled(HALF, True)),
    Bug("mean-squares-in-bytes", "", ("underflow", "wrong-scale", "biased-rounding"), "aten._to_copy.default", lambda: in_bytes(True, False),
        lambda: in_bytes(True, True),
        expected_miss="a share that is rounded to a byte and read again is taken for the user's wish, whatever becomes zero of it"),
    Bug("differences-that-are-sent", "", ("amplified-rounding", "cancellation"), "aten._to_copy.default", lambda: rounds(LOW, True),
        lambda: rounds(LOW, False), phase="data", step=6),
)  # fmt: skip
