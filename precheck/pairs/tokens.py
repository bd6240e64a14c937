"""Measures how much a difference changes a language model's probabilities of the given tokens."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from precheck.observe.containers import tensors
from precheck.pairs.capture import Captured

LEAST, MOST = 0.9, 1.1
"""Range of probability ratios in which policy-gradient training treats two runs as the same policy."""


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """Differences at the next tokens: mean and greatest |difference of log-probabilities| in nats, the share of ratios outside [0.9, 1.1], the
    count."""

    mean: float
    greatest: float
    outside: float
    tokens: int

    def __str__(self) -> str:
        differ = f"next tokens differ by {self.mean:.2g} nats in the mean and {self.greatest:.2g} at most"
        return f"{differ}, {self.outside:.2%} have a ratio of probabilities outside [0.9, 1.1]"


def spread(model: Captured, other: Captured, inputs: Any) -> Spread | None:
    """The differences in the first result that has logits for each input token, or None if there is none."""
    given = next((tensor for _, tensor in tensors(inputs) if tensor.dim() == 2 and not tensor.is_floating_point() and tensor.shape[1] > 1), None)
    if given is None:
        return None
    mask = inputs.get("attention_mask") if isinstance(inputs, dict) else None
    for (name, step), ours in model.of("result").items():
        theirs = other.tensors.get(("result", name, step))
        logits = ours.dim() == 3 and ours.shape[:2] == given.shape and ours.is_floating_point() and ours.shape[2] > int(given.max())
        if logits and theirs is not None and theirs.shape == ours.shape:
            a, b = (each.double()[:, :-1].log_softmax(-1).gather(-1, given[:, 1:, None]).squeeze(-1) for each in (ours, theirs))
            apart = (b - a)[mask[:, 1:].bool()] if isinstance(mask, torch.Tensor) and mask.shape == given.shape else (b - a).flatten()
            ratios, apart = apart.exp(), apart.abs()
            outside = float(((ratios < LEAST) | (ratios > MOST)).double().mean())
            return Spread(float(apart.mean()), float(apart.max()), outside, apart.numel()) if apart.numel() else None
    return None
