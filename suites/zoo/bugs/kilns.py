"""Kilns: scales, counts and masks in low formats, formats that do not go together, and a scaler that is asked twice."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, CODES, SHORT = torch.float16, torch.float8_e4m3fn, torch.float8_e5m2


def coded(held: bool) -> torch.Tensor:
    """Weights of a layer most of whose rows were pruned to next to nothing, in eight bits and back."""
    rows = torch.cat([torch.ones(4, 1), 1e-5 * (0.3 + uniform(12, 1, seed=4101))])
    weights = (0.2 * normal(16, 32, seed=4102) * rows).to(HALF)
    largest = weights.abs().amax(1, keepdim=True)
    if held:
        scales = (largest.float() / 448).clamp_min(1e-6)
        codes = (weights.float() / scales).clamp(-448, 448).to(CODES)
    else:
        scales = largest / 448  # culprit: weights-of-a-pruned-layer
        codes = (weights / scales).to(CODES)  # culprit: weights-of-a-pruned-layer
    return codes.float() * scales.float() * 5


def scaled(saturated: bool) -> torch.Tensor:
    """Products in eight bits, by blocks of thirty-two, whose scales are powers of two below what they should be."""
    products = (normal(16, 48, seed=4111) @ normal(48, 64, seed=4112)).view(-1, 32)
    scales = torch.exp2((products.abs().amax(1, keepdim=True) / 57344).log2().floor())
    codes = products / scales
    if saturated:
        codes = codes.clamp(-57344, 57344)
    return codes.to(SHORT).float() * scales  # culprit: scales-of-products


def filled(whole: bool, side: int = 52) -> torch.Tensor:
    """A matrix of numbers one after the other, to try a product on."""
    numbers = []
    if whole:
        numbers = [torch.tensor(float(each)).to(HALF) for each in range(side * side)]
    else:
        following = torch.zeros((), dtype=HALF)
        for _ in range(side * side):
            numbers.append(following)
            following = following + 1  # culprit: numbers-one-after-the-other
    return torch.stack(numbers).view(side, side).float()


def attended(hidden: float) -> torch.Tensor:
    """What words in half see of those before them, where the others are taken ten thousand millions from. Not a number."""
    query, key, value = (normal(2, 8, 16, seed=4121 + each).to(HALF) for each in range(3))
    seen = torch.ones(8, 8).tril().to(HALF)
    scores = query @ key.transpose(1, 2) / 4
    scores = scores * seen - torch.tensor(hidden).to(HALF) * (1 - seen)  # culprit: words-before-a-word
    return (torch.softmax(scores, -1) @ value).float()


class Slopes(nn.Module):
    """Attention that fades with the distance, by a table in float32."""

    def __init__(self, same: bool) -> None:
        super().__init__()
        torch.manual_seed(4131)
        self.same, self.layer = same, nn.Linear(16, 48).to(HALF)
        distance = torch.arange(10)[:, None] - torch.arange(10)
        self.register_buffer("table", torch.where(distance < 0, float("-inf"), -0.5 * distance.float()), persistent=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        query, key, value = self.layer(words).chunk(3, -1)
        weights = torch.softmax(query @ key.T / 4 + self.table, -1)  # culprit: words-that-fade
        return (weights.to(value.dtype) if self.same else weights) @ value  # culprit: words-that-fade


def faded(same: bool) -> torch.Tensor:
    """What a half model makes of words. Torch refuses it."""
    with torch.no_grad():
        return Slopes(same)(normal(10, 16, seed=4132).to(HALF)).float()


class Wires(nn.Module):
    """Ends of lines in a picture hear of the lines that end there."""

    def __init__(self, same: bool) -> None:
        super().__init__()
        torch.manual_seed(4141)
        self.same, self.layer = same, nn.Linear(16, 8)

    def forward(self, ends: torch.Tensor, lines: torch.Tensor) -> torch.Tensor:
        told = self.layer(torch.cat([ends[lines[:, 0]], ends[lines[:, 1]]], -1))
        told = told.to(ends.dtype) if self.same else told
        gathered, places = torch.zeros_like(ends), lines[:, :1].expand(-1, 8)
        return ends + gathered.scatter_reduce_(0, places, told, "mean", include_self=False)  # culprit: lines-that-end


def wired(same: bool) -> torch.Tensor:
    """One round of messages under autocast. Torch refuses it."""
    lines = (12 * uniform(30, 2, seed=4142)).long()
    with torch.no_grad(), torch.autocast("cpu", HALF):
        return Wires(same)(normal(12, 8, seed=4143), lines)


def learned(together: bool) -> torch.Tensor:
    """How far a model of hidden patches goes in two steps of two parts each. Torch refuses it."""
    torch.manual_seed(4151)
    model = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
    start = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for turn in range(4):
        patches, last = normal(8, 16, seed=4152 + turn), turn % 2 == 1
        with torch.autocast("cpu", HALF):
            loss = functional.mse_loss(model(patches * (uniform(8, 16, seed=4160 + turn) > 0.4)).float(), patches) / 2
        scaler.scale(loss).backward()
        if last or not together:
            scaler.unscale_(optimizer)  # culprit: parts-of-a-step
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if last:
            scaler.step(optimizer)
            optimizer.zero_grad()
            scaler.update()
    return nn.utils.parameters_to_vector(model.parameters()).detach() - start


BUGS = (
    Bug("weights-of-a-pruned-layer", "dropbox/gemlite#38", ("underflow", "overflow", "vanished-constant"), "aten.div.Tensor",
        lambda: coded(held=False), lambda: coded(held=True)),
    Bug("scales-of-products", "uxlfoundation/oneDNN#5626", ("overflow",), "aten._to_copy.default",
        lambda: scaled(saturated=False), lambda: scaled(saturated=True),
        twin_accused="its scales are up to twice too small, so 13 % of the numbers are cut off, which costs 23 % of the products, as in the project"),
    Bug("numbers-one-after-the-other", "NVIDIA/cutlass#1521", ("absorption",), "aten.add.Tensor",
        lambda: filled(whole=False), lambda: filled(whole=True)),
    Bug("words-before-a-word", "openai/gpt-2#122", ("overflow",), "aten._to_copy.default",
        lambda: attended(1e10), lambda: attended(1e4)),
    Bug("words-that-fade", "intel/ipex-llm#11071", ("dtype-leak",), "aten.add.Tensor",
        lambda: faded(same=False), lambda: faded(same=True), raises=RuntimeError),
    Bug("lines-that-end", "cvg/glue-factory#76", ("dtype-leak",), "aten.scatter_reduce_.two",
        lambda: wired(same=False), lambda: wired(same=True), raises=RuntimeError),
    Bug("parts-of-a-step", "microsoft/Swin-Transformer#311", ("scaler-order",), "",
        lambda: learned(together=False), lambda: learned(together=True), raises=RuntimeError, phase="scaler"),
)  # fmt: skip
