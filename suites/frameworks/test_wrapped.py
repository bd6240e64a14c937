"""DDP- and FSDP2-wrapped models as they come: measured by all ranks, named as what is wrapped, and trained on as if nothing had been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from course import line
from forked_ranks import launch
from test_distributed import Told, read
from wrapped_models import MODELS, Squares

pytestmark = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    folder = tmp_path_factory.mktemp("ranks")
    launch(HERE / "wrapped_models.py", folder, list(MODELS))
    return {name: read(folder, name) for name in MODELS}


def found(told: dict[str, Any], precision: str) -> dict[str, Any]:
    each: dict[str, Any] = told["found"][precision]
    return each


@pytest.mark.parametrize("name", MODELS)
def test_measuring_leaves_weights_and_training_as_they_were(ranks: dict[str, Told], name: str) -> None:
    """Bit for bit: gradients are still reduced, and weights still gathered."""
    assert all(told["unchanged"] and told["alike"] for told in ranks[name])


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_a_healthy_model_passes_on_every_rank(ranks: dict[str, Told], name: str) -> None:
    for told in ranks[name]:
        for precision in ("bf16-true", "16-mixed"):
            assert found(told, precision)["errors"] == []
            assert {"0", "3", "0.weight", "3.bias", "loss"} <= set(found(told, precision)["tensors"])


@pytest.mark.parametrize("name", ["ddp-faulty", "fsdp-faulty"])
def test_an_overflow_is_named_by_the_wrapped_models_module_and_line(ranks: dict[str, Told], name: str) -> None:
    """On autocast's terms the squares are taken in float16: what comes out of a linear layer is."""
    for told in ranks[name]:
        first = found(told, "16-mixed")["errors"][0]
        assert (first["rule"], first["module"]) == ("overflow", "1")
        assert first["source"].rpartition("/")[2] == line(Squares.forward, "squares")


@pytest.mark.parametrize("name", ["ddp", "ddp-faulty", "fsdp", "fsdp-faulty"])
def test_a_watched_one_has_the_modules_of_what_is_wrapped(ranks: dict[str, Told], name: str) -> None:
    first = "0.0" if "faulty" in name else "0"
    for told in ranks[name]:
        assert first in told["modules"]
        assert not any(module.startswith("module") for module in told["modules"])


def test_weights_that_tensor_parallelism_has_spread_are_refused(ranks: dict[str, Told]) -> None:
    for told in ranks["tensor-parallel"]:
        assert "0.weight is spread over ranks, and not by FSDP" in found(told, "bf16-true")["refused"]
