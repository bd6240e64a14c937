"""A fifth batch, third part: losses of policies, teachers that follow, beams, tied weights, ensembles, compiled and exported models."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_third_losses import ADAM
from torch import nn

W, WORDS = 16, 13


class Policy(nn.Module):
    """Answers of a group, each with a reward; a clipped ratio of old and new, and a penalty for the distance from a reference."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.words, self.mix, self.head = ways, nn.Embedding(WORDS, W), nn.Linear(W, W), nn.Linear(W, WORDS)

    def logs(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.mix(self.words(tokens[:, :-1]).cumsum(1) / 3))
        wanted = tokens[:, :-1] if self.ways.get("unshifted") else tokens[:, 1:]
        if self.ways.get("form") != "other":
            return self.head(hidden).float().log_softmax(-1).gather(-1, wanted[..., None])[..., 0]
        made = []
        for some, each in zip(hidden.split(3, 1), wanted.split(3, 1), strict=True):
            scores = self.head(some).float()
            made.append(scores.gather(-1, each[..., None])[..., 0] - scores.logsumexp(-1))
        return torch.cat(made, 1)

    def forward(self, tokens: torch.Tensor, old: torch.Tensor, reference: torch.Tensor, rewards: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        ways, logs = self.ways, self.logs(tokens)
        spread_of = rewards.std(-1, keepdim=True, correction=0) if ways.get("biased") else rewards.std(-1, keepdim=True)
        gain = ((rewards - rewards.mean(-1, keepdim=True)) / (spread_of + 1e-4)).flatten()[:, None]
        ratio = (logs - old).exp()
        if ways.get("sequence"):
            ratio = (((logs - old) * kept).sum(-1, keepdim=True) / kept.sum(-1, keepdim=True)).exp().expand_as(logs)
        if ways.get("form") == "other":
            lost = -torch.where(gain > 0, ratio.clamp(max=1.2), ratio.clamp(min=0.8)) * gain
        else:
            lost = torch.maximum(-ratio * gain, -ratio.clamp(0.8, 1.2) * gain)
        apart = logs - reference if ways.get("turned") else reference - logs
        lost = lost + 0.1 * (torch.expm1(apart) - apart)
        if ways.get("rows"):
            return ((lost * kept).sum(-1) / kept.sum(-1)).mean()
        return (lost * kept).sum() / (lost.numel() if ways.get("padding") else kept.sum())


def policy(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Policy(), 0.5), Policy(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    tokens = torch.randint(0, WORDS, (8, 10))
    with torch.no_grad():
        logs = model.logs(tokens)  # type: ignore[operator]
    old, reference = logs + torch.randn_like(logs) * 0.3, logs + torch.randn_like(logs) * 0.5
    kept = (torch.arange(9) < torch.tensor([9, 4, 6, 9, 3, 8, 5, 7])[:, None]).float()
    return model, other, (tokens, old, reference, torch.rand(2, 4), kept), {"loss": lambda out: out}


class Teacher(nn.Module):
    """DINO's: a student, a teacher that is given, whose scores are centred by a running mean and sharper than the student's."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.student = nn.Sequential(nn.Linear(6, W), nn.GELU(), nn.Linear(W, W))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.register_buffer("centre", torch.randn(W, generator=torch.Generator().manual_seed(2)) * 0.1)

    def forward(self, views: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        self.centre: torch.Tensor
        students = [self.student(view).float() for view in views]
        teachers = [self.teacher(view).float() for view in views[:2]]
        centre = 0 if ways.get("uncentred") else self.centre.float()
        sharp = [((each - centre) / (0.1 if ways.get("blunt") else 0.04)).softmax(-1).detach() for each in teachers]
        terms = []
        for number, wanted in enumerate(sharp):
            for place, given in enumerate(students):
                if place == number and not ways.get("itself"):
                    continue
                if ways.get("form") == "other":
                    terms.append((given / 0.1).logsumexp(-1).mean() - (wanted * given / 0.1).sum(-1).mean())
                else:
                    terms.append(-(wanted * (given / 0.1).log_softmax(-1)).sum(-1).mean())
        if self.training:
            with torch.no_grad():
                mean = torch.cat(teachers).mean(0)
                share = 0.1 if ways.get("quick") else 0.9
                self.centre.copy_(torch.lerp(mean, self.centre.float(), share) if ways.get("form") == "other" else self.centre * 0.9 + mean * 0.1)
        return torch.stack(terms).mean()


def teacher(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Teacher()), Teacher(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model.train(), other.train(), torch.randn(4, 7, 6), {"loss": lambda out: out}


class Beams(nn.Module):
    """Three beams of a recurrent decoder, five tokens long; `other` chooses among all beams' tokens at once."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.words, self.cell, self.head = ways, nn.Embedding(WORDS, W), nn.GRUCell(W, W), nn.Linear(W, WORDS)

    def forward(self, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ways, batch = self.ways, len(first)
        state = torch.tanh(first)[:, None].expand(-1, 3, -1).reshape(-1, W)
        total = torch.full((batch, 3), -1e4)
        total[:, 0] = 0
        tokens = torch.zeros(batch, 3, 1, dtype=torch.long)
        for step in range(5):
            state = self.cell(self.words(tokens[..., -1].flatten()), state)
            logs = self.head(state).float().log_softmax(-1).unflatten(0, (batch, 3))
            if ways.get("form") == "other":
                flat = (total[..., None] + logs).flatten(1)
                total, place = flat.topk(3, -1)
                beam, word = (place // WORDS, place % WORDS) if not ways.get("columns") else (place % 3, place // 3)
            else:
                best, words = logs.topk(3, -1)
                total, place = (total[..., None] + best).flatten(1).topk(3, -1)
                beam, word = place // 3, words.flatten(1).gather(1, place)
            chosen = (torch.arange(batch)[:, None] * 3 + beam).flatten()
            state = state if ways.get("stale") and step else state[chosen]
            tokens = torch.cat([tokens.gather(1, beam[..., None].expand_as(tokens)), word[..., None]], -1)
        return total / (1 if ways.get("sum") else 5**0.6), self.head(state)


def beams(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Beams(), 0.8), Beams(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(4, W), {"loss": lambda out: out[0].float().mean() + out[1].float().square().mean()}


class Tied(nn.Module):
    """An encoder whose weights, turned, are the decoder's; two thirds of what is largest are kept."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.first, self.second = ways, nn.Linear(12, W), nn.Linear(W, W)
        self.offset, self.shift = nn.Parameter(torch.randn(12)), nn.Parameter(torch.randn(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        y = self.second(F.gelu(self.first(x if ways.get("shifted") else x - self.offset)))
        if ways.get("form") == "other":
            least = y.topk(W * 2 // 3, -1).values[..., -1:]
            y = torch.where(y >= least, F.relu(y), 0)
        else:
            best, places = y.topk(W * 2 // 3, -1)
            y = torch.zeros_like(y).scatter(-1, places, F.relu(best))
        weight = self.second.weight.detach() if ways.get("cut") else self.second.weight
        y = F.gelu(F.linear(y, weight if ways.get("unturned") else weight.t(), self.shift))
        return (y @ self.first.weight if ways.get("form") == "other" else F.linear(y, self.first.weight.t())) + self.offset


def tied(optimizer: dict[str, Any] | None = None, **ways: Any) -> Made:
    torch.manual_seed(0)
    model, other, x = spread(Tied()), Tied(**{"form": "other", **ways}), torch.randn(9, 12)
    other.load_state_dict(model.state_dict())
    return model, other, x, {"loss": lambda out: F.mse_loss(out.float(), x), **(optimizer or {})}


class Ensemble(nn.Module):
    """Four small networks, one after the other, or all at once by `vmap`, and the mixture of what they say."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.first, self.bias, self.last = nn.Parameter(torch.randn(4, W, 6)), nn.Parameter(torch.randn(4, W)), nn.Parameter(torch.randn(4, 5, W))

    def one(self, first: torch.Tensor, bias: torch.Tensor, last: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.linear(torch.tanh(F.linear(x, first, bias)), last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.ways.get("form") == "other":
            logs = torch.vmap(self.one, (0, 0, 0, None))(self.first, self.bias, self.last, x).float()
            logs = logs.log_softmax(0 if self.ways.get("members") else -1)
            return logs.mean(0) if self.ways.get("geometric") else logs.logsumexp(0) - math.log(4)
        logs = torch.stack([self.one(*each, x).float().softmax(-1) for each in zip(self.first, self.bias, self.last, strict=True)])
        return logs.mean(0).log()


def ensemble(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Ensemble()), Ensemble(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(7, 6), {"loss": lambda out: F.nll_loss(out.float(), torch.tensor([0, 1, 2, 3, 4, 0, 1]))}


class Small(nn.Module):
    """A gated layer between two norms; what is compiled and exported."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.norm, self.up, self.down = ways, nn.LayerNorm(W, eps=1e-6), nn.Linear(W, 4 * W), nn.Linear(2 * W, W)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(W, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.up(self.norm(x)).chunk(2, -1)
        y = up * F.silu(gate) if not self.ways.get("swapped") else gate * F.silu(up)
        x = x + self.down(self.drop(y))
        mean = x.sum(1) / self.ways["count"] if "count" in self.ways else x.mean(1)
        return self.last(mean)


def small(*, exported: bool, **ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Small()).eval()
    other, x = Small(**ways).eval(), torch.randn(3, 8, W)
    other.load_state_dict(model.state_dict())
    return model, torch.export.export(other, (x,)).module() if exported else torch.compile(other), x, MEAN


ANY = ("", "norm", "up", "down", "last")
healthy("policy of groups", "logarithms in parts, the clip by sign", policy)
broken("policy of groups", "a mean over rows first", lambda: policy(rows=True), "")
broken("policy of groups", "padding counted", lambda: policy(padding=True), "")
broken("policy of groups", "the penalty turned round", lambda: policy(turned=True), "")
broken("policy of groups", "another correction of the deviation", lambda: policy(biased=True), "")
broken("policy of groups", "a ratio of sequences", lambda: policy(sequence=True), "")
broken("policy of groups", "the token itself, not the next", lambda: policy(unshifted=True), "")
healthy("teacher", "logarithms of sums, a lerp", teacher)
broken("teacher", "not centred", lambda: teacher(uncentred=True), "")
broken("teacher", "not sharper than the student", lambda: teacher(blunt=True), "")
broken("teacher", "its own view too", lambda: teacher(itself=True), "")
broken("teacher", "a centre that moves too fast", lambda: teacher(quick=True), "")
healthy("beams", "all beams' tokens at once", beams)
broken("beams", "the state of another beam", lambda: beams(stale=True), "", "cell", "words")
broken("beams", "scores not divided by length", lambda: beams(sum=True), "")
broken("beams", "beams and words read the other way", lambda: beams(columns=True), "", "cell", "words")
healthy("tied", "what is largest by a threshold", tied)
healthy("tied", "the same, three steps of AdamW", lambda: tied(optimizer=ADAM))
broken("tied", "the decoder's weights learn nothing", lambda: tied(cut=True), "", "second")
broken("tied", "weights not turned", lambda: tied(unturned=True), "")
broken("tied", "the offset not taken away", lambda: tied(shifted=True), "", "first")
healthy("ensemble", "all at once", ensemble)
broken("ensemble", "a softmax over members", lambda: ensemble(members=True), "")
broken("ensemble", "a mean of logarithms", lambda: ensemble(geometric=True), "")
healthy("small", "compiled", lambda: small(exported=False))
healthy("small", "exported", lambda: small(exported=True))
broken("small", "compiled, gate and up swapped", lambda: small(exported=False, swapped=True), *ANY)
broken("small", "exported, with a length that is fixed", lambda: small(exported=True, count=16), *ANY)
