"""A neural topic model, after ProdLDA, ETM and WHAI: bags of words, a logistic normal, Weibull's draws, and the coherence of topics."""

import torch
import torch.nn.functional as F
from torch import nn

WORDS, TOPICS, HIDDEN, ROWS, FIRST = 320, 12, 48, 16, 6
CORPUS, TICKS, WARM, STEPS = 300_000, 2**20, 9_000, 2


def lengths(counts):
    """How many words each document has."""
    return counts.sum(1)


def bags(counts):
    """The share of each word in its document."""
    return counts.float() / lengths(counts)[:, None].float()


def prior(alpha):
    """Mean and variance of the logistic normal that is nearest to a Dirichlet (Laplace's approximation)."""
    alpha = alpha.float()
    logs = alpha.log()
    mean = logs - logs.mean()
    return mean, (1 - 2 / TOPICS) / alpha + (1 / alpha).mean() / TOPICS


def divergence(offset, grown, width):
    """Of each document's normal from the prior. `grown`: the logarithm of the ratio of their variances."""
    spread = torch.expm1(grown) - grown
    return 0.5 * (spread + offset.square() / width).sum(1)


def weibull(scale, shape, ticks):
    """Draws that pass gradients on."""
    uniform = (ticks.float() + 0.5) / TICKS
    return scale * (-torch.log1p(-uniform)).pow(1 / shape)


def log_chances(theta, beta):
    """Of each word in each document."""
    chance = (theta[:, :, None] * beta).sum(1)
    return (chance + 1e-12).log()


def perplexity(logs, counts):
    """Of each document."""
    return (-(counts * logs).sum(1) / lengths(counts)).exp()


def burst(counts, concentration):
    """The logarithm of a document's chance, where a word that was used once is used again, after Doyle and Elkan."""
    total, number = concentration.sum(), lengths(counts).float()
    each = (torch.lgamma(counts + concentration) - torch.lgamma(concentration) - torch.lgamma(counts + 1.0)).sum(1)
    orders = torch.lgamma(number + 1) - torch.lgamma(number + total)
    return each + orders + torch.lgamma(total)


def coherence(seen, together):
    """Pointwise mutual information of a topic's first words, by the documents that have them."""
    one, both = (seen.float() + 1) / CORPUS, (together.float() + 1) / CORPUS
    ratio = both / (one[:, :, None] * one[:, None, :])
    return ratio.log() / -both.log()


def apart(beta):
    """One less the cosine of topics."""
    way = F.normalize(beta.sqrt(), dim=1)
    return 0.5 * (way[:, None] - way[None]).square().sum(-1)


def strength(done):
    """How much of the divergence counts, at first little."""
    return -torch.expm1(-done.float() / WARM)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.norm = nn.Linear(WORDS, HIDDEN), nn.LayerNorm(HIDDEN)
        self.offset, self.grown, self.shape = nn.Linear(HIDDEN, TOPICS), nn.Linear(HIDDEN, TOPICS), nn.Linear(HIDDEN, TOPICS)

    def forward(self, bag):
        hidden = F.softplus(self.norm(self.into((WORDS * bag).log1p().to(self.into.weight.dtype))))
        return 0.02 * self.offset(hidden).float(), 0.2 * self.grown(hidden).float(), 1 + F.softplus(self.shape(hidden).float())


class Topics(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.logits = nn.Parameter(0.1 * torch.randn(TOPICS, WORDS))
        self.register_buffer("frequency", 1e6 / (1 + torch.arange(WORDS)) ** 3.4, persistent=False)

    def forward(self, counts, ticks, seen, together, done, alpha):
        mean, width = prior(alpha)
        offset, grown, shape = self.encoder(bags(counts))
        drawn = weibull((mean + offset).exp(), shape, ticks)
        theta = drawn / drawn.sum(1, keepdim=True)
        beta = (self.logits.float() + self.frequency.float().log()).softmax(1)
        logs = log_chances(theta, beta)
        return {
            "logs": logs,
            "apart_from_prior": strength(done) * divergence(offset, grown, width),
            "perplexity": perplexity(logs, counts),
            "burst": burst(counts, 0.02 + beta.mean(0)),
            "coherence": coherence(seen, together),
            "alike": apart(beta),
        }


def loss(output):
    told = -output["logs"].mean() + 100 * output["apart_from_prior"].mean()
    return told - 1e-4 * output["burst"].mean() - 0.1 * output["alike"].mean()


def make():
    torch.manual_seed(0)
    return Topics()


def batch():
    generator = torch.Generator().manual_seed(26)
    rates = 420 / (1 + torch.arange(WORDS)) ** 1.2
    counts = torch.poisson(rates.expand(ROWS, WORDS), generator=generator).long()
    counts[5] = torch.poisson(torch.linspace(0, 3, WORDS), generator=generator).long()
    seen = torch.randint(70_000, 110_000, (TOPICS, FIRST), generator=generator)
    alone = (seen[:, :, None].double() * seen[:, None, :] / CORPUS).long()
    more = torch.randint(-900, 1_200, alone.shape, generator=generator)
    together = alone + more + more.transpose(1, 2)
    return {
        "counts": counts,
        "ticks": torch.randint(0, TICKS // 60, (ROWS, TOPICS), generator=generator),
        "seen": seen,
        "together": together,
        "done": torch.tensor(13),
        "alpha": torch.randint(47, 53, (TOPICS,), generator=generator),
    }


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-2, betas=(0.95, 0.99))
