"""--precision-device, its ini twin, and the precision_device fixture."""

from __future__ import annotations

import pytest
import torch

CODE = """
    import torch

    def test_it(precision_device, request):
        assert isinstance(precision_device, torch.device)
        print(f"on {precision_device}")
"""


@pytest.mark.parametrize(("name", "device"), [("cpu", "cpu"), ("auto", "cuda" if torch.cuda.is_available() else "cpu")])
def test_the_fixture_gives_the_device(pytester: pytest.Pytester, name: str, device: str) -> None:
    pytester.makepyfile(CODE)
    pytester.runpytest_inprocess("-s", f"--precision-device={name}").stdout.fnmatch_lines([f"*on {device}*"])
    pytester.makeini(f"[pytest]\nprecision_device = {name}\n")
    pytester.runpytest_inprocess("-s", "--precision=bf16").stdout.fnmatch_lines([f"precheck: *, device {name}, *", f"*on {device}*"])


def test_the_command_line_wins(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CODE)
    pytester.makeini("[pytest]\nprecision_device = tpu\n")
    assert pytester.runpytest_inprocess().ret == pytest.ExitCode.USAGE_ERROR
    assert pytester.runpytest_inprocess("--precision-device=cpu").ret == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a device where there is none")
@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_a_cuda_device_where_there_is_none_is_refused(pytester: pytest.Pytester, name: str) -> None:
    pytester.makepyfile(CODE)
    result = pytester.runpytest_inprocess(f"--precision-device={name}")
    result.stderr.fnmatch_lines([f"*--precision-device={name}: torch * sees 0 CUDA devices here; use auto or cpu"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_is_given(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CODE)
    pytester.runpytest_inprocess("-s", "--precision-device=cuda:0").stdout.fnmatch_lines(["*on cuda:0*"])
