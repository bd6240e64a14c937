"""Numbers that are cut off and are no codes of a biased quantiser: quotients of whole numbers, and places whose middle is meant."""

from __future__ import annotations

import torch

import precheck


def weight() -> torch.Tensor:
    return torch.randn(64, 64, generator=torch.Generator().manual_seed(0))


def points() -> torch.Tensor:
    return 50 * torch.rand(300, 3, generator=torch.Generator().manual_seed(1))


def test_places_of_numbered_voxels_are_quotients_that_are_cut_off() -> None:
    numbers, width, height = torch.arange(0, 200_000, 613), torch.tensor(100.0), torch.tensor(100.0)
    with precheck.watch(precision="32-true") as report:
        z = (numbers[:, None] / width / height).long()
        y = ((numbers[:, None] - z * width * height) / width).long()
        middles = 0.1 * torch.cat([y, z], 1) - 5
    assert middles.shape == (327, 2)
    assert report.findings == []


def test_the_middle_of_a_voxel_is_half_a_step_up() -> None:
    low, edge = torch.full((3,), -1.0), torch.tensor([0.075, 0.075, 0.2])
    with precheck.watch() as report:
        places = ((points() - low) / edge).floor()
        off = points() - (low + edge * (places + 0.5))
    assert off.abs().max() < 0.11
    assert report.findings == []


def test_codes_that_stand_for_the_middle_of_what_was_cut_off() -> None:
    """A quantiser without a zero, and the same one whose half a step was forgotten."""
    told = []
    for half in (0.5, 0.0):
        with precheck.watch() as report:
            scale = weight().abs().amax(1, keepdim=True) / 7.5
            codes = (weight() / scale).floor().clamp(-8, 7)
            out = ((codes + half) * scale) @ torch.ones(64, 8)
        assert out.shape == (64, 8)
        told.append([finding.rule for finding in report.errors])
    assert told == [[], ["biased-rounding"]]
