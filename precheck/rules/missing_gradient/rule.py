"""Gradients that never came.

A parameter has a gradient in the reference, or a copy of it is used where gradients are needed, and there is none here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from precheck.analysis.facts import Part
from precheck.analysis.labels import module_of
from precheck.analysis.provenance import MOVING
from precheck.findings import Finding
from precheck.observe.shadow.operations import Operation, Value
from precheck.rules.missing_gradient.about import ABOUT
from precheck.rules.rule import Candidate, Compared, Rule
from precheck.words import counted


class MissingGradient(Rule):
    """A copy of a parameter made while autograd was off, used where it is on, and no gradient for the parameter.

    A cache of cast weights does that when it is first filled under no_grad (pytorch#65766). A conversion of the model does not: its
    copy is what the parameter is from then on. Nor does a cache of weights that are frozen, as of a model with adapters.
    """

    about = ABOUT

    def __init__(self) -> None:
        self.unused: dict[Value, Operation] = {}
        self.used: dict[tuple[int, str], Operation] = {}  # the first copy of each parameter on each line that was

    def among(self, part: Part) -> Iterable[Candidate]:
        """Nothing yet: copies and their use are written down."""
        for operation in part.observation.judged:
            read = [value for value in operation.inputs if value in self.unused]
            if read and operation.base in MOVING:
                self.unused.update(dict.fromkeys(operation.outputs, self.unused[read[0]]))  # moved about, which is no use yet
            elif read and operation.phase == "forward" and operation.recording:
                for value in read:
                    copy = self.unused.pop(value)
                    if operation.parameter != copy.parameter:
                        self.used.setdefault((copy.parameter, copy.source), copy)
            elif operation.packet == "_to_copy" and not operation.recording and not operation.converts and operation.parameter:
                self.unused.update(dict.fromkeys(operation.outputs, operation))
        return ()

    def keep(self, values: Set[Value]) -> None:
        """Only these can be used any more."""
        self.unused = {value: copy for value, copy in self.unused.items() if value in values}

    def at_end(self, part: Part) -> list[Candidate]:
        """What they come to."""
        observation = part.observation
        if not observation.came:
            return []
        wanting = observation.wanting - observation.came
        if observation.optimized:
            wanting &= observation.optimized  # a weight that nobody steps may want no gradient, whatever its flag says
        found = []
        for (parameter, _), copy in self.used.items():
            if parameter in wanting:
                name = observation.parameters.get(parameter, "a parameter")
                text = f"this copy of {name} was made without autograd, and is used where gradients are needed: {name} gets none"
                found.append(Candidate("missing-gradient", copy, text, 0.0, 1.0))
        return found

    def beside(self, run: Compared) -> Iterator[Finding]:
        """Parameters whose gradient the reference has and the run has not."""
        seen, expected = run.seen.records, run.reference.records
        names = [each.name for key, each in expected.items() if each.kind == "parameter-gradient" and key not in seen and each.norm > 0]
        if names:
            text = f"{names[0]}: no gradient, where the reference has one ({counted(len(names), 'parameter')} in all)"
            module = module_of(names[0], "update")
            yield Finding(
                "missing-gradient", "error", text, phase="backward", module=module, tensor=names[0], measured=float(len(names)), limit=0.0
            )
