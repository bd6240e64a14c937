"""Pretraining of a small language model in a loop of its own: micro-batches, Muon, a norm that is cut, a schedule, a book of what was seen."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

MICRO, ROWS, LENGTH, VOCABULARY, DIM = 4, 2, 24, 64, 32
TOTAL = 20_000
STEPS = 3
PRECISIONS = ("bf16-mixed", "16-mixed")  # the averaged model is float32


def costs(logits, targets, low):
    """Cross entropy with a small penalty on the partition function."""
    logits = logits.float()
    whole = logits.logsumexp(-1)
    return whole - logits.gather(-1, targets[..., None])[..., 0] + 1e-4 * whole.square()


def gathered(total, gradient, low):
    """The sum of the gradients of micro-batches."""
    return gradient.float() if total is None else total + gradient.float()


def squared_length(gradient, low):
    return gradient.float().square().sum()


def noise(small, large, low):
    """How much of a micro-batch's squared length is noise: what the mean of all has less of it."""
    return (small - large) / (1 - 1 / MICRO)


def rate(step, low):
    """By half a cosine, from one to nought."""
    return 0.5 * (1 + torch.cos(math.pi * step.float() / TOTAL))


def remaining(step, low):
    """Steps that are left."""
    return (TOTAL - step).float()


def counted(seen, tokens, low):
    """Tokens that the model has seen."""
    return seen + tokens


def followed(old, new, low):
    """An average of weights over a thousand steps."""
    return old + 0.001 * (new.float() - old)


def wander(first, second, low):
    """The spread of the loss over the last steps, from the running means of the loss and of its square."""
    return (second - first.square()).clamp_min(0).sqrt()


def running(old, new, low):
    return old + 0.02 * (new - old)


def orthogonal(gradient):
    """Newton and Schulz: the nearest matrix whose singular values are one."""
    x = gradient / (gradient.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x


def stepped(weight, update, by):
    """A weight after its step, with decay."""
    return weight * (1 - 0.1 * by) - by * update


class Muon(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"rate": 2e-3})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                state["momentum"].mul_(0.9).add_(weight.grad)
                update = orthogonal(state["momentum"]) if weight.ndim == 2 else state["momentum"].sign()
                weight.copy_(stepped(weight, update, group["rate"]))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.place = nn.Embedding(VOCABULARY, DIM), nn.Embedding(LENGTH, DIM)
        self.norm, self.qkv, self.mix = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.after, self.wide, self.narrow = nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)
        self.head = nn.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, tokens):
        hidden = self.embedding(tokens) + self.place.weight
        query, key, value = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in self.qkv(self.norm(hidden)).chunk(3, -1))
        hidden = hidden + self.mix(F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))
        return self.head(hidden + self.narrow(F.gelu(self.wide(self.after(hidden)))))


class Training(nn.Module):
    """The model, its average, and the book."""

    def __init__(self):
        super().__init__()
        self.model = Model()
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        for each in self.average.parameters():
            each.add_(0.05 * torch.randn_like(each))
        for name, value in (("seen", 7_300_000.0), ("loss", 4.1), ("square", 16.83), ("spread", 0.1), ("scale", 0.1), ("left", 50.0), ("by", 1e-4)):
            setattr(self, name, nn.Parameter(torch.tensor(value), requires_grad=False))
        self.register_buffer("done", torch.tensor(19_904))


def step(model, inputs, optimizer, scaler, autocast):
    trained, total, small, cost = dict(model.model.named_parameters()), {}, 0.0, 0.0
    for tokens in inputs["tokens"]:
        optimizer.zero_grad()
        with autocast():
            low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
            logits = model.model(tokens[:, :-1])
        loss = costs(logits, tokens[:, 1:], low).mean()
        scaler.scale(loss / MICRO).backward()
        cost = cost + loss.detach() / MICRO
        for name, weight in trained.items():
            total[name] = gathered(total.get(name), weight.grad, low)
        small = small + sum(squared_length(MICRO * weight.grad / scaler.get_scale(), low) for weight in trained.values()) / MICRO
    for name, weight in trained.items():
        weight.grad = total[name]
    scaler.unscale_(optimizer)
    large = sum(squared_length(weight.grad, low) for weight in trained.values())
    share = (1 / (large.sqrt() + 1e-6)).clamp_max(1)
    for weight in trained.values():
        weight.grad.mul_(share)
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        written(model, cost, noise(small, large, low), inputs["tokens"][..., 1:].numel(), low)


def written(model, cost, spoilt, tokens, low):
    """Keeps the book."""
    for old, new in zip(model.average.parameters(), model.model.parameters(), strict=True):
        old.copy_(followed(old, new, low))
    model.done.add_(1)
    model.seen.copy_(counted(model.seen, tokens, low))
    model.loss.copy_(running(model.loss, cost, low))
    model.square.copy_(running(model.square, cost.square(), low))
    model.spread.copy_(wander(model.loss, model.square, low))
    model.scale.copy_(spoilt)
    model.left.copy_(remaining(model.done, low))
    model.by.copy_(rate(model.done, low))


def make():
    torch.manual_seed(0)
    return Training()


def batch():
    return {"tokens": torch.randint(VOCABULARY, (MICRO, ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(2))}


def optimizer(params):
    return Muon(params)
