"""Follows ops that quantise, dequantise or apply scales by themselves, as the steps that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import plain
from precheck.observe.shadow.replaying.replay import OpCall, plan, tensors_in

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

aten = torch.ops.aten


class Steps:
    """The steps of one op. The last one has made the op's own result."""

    def __init__(self, codes: Codes, op: OpCall, result: torch.Tensor) -> None:
        self.codes, self.op, self.result = codes, op, result

    def step(self, func: Any, *args: Any, result: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor:
        """Follows one step. Its result is computed, unless it is given."""
        made: torch.Tensor = func(*args, **kwargs) if result is None else result
        self.codes.follow(OpCall(func, plan(func), args, kwargs), made)
        return made

    def along(self, scale: Any, data: torch.Tensor, *, whole: bool = False) -> torch.Tensor:
        """A scale or zero point, shaped for the data: one number, or one for each channel. `whole`: as a real number."""
        axis = self.op.argument("axis")
        if not isinstance(scale, torch.Tensor):
            return torch.tensor(float(scale), device=data.device).view([1] * data.dim())
        made: torch.Tensor = scale.float() if whole else scale
        return made.view([-1 if dim == axis else 1 for dim in range(data.dim())])

    def rounded(self, data: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, low: float, high: float) -> torch.Tensor:
        codes = self.step(aten.round.default, self.step(aten.div.Tensor, data, scale))
        return self.step(aten.clamp.default, self.step(aten.add.Tensor, codes, zero), low, high)

    def dequantised(self, codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> None:
        self.step(aten.mul.Tensor, self.step(aten.sub.Tensor, codes, zero), scale, result=self.result)


def _parameters(steps: Steps, data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    names = steps.op.plan.names
    scale, zero = (steps.op.argument(next(each for each in names if each in given)) for given in (("scale", "scales"), ("zero_point", "zero_points")))
    return steps.along(scale, data), steps.along(zero, data, whole=True)


def _fake(steps: Steps) -> None:
    """Quantises and dequantises at once, as quantisation-aware training does."""
    data, op = steps.op.args[0], steps.op
    if all(op.argument(name) is None or bool(op.argument(name)) for name in ("fake_quant_enabled", "fake_quant_on")):
        scale, zero = _parameters(steps, data)
        steps.dequantised(steps.rounded(data.detach(), scale, zero, op.argument("quant_min"), op.argument("quant_max")), scale, zero)


def _quantise(steps: Steps) -> None:
    data, op = steps.op.args[0], steps.op
    codes = steps.rounded(data.detach(), *_parameters(steps, data), float(op.argument("quant_min")), float(op.argument("quant_max")))
    steps.step(aten._to_copy.default, codes, result=steps.result, dtype=steps.result.dtype)


def _dequantise(steps: Steps) -> None:
    data = steps.op.args[0]
    steps.dequantised(steps.step(aten._to_copy.default, data, dtype=torch.float32), *_parameters(steps, data))


def _scaled_product(steps: Steps) -> None:
    """A product of codes that multiplies by the scales of both. Scales of blocks are in an order of their own, and are not followed."""
    left, right, *scales = steps.op.args[:4]
    sizes = len(left), right.shape[1]
    if any(each.numel() not in (1, size) for each, size in zip(scales, sizes, strict=True)):
        return
    wide = [steps.step(aten._to_copy.default, each, dtype=torch.float32) for each in (left, right)]
    made = steps.step(aten.mm.default, *wide)
    for scale, shape in zip(scales, ((-1, 1), (1, -1)), strict=True):
        made = steps.step(aten.mul.Tensor, made, scale.view(shape))
    if (bias := steps.op.argument("bias")) is not None:
        made = steps.step(aten.add.Tensor, made, bias)
    steps.step(aten._to_copy.default, made, result=steps.result, dtype=steps.result.dtype)


def _power_of_two(steps: Steps) -> None:
    """A product with a power of two, which is given by its exponent."""
    data, exponent = steps.op.args[:2]
    power = steps.step(aten.exp2.default, steps.step(aten._to_copy.default, exponent, dtype=torch.float32))
    steps.step(aten.mul.Tensor, data, power, result=steps.result)


FUSED = ops.ALPHA.keys() | ops.BLENDS | {"addcmul", "addcdiv"}
"""Ops that multiply or divide, and add the result to something."""


def stepwise(codes: Codes, op: OpCall, result: torch.Tensor) -> bool:
    """Follows an op of `FUSED` on codes as a product and a sum. Returns whether it is one of both."""
    steps = Steps(codes, op, result)
    if op.base in ops.ALPHA:
        alpha = op.argument("alpha")
        held = [each for each in ops.ALPHA[op.base] if plain(op.args[each]) and codes.tracks.get(op.args[each]) is not None]
        if not isinstance(alpha, (int, float)) or alpha == 1 or not held:
            return False
        if op.plan.written and (codes.tracks.get(result) is not None or not codes.scales.among(torch.tensor(float(alpha), device="cpu"))):
            return False  # a step of an optimizer multiplies by its rate
        place = held[0]
        term = steps.step(aten.mul.Tensor, op.args[place], torch.tensor(float(alpha), device=result.device))
        if op.plan.written:  # a term without scales is data
            return codes.tracks.get(term) is None
        rest = {name: value for name, value in op.kwargs.items() if name != "alpha"}
        codes.follow(op._replace(args=(*op.args[:place], term, *op.args[place + 1 :]), kwargs=rest), result)
        return True
    if op.base in ops.BLENDS:
        weight = op.args[2]
        if op.plan.written or not isinstance(weight, torch.Tensor) or codes.scales.made.get(weight) != "scale":
            return False
        apart = steps.step(aten.sub.Tensor, op.args[1], op.args[0])
        steps.step(aten.add.Tensor, op.args[0], steps.step(aten.mul.Tensor, apart, weight), result=result)
        return True
    (start, left, right), value = op.args[:3], op.argument("value")
    made = steps.step(aten.mul.Tensor if op.base == "addcmul" else aten.div.Tensor, left, right)
    made = made if value is None or value == 1 else steps.step(aten.mul.Tensor, made, torch.tensor(float(value), device=made.device))
    overwritten = op.plan.written and codes.tracks.get(start) is None
    steps.step(aten.add.Tensor, result - made if overwritten else start, made, result=result)
    return True


COMPOUND: dict[str, Callable[[Steps], None]] = {
    **{f"fake_quantize_per_{kind}_affine_cachemask": _fake for kind in ("tensor", "channel")},
    **{f"_fake_quantize_learnable_per_{kind}_affine": _fake for kind in ("tensor", "channel")},
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _fake,
    **{f"quantized_decomposed::quantize_per_{kind}": _quantise for kind in ("tensor", "channel")},
    **{f"quantized_decomposed::dequantize_per_{kind}": _dequantise for kind in ("tensor", "channel")},
    "_scaled_mm": _scaled_product,
    "ldexp": _power_of_two,
}
"""By the name of the op."""


def name(op: OpCall) -> str:
    """The op's name, with its library if that is another than torch's own."""
    return op.plan.packet if op.plan.known else op.base


def follow(codes: Codes, op: OpCall, result: Any) -> None:
    """After such an op. Its other results are masks."""
    made = next(tensors_in(result))
    if plain(op.args[0]) and plain(made) and not op.plan.mutable:
        COMPOUND[name(op)](Steps(codes, op, made))
