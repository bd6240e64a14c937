"""Quantities of different scales that are brought together: wrong if the function is told so, mended otherwise."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.loops import SCALE, Fault, Loop


def clip_norm(wrong: bool) -> torch.Tensor:
    loop = Loop()
    loop.backward()
    if not wrong:
        loop.scaler.unscale_(loop.optimizer)
    nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)  # at fault
    loop.step()
    return loop.moved


def clip_norm_one_by_one(wrong: bool) -> torch.Tensor:
    loop = Loop()
    loop.backward()
    if not wrong:
        loop.scaler.unscale_(loop.optimizer)
    nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0, foreach=False)  # at fault
    loop.step()
    return loop.moved


def clip_after_zeroing(wrong: bool) -> torch.Tensor:
    """Gradients that are kept and zeroed carry the scale of what is added to them next."""
    loop = Loop()
    loop.backward()
    loop.step()
    loop.optimizer.zero_grad(set_to_none=False)
    loop.scaler.scale(loop.loss()).backward()
    if not wrong:
        loop.scaler.unscale_(loop.optimizer)
    nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)  # at fault
    loop.step()
    return loop.moved


def clip_value(wrong: bool) -> torch.Tensor:
    loop = Loop()
    loop.backward()
    if not wrong:
        loop.scaler.unscale_(loop.optimizer)
    nn.utils.clip_grad_value_(loop.model.parameters(), 0.5)  # at fault
    loop.step()
    return loop.moved


def clip_by_hand(wrong: bool) -> torch.Tensor:
    loop = Loop()
    loop.backward()
    if not wrong:
        loop.scaler.unscale_(loop.optimizer)
    norm = torch.stack([gradient.norm() for gradient in loop.gradients]).norm()
    share = (1.0 / norm).clamp(max=1.0)  # at fault
    for gradient in loop.gradients:
        gradient.mul_(share)
    loop.step()
    return loop.moved


def clip_by_foreach(wrong: bool) -> torch.Tensor:
    loop = Loop()
    loop.backward()
    if not wrong:
        loop.scaler.unscale_(loop.optimizer)
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(loop.gradients)))
    share = torch.clamp(1.0 / (norm + 1e-6), max=1.0)  # at fault
    torch._foreach_mul_(loop.gradients, share)
    loop.step()
    return loop.moved


def step_without_scaler(wrong: bool) -> torch.Tensor:
    loop = Loop()
    for _ in range(3):
        loop.backward()
        if wrong:
            loop.optimizer.step()  # at fault
            loop.scaler.update(SCALE)
        else:
            loop.step()
    return loop.moved


def penalty_of_its_own(wrong: bool) -> torch.Tensor:
    """What unscale_ divides was not scaled."""
    loop = Loop()
    loop.backward()
    penalty = 0.5 * loop.model.weight.pow(2).sum()
    if wrong:
        penalty.backward()  # at fault
    else:
        loop.scaler.scale(penalty).backward()
    loop.step()
    return loop.moved


def penalty_added_late(wrong: bool) -> torch.Tensor:
    loop = Loop()
    penalty = 0.5 * loop.model.weight.pow(2).sum()
    if wrong:
        loss = loop.scaler.scale(loop.loss()) + penalty  # at fault
    else:
        loss = loop.scaler.scale(loop.loss() + penalty)
    loss.backward()
    loop.step()
    return loop.moved


def noise(wrong: bool) -> torch.Tensor:
    loop, drawn = Loop(), torch.Generator().manual_seed(0)
    loop.backward()
    if not wrong:
        loop.scaler.unscale_(loop.optimizer)
    for gradient in loop.gradients:
        gradient.add_(torch.randn(gradient.shape, generator=drawn) * 0.1)  # at fault
    loop.step()
    return loop.moved


def decay_by_hand(wrong: bool) -> torch.Tensor:
    loop = Loop()
    loop.backward()
    if not wrong:
        loop.scaler.unscale_(loop.optimizer)
    loop.model.weight.grad.add_(loop.model.weight.detach(), alpha=0.01)  # at fault
    loop.step()
    return loop.moved


def update_between_micro_batches(wrong: bool) -> torch.Tensor:
    loop = Loop(growth=1)
    loop.backward()
    loop.step()
    loop.optimizer.zero_grad()
    for part in (slice(0, 8), slice(8, 16)):
        loop.scaler.scale(loop.loss(part) / 2).backward()  # at fault
        if wrong:
            loop.scaler.update(2 * loop.scaler.get_scale())
    loop.step()
    return loop.moved


def update_between_optimizers(wrong: bool) -> torch.Tensor:
    """The second optimizer's gradients are divided by a scale that they were not made under."""
    one = Loop(scale=4.0, growth=1)
    two = Loop(seed=5, scaler=one.scaler)
    for _ in range(3):
        one.backward()
        two.backward()
        one.scaler.step(one.optimizer)
        if wrong:
            one.scaler.update()
        one.scaler.step(two.optimizer)  # at fault
        one.scaler.update()
    return one.moved


def step_on_a_threshold(wrong: bool) -> torch.Tensor:
    """A rule that leaves out batches whose gradient is large."""
    loop = Loop()
    for _ in range(2):
        loop.backward()
        if not wrong:
            loop.scaler.unscale_(loop.optimizer)
        norm = torch.stack([gradient.norm() for gradient in loop.gradients]).norm()
        if norm < 1e4:  # at fault
            loop.scaler.step(loop.optimizer)
        else:
            loop.optimizer.zero_grad()
        loop.scaler.update()
    return loop.moved


def average_of_norms(wrong: bool) -> torch.Tensor:
    loop, average = Loop(), torch.ones(())
    for _ in range(2):
        loop.backward()
        if not wrong:
            loop.scaler.unscale_(loop.optimizer)
        norm = torch.stack([gradient.norm() for gradient in loop.gradients]).norm()
        average = 0.9 * average + 0.1 * norm  # at fault
        loop.step()
    assert average > 0
    return loop.moved


def gradient_penalty(wrong: bool) -> torch.Tensor:
    """The recipe of torch's documentation, with and without the division by the scale."""
    loop = Loop()
    loss = loop.loss()
    gradients = torch.autograd.grad(loop.scaler.scale(loss), list(loop.model.parameters()), create_graph=True)
    if not wrong:
        gradients = tuple(gradient * (1.0 / loop.scaler.get_scale()) for gradient in gradients)
    loss = loss + torch.stack([gradient.pow(2).sum() for gradient in gradients]).sum().sqrt()  # at fault
    loop.scaler.scale(loss).backward()
    loop.step()
    return loop.moved


def penalised(loop: Loop, wrong: bool) -> torch.Tensor:
    """The gradient at each input, as a critic's penalty has it, scaled if wrong."""
    x = loop.x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16):
        out = loop.model(x).float()
    (slope,) = torch.autograd.grad(loop.scaler.scale(out.mean()), x, create_graph=True)
    return slope if wrong else slope / loop.scaler.get_scale()


def slope_of_one(wrong: bool) -> torch.Tensor:
    """A critic's slope is to be one: the norm is scaled, the one is not."""
    loop = Loop()
    slope = 16 * penalised(loop, wrong)
    penalty = (slope.norm(dim=1) - 1).square().mean()  # at fault
    return penalty.detach()


def slope_beside_ones(wrong: bool) -> torch.Tensor:
    loop = Loop()
    slope = (16 * penalised(loop, wrong)).norm(dim=1)
    return functional.mse_loss(slope, torch.ones_like(slope)).detach()  # at fault


def perplexity_of_scaled_loss(wrong: bool) -> torch.Tensor:
    loop = Loop(scale=16.0)
    scaled = loop.scaler.scale(loop.loss()).detach()
    return torch.exp(scaled if wrong else scaled / loop.scaler.get_scale())  # at fault


def clip_by_a_number(wrong: bool) -> torch.Tensor:
    """Python takes the norm, and the gradients are multiplied by what Python makes of it."""
    loop = Loop()
    loop.backward()
    if not wrong:
        loop.scaler.unscale_(loop.optimizer)
    norm = torch.stack([gradient.norm() for gradient in loop.gradients]).norm().item()
    share = min(1.0, 0.05 / (norm + 1e-6))
    for gradient in loop.gradients:
        gradient.mul_(share)  # at fault
    loop.step()
    return loop.moved


def orthogonal_part(wrong: bool) -> torch.Tensor:
    """GSAM: the second of two gradients less a part of the first, which is kept as it lies in .grad."""
    loop = Loop()
    loop.scaler.scale(loop.loss(slice(0, 12))).backward()
    first = [gradient / (1.0 if wrong else loop.scaler.get_scale()) for gradient in loop.gradients]
    loop.backward()
    loop.scaler.unscale_(loop.optimizer)
    second = loop.gradients
    along = torch.stack([(a * b).sum() for a, b in zip(first, second, strict=True)]).sum() / torch.stack([b.square().sum() for b in second]).sum()
    for parameter, a, b in zip(loop.model.parameters(), first, second, strict=True):
        parameter.grad = b - 0.4 * (a - along * b)  # at fault
    loop.step()
    return loop.moved


COMPARED = r" is compared with, or clipped by, one that is not scaled: call scaler\.unscale_\(optimizer\) first"
CLIPPED = f"is still multiplied by a loss scale of 1024{COMPARED}"
CLIPPED_BY = f"is 1024 times too small because of the loss scale{COMPARED}"
ADDED = r"is added to one that .*scaler\.scale, or call unscale_ first"
STEPPED = r"a step on gradients still scaled by \S+: call scaler\.step"
FAULTS = (
    Fault(clip_norm, CLIPPED_BY, link="Lightning-AI/pytorch-lightning#9599", harm=None),
    Fault(clip_norm_one_by_one, CLIPPED_BY), Fault(clip_after_zeroing, CLIPPED_BY), Fault(clip_value, CLIPPED), Fault(clip_by_hand, CLIPPED_BY),
    Fault(clip_by_foreach, CLIPPED_BY),
    Fault(step_without_scaler, STEPPED, link="nerfstudio-project/nerfacc#307", harm=None),
    Fault(penalty_of_its_own, ADDED, link="NVIDIA/OpenSeq2Seq#127"), Fault(penalty_added_late, ADDED),
    Fault(noise, ADDED, link="rwth-i6/returnn#1595"), Fault(decay_by_hand, ADDED), Fault(update_between_micro_batches, ADDED),
    Fault(update_between_optimizers, r"gradients that are 2 times too small .*: .* scaler\.update\(\) only after", link="neosr-project/neosr#9"),
    Fault(step_on_a_threshold, CLIPPED), Fault(average_of_norms, ADDED), Fault(gradient_penalty, ADDED),
    Fault(slope_of_one, "a number that is not scaled is added to one that is still multiplied by a loss scale of 1024", harm=None),
    Fault(slope_beside_ones, ADDED, harm=None), Fault(perplexity_of_scaled_loss, "is still multiplied by a loss scale of 16", harm=None),
    Fault(clip_by_a_number, CLIPPED),
    Fault(orthogonal_part, ADDED, link="davda54/sam#97"),
)  # fmt: skip
MECHANISM = "scaling"
BUGS = tuple(fault.bug() for fault in FAULTS)
