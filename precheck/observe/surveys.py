"""Runs a job in float32, and computes each of its products also under several recipes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch

from precheck.observe import float32_parts
from precheck.observe.job import Job
from precheck.observe.run import Setting, run
from precheck.recipes import Recipe
from precheck.recipes.survey import Place, Survey


def surveyed(job: Job, recipes: Iterable[Recipe]) -> list[Place]:
    """The places of the products in one float32 run of a job's steps. Layers that are kept in float32 are left out."""
    mode = Survey(job.model, recipes)
    make = job.optimizer
    followed = None if make is None or job.steps == 1 else lambda parameters: mode.follow(make(parameters))
    run(dataclasses.replace(job, optimizer=followed, steps=job.steps if followed else 1), Setting(torch.float32, beside=mode))
    apart = {id(module) for kept in float32_parts.kept_in_float32(job.model) for module in kept.modules()}
    left = {name for name, module in job.model.named_modules() if id(module) in apart}
    return [place for place in mode.places.values() if place.layer not in left]
