"""Quays: rewards in groups, masks of pictures and questions, steps of Adam, sums of a loss, scales of weights, vectors made one long."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


def grouped(rewards: torch.Tensor, prompts: torch.Tensor, centred: bool) -> torch.Tensor:
    """How much better each answer is than the others to the same prompt, in units of their spread."""
    groups = int(prompts.max()) + 1
    counts = torch.bincount(prompts, minlength=groups).float()
    means = torch.zeros(groups).index_add_(0, prompts, rewards) / counts
    if centred:
        squares = torch.zeros(groups).index_add_(0, prompts, (rewards - means[prompts]).square())
        variances = squares / (counts - 1)
    else:
        squares = torch.zeros(groups).index_add_(0, prompts, rewards.square())
        variances = (squares - counts * means.square()) / (counts - 1)  # culprit: answers-of-like-worth
    spread = variances.clamp_min(0).sqrt()
    return (rewards - means[prompts]) / (spread[prompts] + 1e-6)  # culprit: answers-of-like-worth


def judged(centred: bool) -> torch.Tensor:
    """Sixteen prompts of eight answers each; a reward model gives nearly the same to all answers of a prompt."""
    prompts = torch.arange(16).repeat_interleave(8)
    worth = 2 + 3 * uniform(16, seed=6001)
    rewards = worth[prompts] + 4e-4 * normal(128, seed=6002)
    return grouped(rewards, prompts, centred)


class DiceLoss(nn.Module):
    """One less twice what two masks share, by what both have."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, logits: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        found = torch.sigmoid(logits)
        if self.wide:
            found, masks = found.float(), masks.float()
        found, masks = found.flatten(1), masks.flatten(1)
        shared = (found * masks).sum(1)  # culprit: masks-of-whole-pictures
        both = found.square().sum(1) + masks.square().sum(1)  # culprit: masks-of-whole-pictures
        return 1 - (2 * shared + 1) / (both + 1)


def validated(wide: bool) -> torch.Tensor:
    """The loss of a segmenter on pictures of 300 by 300, of which an object takes the most; validation is in half."""
    torch.manual_seed(6011)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1)).to(HALF)
    pictures = normal(2, 3, 300, 300, seed=6012).to(HALF)
    masks = (torch.arange(300)[None, None, :, None] < torch.tensor([290, 280])[:, None, None, None]).expand(2, 1, 300, 300).to(HALF)
    with torch.no_grad():
        logits = net(pictures) + 6 * (masks - 0.4)
        return DiceLoss(wide)(logits, masks).float()


class Reranker(nn.Module):
    """Says how well a text answers a question, by what the question's words find in the text."""

    def __init__(self, least: float | None) -> None:
        super().__init__()
        torch.manual_seed(6021)
        self.query, self.key, self.value, self.score = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 1)
        self.least = least

    def mask(self, counts: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        least = torch.finfo(dtype).min if self.least is None else self.least
        return (1 - counts.to(dtype)) * least  # culprit: question-without-words

    def forward(self, words: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        scores = self.query(words) @ self.key(words).transpose(1, 2) * 32**-0.5
        scores = scores + self.mask(counts, words.dtype)[:, None]  # culprit: question-without-words
        found = scores.softmax(-1) @ self.value(words)  # culprit: question-without-words
        return self.score(found.mean(1)).squeeze(-1)


def ranked(least: float | None) -> torch.Tensor:
    """Four texts in half; the question of one of them was too short, and was padded altogether."""
    counts = torch.arange(12)[None] < torch.tensor([12, 7, 4, 0])[:, None]
    with torch.no_grad():
        return Reranker(least).to(HALF)(normal(4, 12, 32, seed=6022).to(HALF), counts).float()


class Adam:
    """Adam, written out over a list of parameters, whose moments have their dtype."""

    def __init__(self, parameters: list[torch.Tensor], rate: float, wide: bool, eps: float = 1e-8) -> None:
        self.parameters, self.rate, self.wide, self.eps = parameters, rate, wide, eps
        self.first = [torch.zeros_like(each) for each in parameters]
        self.second = [torch.zeros_like(each) for each in parameters]
        self.steps = 0

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for parameter, first, second in zip(self.parameters, self.first, self.second, strict=True):
            first.mul_(0.9).add_(parameter.grad, alpha=0.1)
            second.mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
            mean, square = first / (1 - 0.9**self.steps), second / (1 - 0.999**self.steps)
            if self.wide:
                update = (mean.float() / (square.float().sqrt() + self.eps)).to(mean.dtype)
            else:
                update = mean / (square.sqrt() + self.eps)  # culprit: rows-that-no-word-uses
            parameter.sub_(self.rate * update)
            parameter.grad = None


def embedded(wide: bool) -> torch.Tensor:
    """A table of forty words in half after three steps, in which ten of them are read."""
    torch.manual_seed(6031)
    table = nn.Embedding(40, 8).to(HALF)
    optimizer = Adam(list(table.parameters()), 1e-2, wide)
    for step in range(3):
        words = torch.arange(10) * 4
        (table(words) * normal(10, 8, seed=6032 + step).to(HALF)).sum().backward()
        optimizer.step()
    return table.weight.detach().float()


class Trainer:
    """Adds the loss of each step to a tensor, which it reads when it logs."""

    def __init__(self, model: nn.Module, clears: bool) -> None:
        self.model, self.clears = model, clears
        self.total, self.logged, self.before = torch.tensor(0.0, dtype=LOW), [], 0.0

    def log(self, every: int) -> None:
        if self.clears:
            self.logged.append(self.total.item() / every)
            self.total -= self.total
        else:
            self.logged.append((self.total.item() - self.before) / every)
            self.before = self.total.item()

    def train(self, steps: int, every: int) -> torch.Tensor:
        for step in range(1, steps + 1):
            x = normal(16, 24, seed=6042 + step).to(LOW)
            loss = functional.cross_entropy(self.model(x), (10 * uniform(16, seed=7042 + step)).long())
            self.total += loss.detach()  # culprit: loss-that-is-logged
            if step % every == 0:
                self.log(every)
        return torch.tensor(self.logged)


def logged(clears: bool) -> torch.Tensor:
    """The loss that is logged after each twenty of three hundred steps, under a model in bfloat16."""
    torch.manual_seed(6041)
    model = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 10)).to(LOW)
    return Trainer(model, clears).train(300, 20)


class Quantized(nn.Module):
    """A layer whose weights are bytes with a scale for each row; weights of a package are half."""

    def __init__(self, layer: nn.Linear, guarded: bool) -> None:
        super().__init__()
        weight = layer.weight.detach()
        largest = weight.abs().amax(1, keepdim=True)
        scale = (largest.float() if guarded else largest) / 127  # culprit: rows-of-small-weights
        codes = (weight / scale).round().clamp(-127, 127)  # culprit: rows-of-small-weights
        self.register_buffer("codes", codes.to(torch.int8))
        self.register_buffer("scale", scale.float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.codes.float() * self.scale)


def packaged(guarded: bool) -> torch.Tensor:
    """Twelve rows of a layer, of which three have weights of a few millionths. Its output is brought to one size by what follows."""
    torch.manual_seed(6051)
    layer = nn.Linear(48, 12, bias=False)
    with torch.no_grad():
        layer.weight.mul_(torch.where(torch.arange(12) % 4 == 3, 2e-5, 1.0)[:, None])
        small = Quantized(layer.to(HALF), guarded)
        return functional.normalize(small(normal(20, 48, seed=6052)), dim=0)


class RMSNorm(nn.Module):
    """Makes the channels of each place one long, as the autoencoders of videos do."""

    def __init__(self, channels: int, wide: bool) -> None:
        super().__init__()
        self.gamma, self.wide = nn.Parameter(torch.ones(channels, 1, 1)), wide
        self.scale = channels**0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.wide:
            return functional.normalize(x.float(), dim=1).to(x.dtype) * self.scale * self.gamma
        return functional.normalize(x, dim=1) * self.scale * self.gamma  # culprit: places-that-are-black


def decoded(wide: bool) -> torch.Tensor:
    """A decoder's block in half on frames whose border is black."""
    torch.manual_seed(6061)
    block = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1, bias=False), RMSNorm(16, wide), nn.SiLU(), nn.Conv2d(16, 3, 1)).to(HALF)
    frames = functional.pad(normal(2, 4, 8, 8, seed=6062), (4, 4, 4, 4)).to(HALF)
    with torch.no_grad():
        return block(frames).float()


BUGS = (
    Bug("answers-of-like-worth", "verl-project/verl#6348", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: judged(centred=False), lambda: judged(centred=True), precision="32-true"),
    Bug("masks-of-whole-pictures", "ultralytics/ultralytics#24554", ("overflow", "nan"), "aten.sum.dim_IntList",
        lambda: validated(wide=False), lambda: validated(wide=True), module="DiceLoss"),
    Bug("question-without-words", "jundot/omlx#3633", ("overflow", "nan"), "aten.mul.Tensor",
        lambda: ranked(-1e9), lambda: ranked(None)),
    Bug("rows-that-no-word-uses", "google-deepmind/optax#1754", ("vanished-constant", "nan", "underflow"), "aten.add.Tensor",
        lambda: embedded(wide=False), lambda: embedded(wide=True), phase="data"),
    Bug("loss-that-is-logged", "huggingface/transformers#8561", ("amplified-rounding", "absorption", "accumulated-drift"), "aten.add_.Tensor",
        lambda: logged(clears=False), lambda: logged(clears=True)),
    Bug("rows-of-small-weights", "apple/coremltools#2851", ("underflow", "wrong-scale", "nan"), "aten.div.Tensor",
        lambda: packaged(guarded=False), lambda: packaged(guarded=True)),
    Bug("places-that-are-black", "huggingface/diffusers#13316", ("vanished-constant", "nan"), "aten.clamp_min.default",
        lambda: decoded(wide=False), lambda: decoded(wide=True), module="1"),
)  # fmt: skip
