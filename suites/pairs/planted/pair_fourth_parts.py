"""A fourth batch, second part: convolutions, recurrences, sequences of unequal lengths, codebooks, two networks of which one follows."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_third_losses import ADAM
from torch import nn

W = 16


class Wide(nn.Module):
    """ConvNeXt's block, its second version: a response norm over the image; whole branches dropped in training."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.depth, self.norm = nn.Conv2d(W, W, 7, padding=3, groups=W), nn.LayerNorm(W, eps=1e-6)
        self.up, self.down = nn.Linear(W, 2 * W), nn.Linear(2 * W, W)
        self.gain, self.offset = nn.Parameter(torch.randn(2 * W)), nn.Parameter(torch.zeros(2 * W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, first = self.ways, x.dim() == 4 and self.ways.get("form") == "other"
        y = self.depth(x)
        if first:  # channels stay first; products are convolutions
            mean = y.float().mean(1, keepdim=True)
            y = (y.float() - mean) * torch.rsqrt((y.float() - mean).square().mean(1, keepdim=True) + 1e-6)
            y = (y * self.norm.weight.float()[:, None, None] + self.norm.bias.float()[:, None, None]).to(x.dtype)
            y = F.gelu(F.conv2d(y, self.up.weight[..., None, None], self.up.bias))
            size = torch.linalg.vector_norm(y.float(), dim=1 if ways.get("channels") else (2, 3), keepdim=True)
            size = size / (size.mean(1, keepdim=True) + 1e-6) if not ways.get("channels") else size / (size.mean((2, 3), keepdim=True) + 1e-6)
            y = self.gain[:, None, None] * (y * size.to(y.dtype)) + self.offset[:, None, None] + y
            y = F.conv2d(y, self.down.weight[..., None, None], self.down.bias)
        else:
            y = F.gelu(self.up(self.norm(y.permute(0, 2, 3, 1))))
            size = y.norm(dim=(1, 2), keepdim=True)
            y = torch.addcmul(self.offset, self.gain * y, size / (size.mean(-1, keepdim=True) + 1e-6)) + y
            y = self.down(y).permute(0, 3, 1, 2)
        if self.training:
            kept = (torch.rand(len(x)) < 0.75).to(y.dtype)[:, None, None, None]
            y = y * kept if ways.get("undivided") else y * kept / 0.75
        return x + y


class Next(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, bad = ways, {name: each for name, each in ways.items() if name not in ("flat", "mode")}
        self.stem, self.blocks = nn.Conv2d(3, W, 3, 2, padding=1, padding_mode=ways.get("mode", "reflect")), nn.ModuleList()
        self.blocks.extend([Wide(form=ways.get("form")), Wide(**bad)])
        self.last = nn.Linear(W * 8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = F.adaptive_avg_pool2d(x, (2, 4))
        return self.last((x.permute(0, 2, 3, 1) if self.ways.get("flat") else x).flatten(1))


def next_(training: bool = True, **ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Next()), Next(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model.train(training), other.train(training), torch.randn(6, 3, 16, 16), MEAN


class Selective(nn.Module):
    """Mamba's second version: one projection for all, a scalar decay for each head, a gate before the norm."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.norm = ways, nn.RMSNorm(W, eps=1e-5)
        self.project, self.conv, self.out = nn.Linear(W, 2 * W + 8 + 2), nn.Conv1d(W + 8, W + 8, 4, groups=W + 8), nn.Linear(W, W)
        self.log, self.skip, self.start = nn.Parameter(torch.rand(2)), nn.Parameter(torch.ones(2)), nn.Parameter(torch.rand(2))

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        z, mixed, steps = self.project(u).split([W, W + 8, 2], -1)
        if ways.get("swapped"):
            x, c, b = F.silu(self.conv(F.pad(mixed.mT, (3, 0))).mT).split([W, 4, 4], -1)
        else:
            x, b, c = F.silu(self.conv(F.pad(mixed.mT, (3, 0))).mT).split([W, 4, 4], -1)
        heads = x.unflatten(-1, (2, -1)).float()
        steps = F.softplus(steps.float()) + self.start if ways.get("late") else F.softplus(steps.float() + self.start)
        decay = -steps * self.log.float().exp()
        if ways.get("form") == "other":  # all steps at once, by sums of logarithms
            total = decay.cumsum(1)
            lower = torch.ones(u.shape[1], u.shape[1], dtype=torch.bool).tril()[None, ..., None]
            share = torch.where(lower, total[:, :, None] - total[:, None], -torch.inf).exp()
            scores = torch.einsum("bln,bsn->bls", c.float(), b.float())[..., None] * share
            y = torch.einsum("blsh,bsh,bshp->blhp", scores, steps, heads)
        else:
            state, made = heads.new_zeros(len(u), 2, W // 2, 4), []
            for place in range(u.shape[1]):
                given = (steps[:, place, :, None] * heads[:, place])[..., None] * b[:, place, None, None].float()
                state = state * decay[:, place, :, None, None].exp() + given
                made.append((state * c[:, place, None, None].float()).sum(-1))
            y = torch.stack(made, 1)
        y = (y + self.skip.float()[:, None] * heads).flatten(2).to(u.dtype)
        y = self.norm(y) * F.silu(z) if ways.get("after") else self.norm(y * F.silu(z))
        return u + self.out(y)


class Stream(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(5, W), nn.ModuleList([Selective(form=ways.get("form")), Selective(**ways)])
        self.last = nn.Linear(W, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def stream(optimizer: dict[str, Any] | None = None, **ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Stream()), Stream(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(2, 11, 5), {**MEAN, **(optimizer or {})}


class Tagger(nn.Module):
    """Two GRUs over rows of unequal lengths, and the logarithm of a chain's probability."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.there, self.back = ways, nn.GRU(6, W, batch_first=True), nn.GRU(6, W, batch_first=True)
        self.last, self.moves, self.whole = nn.Linear(2 * W, 4), nn.Parameter(torch.randn(4, 4)), nn.Linear(W, 2)

    def turned(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        if self.ways.get("flipped"):
            return x.flip(1)
        place = torch.arange(x.shape[1])[None]
        return x.gather(1, torch.where(place < lengths[:, None], lengths[:, None] - 1 - place, place)[..., None].expand_as(x))

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, tags: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = (torch.arange(x.shape[1]) < lengths[:, None])[..., None]
        if self.ways.get("form") == "other":
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            there, final = self.there(packed)
            there, final = nn.utils.rnn.pad_packed_sequence(there, batch_first=True, total_length=x.shape[1])[0], final[0]
        else:
            there = self.there(x)[0] * seen
            final = there.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, W))[:, 0]
        if self.ways.get("padded"):
            final = self.there(x)[1][0]
        back = self.turned(self.back(self.turned(x, lengths))[0], lengths)
        scores = self.last(torch.cat([there, back], -1) * seen).float()
        moves = self.moves.float().t() if self.ways.get("transposed") else self.moves.float()
        given = scores.gather(2, tags[..., None])[..., 0]
        steps = moves[tags[:, :-1], tags[:, 1:]]
        best, total = given[:, 0], scores[:, 0]
        for place in range(1, x.shape[1]):
            on = place < lengths
            best = best + torch.where(on, given[:, place] + steps[:, place - 1], 0)
            if self.ways.get("form") == "other":
                most = total.amax(1, keepdim=True)
                now = ((total - most).exp()[..., None] * moves.exp()).sum(1).log() + most + scores[:, place]
            else:
                now = (total[..., None] + moves + scores[:, place, None]).logsumexp(1)
            total = torch.where(on[:, None], now, total)
        return best - total.logsumexp(1), self.whole(final)


def tagger(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Tagger()), Tagger(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    inputs = torch.randn(4, 9, 6), torch.tensor([9, 5, 7, 3]), torch.randint(0, 4, (4, 9))
    return model, other, inputs, {"loss": lambda out: -out[0].mean() + out[1].float().square().mean()}


class Coded(nn.Module):
    """A codebook between two layers, with a gradient that goes straight through."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.first, self.codes, self.last = ways, nn.Linear(6, W), nn.Embedding(10, W), nn.Linear(W, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ways, z = self.ways, self.first(x)
        codes = self.codes.weight
        if ways.get("form") == "other":
            away = z.float().square().sum(-1, keepdim=True) - 2 * z.float() @ codes.float().t() + codes.float().square().sum(-1)
        else:
            away = (z.float()[:, None] - codes.float()[None]).square().sum(-1)
        taken = self.codes(away.argmin(-1))
        held, pulled = (z if ways.get("held") else z.detach()), (taken if ways.get("pulled") else taken.detach())
        lost = F.mse_loss(taken.float(), held.float()) + 0.25 * F.mse_loss(z.float(), pulled.float())
        if ways.get("weighted"):
            lost = 0.25 * F.mse_loss(taken.float(), held.float()) + F.mse_loss(z.float(), pulled.float())
        straight = taken if ways.get("stopped") else z + (taken - z).detach() if ways.get("form") != "other" else taken.detach() + (z - z.detach())
        return self.last(straight), lost


def coded(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other, x = spread(Coded(), 0.6), Coded(**{"form": "other", **ways}), torch.randn(12, 6)
    other.load_state_dict(model.state_dict())
    return model, other, x, {"loss": lambda out: F.mse_loss(out[0].float(), x) + out[1].float()}


class Follower(nn.Module):
    """Two views, of which one goes through a network that only follows, as BYOL's."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.online = nn.Sequential(nn.Linear(6, W), nn.BatchNorm1d(W), nn.ReLU(), nn.Linear(W, W))
        self.target, self.predictor = copy.deepcopy(self.online), nn.Linear(W, W)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        given, wanted = self.predictor(self.online(a)).float(), self.target(b).float()
        wanted = wanted if self.ways.get("learning") else wanted.detach()
        if self.ways.get("form") == "other":
            if self.ways.get("columns"):
                return 2 - 2 * F.cosine_similarity(given, wanted, dim=0).mean()
            return (F.normalize(given, dim=-1) - F.normalize(wanted, dim=-1)).square().sum(-1).mean()
        return 2 - 2 * F.cosine_similarity(given, wanted, dim=-1).mean()


def follower(training: bool = True, **ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Follower()), Follower(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    views = torch.randn(8, 6), torch.randn(8, 6)
    return model.train(training), other.train(training), views, {"loss": lambda out: out}


healthy("next", "channels first, products as convolutions", next_)
healthy("next", "in eval", lambda: next_(training=False))
broken("next", "branches that are kept are not divided", lambda: next_(undivided=True), "blocks.1")
broken("next", "a norm over channels", lambda: next_(channels=True), "blocks.1")
broken("next", "features in another order", lambda: next_(flat=True), "")
broken("next", "zeros round the image", lambda: next_(mode="zeros"), "stem")
healthy("stream", "all steps at once", stream)
healthy("stream", "all steps at once, three steps of AdamW", lambda: stream(optimizer=ADAM))
broken("stream", "B and C swapped", lambda: stream(swapped=True), "blocks.1")
broken("stream", "a bias after the softplus", lambda: stream(late=True), "blocks.1")
broken("stream", "the norm before the gate", lambda: stream(after=True), "blocks.1", "blocks.1.norm")
healthy("tagger", "packed rows, another sum of a chain", tagger)
broken("tagger", "the last step of padded rows", lambda: tagger(padded=True), "")
broken("tagger", "turned round with their padding", lambda: tagger(flipped=True), "", "back")
broken("tagger", "moves the other way", lambda: tagger(transposed=True), "")
healthy("coded", "distances by products", coded)
broken("coded", "codes not told from what they are held to", lambda: coded(held=True), "")
broken("coded", "the weight on the other term", lambda: coded(weighted=True), "")
broken("coded", "no gradient straight through", lambda: coded(stopped=True), "")
healthy("follower", "squares for a cosine", follower)
broken("follower", "a target that learns", lambda: follower(learning=True), "", "target", "target.3")
broken("follower", "a cosine of columns", lambda: follower(columns=True), "")
