"""Runs a job in float32, and computes each of its products also under several recipes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch

from precheck.observe.job import Job
from precheck.observe.models import float32_parts
from precheck.observe.records import Trace
from precheck.observe.run import run
from precheck.observe.setting import Setting
from precheck.recipes import Recipe
from precheck.recipes.survey import Place, Survey


def surveyed(job: Job, recipes: Iterable[Recipe]) -> list[Place]:
    """The places of the products in one float32 run of a job's steps."""
    shorter = job if job.optimizer is not None and job.steps > 1 else dataclasses.replace(job, optimizer=None, steps=1)
    mode = Survey(job.model, recipes)
    _run(shorter, Setting(torch.float32), mode)
    return found(job, mode)


def run_beside(job: Job, setting: Setting, gemm: object) -> tuple[Trace, Survey | None]:
    """Runs a job in float32. If `gemm` is a recipe, its products are surveyed too, which does not change the run."""
    if not isinstance(gemm, Recipe):
        return run(job, setting), None
    mode = Survey(job.model, [gemm])
    return _run(job, setting, mode), mode


def _run(job: Job, setting: Setting, mode: Survey) -> Trace:
    make = job.optimizer
    followed = None if make is None else lambda parameters: mode.follow(make(parameters))
    return run(dataclasses.replace(job, optimizer=followed), dataclasses.replace(setting, extra_mode=mode))


def found(job: Job, mode: Survey) -> list[Place]:
    """The places that a mode has seen. Layers that are kept in float32 are left out."""
    apart = {id(module) for kept in float32_parts.kept_in_float32(job.model) for module in kept.modules()}
    left = {name for name, module in job.model.named_modules() if id(module) in apart}
    return [place for place in mode.places.values() if place.layer not in left]
