"""Tells whether a candidate hides other elements than the reference, also where each of them counts in the results of others, as in a softmax.

`hidden_elements` compares each wrong element with what the reference has there with all hidden, or shown. Where shares are made one again, or
a sum is divided by what counts in it, every result depends on the whole mask. So elements of the mask are turned over one after another, and each
stays so if the reference comes closer to the candidate. Of a mask that chooses between two functions, an element changes no result but its own: that
is no mask.
"""

from __future__ import annotations

import torch

from precheck.kernels import hidden_elements, masks
from precheck.kernels.bench import Bench
from precheck.kernels.trial_result import Judged

_MASKS = 4
"""The most masks of a reference that are changed."""
_ELEMENTS = 48
"""The most elements of a mask. Each takes a run of the reference."""


def explains(bench: Bench, judged: Judged) -> str:
    """The explanation in words, or ""."""
    return hidden_elements.explains(bench, judged) or _shared(bench, judged)


def _shared(bench: Bench, judged: Judged) -> str:
    name = judged.fault.subject if judged.fault is not None else ""
    got, found = judged.outcome.values.get(name) if judged.outcome is not None else None, judged.distances.get(name)
    if got is None or found is None or found.wrong is None or not bool(found.wrong.any()) or not got.is_floating_point():
        return ""
    mode = hidden_elements.Shown()
    right = bench.under(mode, judged.trial).values.get(name)
    for which, mask in enumerate(mode.masks[:_MASKS]):
        few = 1 < mask.numel() <= _ELEMENTS and mask.shape == got.shape[: mask.dim()]
        if few and right is not None and right.shape == got.shape and _fits(bench, judged, which, mask, right):
            alike = any(leaf.tensor.is_floating_point() and leaf.tensor.shape == mask.shape for leaf in bench.example.leaves)
            if not alike or hidden_elements.depends_on_others(bench, judged, which):
                return "a mask that hides other elements, which count in the results of others,"
    return ""


def _fits(bench: Bench, judged: Judged, which: int, mask: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether another mask gives all of the candidate's wrong elements, and an element of it changes results of others."""
    assert judged.fault is not None
    assert judged.outcome is not None
    name = judged.fault.subject
    got, wrong = judged.outcome.values[name], judged.distances[name].wrong
    assert got is not None
    value, off, shared = right, hidden_elements.gap(got, right)[wrong], False
    left = off
    for place in range(mask.numel()):
        turned = mask.clone()
        turned.view(-1)[place] ^= True
        other = bench.under(hidden_elements.Shown(which, turned), judged.trial).values.get(name)
        if other is None or other.shape != got.shape:
            return False
        now = hidden_elements.gap(got, other)[wrong]
        if float(now.square().sum()) < float(left.square().sum()):
            changed = (other != value).reshape(mask.numel(), -1).any(1)
            shared |= bool((changed & (torch.arange(mask.numel()) != place)).any())
            mask, value, left = turned, other, now
    return shared and bool((left <= masks.BEHIND**0.5 * off).all())
