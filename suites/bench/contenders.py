"""What else watches a training step: torch's DebugMode, and Hugging Face's DebugUnderflowOverflow."""

from __future__ import annotations

from collections.abc import Callable

from ratios import Call
from sized import Trained

try:
    from torch.utils._debug_mode import DebugMode
except ImportError:  # torch 2.9 has none
    DebugMode = None


def debug_mode(trained: Trained) -> Call:
    """As it comes: every op by name and shape, no numbers."""

    def step() -> None:
        with DebugMode():
            trained.step()

    return step


def debug_mode_hashing(trained: Trained) -> Call:
    """With the norms of all that ops read and make, which is what tells two runs apart."""

    def step() -> None:
        with DebugMode(), DebugMode.log_tensor_hashes(hash_inputs=True):
            trained.step()

    return step


def underflow_overflow(trained: Trained) -> Call:
    """Least and greatest magnitude of each module's weights, inputs and outputs, in the forward alone."""
    from transformers.debug_utils import DebugUnderflowOverflow

    def step() -> None:
        DebugUnderflowOverflow(trained.model)  # it registers hooks and has no way to take them back
        try:
            trained.step()
        finally:
            for module in trained.model.modules():
                module._forward_hooks.clear()

    return step


_DEBUG_MODE: dict[str, Callable[[Trained], Call]] = {"DebugMode": debug_mode, "DebugMode with hashes": debug_mode_hashing}
RIVALS = {**(_DEBUG_MODE if DebugMode else {}), "DebugUnderflowOverflow": underflow_overflow}
