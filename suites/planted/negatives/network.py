"""Dense retrieval with hard negatives: a key encoder that follows, a queue of keys that fade, corrections for common passages, Adam by hand."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

QUERIES, WORDS, VOCABULARY, DIM, QUEUE, HARD = 16, 12, 400, 32, 512, 8
TEMPERATURE = 0.02
STEPS = 2
PRECISIONS = ("bf16-mixed", "16-mixed")  # the queue and the key encoder are float32


def normed(vectors, low):
    """Vectors of length one."""
    return F.normalize(vectors.float(), dim=-1)


def likeness(query, keys, low):
    """Cosines over the temperature."""
    return query @ keys.T / TEMPERATURE


def faded(now, stamps, low):
    """By how much a key in the queue counts less, as a logarithm: it is some steps old."""
    return -(now - stamps).float() / 300


def commonness(counts, total, low):
    """The logarithm of how often a passage is drawn."""
    return (counts.float() / total.float()).log()


def mined(scores, low):
    """The passages in the queue that are most like a query."""
    return scores.topk(HARD, -1).indices


def told(right, wrong, low):
    """What it costs to take a wrong passage for the right one, by query."""
    return torch.cat([right[:, None], wrong], -1).logsumexp(-1) - right


def margins(score, teacher, low):
    """How much less sure than its teacher a model is. teacher: whole thousandths."""
    return score - teacher.float() / 1000


def uniformity(vectors, low):
    """The logarithm of the mean potential of all pairs: less is more even."""
    squares = torch.pdist(vectors).square()
    return (-2 * squares).exp().mean().log()


def placed(pointer, count, low):
    """Where new keys go in the queue."""
    return (pointer + torch.arange(count)) % QUEUE


def followed(old, new, low):
    """The key encoder's weights, a thousandth nearer to the query encoder's."""
    return old + 0.001 * (new.float() - old)


def counted(seen, more, low):
    """How many queries there have been."""
    return seen + more


def tower():
    return nn.Sequential(nn.EmbeddingBag(VOCABULARY, DIM), nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))


class Retriever(nn.Module):
    def __init__(self):
        super().__init__()
        self.queries = tower()
        self.keys = copy.deepcopy(self.queries)
        for each in self.keys.parameters():
            each.requires_grad_(False)
            each.add_(0.1 * torch.randn_like(each))
        self.seen = nn.Parameter(torch.tensor(412_000.0), requires_grad=False)
        self.register_buffer("queue", F.normalize(torch.randn(QUEUE, DIM), dim=-1))
        self.register_buffer("stamps", 412_000 - torch.randint(1, 2_000, (QUEUE,)))
        self.register_buffer("pointer", torch.tensor(301))

    def forward(self, asked, passages, counts, kept, total, teacher):
        raw = self.queries(asked)
        low = raw.dtype
        with torch.no_grad():
            for old, new in zip(self.keys.parameters(), self.queries.parameters(), strict=True):
                old.copy_(followed(old, new, low))
            key = self.keys(passages)
        with torch.autocast("cpu", enabled=False):
            query, key = normed(raw, low), normed(key, low)
            now = self.seen.round().long()
            right = (query * key).sum(-1) / TEMPERATURE - commonness(counts, total, low)
            wrong = likeness(query, self.queue.clone(), low) - commonness(kept, total, low) + faded(now, self.stamps, low)
            hard = mined(wrong, low)
            cost = told(right, wrong.gather(1, hard), low)
            gap = margins(F.cosine_similarity(query, key), teacher, low)
            loss = cost.mean() + gap.square().mean() + 0.1 * uniformity(query, low)
        with torch.no_grad():
            place = placed(self.pointer, len(key), low)
            self.queue[place], self.stamps[place] = key, now
            self.pointer.copy_((self.pointer + len(key)) % QUEUE)
            self.seen.copy_(counted(self.seen, len(key), low))
        return {"query": query, "cost": cost, "loss": loss}


def make():
    torch.manual_seed(0)
    return Retriever()


def batch():
    generator = torch.Generator().manual_seed(9)
    asked = torch.randint(VOCABULARY, (QUERIES, WORDS), generator=generator)
    other = torch.randint(VOCABULARY, (QUERIES, WORDS), generator=generator)
    return {
        "asked": asked,
        "passages": torch.where(torch.rand(QUERIES, WORDS, generator=generator) < 0.7, asked, other),
        "counts": torch.randint(2, 40, (QUERIES,), generator=generator),
        "kept": torch.randint(2, 40, (QUEUE,), generator=generator),
        "total": torch.tensor(900_000_000),
        "teacher": torch.randint(880, 960, (QUERIES,), generator=generator),
    }


def loss(output):
    return output["loss"]


def unbiased(moment, beta, step):
    """A moment without the zeros that it began with."""
    return moment / (1 - beta**step)


def direction(first, second):
    """Adam's step, of size one. A word that was not read has neither moment."""
    return first / (second.sqrt() + 1e-8)


class Adam(torch.optim.Optimizer):
    def __init__(self, params, rate=1e-3):
        super().__init__(params, {"rate": rate})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["step"], state["first"], state["second"] = 0, torch.zeros_like(weight), torch.zeros_like(weight)
                state["step"] += 1
                state["first"].lerp_(weight.grad, 0.1)
                state["second"].lerp_(weight.grad.square(), 0.001)
                first, second = unbiased(state["first"], 0.9, state["step"]), unbiased(state["second"], 0.999, state["step"])
                weight.sub_(group["rate"] * direction(first, second))


def optimizer(params):
    return Adam(params)
