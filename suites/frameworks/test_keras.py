"""Keras 3 on torch, under its own policies of precision, fitted as its users fit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from course import CLASSES, WIDTH, accused, data, line, watched

keras = pytest.importorskip("keras", reason="needs keras: pip install -c constraints.txt -e '.[keras]'")
if keras.backend.backend() != "torch":
    pytest.skip(f"Keras computes with {keras.backend.backend()} here; KERAS_BACKEND=torch is what precheck can see", allow_module_level=True)

LOW = ["mixed_bfloat16", "mixed_float16", "bfloat16"]


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


class Chances(keras.layers.Layer):  # type: ignore[misc,name-defined]
    """A softmax by hand, in the format of the policy; of scores beyond 11 float16 holds no exponential."""

    def call(self, scores: Any) -> Any:
        exponentials = keras.ops.exp(8 * scores)  # exponentials
        return exponentials / keras.ops.sum(exponentials, axis=-1, keepdims=True)


def classifier(*last: Any) -> Any:
    layers = keras.layers
    hidden = [layers.Dense(64, activation="gelu"), layers.LayerNormalization(), layers.Dropout(0.1), layers.Dense(CLASSES)]
    return keras.Sequential([keras.Input((WIDTH,)), *hidden, *last])


def trained(name: str, kind: str = "AdamW", rate: float = 1e-2, *, by_hand: bool = False, scaled: bool = True, **options: Any) -> Any:
    """Eight steps under a policy; under mixed_float16 Keras puts its LossScaleOptimizer around the optimizer, unless it is told not to."""
    with policy(name):
        keras.utils.set_random_seed(0)
        last = [Chances()] if by_hand else [keras.layers.Activation("softmax", dtype="float32")]
        model = classifier(*last)
        optimizer = getattr(keras.optimizers, kind)(rate, **options)
        model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", loss_weights=None if scaled else [1e-8], auto_scale_loss=scaled)
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (scaled and name == "mixed_float16")
        x, y = data()
        model.fit(x.numpy(), y.numpy(), batch_size=8, verbose=0)  # fit
    return model


@pytest.mark.parametrize("options", [{}, {"clipnorm": 0.1}, {"gradient_accumulation_steps": 2}], ids=["plain", "clipped", "accumulated"])
@pytest.mark.parametrize("name", ["float32", *LOW])
def test_a_healthy_training_is_left_in_peace(name: str, options: dict[str, Any]) -> None:
    kind, rate = ("SGD", 1.0) if name == "bfloat16" else ("AdamW", 1e-2)
    report = watched(lambda: trained(name, kind, rate, **options))
    assert accused(report) == []
    assert (report.facts["shadowed"] > 100) == (name in LOW)


def test_gradients_that_float16_does_not_hold_without_a_loss_scale() -> None:
    report = watched(lambda: trained("mixed_float16", scaled=False))
    assert ("gradient-underflow", line(trained, "fit")) in accused(report), report.summary()


def test_exponentials_of_a_users_own_layer() -> None:
    report = watched(lambda: trained("mixed_float16", by_hand=True))
    assert accused(report)[0] == ("overflow", line(Chances, "exponentials")), report.summary()
    assert report.errors[0].via.startswith("keras/")


def test_updates_that_bfloat16_weights_do_not_see() -> None:
    """Whatever the rate: Adam's second beta, 0.999, is 1 in bfloat16, in which Keras keeps it, and 1 - 0.999 is a factor of every step."""
    report = watched(lambda: trained("bfloat16"))
    assert accused(report) == [("vanished-constant", line(trained, "fit")), ("lost-update", line(trained, "fit"))], report.summary()
    assert report.errors[0].via.startswith("keras/")
    assert "0.999 is 1 in bfloat16" in report.errors[0].message
    assert all(update["arrived"] == 0 for update in report.updates)


def test_updates_too_small_for_the_gradient_to_show_are_told_beside_it() -> None:
    """At a small rate float32's weights are near enough for their gradients to be compared."""
    report = watched(lambda: trained("bfloat16", rate=1e-4))
    assert accused(report) == [("vanished-constant", line(trained, "fit")), ("lost-update", line(trained, "fit"))], report.summary()
    assert "6 of 6 parameters lost more than half" in report.errors[1].message
