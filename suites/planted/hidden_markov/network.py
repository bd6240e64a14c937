"""A neural hidden Markov model of part-of-speech tags: emissions and transitions from embeddings, forward and backward sums in logarithms."""

from __future__ import annotations

from functools import reduce

import torch
from torch import nn

STEPS = 1


class ResLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        return torch.relu(self.lin2(torch.relu(self.lin1(x)))) + x


class NeuralHMM(nn.Module):
    def __init__(self, vocab=120, states=10, dim=32):
        super().__init__()
        self.start_emb, self.state_emb, self.preterminal_emb = (nn.Parameter(torch.randn(n, dim) * 0.5) for n in (1, states, states))
        self.start_mlp, self.trans_mlp, self.term_mlp = (nn.Sequential(nn.Linear(dim, dim), ResLayer(dim)) for _ in range(3))
        self.next, self.words = nn.Linear(dim, states), nn.Linear(dim, vocab)
        self.first = nn.Linear(dim, states)

    def potentials(self):
        start = self.first(self.start_mlp(self.start_emb)).float().log_softmax(-1)[0]
        trans = self.next(self.trans_mlp(self.state_emb)).float().log_softmax(-1)
        emit = self.words(self.term_mlp(self.preterminal_emb)).float().log_softmax(-1)
        return start, trans, emit

    @staticmethod
    def forwards(start, trans, emit, words, there):
        """Logarithms of sums over all tag sequences so far, [time, batch, states]."""
        scores = emit.T[words]

        def step(alphas, t):
            nxt = torch.logsumexp(alphas[-1].unsqueeze(-1) + trans, dim=1) + scores[:, t]
            return [*alphas, torch.where(there[:, t, None], nxt, alphas[-1])]

        return torch.stack(reduce(step, range(1, words.shape[1]), [start + scores[:, 0]]))

    @staticmethod
    def backwards(trans, emit, words, there):
        scores, beta = emit.T[words], torch.zeros(len(words), len(trans))
        betas = [beta]
        for t in reversed(range(1, words.shape[1])):
            before = torch.logsumexp(trans + (scores[:, t] + beta).unsqueeze(1), dim=-1)
            beta = torch.where(there[:, t, None], before, beta)
            betas.append(beta)
        return torch.stack(betas[::-1])

    def forward(self, words, there):
        start, trans, emit = self.potentials()
        with torch.autocast("cpu", enabled=False):
            alphas, betas = self.forwards(start, trans, emit, words, there), self.backwards(trans, emit, words, there)
            evidence = torch.logsumexp(alphas[-1], -1)
            posterior = torch.exp(alphas + betas - evidence[:, None]) * there.T.unsqueeze(-1)
            expected = posterior.sum((0, 1)) / there.sum()
            doubt = -(posterior * torch.log(posterior + 1e-9)).sum(-1).mean()
        return {"loss": -(evidence.sum() / there.sum()), "posterior": posterior, "expected": expected, "doubt": doubt}


def make() -> nn.Module:
    torch.manual_seed(0)
    return NeuralHMM()


def batch() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(33)
    there = torch.arange(18) < torch.tensor([18, 15, 9, 12])[:, None]
    return {"words": torch.randint(0, 120, (4, 18), generator=g), "there": there}


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
