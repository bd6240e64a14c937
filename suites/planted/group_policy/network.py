"""A writer that learns from checked answers, as GRPO and GSPO teach it: groups of answers, ratios to the policy that wrote them, and a leash."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

GROUPS, SIZE, LENGTH, WORDS, DIM = 2, 6, 96, 64, 32
SOFT, ROOM = 4900, 300
BELOW, ABOVE = 3e-4, 4e-4
STEPS = 1


def chances(logits, word):
    """The logarithm of each word's chance."""
    logits = logits.float()
    return logits.gather(-1, word[..., None])[..., 0] - logits.logsumexp(-1)


def drift(new, old):
    """By how much the logarithms of chances have changed."""
    return new.float() - old.float()


def leash(change):
    """Schulman's third estimate of a divergence; never below nought. `change`: the reference less the policy."""
    return torch.expm1(change) - change


def divergence(logits, others):
    """From one distribution over all words to another, for each word that is written."""
    logs, other = logits.float().log_softmax(-1), others.float().log_softmax(-1)
    return (logs.exp() * (logs - other)).sum(-1)


def whole(change, written):
    """One ratio for a whole answer: the geometric mean of those of its words."""
    mean = (change * written).sum(1) / written.sum(1)
    return mean.exp()


def advantages(points):
    """Of each answer over its group. Points are thousandths."""
    reward = points.float() / 1000
    spread = reward.std(1, unbiased=False, keepdim=True)
    return (reward - reward.mean(1, keepdim=True)) / (spread + 1e-6)


def too_long(words):
    """How far an answer has gone into the room behind the soft limit."""
    over = (words - SOFT).clamp_min(0)
    return over.float() / ROOM


def gained(ratio, advantage):
    """PPO's lower bound, with GSPO's narrow clip."""
    return torch.minimum(ratio * advantage, ratio.clamp(1 - BELOW, 1 + ABOVE) * advantage)


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(WORDS, DIM)
        self.past = nn.ModuleList(nn.Conv1d(DIM, DIM, 4) for _ in range(2))
        self.head = nn.Linear(DIM, WORDS)
        self.head.weight.data.mul_(0.3)
        self.head.bias.data.zero_()

    def forward(self, word):
        hidden = self.word(word).transpose(1, 2)
        for layer in self.past:
            hidden = hidden + F.gelu(layer(F.pad(hidden, (3, 0))))
        return self.head(hidden.transpose(1, 2))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.writer = Writer()
        self.before, self.first = (self.moved(by) for by in (0.006, 0.012))

    def moved(self, by):
        """The writer as it was some steps ago, and as it was at first."""
        other = copy.deepcopy(self.writer).requires_grad_(False)
        for weight in other.parameters():
            weight.add_(by * torch.randn_like(weight))
        return other

    def forward(self, word, written, points, words):
        logits = self.writer(word[:, :-1])
        with torch.no_grad():
            before, first = self.before(word[:, :-1]), self.first(word[:, :-1])
        aim = word[:, 1:]
        new, old, start = (chances(each, aim) for each in (logits, before, first))
        ratio = whole(drift(new, old), written)
        advantage = (advantages(points) - 0.1 * too_long(words)).flatten()
        held = (leash(drift(start, new)) * written).sum(1) / written.sum(1)
        apart = (divergence(logits, first) * written).sum(1) / written.sum(1)
        return {"gained": gained(ratio, advantage), "leash": held, "apart": apart}


def make():
    torch.manual_seed(0)
    return Policy()


def batch():
    generator = torch.Generator().manual_seed(82)
    count = GROUPS * SIZE
    ends = torch.randint(40, LENGTH, (count, 1), generator=generator)
    return {
        "word": torch.randint(0, WORDS, (count, LENGTH + 1), generator=generator),
        "written": (torch.arange(LENGTH) < ends).long(),
        "points": 930 + torch.randint(0, 60, (GROUPS, SIZE), generator=generator),
        "words": torch.randint(4_800, 5_150, (GROUPS, SIZE), generator=generator),
    }


def loss(output):
    return 4 * output["leash"].mean() + 2 * output["apart"].mean() - output["gained"].mean()


def optimizer(params):
    return torch.optim.AdamW([each for each in params if each.requires_grad], lr=1e-2)
