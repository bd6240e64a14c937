"""The sixth batch, third part: preferences, alignments, speech with a cache, and modules of torch beside their formulas."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, language_loss, spread
from torch import nn

W, HEADS, SIZE, WORDS = 24, 3, 8, 17


class Preferring(nn.Module):
    """Two answers to each prompt, one preferred; a frozen model that they are measured against."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.words, self.mix, self.head = nn.Embedding(WORDS, W), nn.GRU(W, W, batch_first=True), nn.Linear(W, WORDS)

    def logs(self, tokens: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.mix(self.words(tokens[:, :-1]))[0]).float()
        wanted, counted = tokens[:, 1:], answer[:, 1:]
        if self.ways.get("prompt"):
            counted = torch.ones_like(counted)
        if self.ways.get("form") == "other":
            logs = torch.cat([scores[:, place].gather(-1, wanted[:, place, None]) - scores[:, place].logsumexp(-1, keepdim=True)
                              for place in range(wanted.shape[1])], 1)  # fmt: skip
        else:
            logs = scores.log_softmax(-1).gather(-1, wanted[..., None])[..., 0]
        total = (logs * counted).sum(-1)
        return total / counted.sum(-1) if self.ways.get("mean") else total

    def forward(self, tokens: torch.Tensor, answer: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        chosen, refused = self.logs(tokens, answer).chunk(2)
        old_chosen, old_refused = before.chunk(2)
        gain = (chosen - refused) - (old_refused - old_chosen if self.ways.get("sign") else old_chosen - old_refused)
        gain = 0.1 * gain
        if self.ways.get("form") != "other":
            lost = -F.logsigmoid(gain)
        else:
            lost = F.softplus(-gain)
        if self.ways.get("hinge"):
            lost = F.relu(1 - gain)
        return lost.mean()


def preferring(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Preferring()), Preferring(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    answer = (torch.arange(9) >= torch.tensor([[3], [5], [3], [5]])).float()
    return model, other, (torch.randint(0, WORDS, (4, 9)), answer, -8 * torch.rand(4) - 6), {"loss": lambda out: out}


class Aligned(nn.Module):
    """Frames that are labelled without times: all alignments' probabilities are added up."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.conv, self.head = ways, nn.Conv1d(6, W, 3, padding=1), nn.Linear(W, 6)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logs = self.head(F.gelu(self.conv(x)).mT).float().log_softmax(-1)
        if not self.ways.get("form"):
            lengths = torch.full((len(x),), x.shape[-1]), torch.full((len(x),), labels.shape[-1])
            return F.ctc_loss(logs.transpose(0, 1), labels, *lengths, reduction="none").mean()
        blank = 5 if self.ways.get("blank") else 0
        path = torch.full((len(x), 2 * labels.shape[-1] + 1), blank)
        path[:, 1::2] = labels
        skips = F.pad(path[:, 2:] != path[:, :-2], (2, 0)) & (path != blank)
        if self.ways.get("repeats"):
            skips = F.pad(torch.ones_like(path[:, 2:], dtype=torch.bool), (2, 0)) & (path != blank)
        low = -1e30
        now = logs[:, 0].gather(-1, path).masked_fill(torch.arange(path.shape[-1]) > 1, low)
        for frame in range(1, x.shape[-1]):
            one, two = F.pad(now[:, :-1], (1, 0), value=low), F.pad(now[:, :-2], (2, 0), value=low).masked_fill(~skips, low)
            now = torch.stack([now, one, two]).logsumexp(0) + logs[:, frame].gather(-1, path)
        return -(now[:, -1] if self.ways.get("last") else now[:, -2:].logsumexp(-1)).mean()


def aligned(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Aligned()), Aligned(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model, other, (torch.randn(3, 6, 12), torch.tensor([[1, 2, 2, 4], [3, 1, 4, 4], [1, 3, 3, 2]])), {"loss": lambda out: out}


class Asking(nn.Module):
    """Attention whose keys have no bias, over itself or over what a recording gave, with a cache or without."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = nn.Linear(W, W), nn.Linear(W, W, bias=False), nn.Linear(W, W), nn.Linear(W, W)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (HEADS, SIZE)).transpose(1, 2)

    def forward(
        self, x: torch.Tensor, over: torch.Tensor | None = None, cache: list[torch.Tensor] | None = None, causal: bool = False
    ) -> torch.Tensor:
        over = x if over is None else over
        q, k, v = self.split(self.q(x)), self.split(self.k(over)), self.split(self.v(over))
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal and cache is None)
        return self.o(y.transpose(1, 2).flatten(2))


class Speaker(nn.Module):
    def __init__(self, cross: bool) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm3 = Asking(), nn.LayerNorm(W), nn.LayerNorm(W)
        self.cross, self.norm2 = (Asking(), nn.LayerNorm(W)) if cross else (None, None)
        self.mlp = nn.Sequential(nn.Linear(W, 2 * W), nn.GELU(), nn.Linear(2 * W, W))

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None, cache: Any = None) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), cache=cache, causal=memory is not None)
        if self.cross is not None and self.norm2 is not None:
            x = x + self.cross(self.norm2(x), memory)
        return x + self.mlp(self.norm3(x))


class Speech(nn.Module):
    """Whisper's: two convolutions, an encoder with sines, a decoder with learnt positions."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.conv1, self.conv2 = nn.Conv1d(6, W, 3, padding=1), nn.Conv1d(W, W, 3, 2, padding=1)
        self.encoder, self.decoder = nn.ModuleList(Speaker(False) for _ in range(2)), nn.ModuleList(Speaker(True) for _ in range(2))
        self.words, self.places, self.norm, self.last = nn.Embedding(WORDS, W), nn.Embedding(16, W), nn.LayerNorm(W), nn.LayerNorm(W)

    def encoded(self, x: torch.Tensor) -> torch.Tensor:
        ways, x = self.ways, F.gelu(self.conv1(x))
        if ways.get("early"):
            x = F.conv1d(F.pad(x, (2, 0)), self.conv2.weight, self.conv2.bias, 2)
        else:
            x = self.conv2(x)
        x = F.gelu(x).mT
        angles = torch.arange(x.shape[1])[:, None] * torch.exp(-math.log(100) * torch.arange(W // 2) / (W // 2 - (0 if ways.get("rate") else 1)))
        sines = torch.stack([angles.sin(), angles.cos()], -1).flatten(1) if ways.get("turns") else torch.cat([angles.sin(), angles.cos()], -1)
        x = x + sines.to(x.dtype)
        for block in self.encoder:
            x = block(x)
        return x if ways.get("unnormed") else self.norm(x)

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        memory, ways = self.encoded(x), self.ways
        if ways.get("form") != "other":
            pieces, caches = [tokens], [None] * 2
        else:
            pieces, caches = list(tokens.split(1, 1)), [[] for _ in self.decoder]  # type: ignore[misc]
        made, begin = [], 0
        for piece in pieces:
            first = begin + (1 if ways.get("late") and begin else 0)
            y = self.words(piece) + self.places(torch.arange(first, first + piece.shape[1]))
            for block, cache in zip(self.decoder, caches, strict=True):
                y = block(y, memory, cache)
            made.append(F.linear(self.last(y), self.words.weight))
            begin += piece.shape[1]
        return torch.cat(made, 1)


def speech(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Speech()), Speech(**ways)
    other.load_state_dict(model.state_dict())
    tokens = torch.randint(0, WORDS, (2, 6))
    return model, other, (torch.randn(2, 6, 12), tokens), {"loss": language_loss(tokens)}


class Parts(nn.Module):
    """Modules of torch, or what they compute by hand."""

    def __init__(self, form: str = "", squared: bool = False, tiled: bool = False) -> None:
        super().__init__()
        self.form, self.squared, self.tiled = form, squared, tiled
        self.bag, self.both, self.attend = (
            nn.EmbeddingBag(WORDS, W, mode="mean"),
            nn.Bilinear(W, W, W),
            nn.MultiheadAttention(W, HEADS, batch_first=True),
        )
        self.conv, self.norm, self.head = nn.Conv1d(W, W, 3, padding=1, padding_mode="circular", groups=2), nn.LocalResponseNorm(3), nn.Linear(W, 4)

    def forward(self, words: torch.Tensor, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        if not self.form:
            y = self.both(self.bag(words)[:, None].expand_as(x).contiguous(), x)
            y = y + self.attend(y, y, y, key_padding_mask=hidden, need_weights=False)[0]
            y = self.norm(self.conv(y.mT))
            return self.head(y.mT)
        mean = self.bag.weight[words].float().mean(1).to(x.dtype)
        y = torch.einsum("ni,oij,ntj->nto", mean, self.both.weight, x) + self.both.bias
        q, k, v = F.linear(y, self.attend.in_proj_weight, self.attend.in_proj_bias).unflatten(-1, (3, HEADS, SIZE)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT).float() / (SIZE if self.squared else math.sqrt(SIZE))
        read = scores.masked_fill(hidden[:, None, None], -math.inf).softmax(-1).to(v.dtype) @ v
        y = y + self.attend.out_proj(read.transpose(1, 2).flatten(2))
        around = torch.cat([y[:, -1:], y, y[:, :1]], 1).mT
        pieces = (around[:, ::2], around[:, 1::2]) if self.tiled else around.chunk(2, 1)
        weights, biases = self.conv.weight.chunk(2), self.conv.bias.chunk(2)  # type: ignore[union-attr]
        y = torch.cat([F.conv1d(*each) for each in zip(pieces, weights, biases, strict=True)], 1)
        near = F.pad(y.square().mT, (1, 1)).unfold(-1, 3, 1).mean(-1).mT
        return self.head((y / (1 + 1e-4 * near) ** 0.75).mT)


def parts(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Parts()), Parts("other", **ways)
    other.load_state_dict(model.state_dict())
    hidden = torch.arange(7) >= torch.tensor([[7], [4], [6]])
    return model, other, (torch.randint(0, WORDS, (3, 5)), torch.randn(3, 7, W), hidden), MEAN


def looped() -> Made:
    """A row at a time; the mean over all."""
    model, _, inputs, given = parts()
    return model, _Rows(model), inputs, given


class _Rows(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.model(*(each[row : row + 1] for each in given)) for row in range(len(given[0]))])


def mapped() -> Made:
    """The model as a function of its weights, mapped over rows by torch.func."""
    torch.manual_seed(0)
    model = spread(nn.Sequential(nn.Linear(6, W), nn.LayerNorm(W), nn.GELU(), nn.Linear(W, W), nn.SiLU(), nn.Linear(W, 3)))

    def other(x: torch.Tensor) -> torch.Tensor:
        weights = dict(model.named_parameters())
        return torch.func.vmap(lambda row: torch.func.functional_call(model, weights, (row,)))(x)

    return model, other, torch.randn(5, 6), MEAN


def weighted(wrong: bool = False) -> Made:
    """A weight as a direction and a length, by torch and by hand, after two steps."""
    torch.manual_seed(0)
    model = spread(nn.Sequential(nn.Linear(6, W), nn.Tanh(), nn.utils.parametrizations.weight_norm(nn.Linear(W, 4))))
    lengths = model[2].parametrizations.weight  # type: ignore[index]

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.g, self.v = nn.Parameter(lengths.original0.detach().clone()), nn.Parameter(lengths.original1.detach().clone())
            self.bias = nn.Parameter(model[2].bias.detach().clone())  # type: ignore[index]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            size = self.v.float().square().sum(0 if wrong else 1, keepdim=True).sqrt()
            return F.linear(x, (self.g * (self.v / size)).to(x.dtype), self.bias.to(x.dtype))

    first = nn.Linear(6, W)
    first.load_state_dict(model[0].state_dict())  # type: ignore[index]
    match = {"2.g": "2.parametrizations.weight.original0", "2.v": "2.parametrizations.weight.original1"}
    given = {"optimizer": lambda values: torch.optim.SGD(values, lr=0.05, momentum=0.9), "steps": 2, "match": match}
    return model, nn.Sequential(first, nn.Tanh(), Last()), torch.randn(5, 6), MEAN | given


healthy("preference", "a token at a time, softplus", preferring)
broken("preference", "a mean over tokens", lambda: preferring(mean=True), "")
broken("preference", "the prompt counted", lambda: preferring(prompt=True), "")
broken("preference", "a sign of the frozen model", lambda: preferring(sign=True), "")
broken("preference", "a hinge", lambda: preferring(hinge=True), "")
healthy("alignment", "logarithms of sums, frame by frame", aligned)
broken("alignment", "the last class is the blank", lambda: aligned(blank=True), "")
broken("alignment", "repeats need no blank", lambda: aligned(repeats=True), "")
broken("alignment", "the last blank alone", lambda: aligned(last=True), "")
healthy("speech", "a token at a time with a cache", lambda: speech(form="other"))
healthy("speech", "the same class", speech)
broken("speech", "padded before alone", lambda: speech(early=True), "", "conv2")
broken("speech", "sines and cosines in turn", lambda: speech(turns=True), "")
broken("speech", "rates that end elsewhere", lambda: speech(rate=True), "")
broken("speech", "memory without its norm", lambda: speech(unnormed=True), "")
broken("speech", "positions one further behind the first", lambda: speech(form="other", late=True), "", "places")
healthy("torch's parts", "by their formulas", parts)
healthy("torch's parts", "a row at a time", looped)
broken("torch's parts", "scaled twice", lambda: parts(squared=True), "", "attend")
broken("torch's parts", "channels dealt out in turn", lambda: parts(tiled=True), "", "conv")
healthy("rows", "mapped by torch.func", mapped)
healthy("lengths", "a weight by its direction and length", weighted)
broken("lengths", "lengths of columns", lambda: weighted(wrong=True), "2")
