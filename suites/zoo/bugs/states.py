"""States that a loop stores low between its turns: read, computed wide or low, and written back rounded."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def averaged_weights(dtype: torch.dtype) -> torch.Tensor:
    """A moving average of weights in training: computed in float32, copied back into what the checkpoint holds."""
    start, end = 0.1 * normal(32, 32), 0.1 * normal(32, 32, seed=1)
    average = start.to(dtype)
    for step in range(120):
        weight = torch.lerp(start, end, step / 120).to(LOW)
        average.copy_(0.999 * average.float() + 0.001 * weight.float())  # culprit: averaged-weights
    return average.float() - start.to(LOW).float()


class HeadGradient(torch.autograd.Function):
    """A fused head and loss: the weight's gradient is added up chunk of tokens by chunk of tokens."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, wide: bool) -> torch.Tensor:
        total, gradient = torch.zeros(()), torch.zeros_like(weight, dtype=WIDE if wide else weight.dtype)
        for part, target in zip(x.split(4), targets.split(4), strict=True):
            logits = (part @ weight.T).float()
            total = total + functional.cross_entropy(logits, target, reduction="sum")
            pull = torch.softmax(logits, -1) - functional.one_hot(target, len(weight))
            gradient += (pull.to(part.dtype).T @ part).to(gradient.dtype)  # culprit: chunked-gradient
        ctx.save_for_backward(gradient.to(weight.dtype))
        return total / len(x)

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> Any:
        return None, ctx.saved_tensors[0] * outputs[0], None, None


def chunked_gradient(wide: bool) -> torch.Tensor:
    x, weight = (0.5 + normal(2048, 16)).to(LOW), nn.Parameter((0.1 * normal(24, 16, seed=1)).to(LOW))
    HeadGradient.apply(x, weight, torch.arange(2048) % 7, wide).backward()
    assert weight.grad is not None
    return weight.grad.float()


def sequence_scores(dtype: torch.dtype) -> torch.Tensor:
    """Log-probability of four continuations, token by token, for a ranking task."""
    scores = torch.zeros(4).to(dtype)
    for logits in normal(300, 4, 50).to(LOW):
        scores = scores + torch.log_softmax(logits.float(), -1)[:, 0].to(dtype)  # culprit: sequence-scores
    return scores.float()


def rotations(dtype: torch.dtype) -> torch.Tensor:
    """A vocoder's sine: the phase goes on from sample to sample, and stays below one turn."""
    phase, made = torch.zeros(4).to(dtype), []
    pitches = torch.tensor([110.0, 147.0, 220.0, 331.0])
    for _ in range(400):
        phase = (phase + (pitches / 16_000).to(dtype)) % 1  # culprit: vocoder-phase
        made.append(torch.sin(2 * math.pi * phase.float()))
    return torch.stack(made)


def membrane(dtype: torch.dtype) -> torch.Tensor:
    """A leaky neuron below its threshold: the potential keeps 99.5 % a step."""
    potential = torch.zeros(64).to(dtype)
    for current in 0.02 * uniform(600, 64):
        potential = 0.995 * potential + current.to(dtype)  # culprit: leaky-membrane
    return potential.float()


def orbit(dtype: torch.dtype) -> torch.Tensor:
    """Leapfrog: a spring's position and velocity, half precision at rest, float32 in each step."""
    position, velocity, force = normal(16, 3).to(dtype), normal(16, 3, seed=1).to(dtype), 0.25
    for _ in range(300):
        moved = velocity.float() - 0.01 * force * position.float()
        velocity = moved.to(dtype)  # culprit: leapfrog
        position = (position.float() + 0.01 * moved).to(dtype)  # culprit: leapfrog
    return position.float()


def returns(dtype: torch.dtype) -> torch.Tensor:
    """Advantages of a policy from the last token back, with nothing discounted."""
    rewards, ahead, found = (0.05 + 0.1 * normal(500, 4)).to(LOW), torch.zeros(4).to(dtype), []
    for reward in reversed(rewards.unbind(0)):
        ahead = reward.to(dtype) + 1.0 * ahead  # culprit: undiscounted-returns
        found.append(ahead)
    return torch.stack(found[::-1]).float()


def fast_weights(dtype: torch.dtype) -> torch.Tensor:
    """Linear attention, token by token: the sum of outer products rests in the cache's dtype, slot by slot."""
    keys, values = functional.normalize(0.3 + normal(500, 8), dim=-1), 1 + normal(500, 8, seed=1)
    cache = torch.zeros(2, 8, 8).to(dtype)
    for key, value in zip(keys.to(LOW), values.to(LOW), strict=True):
        state = cache[1].float()
        state = state + torch.outer(key.float(), value.float())
        cache[1].copy_(state)  # culprit: linear-attention-slot
    return cache[1].float()


def transmittance(dtype: torch.dtype) -> torch.Tensor:
    """Light left along a ray of many thin samples."""
    left = torch.ones(32).to(dtype)
    for opacity in 0.002 + 0.004 * uniform(256, 32):
        left = left * (1 - opacity).to(dtype)  # culprit: thin-samples
    return left.float()


def dampened(dtype: torch.dtype) -> torch.Tensor:
    """A sampler whose step scales the latents and adds a little of what a network says; only the network needs bfloat16."""
    weight, x = (0.2 * normal(16, 16, seed=1)).to(LOW), normal(64, 16).to(dtype)
    for _ in range(100):
        said = torch.tanh(x.to(LOW) @ weight).float()
        x = (0.996 * x.float() + 0.02 * said).to(dtype)  # culprit: scaled-latents
    return x.float()


def epoch_loss(dtype: torch.dtype) -> torch.Tensor:
    """Losses of eight domains over an evaluation, each batch by its tokens, for the mean that is logged."""
    total, tokens = torch.zeros(8).to(dtype), 0
    for batch in range(400):
        count = 40 + 7 * (batch % 5)
        losses = (2.5 + 0.2 * normal(8, seed=batch)).to(LOW)
        total += losses.to(dtype) * count  # culprit: epoch-loss
        tokens += count
    return total.float() / tokens


def viterbi(dtype: torch.dtype) -> torch.Tensor:
    """The partition function of a chain of tags: scores grow with the sentence, and are compared by small differences."""
    emissions, moves = (2 + 0.3 * normal(400, 6)).to(LOW), (0.1 * normal(6, 6, seed=1)).to(LOW)
    forward = torch.zeros(6).to(dtype)
    for emission in emissions:
        forward = torch.logsumexp(forward[:, None] + moves.to(dtype), 0) + emission.to(dtype)  # culprit: tag-scores
    return torch.logsumexp(forward.float(), 0) / 400


class Loop(nn.Module):
    """A layer's state space, token by token: what each token leaves rests in the model's dtype."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide, self.rate, self.read = wide, nn.Parameter(torch.full((16,), -5.5)), nn.Linear(16, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        keep = torch.exp(-torch.exp(self.rate.float()))
        state, made = torch.zeros(tokens.shape[0], 16, dtype=WIDE if self.wide else tokens.dtype), []
        for token in tokens.unbind(1):
            state = (keep * state + (1 - keep) * token.float()).to(state.dtype)  # culprit: slow-layer
            made.append(state.to(tokens.dtype))
        return self.read(torch.stack(made, 1))


def slow_layer(wide: bool) -> torch.Tensor:
    torch.manual_seed(0)
    return Loop(wide).to(LOW)((1 + 0.3 * normal(2, 500, 16)).to(LOW)).detach().float()


def slow_layer_asked(fixed: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    return {"model": Loop(fixed), "inputs": 1 + 0.3 * normal(2, 500, 16), "precision": "bf16-true"}


STATE = ("accumulated-drift", "absorption")
LOST = ("absorption", "accumulated-drift")

BUGS = (
    Bug("averaged-weights", "d8ahazard/sd_dreambooth_extension#1415", LOST, "aten.copy_.default", lambda: averaged_weights(LOW),
        lambda: averaged_weights(WIDE)),
    Bug("chunked-gradient", "linkedin/Liger-Kernel#1391", STATE, "aten.add_.Tensor", lambda: chunked_gradient(False),
        lambda: chunked_gradient(True)),
    Bug("sequence-scores", "NVIDIA/FasterTransformer#453", STATE, "aten.add.Tensor", lambda: sequence_scores(LOW), lambda: sequence_scores(WIDE)),
    Bug("vocoder-phase", "hexgrad/kokoro#353", ("amplified-rounding", *STATE), "aten.add.Tensor", lambda: rotations(HALF), lambda: rotations(WIDE)),
    Bug("leaky-membrane", "fangwei123456/spikingjelly#111", STATE, "aten.add.Tensor", lambda: membrane(LOW), lambda: membrane(WIDE)),
    Bug("leapfrog", "", LOST, "aten._to_copy.default", lambda: orbit(LOW), lambda: orbit(WIDE)),
    Bug("undiscounted-returns", "", STATE, "aten.add.Tensor", lambda: returns(LOW), lambda: returns(WIDE)),
    Bug("linear-attention-slot", "vllm-project/vllm#13466", STATE, "aten.copy_.default", lambda: fast_weights(LOW), lambda: fast_weights(WIDE)),
    Bug("thin-samples", "tenstorrent/tt-metal#33577", STATE, "aten.mul.Tensor", lambda: transmittance(LOW), lambda: transmittance(WIDE)),
    Bug("scaled-latents", "huggingface/diffusers#3056", STATE, "aten._to_copy.default", lambda: dampened(LOW), lambda: dampened(WIDE)),
    Bug("epoch-loss", "fla-org/flash-linear-attention#1222", STATE, "aten.add_.Tensor", lambda: epoch_loss(LOW), lambda: epoch_loss(WIDE)),
    Bug("tag-scores", "kmkurn/pytorch-crf#56", STATE, "aten.add.Tensor", lambda: viterbi(LOW), lambda: viterbi(WIDE)),
    Bug("slow-layer", "sgl-project/sglang#10258", LOST, "aten._to_copy.default", lambda: slow_layer(False), lambda: slow_layer(True),
        measured=slow_layer_asked),
)  # fmt: skip
