"""A tagger of long texts: convolutions over words, and a conditional random field over the tags, with the marginals that a teacher's are
compared to."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed", "bf16-true")
STEPS = 1
VOCABULARY, WIDTH, TAGS, LENGTH = 80, 32, 9, 300


def forward_scores(emissions: torch.Tensor, transitions: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The logarithm of the weight of all paths to each tag of each word. (batch, words, tags)"""
    emissions, transitions = emissions.float(), transitions.float()
    score = emissions[:, 0]
    found = [score]
    for word in range(1, emissions.shape[1]):
        score = torch.logsumexp(score.unsqueeze(2) + transitions, 1) + emissions[:, word]
        found.append(score)
    return torch.stack(found, 1).float()


def backward_scores(emissions: torch.Tensor, transitions: torch.Tensor) -> torch.Tensor:
    """The logarithm of the weight of all paths from each tag of each word to the end."""
    emissions, transitions = emissions.float(), transitions.float()
    score = torch.zeros_like(emissions[:, 0])
    found = [score]
    for word in range(emissions.shape[1] - 1, 0, -1):
        score = torch.logsumexp((score + emissions[:, word]).unsqueeze(1) + transitions, 2)
        found.append(score)
    return torch.stack(found[::-1], 1).float()


def marginals(before: torch.Tensor, after: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How likely each tag is at each word."""
    total = torch.logsumexp(before[:, -1], -1)
    return torch.exp(before + after - total[:, None, None]).float()


def path_score(emissions: torch.Tensor, transitions: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
    """The score of the right tags."""
    own = emissions.float().gather(2, tags.unsqueeze(2)).squeeze(2).sum(1)
    return own + transitions.float()[tags[:, :-1], tags[:, 1:]].sum(1)


def surprise(total: torch.Tensor, right: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How unlikely the right tags are: the logarithm of all paths' weight less that of the right one's."""
    return (total - right).float()


def last_words(mask: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Where each text ends."""
    return (mask.long().cumsum(1)[:, -1] - 1).long()


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.convolutions = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TAGS)
        self.kind = nn.Linear(WIDTH, 4)
        self.transitions = nn.Parameter(0.3 * torch.randn(TAGS, TAGS))

    def forward(
        self, words: torch.Tensor, tags: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor, teacher: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        hidden = self.words(words).transpose(1, 2)
        for convolution in self.convolutions:
            hidden = hidden + functional.gelu(convolution(hidden))
        hidden = self.norm(hidden.transpose(1, 2))
        emissions = self.head(hidden)
        low = emissions.dtype
        with torch.autocast(emissions.device.type, enabled=False):
            before = forward_scores(emissions, self.transitions, emissions)
            after = backward_scores(emissions, self.transitions)
            likely = marginals(before, after, low)
            right = path_score(emissions, self.transitions, tags)
            unlikely = surprise(torch.logsumexp(before[:, -1], -1), right, low)
            apart = (teacher.float() * (torch.log(teacher.float()) - torch.log(likely + 1e-6))).sum(-1).mean()
            last = last_words(mask, low)
        ends = hidden.gather(1, last[:, None, None].expand(-1, 1, WIDTH)).squeeze(1)
        kind = functional.cross_entropy(self.kind(ends).float(), kinds)
        return {"surprise": unlikely.mean() / LENGTH, "teacher": apart, "kind": kind}


def make() -> nn.Module:
    torch.manual_seed(0)
    model = Tagger()
    with torch.no_grad():  # a tagger that has learned is sure of most words
        model.head.weight.mul_(6.0)
    return model


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(VOCABULARY, (4, LENGTH), generator=generator)
    lengths = torch.tensor([297, 283, 271, 190])
    model = make()
    with torch.no_grad():
        hidden = model.words(words).transpose(1, 2)
        for convolution in model.convolutions:
            hidden = hidden + functional.gelu(convolution(hidden))
        scores = model.head(model.norm(hidden.transpose(1, 2)))
    noise = torch.randn(scores.shape, generator=generator)
    return {
        "words": words,
        "tags": (scores + 0.1 * noise).argmax(-1),
        "kinds": torch.randint(4, (4,), generator=generator),
        "mask": torch.arange(LENGTH) < lengths.unsqueeze(1),
        "teacher": torch.softmax(scores + 0.3 * noise, -1),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["surprise"] + output["teacher"] + output["kind"]


optimizer = None
