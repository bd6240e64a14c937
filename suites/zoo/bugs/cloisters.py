"""Cloisters: words that stay hidden, trees, taggings, readers, places by powers, graphs in time, robots that go all out."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, SINGLE = torch.float16, torch.float32


class MaskedDiffusion(nn.Module):
    """A language model that fills in masked words; the mask itself is never an answer, and words that are seen stay as they are."""

    def __init__(self, vocabulary: int, neg_infinity: float) -> None:
        super().__init__()
        torch.manual_seed(9001)
        self.embed, self.backbone = nn.Embedding(vocabulary, 24), nn.Linear(24, 48)
        self.head = nn.Linear(48, vocabulary)
        self.mask_index, self.neg_infinity = vocabulary - 1, neg_infinity

    def subs_parameterization(self, logits: torch.Tensor, xt: torch.Tensor) -> torch.Tensor:
        logits[:, :, self.mask_index] += self.neg_infinity  # culprit: words-still-hidden
        logits = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
        seen = xt != self.mask_index
        kept = torch.zeros_like(logits) + self.neg_infinity  # culprit: words-still-hidden
        kept.scatter_(-1, xt[..., None], 0.0)
        return torch.where(seen[..., None], kept, logits)

    def forward(self, xt: torch.Tensor) -> torch.Tensor:
        return self.subs_parameterization(self.head(functional.gelu(self.backbone(self.embed(xt)))), xt)


def filled(neg_infinity: float) -> torch.Tensor:
    """The entropies of a model in half at the words of three texts, over four steps in which ever more words are seen."""
    model = MaskedDiffusion(40, neg_infinity).to(HALF)
    text = (39 * uniform(3, 12, seed=9002)).long()
    entropies = []
    with torch.no_grad():
        for step in range(4):
            hidden = uniform(3, 12, seed=9003 + step) > (step + 1) / 5
            xt = torch.where(hidden, torch.full_like(text, model.mask_index), text)
            log_p = model(xt)
            entropies.append(-(log_p.exp() * log_p).sum(-1).float().mean(-1))
    return torch.stack(entropies)


class ChainCRF:
    """A distribution over the labels of a sentence, by what each pair of neighbouring labels scores."""

    def __init__(self, log_potentials: torch.Tensor, margins: bool) -> None:
        self.log_potentials, self.margins = log_potentials, margins

    def partition(self, potentials: torch.Tensor) -> torch.Tensor:
        alpha = potentials.new_zeros(potentials.shape[0], potentials.shape[-1])
        for position in range(potentials.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + potentials[:, position], dim=1)
        return torch.logsumexp(alpha, dim=-1)

    def parts(self, labels: torch.Tensor) -> torch.Tensor:
        before, after = labels[:, :-1], labels[:, 1:]
        rows = self.log_potentials.gather(2, before[:, :, None, None].expand(-1, -1, 1, self.log_potentials.shape[-1]))
        return rows.squeeze(2).gather(2, after[:, :, None]).squeeze(2)

    def log_prob(self, labels: torch.Tensor) -> torch.Tensor:
        parts = self.parts(labels)
        if self.margins:
            return -self.partition(self.log_potentials - parts[:, :, None, None])
        return parts.sum(1) - self.partition(self.log_potentials)  # culprit: tree-of-a-sentence


def parsed(margins: bool) -> torch.Tensor:
    """How sure a trained parser is of the labels of eight sentences of thirty words, as it is printed after each epoch."""
    labels = (5 * uniform(8, 31, seed=9011)).long()
    scores = 90 + 2 * normal(8, 30, 5, 5, seed=9012)
    at = (torch.arange(8)[:, None], torch.arange(30)[None], labels[:, :-1], labels[:, 1:])
    printed = []
    for epoch in range(3):
        scores[at] = 100 + 0.5 * epoch + normal(8, 30, seed=9013 + epoch)
        printed.append(ChainCRF(scores, margins).log_prob(labels))
    return torch.stack(printed)


class NeuralCRF(nn.Module):
    """Tags the words of a sentence; the loss is made of the chance of the right tags."""

    def __init__(self, tags: int, through_chance: bool) -> None:
        super().__init__()
        torch.manual_seed(9021)
        self.emit, self.transition = nn.Linear(16, tags), nn.Parameter(0.1 * torch.randn(tags, tags))
        self.through_chance = through_chance

    def forward_unlabeled(self, emissions: torch.Tensor) -> torch.Tensor:
        alpha = emissions[:, 0]
        for position in range(1, emissions.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + self.transition + emissions[:, position, None], dim=1)
        return torch.logsumexp(alpha, dim=-1)

    def forward_labeled(self, emissions: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        emitted = emissions.gather(-1, tags[..., None]).squeeze(-1).sum(-1)
        return emitted + self.transition[tags[:, :-1], tags[:, 1:]].sum(-1)

    def forward(self, words: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        emissions = self.emit(words)
        unlabeled, labeled = self.forward_unlabeled(emissions), self.forward_labeled(emissions, tags)
        if self.through_chance:
            p = torch.exp(labeled - unlabeled)  # culprit: chance-of-a-tagging
            return -torch.log(p).mean()  # culprit: chance-of-a-tagging
        return (unlabeled - labeled).mean()


def tagged(through_chance: bool) -> torch.Tensor:
    """Losses and weights of a tagger in three steps on sentences of sixty-four words."""
    model, losses = NeuralCRF(9, through_chance), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        words, tags = normal(4, 64, 16, seed=9022 + step), (9 * uniform(4, 64, seed=9032 + step)).long()
        loss = model(words, tags)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.cat([torch.stack(losses), model.emit.weight.detach().flatten()])


class PermuteAttention(nn.Module):
    """Linear attention in which a key weighs the more, the later it comes: both sides have a power of their place."""

    def __init__(self, width: int, ratio: float, relative: bool) -> None:
        super().__init__()
        torch.manual_seed(9041)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.ratio, self.relative, self.eps = ratio, relative, 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1])[:, None]
        query, key, value = functional.elu(self.query(x)) + 1, functional.elu(self.key(x)) + 1, self.value(x)
        if self.relative:  # what all keys have in common is a factor of the normalizer as well
            key = key * self.ratio ** (x.shape[1] - 1 - places)
        else:
            query = query * self.ratio**places  # culprit: places-by-powers
            key = key * (1 / self.ratio) ** places  # culprit: places-by-powers
        context = torch.einsum("nsd,nsm->nmd", key, value)
        normalizer = 1 / (torch.einsum("nld,nd->nl", query, key.sum(1)) + self.eps)
        return torch.einsum("nld,nmd,nl->nlm", query, context, normalizer)


def permuted(relative: bool) -> torch.Tensor:
    """Two layers of it over two long texts."""
    first, second = PermuteAttention(12, 0.8, relative), PermuteAttention(12, 0.8, relative)
    with torch.no_grad():
        x = normal(2, 480, 12, seed=9042)
        return second(x + first(x))


class TemporalGAT(nn.Module):
    """Graph attention at each time, and a recurrent unit from one time to the next."""

    def __init__(self, width: int, shifted: bool) -> None:
        super().__init__()
        torch.manual_seed(9051)
        self.fc, self.shifted = nn.Linear(width, width, bias=False), shifted
        self.left, self.right = nn.Linear(width, 1, bias=False), nn.Linear(width, 1, bias=False)
        self.cell = nn.GRUCell(width, width)

    def attend(self, h: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        z = self.fc(h)
        e = functional.leaky_relu(self.left(z)[source] + self.right(z)[target], 0.2).squeeze(-1)
        if self.shifted:
            e = e - torch.full((len(h),), -torch.inf).scatter_reduce(0, target, e, "amax")[target]
        coefficients = torch.exp(e)  # culprit: graph-in-time
        total = torch.zeros(len(h)).index_add(0, target, coefficients)
        return torch.zeros_like(z).index_add(0, target, (coefficients / total[target])[:, None] * z[source])

    def forward(self, features: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(features[0])
        for x in features:
            state = self.cell(self.attend(x, source, target), state)
        return state


def forecast(shifted: bool) -> torch.Tensor:
    """The states of thirty stations after six times whose counts of vehicles are in the hundreds."""
    model = TemporalGAT(8, shifted)
    source, target = (30 * uniform(150, seed=9052)).long(), torch.arange(150) % 30
    with torch.no_grad():
        return model(120 * uniform(6, 30, 8, seed=9053) * torch.arange(1, 7)[:, None, None], source, target)


class Actor(nn.Module):
    """A policy whose actions are squeezed between -1 and 1."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9061)
        self.net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2))
        self.log_std = nn.Parameter(torch.full((2,), -0.5))

    def log_prob(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        raw = torch.atanh(action)  # culprit: robot-that-goes-all-out
        z = (raw - self.net(observation)) / self.log_std.exp()
        gaussian = -0.5 * z**2 - self.log_std - 0.5 * math.log(2 * math.pi)
        return (gaussian - torch.log(1 - action**2 + 1e-6)).sum(-1)


def walked(limit: float) -> torch.Tensor:
    """What an update of a policy that steers hard makes of the chances of the actions that it took before."""
    actor = Actor()
    with torch.no_grad():
        actor.net[2].bias.copy_(torch.tensor([9.0, -8.0]))
    observation, actions = normal(20, 6, seed=9062), []
    with torch.no_grad():
        for step in range(5):
            raw = actor.net(observation) + actor.log_std.exp() * normal(20, 2, seed=9063 + step)
            action = torch.tanh(raw).clamp(-limit, limit)  # culprit: robot-that-goes-all-out
            actions.append((observation, action))
            observation = 0.9 * observation + 0.1 * torch.cat([action, action, action], -1)
        return torch.stack([actor.log_prob(seen, action) for seen, action in actions])


class BagClassifier(nn.Module):
    """Sums what its words mean, and says of which kind a text is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9071)
        self.embed, self.classify = nn.Embedding(60, 16), nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.classify(self.embed(tokens).mean(1)).float(), labels)


def read_texts(unscaled: bool) -> torch.Tensor:
    """How far a reader goes in four updates, each of two batches, with the norm of its gradients limited."""
    model = BagClassifier()
    start = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=2.0), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for update in range(4):
        optimizer.zero_grad()
        for batch in range(2):
            seed = 9072 + 2 * update + batch
            with torch.autocast("cpu", HALF):
                loss = model((60 * uniform(16, 12, seed=seed)).long(), (4 * uniform(16, seed=seed + 20)).long()) / 2
            scaler.scale(loss).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # culprit: reader-whose-steps-are-limited
        scaler.step(optimizer)  # culprit: reader-whose-steps-are-limited
        scaler.update()
    return nn.utils.parameters_to_vector(model.parameters()).detach() - start


BUGS = (
    Bug("words-still-hidden", "kuleshov-group/mdlm#7", ("overflow", "nan"), "aten.add.Tensor",
        lambda: filled(-1e6), lambda: filled(-1e3)),
    Bug("tree-of-a-sentence", "harvardnlp/pytorch-struct#61", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: parsed(margins=False), lambda: parsed(margins=True), precision="32-true"),
    Bug("chance-of-a-tagging", "allanj/pytorch_neural_crf#4", ("underflow",), "aten.exp.default",
        lambda: tagged(through_chance=True), lambda: tagged(through_chance=False), precision="32-true"),
    Bug("places-by-powers", "cpcp1998/PermuteFormer#2", ("overflow", "underflow"), "aten.pow.Scalar",
        lambda: permuted(relative=False), lambda: permuted(relative=True), precision="32-true"),
    Bug("graph-in-time", "bfGraph/STGraph#20", ("overflow",), "aten.exp.default",
        lambda: forecast(shifted=False), lambda: forecast(shifted=True), precision="32-true"),
    Bug("robot-that-goes-all-out", "cvoelcker/reppo#4", ("amplified-rounding", "overflow", "nan"), "aten.tanh.default",
        lambda: walked(1.0), lambda: walked(0.999), phase="data", precision="32-true"),
    Bug("reader-whose-steps-are-limited", "allenai/allennlp#5426", ("scaler-order",), "aten.clamp.default",
        lambda: read_texts(unscaled=False), lambda: read_texts(unscaled=True), phase="scaler"),
)  # fmt: skip
