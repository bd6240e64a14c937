"""Steps and plans: trees of priorities, words that are not used, slow steps, unlikely labels, plans between cells, scans by sums."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


class Tree:
    """Priorities as the leaves of a tree, each node of which is the sum of the two below it."""

    def __init__(self, leaves: torch.Tensor) -> None:
        self.levels = [leaves]
        while len(self.levels[-1]) > 1:
            self.levels.append(self.levels[-1].view(-1, 2).sum(1))

    def scaled(self, factor: float, anew: bool) -> Tree:
        if anew:
            return Tree(self.levels[0] * factor)
        other = Tree(self.levels[0])
        other.levels = [level * factor for level in self.levels]  # culprit: tree-of-scaled-priorities
        return other

    def find(self, share: torch.Tensor) -> torch.Tensor:
        """The leaves that hold these shares of the whole, from the left."""
        left = share * self.levels[-1]
        node = torch.zeros(len(share), dtype=torch.long)
        for level in self.levels[-2::-1]:
            near = level[2 * node]
            right = left > near  # culprit: tree-of-scaled-priorities
            left = torch.where(right, left - near, left)
            node = 2 * node + right.long()
        return node


def replayed(anew: bool, factor: float = 0.9, full: int = 28) -> torch.Tensor:
    """The weights of what is drawn from a memory that has been filled for the most part, after all priorities were made less. Garbage."""
    held = torch.cat([uniform(full, seed=28) + 0.05, torch.zeros(32 - full)])
    tree = Tree(held).scaled(factor, anew)
    drawn = tree.levels[0][tree.find(torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9, 1 - 2.0**-24]))]
    weights = (1 / (drawn + 1e-6)).pow(0.5)
    return weights / weights.max()


class Captions(nn.Module):
    """Reads words from a table, and tells how bright each of eight patches is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(61)
        self.table, self.body, self.head = nn.Embedding(50, 24), nn.Linear(24, 32), nn.Linear(32, 8)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(nn.functional.silu(self.body(self.table(words).mean(1))))


def tuned(wide: bool, steps: int = 2) -> torch.Tensor:
    """A table of words after two steps of Adam, in half precision. NaN where a word was not used."""
    model = Captions().to(HALF)
    held = [each.detach().float().clone().requires_grad_() for each in model.parameters()] if wide else list(model.parameters())
    optimizer = torch.optim.Adam(held, lr=1e-3, foreach=False)
    words, told = torch.arange(96).view(12, 8) % 30, normal(12, 8).to(HALF)
    for _ in range(steps):
        model.zero_grad()
        (model(words) - told).square().mean().backward()
        if wide:
            for mine, theirs in zip(held, model.parameters(), strict=True):
                mine.grad = theirs.grad.float()
        optimizer.step()  # culprit: steps-of-unused-words
        if wide:
            with torch.no_grad():
                for mine, theirs in zip(held, model.parameters(), strict=True):
                    theirs.copy_(mine)
    return wider(model.table.weight.detach())


class Judge(nn.Module):
    """Says of each step of an answer how good it is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(62)
        self.first, self.norm, self.last = nn.Linear(24, 48), nn.LayerNorm(48), nn.Linear(48, 1)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(nn.functional.gelu(self.first(steps)))).squeeze(-1)


def judged(kind: torch.dtype, rate: float = 1e-6, steps: int = 2) -> torch.Tensor:
    """How far a judge of answers has moved after two small steps, whose weights are bfloat16. Not at all."""
    model = Judge().to(kind)
    before = [wider(each.detach().clone()) for each in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0, foreach=False)
    for turn in range(steps):
        answers, good = normal(16, 6, 24, seed=turn), (uniform(16, seed=turn) > 0.5).float()
        with torch.autocast("cpu", LOW):
            told = model(answers.to(kind))
        loss = nn.functional.binary_cross_entropy_with_logits(wider(told).mean(1), good)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # culprit: steps-of-a-judge
    return torch.stack([(wider(each.detach()) - start).norm() for each, start in zip(model.parameters(), before, strict=True)])


class Alignment:
    """How dear labels are that come in order, some frames after each other, with blanks between them."""

    def __init__(self, blank: int, by_logarithm: bool) -> None:
        self.blank, self.by_logarithm = blank, by_logarithm

    def told(self, acts: torch.Tensor) -> torch.Tensor:
        if self.by_logarithm:
            return torch.log_softmax(acts, -1)
        return torch.softmax(acts, -1).log()  # culprit: cost-of-an-unlikely-label

    def cost(self, acts: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        told = self.told(acts)
        line = torch.full((2 * len(labels) + 1,), self.blank)
        line[1::2] = labels
        none = torch.full((2,), -torch.inf)
        skip = torch.zeros(len(line), dtype=torch.bool)
        skip[2:] = (line[2:] != self.blank) & (line[2:] != line[:-2])
        reached = torch.cat([told[0, line[:2]], torch.full((len(line) - 2,), -torch.inf)])
        for frame in told[1:]:
            near = torch.cat([none[:1], reached[:-1]])
            far = torch.where(skip, torch.cat([none, reached[:-2]]), -torch.inf)
            reached = torch.stack([reached, near, far]).logsumexp(0) + frame[line]
        return -reached[-2:].logsumexp(0)


def label_costs(by_logarithm: bool, reach: float = 150.0) -> torch.Tensor:
    """The costs of two utterances, of one of which a label is unlikely in all frames. Infinite."""
    costs = []
    for seed in range(2):
        acts = 2 * normal(7, 12, seed=seed)
        acts[:, 5] -= reach if seed == 1 else 0.0
        costs.append(Alignment(0, by_logarithm).cost(acts, torch.tensor([3, 5, 7])))
    return torch.stack(costs)


class Transport:
    """A plan that moves cells of one slice to those of another, where mass may be left behind at a price."""

    def __init__(self, blur: float, price: float, by_logarithm: bool, turns: int = 10) -> None:
        self.blur, self.by_logarithm, self.turns = blur, by_logarithm, turns
        self.power = price / (price + blur)

    def plan(self, cost: torch.Tensor) -> torch.Tensor:
        rows, columns = cost.shape
        a, b = torch.full((rows,), 1 / rows), torch.full((columns,), 1 / columns)
        if self.by_logarithm:
            kernel = -cost / self.blur + a.log()[:, None] + b.log()
            up, down = torch.zeros(rows), torch.zeros(columns)
            for _ in range(self.turns):
                up = self.power * (a.log() - (kernel + down).logsumexp(1))
                down = self.power * (b.log() - (kernel + up[:, None]).logsumexp(0))
            return (kernel + up[:, None] + down).exp()
        kernel = torch.exp(-cost / self.blur) * (a[:, None] * b)  # culprit: plan-of-unlike-cells
        up, down = torch.ones(rows), torch.ones(columns)
        for _ in range(self.turns):
            up = (a / (kernel @ down)) ** self.power
            down = (b / (kernel.T @ up)) ** self.power
        return up[:, None] * kernel * down


def plans(by_logarithm: bool, blur: float = 0.05) -> torch.Tensor:
    """Where the cells of a slice go, some of which have no cell of their class in the next slice. NaN."""
    here, there = uniform(14, 2), uniform(12, 2, seed=1)
    kind, other = torch.arange(14) % 3, torch.arange(12) % 2
    cost = torch.cdist(here, there).square() + 10.0 * (kind[:, None] != other)
    plan = Transport(blur, 5.0, by_logarithm).plan(cost)
    return plan / plan.sum(1, keepdim=True).clamp_min(1e-30)


class Scan(nn.Module):
    """A state that fades at each step by an amount of its own, for all steps at once."""

    def __init__(self, by_pairs: bool, fade: float) -> None:
        super().__init__()
        torch.manual_seed(63)
        self.by_pairs, self.rates = by_pairs, nn.Parameter(-fade * (1 + torch.arange(4.0)))
        self.step, self.into = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = nn.functional.softplus(self.step(x))[..., None]
        faded = (step * self.rates).cumsum(0)
        added = step * self.into(x)[..., None]
        if self.by_pairs:
            past = (torch.arange(len(x))[:, None] >= torch.arange(len(x)))[:, :, None, None]
            gap = (faded[:, None] - faded[None]).masked_fill(~past, -torch.inf)
            return (gap.exp() * added).sum(1).sum(-1)
        shrunk = faded.exp()
        held = (added / shrunk).cumsum(0)  # culprit: scan-by-sums
        return (shrunk * held).sum(-1)


def scanned(by_pairs: bool, fade: float = 1.0, length: int = 64) -> torch.Tensor:
    """What a state of many steps holds, whose slowest part fades by half at each of them. NaN."""
    return Scan(by_pairs, fade)(normal(length, 8)).detach()


BUGS = (
    Bug("tree-of-scaled-priorities", "JuliaReinforcementLearning/ReinforcementLearningTrajectories.jl#59", ("decision-flip", "amplified-rounding"),
        "aten.gt.Tensor", lambda: replayed(False), lambda: replayed(True), precision="32-true",
        expected_miss="which way a draw goes is taken over from the run, and one draw in six is on a bound by chance"),
    Bug("steps-of-unused-words", "afiaka87/glide-finetune#6", ("vanished-constant", "nan"), "aten.add_.Tensor",
        lambda: tuned(False), lambda: tuned(True), phase="optimizer"),
    Bug("steps-of-a-judge", "PRIME-RL/PRIME#47", ("lost-update", "absorption"), "",
        lambda: judged(LOW), lambda: judged(SINGLE), phase="optimizer", module="first"),
    Bug("cost-of-an-unlikely-label", "baidu-research/warp-ctc#23", ("underflow", "overflow", "nan"), "aten._softmax.default",
        lambda: label_costs(False), lambda: label_costs(True), precision="32-true"),
    Bug("plan-of-unlike-cells", "PeterPonyu/aether-3d#134", ("underflow",), "aten.exp.default",
        lambda: plans(False), lambda: plans(True), precision="32-true"),
    Bug("scan-by-sums", "MzeroMiko/VMamba#135", ("overflow", "nan", "underflow"), "aten.div.Tensor",
        lambda: scanned(False), lambda: scanned(True), precision="32-true"),
)  # fmt: skip
