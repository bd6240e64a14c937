"""Scalers called in the wrong order, or read at the wrong time: wrong if the function is told so, mended otherwise."""

from __future__ import annotations

import torch
from torch import nn

from bugs.loops import SCALE, Fault, Loop


def unscaled_twice(wrong: bool) -> torch.Tensor:
    loop = Loop()
    loop.backward()
    loop.scaler.unscale_(loop.optimizer)
    if wrong:
        loop.scaler.unscale_(loop.optimizer)  # at fault
    loop.step()
    return loop.moved


def unscaled_in_every_micro_batch(wrong: bool) -> torch.Tensor:
    loop = Loop()
    for part in (slice(0, 8), slice(8, 16)):
        loop.scaler.scale(loop.loss(part) / 2).backward()
        if wrong or part.start:
            loop.scaler.unscale_(loop.optimizer)  # at fault
    loop.step()
    return loop.moved


def no_update_after_a_skip(wrong: bool) -> torch.Tensor:
    """Torch refuses one step later, where nothing is wrong."""
    loop = Loop()
    for step in range(3):
        loop.backward()
        loop.scaler.unscale_(loop.optimizer)  # at fault
        if step != 1:
            loop.scaler.step(loop.optimizer)
        if step != 1 or not wrong:
            loop.scaler.update()
    return loop.moved


def half_parameters(wrong: bool) -> torch.Tensor:
    loop = Loop()
    if wrong:
        loop.model.half()
    loop.backward()
    loop.scaler.step(loop.optimizer)  # at fault
    loop.scaler.update()
    return loop.moved


def resumed_without_its_scale(wrong: bool) -> torch.Tensor:
    first = Loop(scale=16.0, optimizer=torch.optim.Adam)
    first.backward()
    first.step()
    kept = first.optimizer.state_dict(), first.scaler.state_dict()
    again = torch.amp.GradScaler("cpu", init_scale=65536.0)  # at fault
    second = Loop(scaler=again, optimizer=torch.optim.Adam)
    second.optimizer.load_state_dict(kept[0])
    if not wrong:
        again.load_state_dict(kept[1])
    second.backward()
    second.step()
    return torch.tensor(again.get_scale())


def scaler_of_each_epoch(wrong: bool) -> torch.Tensor:
    """The function that trains for an epoch makes its own: what is safe, some 2^16, is found anew from 2^20, four skips each time."""
    loop = Loop(scale=2.0**20)
    loop.y *= 100
    for _ in range(3):
        if wrong:
            loop.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)  # at fault
        for _ in range(8):
            loop.backward()
            loop.step()
    return loop.moved


def scaler_of_each_step(wrong: bool) -> torch.Tensor:
    """Made in the loop: no step is ever taken."""
    loop = Loop(scale=2.0**20)
    loop.y *= 100
    for _ in range(12):
        if wrong:
            loop.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)  # at fault
        loop.backward()
        loop.step()
    return loop.moved


def schedule_through_skips(wrong: bool) -> torch.Tensor:
    """The scale starts so high that the first steps, five or more, are skipped; the warm-up ends before training begins."""
    loop = Loop(scale=2.0**36)
    schedule = torch.optim.lr_scheduler.LinearLR(loop.optimizer, total_iters=8)
    loop.optimizer.step()  # without gradients it moves nothing; torch warns of a schedule that steps before its optimizer
    for _ in range(6):
        loop.backward()
        before = loop.scaler.get_scale()
        loop.step()
        if wrong or loop.scaler.get_scale() >= before:
            schedule.step()  # at fault
    return torch.tensor(float(schedule.last_epoch))


def collapse(wrong: bool) -> torch.Tensor:
    """A root of zero, whose gradient is 0 x Inf in every step: three halvings from 8 are 1, the fourth is the collapse."""
    loop = Loop(scale=8.0)
    for _ in range(6):
        loop.optimizer.zero_grad()
        unused = 0 * loop.model.weight
        loss = loop.loss() + (unused.square() + (0.0 if wrong else 1e-8)).sqrt().sum()
        loop.scaler.scale(loss).backward()
        loop.scaler.step(loop.optimizer)  # at fault
        loop.scaler.update()
    return loop.moved


def tile_without_data(wrong: bool) -> torch.Tensor:
    """Satellite images are NaN where nothing was seen, and so is every gradient: the scale falls until what divides by it fails."""
    loop = Loop(scale=8.0)
    loop.x[3, 1:] = torch.nan
    if not wrong:
        loop.x = loop.x.nan_to_num()
    for _ in range(6):
        loop.backward()
        loop.scaler.step(loop.optimizer)  # at fault
        loop.scaler.update()
    return loop.moved


def stepped_twice(wrong: bool) -> torch.Tensor:
    """The line that was there before mixed precision came has stayed: each update is made twice."""
    loop = Loop()
    for _ in range(2):
        loop.backward()
        loop.step()
        if wrong:
            loop.optimizer.step()  # at fault
    return loop.moved


def stepped_before_its_scaler(wrong: bool) -> torch.Tensor:
    """Unscaled for the clip, stepped on, and then handed to the scaler, whose step is the same again."""
    loop = Loop()
    loop.backward()
    loop.scaler.unscale_(loop.optimizer)
    nn.utils.clip_grad_norm_(loop.model.parameters(), 10.0)
    if wrong:
        loop.optimizer.step()
    loop.scaler.step(loop.optimizer)  # at fault
    loop.scaler.update()
    return loop.moved


class Scaler(torch.amp.GradScaler):
    """Somebody's own, with steps that call through."""

    def step(self, optimizer: torch.optim.Optimizer, *args: object, **kwargs: object) -> float | None:
        return super().step(optimizer, *args, **kwargs)


def subclass(wrong: bool) -> torch.Tensor:
    loop = Loop(scaler=Scaler("cpu", init_scale=SCALE))
    loop.backward()
    if not wrong:
        loop.scaler.unscale_(loop.optimizer)
    nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)  # at fault
    loop.step()
    return loop.moved


def scaled_by_hand(wrong: bool) -> torch.Tensor:
    loop = Loop()
    loop.backward()  # a first step, which makes the scale
    loop.step()
    loop.optimizer.zero_grad()
    (loop.loss() * loop.scaler.get_scale()).backward()
    if wrong:
        loop.optimizer.step()  # at fault
    else:
        loop.step()
    return loop.moved


def logged_norm(wrong: bool) -> torch.Tensor:
    loop = Loop()
    loop.backward()
    if not wrong:
        loop.scaler.unscale_(loop.optimizer)
    assert torch.stack([gradient.norm() for gradient in loop.gradients]).norm().item() > 0  # at fault
    loop.step()
    return loop.moved


def logged_loss(wrong: bool) -> torch.Tensor:
    loop = Loop()
    loss = loop.loss()
    scaled = loop.scaler.scale(loss)
    scaled.backward()
    assert float((scaled if wrong else loss).detach()) > 0  # at fault
    loop.step()
    return loop.moved


def divided_by_the_next_scale(wrong: bool) -> torch.Tensor:
    """Off by two after each growth."""
    loop = Loop(scale=16.0, growth=1)
    loss = loop.scaler.scale(loop.loss())
    loss.backward()
    before = loop.scaler.get_scale()
    loop.step()
    assert loss.detach() / (loop.scaler.get_scale() if wrong else before) is not None  # at fault
    return loop.moved


REFUSED = r"the scaler raised \(.*\): for each step call backward"
STEPPED = r"a step on gradients still scaled by 1024: call scaler\.step"
TAKEN = r"this step has been taken already, on the same gradients: scaler\.step\(optimizer\) calls"
ANEW = r"a new GradScaler starts at 1\.04858e\+06, although the one before it had settled at .*: make one scaler for the whole training"
READ = "Python reads a number that is scaled by 1024"
FAULTS = (
    Fault(unscaled_twice, REFUSED, raises=RuntimeError),
    Fault(unscaled_in_every_micro_batch, REFUSED, raises=RuntimeError, link="huggingface/accelerate#641"),
    Fault(no_update_after_a_skip, REFUSED, raises=RuntimeError, link="Haian-Jin/LVSM#19"),
    Fault(half_parameters, "2 parameters are float16", raises=ValueError, link="huggingface/peft#341", harm=None),
    Fault(resumed_without_its_scale, r"restore the scaler with scaler\.load_state_dict", link="huggingface/transformers#11323", harm=None),
    Fault(scaler_of_each_epoch, ANEW, link="conservationtechlab/animl-py#304"),
    Fault(scaler_of_each_step, ANEW),
    Fault(schedule_through_skips, "the learning rate schedule went on 3 times", link="huggingface/transformers#11106", harm=None),
    Fault(collapse, r"the loss scale fell to 0\.5", rule="scaler-collapse", link="pytorch/pytorch#101569", harm=None),
    Fault(tile_without_data, r"the loss scale fell to 0\.5", rule="scaler-collapse", link="Junjue-Wang/FactSeg#6", harm=None),
    Fault(stepped_twice, TAKEN, link="IAHispano/Applio#860"),
    Fault(stepped_before_its_scaler, TAKEN),
    Fault(subclass, "is 1024 times too small because of the loss scale is compared"),
    Fault(scaled_by_hand, STEPPED),
    Fault(logged_norm, READ, "warning", link="languini-kitchen/languini-kitchen#7"),
    Fault(logged_loss, READ, "warning"),
    Fault(divided_by_the_next_scale, r"is still multiplied by a loss scale of 16 is divided by another scale, 32: read the scale before",
          link="facebookresearch/fairchem#617"),
)  # fmt: skip
MECHANISM = "scaling"
BUGS = tuple(fault.bug() for fault in FAULTS)
