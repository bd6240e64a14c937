"""Data parallelism on gloo beside one process: `record` in the ranks, `compare` here. `vary`'s way of ranks says the same without processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist
from decoder import decoder, language_loss, tokens
from forked_ranks import launch
from ranks_of_gloo import STEPS

import precheck

pytestmark = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo")

HERE = Path(__file__).parent
FAULTS = {"summed", "never_met", "same_rows"}


RANKS = 2


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    launch(HERE / "ranks_of_gloo.py", folder, list(STEPS), ranks=RANKS)
    return folder


@pytest.mark.parametrize("name", STEPS)
def test_gradients_of_ranks_are_those_of_one_process(recorded: Path, name: str) -> None:
    given, file = tokens(4), recorded / f"{name}.{RANKS}.safetensors"
    report = precheck.compare(decoder(), file, given, loss=language_loss(given))
    assert {row.kind for row in report.boundaries} == {"loss", "parameter-gradient"}
    if name != "compressed":
        assert bool(report.errors) == (name in FAULTS), report.summary()
    else:  # ten bits of each gradient are left, which float32 does not explain; under the precision of what passes they are rounding
        assert report.verdict == "different"
        assert not precheck.compare(decoder(), file, given, loss=language_loss(given), precision="16-mixed").errors


def test_ranks_without_processes_say_the_same() -> None:
    given = tokens(4)
    assert not precheck.vary(decoder(), given, {"ranks": 2}, loss=lambda out: out.float().square().mean()).errors
