"""Masks that leave nothing, and masks that remove nothing.

Of a row of a softmax in which everything is masked, what it comes to is an accident of the format, which the shadow takes over.

A mask adds to a score a number at which exp is 0 beside any score: -10000, or the lowest that the format holds. In float16 these swallow
the score, and a row of nothing else is uniform; float32 still holds the score, and the same row is a softmax of it. Neither means
anything: it is the row of a padded query, which nobody reads. Rows that are not finite are another matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.statistics import finite

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call

MASKED = -(2.0**13)
"""No score of a row is above this: the power of two under the smallest mask in use, 10⁴. Spacings there are 4 in float16, 32 in bfloat16:
beside these no score can be told from another."""


def followed(call: Call, outputs: list[torch.Tensor], shadows: list[torch.Tensor]) -> None:
    """Gives the shadow the run's rows that are masked as a whole, where other rows of the call are not: an offset of all is no mask."""
    if call.plan.base not in ops.SOFTMAXES or not call.inputs[0].roundoff or not call.floats[0].dim():
        return
    dim = int(call.plan.argument("dim", call.args, call.kwargs))
    scores = call.floats[0].detach()
    if not scores.numel():
        return
    best = scores.amax(dim, keepdim=True)
    masked = (best <= MASKED) & best.isfinite() & (best > MASKED).any()
    shadows[0] = torch.where(masked, outputs[0].to(shadows[0].dtype), shadows[0])


def multiplied(call: Call, output: torch.Tensor) -> None:
    """Tells a product with a mask of yes and no how many Inf and NaN the mask was to remove: 0 · Inf is NaN, in every format."""
    masks = [each for each in call.args if isinstance(each, torch.Tensor) and each.dtype is torch.bool]
    if len(masks) != 1 or len(call.floats) != 1 or call.mode.later.defers(output) or finite([output.detach()]):
        return
    left = output.detach().isnan() & ~masks[0]
    call.operation.unmasked = int(left.sum())
