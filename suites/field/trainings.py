"""`python suites/field/trainings.py [NAMES] --lines FILE`: what precheck says of trainers with settings that few use.

Each training runs twice from the same random numbers, once under `precheck.watch()`: what they leave has to be the same bit for bit. Then `measure`
is asked about the model that it leaves. `--ranks` runs the trainings of several ranks.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from run import _plain, _said, recorded
from trained import differing
from training import Left, Low, Training, loaded

import precheck
from precheck.torch_support.autocast import cuda_policy_on_cpu


def case_lines(case: Training, precision: str) -> list[dict[str, Any]]:
    begun, line = time.perf_counter(), {"training": case.name, "kind": case.kind, "precision": precision}
    try:
        plain = case.left(precision)
    except Exception as error:
        return [line | {"unable": _error(error)}]
    kept = plain.tensors()
    watched = line | {"way": "watch"}
    try:
        with precheck.watch() as report:
            left = case.left(precision)
        watched["altered"] = altered = differing(kept, left.tensors())
        if altered:
            watched["unsteady"] = sorted({name for _ in range(2) for name in differing(kept, case.left(precision).tensors())})
        watched |= _told(report)
    except Exception as error:
        watched["crash"] = _error(error)
    watched["seconds"] = round(time.perf_counter() - begun, 2)
    return [watched] + ([_measured(line, plain, precision)] if plain.measured else [])


def _measured(line: dict[str, Any], left: Left, precision: str) -> dict[str, Any]:
    begun, line = time.perf_counter(), line | {"way": "measure"}
    model, inputs = left.measured
    wide = isinstance(model, torch.nn.Module) and precision == "bf16-true"
    if wide:
        model, inputs = model.float(), inputs.float() if isinstance(inputs, torch.Tensor) and inputs.is_floating_point() else inputs
    before = [each.clone() for each in model.state_dict().values() if isinstance(each, torch.Tensor)] if isinstance(model, torch.nn.Module) else []
    try:
        line |= _told(precheck.measure(model, inputs, precision=precision, **left.asked))
        after = [each for each in model.state_dict().values() if isinstance(each, torch.Tensor)] if before else []
        line["altered"] = ["weights"] if any(not torch.equal(one, two) for one, two in zip(before, after, strict=True)) else []
    except Exception as error:
        line["unable" if _raises_itself(model, inputs, precision) else "crash"] = _error(error)
    return line | {"seconds": round(time.perf_counter() - begun, 2)}


def _raises_itself(model: Any, inputs: Any, precision: str) -> bool:
    """Under CUDA's list of autocast ops, which `measure` has."""
    try:
        with cuda_policy_on_cpu(), Low(precision).autocast():
            model(**inputs) if isinstance(inputs, dict) else model(inputs)
    except Exception:
        return True
    return False


def _told(report: precheck.Report) -> dict[str, Any]:
    return {
        "errors": [_said(each) for each in report.errors],
        "warnings": [f"{each.rule}: {each.message.splitlines()[0]}" for each in report.findings if each.severity == "warning"],
        "opaque": [str(fact) for name, fact in report.facts.items() if "opaque" in name and fact],
        "shadowed": report.facts.get("shadowed"),
    }


def _error(error: Exception) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", _plain(f"{type(error).__name__}: {error}".splitlines()[0][:300]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--lines", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = {(each["training"], each["precision"]) for each in recorded(asked.lines)}
    for case in loaded().values():
        if (asked.names and not any(name in (case.name, case.kind) for name in asked.names)) or not case.installed():
            continue
        for precision in case.precisions:
            if (case.name, precision) in known:
                continue
            for line in case_lines(case, precision):
                errors = "; ".join(f"{each['rule']} {each['via'] or each['source']}" for each in line.get("errors", ()))
                said = line.get("unable") or line.get("crash") or errors
                head = "CRASH " if "crash" in line else "UNABLE " if "unable" in line else ""
                altered = f" ALTERED {line['altered'][:2]}" if line.get("altered") else ""
                print(f"{case.name} [{precision}, {line.get('way')}] {head}{said}{altered}", line.get("opaque") or "", flush=True)
                if asked.lines:
                    with asked.lines.open("a", encoding="utf8") as file:
                        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
