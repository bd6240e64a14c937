"""A small language model that learns from a large one, after DistilBERT, MiniLM and Liger: packed documents, hooks, and chunked losses."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

DIM, HEADS, DEPTH, WORDS, LENGTH, ROWS, CHUNK = 32, 4, 2, 1024, 420, 2, 140
ITEMS, HEAT, TEACH = 52_000, 2.0, 6_000
STEPS = 1


def places(lengths):
    """Of each word in its document, and the document's number. `lengths`: of the documents that a row is packed with."""
    ends = lengths.cumsum(1)
    document = torch.searchsorted(ends, torch.arange(LENGTH).repeat(len(lengths), 1), right=True)
    starts = F.pad(ends, (1, 0))
    return torch.stack((torch.arange(LENGTH) - starts.gather(1, document), document))


def pooled(hidden, document, count):
    """The mean of each document's words."""
    total = torch.zeros(len(hidden), count, DIM)
    total = total.scatter_add(1, document[..., None].expand_as(hidden), hidden.float())
    number = torch.zeros(len(hidden), count).scatter_add(1, document, torch.ones(document.shape))
    return total / number[..., None].clamp_min(1)


def divergence(student, teacher):
    """Of softened distributions, for each word."""
    logs, other = (student.float() / HEAT).log_softmax(-1), (teacher.float() / HEAT).log_softmax(-1)
    return HEAT**2 * (other.exp() * (other - logs)).sum(-1)


def hint(student, teacher):
    """One less the cosine of hidden states."""
    return 1 - F.cosine_similarity(student.float(), teacher.float(), -1)


def log_prior(counts):
    """The logarithm of each word's share of the corpus."""
    counts = counts.float()
    return counts.log() - counts.sum().log()


def mixing(done):
    """How much of the loss is the teacher's, which fades in."""
    return -torch.expm1(-done.float() / TEACH)


class LinearCrossEntropy(torch.autograd.Function):
    """The loss of many words without their logits: gradients are made in the forward pass, chunk by chunk, as Liger's kernel does."""

    @staticmethod
    def forward(ctx, hidden, weight, prior, target):
        with torch.autocast("cpu", enabled=False):
            wide, kept, cost = weight.float(), [], 0.0
            by_weight = torch.zeros_like(wide)
            for chunk, aim in zip(hidden.split(CHUNK), target.split(CHUNK), strict=True):
                logs = (chunk.float() @ wide.T + prior).log_softmax(-1)
                cost = cost - logs.gather(1, aim[:, None]).sum() / ITEMS
                slope = (logs.exp() - F.one_hot(aim, WORDS)) / ITEMS
                kept.append(slope @ wide)
                by_weight = by_weight + slope.T @ chunk.float()
            ctx.save_for_backward(torch.cat(kept), by_weight)
            ctx.formats = hidden.dtype, weight.dtype
        return cost

    @staticmethod
    def backward(ctx, slope):
        by_hidden, by_weight = ctx.saved_tensors
        return (by_hidden * slope).to(ctx.formats[0]), (by_weight * slope).to(ctx.formats[1]), None, None


class Direction(nn.Module):
    """A weight of rows that are one long, times their lengths."""

    def __init__(self, weight):
        super().__init__()
        self.length = nn.Parameter(weight.norm(dim=1, keepdim=True).detach())

    def forward(self, way):
        norm = way.float().square().sum(1, keepdim=True).sqrt()
        return self.length * (way / norm).to(way.dtype)

    def right_inverse(self, weight):
        return 2e-4 * weight / weight.abs().mean()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.after, self.wide, self.narrow = nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x, mask):
        query, key, value = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, DIM // HEADS)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.after(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS, DIM), nn.Embedding(LENGTH, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.norm, self.project = nn.LayerNorm(DIM), nn.Linear(DIM, DIM)
        nn.init.normal_(self.word.weight, std=0.02)

    def forward(self, word, place, document):
        mask = (document[:, :, None] == document[:, None, :]).tril()[:, None]
        x = self.word(word) + self.place(place)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class Distilled(nn.Module):
    """Hidden states are caught by hooks, as they are from a teacher that one has not written."""

    def __init__(self):
        super().__init__()
        self.student = Model()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        for each in self.teacher.parameters():
            each.add_(0.06 * each.std(unbiased=False).clamp_min(0.05) * torch.randn_like(each))
        parametrize.register_parametrization(self.student.project, "weight", Direction(self.student.project.weight))
        self.caught = {}
        for name in ("student", "teacher"):
            getattr(self, name).layers[-1].register_forward_hook(lambda _module, _inputs, output, name=name: self.caught.update({name: output}))

    def forward(self, word, lengths, counts, done):
        place, document = places(lengths)
        hidden = self.student(word[:, :-1], place, document)
        with torch.no_grad():
            other = self.teacher(word[:, :-1], place, document)
        prior = log_prior(counts)
        weight = self.student.word.weight
        cost = LinearCrossEntropy.apply(hidden.flatten(0, 1), weight, prior, word[:, 1:].flatten())
        few = slice(0, LENGTH, 10)
        return {
            "cost": cost,
            "apart": divergence(hidden[:, few] @ weight.T, other[:, few] @ self.teacher.word.weight.T),
            "hint": hint(self.caught["student"], self.caught["teacher"]),
            "document": pooled(self.student.project(hidden), document, lengths.shape[1]),
            "mixing": mixing(done),
        }


def loss(output):
    taught = output["apart"].mean() + output["hint"].mean()
    spread = output["document"].square().mean()
    return output["cost"] + 100 * output["mixing"] * taught / ITEMS + spread / ITEMS


def make():
    torch.manual_seed(0)
    return Distilled()


def batch():
    generator = torch.Generator().manual_seed(12)
    counts = (3e6 / (3 + torch.arange(WORDS)) ** 1.1).long()
    return {
        "word": torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=generator),
        "lengths": torch.tensor([[137, 23, 141, 77, 42], [31, 155, 119, 18, 97]]),
        "counts": counts,
        "done": torch.tensor(7),
    }


def optimizer(params):
    return torch.optim.AdamW([each for each in params if each.requires_grad], lr=1e-2, weight_decay=0.0)
