"""Follows codes through the forms that keep a gradient or a chance: codes less the numbers that were rounded, which are added again, and codes of a
floor to which one is added by chance.

`x + (round(x) - x).detach()` is `round(x)`, and its gradient is that of x. The difference is no result of its own: it is kept as the codes that it
becomes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from precheck.observe.shadow.quantisers import rounding_costs
from precheck.observe.shadow.quantisers.code_copies import LIKE, Track, cost, distance, merged
from precheck.observe.shadow.quantisers.scales.scaled_tensors import counts

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes


def after_difference(codes: Codes, track: Track, source: torch.Tensor, other: torch.Tensor, result: torch.Tensor) -> bool:
    """After a difference between codes and other numbers. Returns whether those are the numbers that were rounded."""
    exact = track.exact.seen(source)
    if track.multipliers or other.shape != source.shape or result.shape != source.shape or distance(exact, other.float()) > LIKE:
        return False
    kept = merged(result, [track], exact, [each.seen(source) for each in track.plains])
    codes.give_units(kept, track, source, result)
    kept.shifted = track.shifted
    codes.differences.put(result, kept)
    codes.tracks.drop(result)
    return True


def after_sum(codes: Codes, inputs: list[torch.Tensor], result: torch.Tensor) -> bool:
    """After a sum or difference with such a difference. Returns whether its result is the codes."""
    for each in inputs:
        kept = codes.differences.get(each)
        if kept is not None and kept.cost is not None and each.shape == result.shape:
            exact = kept.exact.seen(each)
            if cost(exact, result)[0] <= (1 + LIKE) * kept.cost[0] + LIKE:
                codes.pass_on(kept, each, result)
                return True
    return False


def after_step_up(codes: Codes, track: Track, source: torch.Tensor, other: torch.Tensor, result: torch.Tensor) -> bool:
    """After a sum of codes and numbers of 0 and 1. Returns whether that has rounded the same numbers by chance, where they were cut off before."""
    exact = track.exact.seen(source)
    if track.multipliers or other.shape != source.shape or not bool(((other == 0) | (other == 1)).all()) or not counts(source):
        return False
    if bool(((result.float() - exact).abs() > 1).any()):
        return False
    codes.pass_on(track, source, result).cost = cost(exact, result)
    line = codes.casts.judged_anew(track.rounded)
    if line is not None:
        rounding_costs.note_bias(codes, line.place, True, exact, result.float())
    return True
