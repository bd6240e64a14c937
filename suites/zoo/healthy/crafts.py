"""Trainings that few libraries have, each with float32 where it is needed: inner loops, equilibria, roots of moments, games, packed activations."""

from __future__ import annotations

import copy
import itertools

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def made(model: nn.Module, seed: int = 0) -> nn.Module:
    """The same model with weights that depend on a seed alone: matrices by their fan-in, all else a tenth."""
    with torch.no_grad():
        for index, each in enumerate(model.parameters()):
            fan = each[0].numel() if each.ndim > 1 else 100
            each.copy_(normal(*each.shape, seed=1000 * seed + index) / fan**0.5)
        for each in model.modules():
            if isinstance(each, nn.LayerNorm):
                nn.init.ones_(each.weight)
    return model


def net(*sizes: int, seed: int = 0, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """A perceptron of these widths."""
    layers = [layer for wide, narrow in itertools.pairwise(sizes) for layer in (nn.Linear(wide, narrow), activation())]
    model = made(nn.Sequential(*layers[:-1]), seed)
    assert isinstance(model, nn.Sequential)
    return model


def all_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().float().flatten() for each in model.parameters()])


def adapted_in_an_inner_loop() -> torch.Tensor:
    """Meta-learning through two inner steps: fast weights stay in float32 and only products are bfloat16, so a step of 0.1 of a gradient arrives."""
    model, waves = net(1, 24, 24, 1), 0.5 + uniform(4, seed=1)
    outer, x = torch.optim.Adam(model.parameters(), lr=3e-3), 2 * normal(16, 1, seed=2)

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor, wave: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", LOW):
            out = torch.func.functional_call(model, weights, (x,))
        return (out.float() - torch.sin(wave * x)).square().mean()

    for _ in range(4):
        total = torch.zeros(())
        for wave in waves:
            fast = dict(model.named_parameters())
            for _ in range(2):
                gradients = torch.autograd.grad(loss(fast, x[:8], wave), tuple(fast.values()), create_graph=True)
                fast = {name: each - 0.1 * way for (name, each), way in zip(fast.items(), gradients, strict=True)}
            total = total + loss(fast, x[8:], wave) / len(waves)
        outer.zero_grad()
        total.backward()
        outer.step()
    return all_of(model)


class Equilibrium(nn.Module):
    """A layer that is applied until nothing changes, and whose gradient is found by an iteration of its own, in a hook."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.again, self.read_in = nn.Linear(width, width), nn.Linear(width, width)

    def layer(self, state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", LOW):
            return torch.tanh((0.5 * self.again(state) + self.read_in(x)).float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(x)
        with torch.no_grad():
            for _ in range(25):
                state = self.layer(state, x)
        result = self.layer(state, x)
        start = state.detach().requires_grad_()
        once = self.layer(start, x.detach())

        def solve(gradient: torch.Tensor) -> torch.Tensor:
            found = gradient
            for _ in range(25):
                found = gradient + torch.autograd.grad(once, start, found, retain_graph=True)[0]
            return found

        if result.requires_grad:
            result.register_hook(solve)
        return result


def equilibrium_of_a_layer() -> torch.Tensor:
    """An equilibrium model whose state is float32: the map contracts, so roundings of its products do not add up over its turns."""
    model = made(nn.Sequential(Equilibrium(12), nn.Linear(12, 3)))
    optimizer, x, y = torch.optim.SGD(model.parameters(), lr=0.1), normal(32, 12, seed=1), (3 * uniform(32, seed=2)).long()
    for _ in range(4):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return all_of(model)


def roots_of_both_sides() -> torch.Tensor:
    """Shampoo on gradients in bfloat16: both factors add up in float32, and their fourth roots are by eigenvalues there, with a floor."""
    weight = (normal(12, 20) / 4).requires_grad_()
    left, right, x = torch.zeros(12, 12), torch.zeros(20, 20), normal(64, 20, seed=1).to(LOW)
    goal = x.float() @ normal(20, 12, seed=2)
    for _ in range(5):
        out = functional.linear(x, weight.to(LOW)).float()
        gradient = torch.autograd.grad((out - goal).square().mean(), weight)[0].float()
        left, right = left + gradient @ gradient.T, right + gradient.T @ gradient
        roots = []
        for factor in (left, right):
            values, vectors = torch.linalg.eigh(factor + 1e-3 * factor.diagonal().mean() * torch.eye(len(factor)))
            roots.append(vectors * values.clamp_min(1e-12) ** -0.25 @ vectors.T)
        with torch.no_grad():
            weight -= 0.3 * roots[0] @ gradient @ roots[1]
    return weight.detach()


def signs_on_masters() -> torch.Tensor:
    """Lion with masters and momentum in float32 for a network in float16 throughout: each step is a whole rate, and the copy is made anew."""
    model, masters = net(10, 24, 4).to(HALF), [each.detach() for each in net(10, 24, 4).parameters()]
    moments, x = [torch.zeros_like(each) for each in masters], normal(48, 10, seed=1).to(HALF)
    goal = torch.sin(2 * x.float()[:, :4])
    for _ in range(8):
        loss = (model(x).float() - goal).square().mean()
        gradients = torch.autograd.grad(256 * loss, tuple(model.parameters()))
        with torch.no_grad():
            for weight, master, moment, gradient in zip(model.parameters(), masters, moments, gradients, strict=True):
                way = gradient.float() / 256
                master.sub_(2e-3 * torch.tanh(1e3 * torch.lerp(moment, way, 0.1)) + 2e-5 * master)
                moment.lerp_(way, 0.01)
                weight.copy_(master)
    return torch.cat([each.flatten() for each in masters])


def by_chance(wide: torch.Tensor, seed: int) -> torch.Tensor:
    """Numbers in bfloat16, rounded up or down by chance, so that they are right in the mean."""
    step = torch.ldexp(torch.ones_like(wide), torch.frexp(wide).exponent - 8)
    return (torch.floor(wide / step + uniform(*wide.shape, seed=seed)) * step).to(LOW)


def factored_and_rounded_by_chance() -> torch.Tensor:
    """Adafactor on weights that are bfloat16: rows and columns of second moments are float32, and what is stored is rounded by chance."""
    weight, x = by_chance(normal(16, 24) / 4, 1), normal(64, 24, seed=2).to(LOW)
    rows, columns, goal = torch.zeros(16), torch.zeros(24), x.float() @ normal(24, 16, seed=3) / 4
    for turn in range(10):
        leaf = weight.detach().requires_grad_()
        gradient = torch.autograd.grad((functional.linear(x, leaf).float() - goal).square().mean(), leaf)[0].float()
        decay = 1 - (turn + 1) ** -0.8
        rows, columns = (decay * old + (1 - decay) * (gradient.square() + 1e-30).mean(side) for old, side in ((rows, 1), (columns, 0)))
        update = gradient * (rows / rows.mean()).rsqrt()[:, None] * columns.rsqrt()
        update = update / (update.square().mean().sqrt()).clamp(min=1)
        weight = by_chance(weight.float() - 0.02 * update, 50 + turn)
    return weight.float()


class FakeQuantised(nn.Linear):
    """A linear layer whose weights and inputs are rounded to eight bits on the way, with gradients that go straight through."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.weight.detach().abs().amax(1, keepdim=True).clamp_min(1e-8) / 127
        weight = self.weight + ((self.weight / scale).round() * scale - self.weight).detach()
        step = x.detach().float().abs().amax().clamp_min(1e-8) / 127
        near = x + ((x.float() / step).round() * step - x.float()).detach()
        return functional.linear(near, weight, self.bias)


def aware_of_eight_bits() -> torch.Tensor:
    """Quantisation-aware training under autocast: scales and roundings are float32, and a step of eight bits is coarser than bfloat16 is near it."""
    model = made(nn.Sequential(FakeQuantised(12, 32), nn.ReLU(), FakeQuantised(32, 4)))
    optimizer, x = torch.optim.AdamW(model.parameters(), lr=2e-3), normal(64, 12, seed=1)
    for _ in range(5):
        with torch.autocast("cpu", LOW):
            out = model(x)
        optimizer.zero_grad()
        functional.mse_loss(out.float(), torch.sin(x[:, :4])).backward()
        optimizer.step()
    return all_of(model)


def generator_and_critic() -> torch.Tensor:
    """A game in half under two loss scales: the penalty on the critic's slope is made without autocast, its graph by unscaled gradients."""
    generator, critic = net(4, 24, 2), net(2, 24, 1, seed=1)
    players = [torch.optim.Adam(each.parameters(), lr=2e-3, betas=(0.5, 0.9)) for each in (generator, critic)]
    scalers = [torch.amp.GradScaler("cpu", init_scale=256.0) for _ in players]
    for turn in range(5):
        angle = 6.28 * uniform(32, seed=turn)
        real, noise = torch.stack([angle.cos(), angle.sin()], -1), normal(32, 4, seed=20 + turn)
        with torch.autocast("cpu", HALF):
            fake = generator(noise)
            loss = functional.softplus(critic(fake.detach()).float()).mean() + functional.softplus(-critic(real).float()).mean()
        there = real.clone().requires_grad_()
        slope = torch.autograd.grad(critic(there).sum(), there, create_graph=True)[0]
        for optimizer in players:
            optimizer.zero_grad()
        scalers[1].scale(loss + 0.5 * slope.square().sum(-1).mean()).backward()
        scalers[1].step(players[1])
        scalers[1].update()
        with torch.autocast("cpu", HALF):
            gain = functional.softplus(-critic(generator(noise)).float()).mean()
        players[0].zero_grad()
        scalers[0].scale(gain).backward()
        scalers[0].step(players[0])
        scalers[0].update()
    return torch.cat([all_of(generator), all_of(critic)])


def weights_from_a_network() -> torch.Tensor:
    """A hypernetwork under autocast that makes the weights of a small one; their scale is set in float32, and the norm between is float32."""
    maker, norm = net(3, 24, 8 * 6 + 6 * 2), nn.LayerNorm(6)
    optimizer, tasks, x = torch.optim.SGD([*maker.parameters(), *norm.parameters()], lr=0.05), normal(4, 3, seed=1), normal(4, 16, 8, seed=2)
    for _ in range(5):
        with torch.autocast("cpu", LOW):
            first, second = maker(tasks).split([48, 12], -1)
            hidden = norm((x @ (first.float() / 8**0.5).view(4, 8, 6)).float())
            out = torch.relu(hidden) @ (second.float() / 6**0.5).view(4, 6, 2)
        optimizer.zero_grad()
        (out.float() - tasks[:, None, :2] * x[..., :2]).square().mean().backward()
        nn.utils.clip_grad_norm_(maker.parameters(), 1.0)
        optimizer.step()
    return all_of(maker)


def activations_packed_in_bfloat16() -> torch.Tensor:
    """Activations that a hook stores in bfloat16 and widens again: each is rounded once, and gradients are sums over many of them in float32."""
    model, x = net(16, 48, 48, 4, activation=nn.GELU), normal(64, 16, seed=1)
    weights = {each.data_ptr() for each in model.parameters()}

    def pack(saved: torch.Tensor) -> torch.Tensor:
        return saved if saved.data_ptr() in weights or not saved.is_floating_point() else saved.to(LOW)

    def unpack(saved: torch.Tensor) -> torch.Tensor:
        return saved.float() if saved.dtype == LOW else saved

    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for _ in range(5):
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = functional.cross_entropy(model(x), x[:, :4].argmax(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return all_of(model)


def tasks_that_disagree() -> torch.Tensor:
    """Three losses whose gradients are projected off each other in float32 before they are added, with an average of weights in float32."""
    model = net(8, 24, 3)
    average, optimizer = copy.deepcopy(model), torch.optim.SGD(model.parameters(), lr=0.1)
    x = normal(64, 8, seed=1)
    goals = torch.stack([x[:, 0].sin(), -x[:, 0] + x[:, 1], x[:, 2].tanh()], -1)
    for turn in range(6):
        with torch.autocast("cpu", LOW):
            losses = (model(x).float() - goals).square().mean(0)
        ways = [torch.autograd.grad(each, tuple(model.parameters()), retain_graph=True) for each in losses]
        flat = torch.stack([torch.cat([part.flatten() for part in way]) for way in ways])
        mended = flat.clone()
        for one in range(3):
            for other in range(3):
                along = mended[one] @ flat[other]
                mended[one] -= torch.where(along < 0, along / flat[other].square().sum(), 0.0) * flat[other]
        parts = mended.sum(0).split([each.numel() for each in model.parameters()])
        for each, part in zip(model.parameters(), parts, strict=True):
            each.grad = part.view_as(each)
        optimizer.step()
        with torch.no_grad():
            for slow, each in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(each, 1 / (turn + 2))
    return all_of(average)


IDIOMS = (
    adapted_in_an_inner_loop, equilibrium_of_a_layer, roots_of_both_sides, signs_on_masters, factored_and_rounded_by_chance, aware_of_eight_bits,
    generator_and_critic, weights_from_a_network, activations_packed_in_bfloat16, tasks_that_disagree,
)  # fmt: skip
