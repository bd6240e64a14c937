"""Handles rows that are masked as a whole, and boolean masks that fail to remove Inf and NaN.

If all of a softmax row is masked, its result depends on the format, so the shadow takes over the run's row.
A mask adds a large negative number to a score, such as -10000 or the lowest number of the format. In float16 the score is lost beside it, and a fully
masked row is uniform. float32 keeps the score, and the row is a softmax of the scores. Neither has a meaning: it is the row of a padded query,
which nothing reads. This does not hold for rows that are not finite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from precheck.observe.shadow.comparing.statistics import finite

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call

MASKED = -(2.0**13)
"""A row is masked if no score is above this: the power of two below the smallest mask in use, 10⁴. Spacings there are 4 in float16 and 32 in
bfloat16, so scores cannot be told apart."""


def follow_run(call: Call, outputs: list[torch.Tensor], shadows: list[torch.Tensor]) -> None:
    """After a softmax: gives the shadow the run's fully masked rows, if the call has other rows too. An offset of all rows is no mask."""
    if not call.inputs[0].roundoff or not call.floats[0].dim():
        return
    dim = int(call.op.argument("dim"))
    scores = call.floats[0].detach()
    if not scores.numel():
        return
    best = scores.amax(dim, keepdim=True)
    masked = (best <= MASKED) & best.isfinite() & (best > MASKED).any()
    shadows[0] = torch.where(masked, outputs[0].to(shadows[0].dtype), shadows[0])


def count_unmasked(call: Call, output: torch.Tensor) -> None:
    """After a product with a boolean mask: counts the NaN at masked places. 0 · Inf is NaN in every format."""
    if len(call.floats) != 1:
        return
    masks = [each for each in call.args if isinstance(each, torch.Tensor) and each.dtype is torch.bool]
    if len(masks) != 1 or finite([output.detach()]):
        return
    left = output.detach().isnan() & ~masks[0]
    call.operation.unmasked = int(left.sum())
