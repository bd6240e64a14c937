"""Critics and probes: a value of bins, the weight of a critic, a Hessian product, a distribution between atoms, a gradient by two losses."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class TwoHot(nn.Module):
    """A value as a distribution over bins of its logarithm, which are decoded in the compute format or in float32."""

    support: torch.Tensor

    def __init__(self, width: int, bins: int, single: bool) -> None:
        super().__init__()
        self.head, self.single = nn.Linear(width, bins), single
        self.register_buffer("support", torch.linspace(-20, 20, bins))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.head(hidden)
        logits = logits.float() if self.single else logits
        probabilities = torch.softmax(logits.float(), -1).to(logits.dtype)  # culprit: value-out-of-bins
        logarithm = (probabilities * self.support.to(logits.dtype)).sum(-1)  # culprit: value-out-of-bins
        return logarithm.sign() * (logarithm.abs().exp() - 1)  # culprit: value-out-of-bins


def returns(single: bool) -> torch.Tensor:
    """Values of 40 states whose returns are some thousand, under autocast."""
    critic = TwoHot(16, 255, single)
    with torch.no_grad():
        critic.head.weight.copy_(0.2 * normal(255, 16))
        critic.head.bias.copy_(-((critic.support - 8.6) ** 2) / 0.8)
        with torch.autocast("cpu", LOW):
            return critic(normal(40, 16, seed=1)).float()


def critic_weight(likelihood: torch.Tensor, critic_loss: torch.Tensor, last_layer: torch.Tensor) -> torch.Tensor:
    """What the critic's loss is multiplied by, so that both losses move the last layer alike."""
    first = torch.autograd.grad(likelihood, last_layer, retain_graph=True)[0]
    second = torch.autograd.grad(critic_loss, last_layer, retain_graph=True)[0]  # culprit: weight-of-the-critic
    return first.norm() / (second.norm() + 1e-6)


def autoencoder(mixed: bool) -> torch.Tensor:
    """The weight for a decoder of small pictures and a critic that starts with small weights."""
    last, hidden, pictures = nn.Parameter(normal(3, 16, 3, 3) / 12), normal(4, 16, 80, 80, seed=2), uniform(4, 3, 80, 80, seed=3)
    critic = [0.016 * normal(after, before, 4, 4, seed=before + after) for before, after in ((3, 8), (8, 8), (8, 8), (8, 1))]
    with torch.autocast("cpu", HALF, enabled=mixed):
        made = functional.conv2d(hidden, last, padding=1)
        likelihood = (made - pictures).abs().mean()
        judged = functional.conv2d(made, critic[0], stride=2)  # culprit: weight-of-the-critic
        for weight in critic[1:]:
            judged = functional.conv2d(functional.leaky_relu(judged, 0.2), weight)  # culprit: weight-of-the-critic
        return critic_weight(likelihood, -judged.mean(), last)  # culprit: weight-of-the-critic


class Cell(nn.Module):
    """Three operations, mixed by weights that are searched for."""

    def __init__(self) -> None:
        super().__init__()
        self.mixture = nn.Parameter(0.3 * normal(3))
        self.weights = nn.ParameterList(normal(16, 16, seed=1 + place) / 4 for place in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = torch.softmax(self.mixture, 0)
        first, second, third = (functional.linear(x, weight) for weight in self.weights)
        return shares[0] * first.relu() + shares[1] * second.tanh() + shares[2] * functional.silu(third)


def hessian_product(cell: Cell, x: torch.Tensor, y: torch.Tensor, direction: list[torch.Tensor], mixed: bool) -> torch.Tensor:
    """What the mixture's gradient changes by along a direction of the weights, by a difference of two gradients."""
    epsilon = 0.01 / torch.cat([each.flatten() for each in direction]).norm()
    gradients = []
    for sign in (1, -2):
        with torch.no_grad():
            for weight, each in zip(cell.weights, direction, strict=True):
                weight.add_(each * epsilon * sign)
        with torch.autocast("cpu", LOW, enabled=mixed):
            loss = functional.mse_loss(cell(x).float(), y)  # culprit: product-with-the-hessian
        gradients.append(torch.autograd.grad(loss, cell.mixture)[0])
    return (gradients[0] - gradients[1]) / (2 * epsilon)  # culprit: product-with-the-hessian


def searched(mixed: bool) -> torch.Tensor:
    """Four such products of an architecture search."""
    x, y = normal(64, 16, seed=5), normal(64, 16, seed=6)
    products = []
    for seed in range(4):
        direction = [normal(16, 16, seed=10 * seed + place) for place in range(10, 13)]
        products.append(hessian_product(Cell(), x, y, direction, mixed))
    return torch.stack(products)


def project(probabilities: torch.Tensor, rewards: torch.Tensor, support: torch.Tensor, discount: float) -> torch.Tensor:
    """A distribution of returns, moved by a reward and spread over the atoms of the support again."""
    count = len(support)
    moved = (rewards[:, None] + discount * support).clamp(float(support[0]), float(support[-1]))
    place = ((moved - support[0]) / (support[1] - support[0])).clamp(0, count - 1)  # culprit: atoms-between-bins
    below, above = place.floor(), place.ceil()  # culprit: atoms-between-bins
    target = torch.zeros_like(probabilities)
    offset = count * torch.arange(len(rewards))[:, None]
    target.view(-1).index_add_(0, (below.long() + offset).flatten(), (probabilities * (above - place)).flatten())  # culprit: atoms-between-bins
    target.view(-1).index_add_(0, (above.long() + offset).flatten(), (probabilities * (place - below)).flatten())  # culprit: atoms-between-bins
    return target


def distributions(dtype: torch.dtype) -> torch.Tensor:
    """Targets of a categorical critic of 51 atoms, which runs in bfloat16 throughout."""
    support = torch.linspace(-10, 10, 51).to(dtype)
    probabilities = torch.softmax(-((torch.linspace(-10, 10, 51) - 4 * normal(16, 1)) ** 2) / 4, -1).to(LOW).to(dtype)
    return project(probabilities, (0.3 + uniform(16)).to(LOW).to(dtype), support, 0.993).float()


def perturb(weights: list[torch.Tensor], seed: int, scale: float) -> None:
    """Moves the weights along random directions, which are drawn again from their seed each time."""
    for place, weight in enumerate(weights):
        weight.add_((scale * normal(*weight.shape, seed=seed + place)).to(weight.dtype))  # culprit: gradient-by-two-losses


def zeroth_order(dtype: torch.dtype) -> torch.Tensor:
    """Slopes along twelve directions, each from the losses on either side, of a network that is stored in bfloat16."""
    weights = [(normal(24, 16) / 4).to(LOW).to(dtype), (normal(6, 24, seed=1) / 5).to(LOW).to(dtype)]
    x, labels = normal(96, 16, seed=2).to(dtype), torch.arange(96) % 6
    epsilon, slopes = 1e-3, []

    def loss() -> torch.Tensor:
        return functional.cross_entropy((functional.relu(x @ weights[0].T) @ weights[1].T).float(), labels)  # culprit: gradient-by-two-losses

    for seed in range(100, 1300, 100):
        perturb(weights, seed, epsilon)
        above = loss()
        perturb(weights, seed, -2 * epsilon)
        slopes.append((above - loss()) / (2 * epsilon))  # culprit: gradient-by-two-losses
        perturb(weights, seed, epsilon)
    return torch.stack(slopes)


BUGS = (
    Bug("value-out-of-bins", "pytorch/rl#4065", ("amplified-rounding",), "aten.sum.dim_IntList", lambda: returns(False), lambda: returns(True)),
    Bug("weight-of-the-critic", "PKU-YuanGroup/WF-VAE#7", ("gradient-underflow", "underflow"), "aten.convolution_backward.default",
        lambda: autoencoder(True), lambda: autoencoder(False), phase="backward"),
    Bug("product-with-the-hessian", "khanrc/pt.darts#43", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: searched(True),
        lambda: searched(False)),
    Bug("atoms-between-bins", "Curt-Park/rainbow-is-all-you-need#76", ("cancellation", "amplified-rounding", "decision-flip"), "aten.sub.Tensor",
        lambda: distributions(LOW), lambda: distributions(WIDE)),
    Bug("gradient-by-two-losses", "princeton-nlp/MeZO#42", ("cancellation", "absorption", "accumulated-drift"), "aten.sub.Tensor",
        lambda: zeroth_order(LOW), lambda: zeroth_order(WIDE)),
)  # fmt: skip
