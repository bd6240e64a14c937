"""Unusual habits in low formats that are right: what is rounded is kept, made good, exact, or too small to matter."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform, wider
from torch import nn

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


class Equilibrium(nn.Module):
    """A layer whose output is what it makes of itself, found by mixing the last turns such that their residuals cancel."""

    def __init__(self, width: int, memory: int, turns: int, pull: float = 0.9) -> None:
        super().__init__()
        torch.manual_seed(41)
        self.memory, self.turns = memory, turns
        self.inside, self.outside = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        with torch.no_grad():
            turned, _ = torch.linalg.qr(self.inside.weight)
            self.inside.weight.copy_(pull * turned)

    def cell(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inside(z) + x)

    def mixed(self, seen: list[torch.Tensor], made: list[torch.Tensor]) -> torch.Tensor:
        """The mean of what the last turns made, by weights that leave the least residual."""
        known, told = torch.stack(seen, 1), torch.stack(made, 1)
        left = told - known
        products = left @ left.mT
        scale = wider(products.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True))[..., None]
        gram = wider(products) / scale + 1e-6 * torch.eye(len(seen), dtype=scale.dtype)
        weights = torch.linalg.solve(gram, torch.ones(len(gram), len(seen), 1, dtype=gram.dtype))
        weights = weights / weights.sum(1, keepdim=True)
        return (weights.to(told.dtype) * told).sum(1)

    def settle(self, x: torch.Tensor) -> torch.Tensor:
        seen, made = [torch.zeros_like(x)], []
        for _ in range(self.turns):
            made.append(self.cell(seen[-1], x))
            seen, made = seen[-self.memory :], made[-self.memory :]
            seen.append(self.mixed(seen, made).to(x.dtype))
        return seen[-1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.settle(self.outside(x))


class Reader(nn.Module):
    """Reads rows by way of an equilibrium, between two layers and a norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(42)
        self.stem, self.norm = nn.Linear(10, 24), nn.LayerNorm(24)
        self.core = Equilibrium(24, 5, 18)
        self.head = nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.core(self.norm(torch.relu(self.stem(x)))))


def equilibrium_of_mixed_turns() -> torch.Tensor:
    """A fixed point in bfloat16, from differences of near turns: what these err by is less than the turns themselves."""
    with torch.no_grad():
        return Reader().to(LOW)(normal(20, 10).to(LOW)).float()


def sum_that_keeps_what_is_cut() -> torch.Tensor:
    """A sum of a thousand small numbers in half precision, with what each addition cuts off carried on."""
    total, rest = torch.zeros(16, dtype=HALF), torch.zeros(16, dtype=HALF)
    for each in (0.01 * uniform(1000, 16)).to(HALF):
        told = each - rest
        grown = total + told
        rest = (grown - total) - told
        total = grown
    return total.float() - rest.float()


def products_of_two_halves_each() -> torch.Tensor:
    """Matrices as sums of two in bfloat16, whose three larger products are added wide."""
    x, y = normal(24, 32), normal(32, 16, seed=1)
    high = [each.to(LOW) for each in (x, y)]
    rest = [(each - told.float()).to(LOW) for each, told in zip((x, y), high, strict=True)]
    pairs = ((high[0], high[1]), (high[0], rest[1]), (rest[0], high[1]))
    return torch.stack([(one.float() @ other.float()) for one, other in pairs]).sum(0)


def gradients_with_what_was_not_sent() -> torch.Tensor:
    """Gradients are sent in bfloat16, and what rounding cut off is added to the next."""
    weight, rest = torch.zeros(32), torch.zeros(32)
    for turn in range(40):
        told = normal(32, seed=turn) + rest
        sent = told.to(LOW)
        rest = told - sent.float()
        weight = weight - 0.01 * sent.float()
    return weight


def solution_refined_from_a_low_one() -> torch.Tensor:
    """An inverse in bfloat16 that solves in six turns, each for what is left."""
    matrix = torch.eye(24) * 4 + normal(24, 24) / 4
    inverse, right = torch.linalg.inv(matrix).to(LOW), normal(24, 3, seed=1)
    found = torch.zeros(24, 3)
    for _ in range(6):
        left = right - matrix @ found
        found = found + (inverse @ left.to(LOW)).float()
    return found


def product_by_logarithms_of_probabilities() -> torch.Tensor:
    """A product of thirty probabilities, as a sum of their logarithms, of which a model in half precision makes some."""
    torch.manual_seed(51)
    head = nn.Linear(16, 12).to(HALF)
    with torch.no_grad():
        return torch.log_softmax(head(normal(30, 16).to(HALF)), -1).float().amax(-1).sum()[None]


def counters_that_are_emptied() -> torch.Tensor:
    """Counters in half precision that go to a whole number before they reach two thousand."""
    whole, few = torch.zeros(8, dtype=torch.long), torch.zeros(8, dtype=HALF)
    for turn in range(60):
        few += (uniform(8, 50, seed=turn) > 0.4).sum(1).to(HALF)
        if turn % 20 == 19:
            whole += few.long()
            few.zero_()
    return whole.float() / 3000


def clock_of_two_hands() -> torch.Tensor:
    """Minutes and seconds in bfloat16, which holds both, put together in float32."""
    seconds = torch.arange(0, 9000, 37)
    minute, second = (seconds // 60).to(LOW), (seconds % 60).to(LOW)
    return torch.sin((minute.float() * 60 + second.float()) * 0.001)


def blocks_with_a_scale_each() -> torch.Tensor:
    """A matrix as bytes with a scale in half precision for each thirty-two, multiplied block by block."""
    weight, x = normal(16, 128), normal(128, 8, seed=1)
    parts = weight.view(16, 4, 32)
    scale = (parts.abs().amax(-1, keepdim=True) / 127).to(HALF)
    codes = (parts / scale.float()).round().clamp(-127, 127).to(torch.int8)
    return ((codes.float() * scale.float()).view(16, 128)) @ x


def softmax_piece_by_piece() -> torch.Tensor:
    """Attention in bfloat16 over pieces of keys, with the largest score and the sum of weights kept wide."""
    query, keys, values = (normal(8, 16).to(LOW), normal(96, 16, seed=1).to(LOW), normal(96, 16, seed=2).to(LOW))
    most, total, told = torch.full((8, 1), -torch.inf), torch.zeros(8, 1), torch.zeros(8, 16)
    for part, held in zip(keys.split(32), values.split(32), strict=True):
        score = (query @ part.T).float() / 4
        larger = torch.maximum(most, score.amax(1, keepdim=True))
        weight = torch.exp(score - larger)
        kept = torch.exp(most - larger)
        total = total * kept + weight.sum(1, keepdim=True)
        told = told * kept + (weight.to(LOW) @ held).float()
        most = larger
    return told / total


def pages_with_a_book_each() -> torch.Tensor:
    """Numbers of pages as book and page, both in half precision, of which a table is read."""
    table = normal(64 * 32, 4)
    number = (uniform(50, seed=1) * 2047).long()
    book, page = (number // 32).to(HALF), (number % 32).to(HALF)
    return table[(book * 32 + page).long()]


def average_that_forgets_fast() -> torch.Tensor:
    """A mean in bfloat16 that takes over half of each new value."""
    mean = torch.zeros(32, dtype=LOW)
    for turn in range(30):
        mean.lerp_((1 + normal(32, seed=turn)).to(LOW), 0.5)
    return mean.float()


def copy_of_wide_weights() -> torch.Tensor:
    """A model in bfloat16 whose weights are copied from wide ones after each step, which take tiny steps."""
    torch.manual_seed(52)
    model = nn.Linear(12, 4).to(LOW)
    wide = [each.detach().float() for each in model.parameters()]
    start = wide[0].clone()
    for turn in range(20):
        loss = (model(normal(16, 12, seed=turn).to(LOW)) - 1).float().square().mean()
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for each, kept, slope in zip(model.parameters(), wide, slopes, strict=True):
                kept -= 1e-3 * slope.float()
                each.copy_(kept)
    return wide[0] - start


def root_that_begins_coarse() -> torch.Tensor:
    """A reciprocal root in half precision, that two turns of Newton's make right."""
    x = 0.5 + 4 * uniform(64)
    told = x.to(HALF).rsqrt().float()
    for _ in range(2):
        told = told * (1.5 - 0.5 * x * told.square())
    return told


def signs_that_project() -> torch.Tensor:
    """Projections onto random signs in bfloat16, scaled by a power of two."""
    signs = (normal(64, 16) > 0).to(LOW) * 2 - 1
    return (normal(20, 64, seed=1).to(LOW) @ (signs / 8)).float()


def rows_by_a_product_with_ones() -> torch.Tensor:
    """Rows of a table in half precision, chosen by a product with a matrix of noughts and ones."""
    table = normal(24, 8).to(HALF)
    chosen = nn.functional.one_hot((uniform(40) * 24).long(), 24).to(HALF)
    return (chosen @ table).float()


def what_rounding_leaves() -> torch.Tensor:
    """A number in half precision less the nearest whole one, which is exact."""
    x = (8 * normal(64)).to(HALF)
    return (x - x.round()).float()


def colours_by_a_table() -> torch.Tensor:
    """A curve of 256 levels in half precision, read by bytes."""
    curve = (torch.arange(256) / 255).pow(2.2).to(HALF)
    return curve[(uniform(100) * 255).round().to(torch.uint8).long()].float()


def gradient_of_chunks_in_wide_sums() -> torch.Tensor:
    """Gradients of chunks in bfloat16, added in float32."""
    torch.manual_seed(53)
    head = nn.Linear(16, 8, bias=False).to(LOW)
    total = torch.zeros(8, 16)
    for turn in range(32):
        loss = nn.functional.cross_entropy(head(normal(16, 16, seed=turn).to(LOW)).float(), torch.arange(16) % 8)
        (slope,) = torch.autograd.grad(loss, head.weight)
        total += slope.float() / 32
    return total


def scale_that_is_a_power_of_two() -> torch.Tensor:
    """A loss in half precision, scaled by hand, whose gradient is divided by the scale in float32."""
    torch.manual_seed(54)
    head = nn.Linear(16, 4).to(HALF)
    loss = (head(normal(32, 16).to(HALF)).float() - 0.1).square().mean()
    slopes = torch.autograd.grad(loss * 256, list(head.parameters()))
    return torch.cat([(each.float() / 256).flatten() for each in slopes])


def frames_by_their_changes() -> torch.Tensor:
    """Frames as changes in bfloat16, each against what a reader has by then, so that errors do not add up."""
    held, kept = torch.zeros(32), []
    for turn in range(40):
        frame = torch.sin(torch.arange(32) * 0.2 + 0.1 * turn)
        held = held + (frame - held).to(LOW).float()
        kept.append(held)
    return torch.stack(kept)


def noise_that_is_small_beside_rounding() -> torch.Tensor:
    """A little noise on large activations in bfloat16, which is lost in part, as none hangs on it."""
    torch.manual_seed(55)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(LOW)
    with torch.no_grad():
        x = (2 * normal(20, 16)).to(LOW)
        return net(x + 0.002 * normal(20, 16, seed=1).to(LOW)).float()


def mean_about_a_guess() -> torch.Tensor:
    """A variance in half precision about a guess of the mean, which is near it."""
    x = (12 + normal(500, 4)).to(HALF)
    moved = x - 12
    return (moved.square().mean(0) - moved.mean(0).square()).float()


def weights_that_sum_to_one_at_last() -> torch.Tensor:
    """Weights in bfloat16 that are divided by their sum once more in float32, where they are used."""
    torch.manual_seed(56)
    gate = nn.Linear(16, 6).to(LOW)
    with torch.no_grad():
        share = torch.softmax(gate(normal(30, 16).to(LOW)), -1).float()
    share = share / share.sum(-1, keepdim=True)
    return share @ normal(6, 5, seed=1)


IDIOMS = (equilibrium_of_mixed_turns, sum_that_keeps_what_is_cut, products_of_two_halves_each, gradients_with_what_was_not_sent,
          solution_refined_from_a_low_one, product_by_logarithms_of_probabilities, counters_that_are_emptied, clock_of_two_hands,
          blocks_with_a_scale_each, softmax_piece_by_piece, pages_with_a_book_each, average_that_forgets_fast, copy_of_wide_weights,
          root_that_begins_coarse, signs_that_project, rows_by_a_product_with_ones, what_rounding_leaves, colours_by_a_table,
          gradient_of_chunks_in_wide_sums, scale_that_is_a_power_of_two, frames_by_their_changes, noise_that_is_small_beside_rounding,
          mean_about_a_guess, weights_that_sum_to_one_at_last)  # fmt: skip
