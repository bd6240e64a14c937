"""What is trained, merged, routed and sampled in low formats: adapters, prompts, clipped gradients, experts, temperatures."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Adapter:
    """A low-rank change of a layer, which is merged into its weight and taken out again."""

    def __init__(self, module: nn.Linear, seed: int) -> None:
        self.module = module
        self.up, self.down = 0.02 * normal(24, 4, seed=seed), normal(4, 24, seed=seed + 1)

    @torch.no_grad()
    def merge_to(self, multiplier: float = 1.0) -> None:
        delta = (self.up @ self.down) * multiplier
        self.module.weight.data.add_(delta.to(self.module.weight.dtype))  # culprit: merged-and-unmerged


def validated(dtype: torch.dtype) -> torch.Tensor:
    """A layer's weight, into which three adapters were merged for 80 validations, and taken out after each."""
    module = nn.Linear(24, 24, bias=False)
    with torch.no_grad():
        module.weight.copy_(normal(24, 24).div(5).to(LOW))
    module.to(dtype)
    adapters = [Adapter(module, seed=10 * number) for number in range(1, 4)]
    for _ in range(80):
        for adapter in adapters:
            adapter.merge_to(0.7)
        for adapter in adapters:
            adapter.merge_to(-0.7)
    return module.weight.detach().float()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(16, 16, bias=False)
        with torch.no_grad():
            self.mix.weight.copy_(normal(16, 16) / 4)

    def forward(self, embedded: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.mix(embedded)).mean(1)


def soft_prompt(master: bool) -> torch.Tensor:
    """A trigger's embedding, moved for ten steps towards a target; the encoder that it goes through was loaded in half."""
    encoder, target = Encoder().to(HALF), functional.normalize(normal(1, 16, seed=3), dim=-1)
    start = (0.05 * normal(1, 4, 16, seed=2)).to(HALF)
    prompt = (start.float() if master else start.clone()).requires_grad_()
    optimizer = torch.optim.Adam([prompt], lr=0.01)
    for _ in range(10):
        optimizer.zero_grad()
        found = encoder(prompt.to(HALF))
        loss = 1e-3 * (1 - functional.cosine_similarity(found.float(), target)).mean()
        loss.backward()
        optimizer.step()  # culprit: prompt-in-half
    return prompt.detach().float()


class DoubleConv(nn.Sequential):
    def __init__(self, narrow: int, broad: int, seed: int) -> None:
        super().__init__(nn.Conv2d(narrow, broad, 3, padding=1), nn.ReLU())
        with torch.no_grad():
            self[0].weight.copy_(normal(broad, narrow, 3, 3, seed=seed) / (3 * narrow**0.5))
            self[0].bias.zero_()


def segmented(unscaled: bool) -> torch.Tensor:
    """What four steps of a small U-Net's training move its weights by."""
    net = nn.Sequential(DoubleConv(1, 8, 1), DoubleConv(8, 8, 2), nn.Conv2d(8, 1, 1))
    with torch.no_grad():
        net[2].weight.copy_(normal(1, 8, 1, 1, seed=3) / 3)
        net[2].bias.zero_()
    start = net[0][0].weight.detach().clone()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for step in range(4):
        images, truth = normal(2, 1, 16, 16, seed=5 + step), (normal(2, 1, 16, 16, seed=50 + step) > 0).float()
        with torch.autocast("cpu", dtype=HALF):
            predicted = net(images)
            loss = functional.binary_cross_entropy_with_logits(predicted.float(), truth)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # culprit: clipped-while-scaled
        scaler.step(optimizer)
        scaler.update()
    return net[0][0].weight.detach() - start


class Experts(nn.Module):
    """Two of 64 experts for each token, each a vector here."""

    def __init__(self, cast_first: bool) -> None:
        super().__init__()
        self.cast_first = cast_first
        self.router = nn.Linear(32, 64, bias=False)
        self.answers = nn.Parameter(normal(64, 8, seed=1))
        with torch.no_grad():
            self.router.weight.copy_(normal(64, 32) / 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = torch.softmax(self.router(x).float(), -1)
        if self.cast_first:
            shares = shares.to(x.dtype)  # culprit: cast-shares
        weights, chosen = shares.topk(2, -1)  # culprit: cast-shares
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        return (weights[..., None] * self.answers[chosen]).sum(1)


def routed(cast_first: bool) -> torch.Tensor:
    with torch.no_grad():
        return Experts(cast_first).to(LOW)(normal(512, 32, seed=2).to(LOW)).float()


def generated(wide: bool) -> torch.Tensor:
    """The log probabilities of the next token at a temperature of 0.1, of a large model whose logits are half's."""
    hidden, words = (60 * normal(4, 64)).to(HALF), (5 * normal(256, 64, seed=1)).to(HALF)
    logits = hidden @ words.T
    logits = logits.float() if wide else logits
    logits.div_(0.1)  # culprit: divided-in-place
    return functional.log_softmax(logits, -1).float().clamp_min(-1e4)


BUGS = (
    Bug("merged-and-unmerged", "KohakuBlueleaf/LyCORIS#267", ("accumulated-drift", "absorption", "lost-update"), "aten.add_.Tensor",
        lambda: validated(LOW), lambda: validated(WIDE)),
    Bug("prompt-in-half", "matanbt/TROPT#8", ("vanished-constant", "underflow", "nan", "overflow"), "aten.add_.Tensor",
        lambda: soft_prompt(False), lambda: soft_prompt(True), phase="optimizer"),
    Bug("clipped-while-scaled", "milesial/Pytorch-UNet#468", ("scaler-order",), "", lambda: segmented(False), lambda: segmented(True),
        phase="scaler"),
    Bug("cast-shares", "ViperEkura/AstrAI#57", ("decision-flip", "amplified-rounding"), "aten.topk.default", lambda: routed(True),
        lambda: routed(False)),
    Bug("divided-in-place", "facebookresearch/metaseq#247", ("overflow",), "aten.div_.Tensor", lambda: generated(False),
        lambda: generated(True)),
)  # fmt: skip
