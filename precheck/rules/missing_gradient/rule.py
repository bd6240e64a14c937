"""Finds parameters that get no gradient.

The reference has a gradient for the parameter, or a copy of it is used where gradients are needed, but the run has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from precheck import ops
from precheck.analysis.facts import Part
from precheck.analysis.labels import module_of
from precheck.findings import Finding
from precheck.observe.shadow.operations import Operation, Value
from precheck.rules.rule import Candidate, Compared, Rule
from precheck.words import counted


class MissingGradient(Rule):
    """Looks for copies of parameters that were made while autograd was off and are used while it is on, if the parameter gets no gradient.

    A cache of cast weights is such a copy if it is first filled under no_grad (pytorch#65766). A conversion of the model is not, since its copy
    becomes the parameter. Neither is a cache of frozen weights, as in a model with adapters.
    """

    limits = ()  # a gradient is there or it is not

    def __init__(self) -> None:
        self.unused: dict[Value, Operation] = {}
        self.used: dict[tuple[int, str], Operation] = {}  # the first copy of each parameter on each line that was used

    def noted(self, operation: Operation, part: Part) -> Iterable[Candidate]:
        """Keeps copies and their use. The candidates follow at the end of the run."""
        read = [value for value in operation.inputs if value in self.unused]
        if read and operation.base in ops.MOVING:
            self.unused.update(dict.fromkeys(operation.outputs, self.unused[read[0]]))  # moving a copy is no use yet
        elif read and operation.phase == "forward" and operation.recording:
            for value in read:
                copy = self.unused.pop(value)
                if operation.parameter != copy.parameter:
                    self.used.setdefault((copy.parameter, copy.source), copy)
        elif operation.packet == "_to_copy" and not operation.recording and not operation.converts and operation.parameter:
            made = [value for value in operation.outputs if value.maker is operation]  # a wider copy shares the weight's own value
            self.unused.update(dict.fromkeys(made, operation))
        return ()

    def keep(self, values: Set[Value]) -> None:
        """Forgets all other values, which no later op can use."""
        self.unused = {value: copy for value, copy in self.unused.items() if value in values}

    def at_end(self, part: Part) -> list[Candidate]:
        """The used copies of parameters without a gradient."""
        observation = part.observation
        if not observation.with_gradient:
            return []
        wanting = observation.trainable - observation.with_gradient
        if observation.optimized:
            wanting &= observation.optimized  # a weight that no optimizer steps may need no gradient, whatever its flag says
        found = []
        for (parameter, _), copy in self.used.items():
            if parameter in wanting:
                name = observation.parameters.get(parameter, "a parameter")
                text = f"this copy of {name} was made without autograd, and is used where gradients are needed: {name} gets none"
                cure = "make this copy in each forward pass, or outside of torch.no_grad()"
                found.append(Candidate("missing-gradient", copy, text, 0.0, 1.0, advice=cure))
        return found

    def beside(self, run: Compared) -> Iterator[Finding]:
        """Parameters with a gradient in the reference and none in the run."""
        seen, expected = run.low.records, run.reference.records
        names = [each.name for key, each in expected.items() if each.kind == "parameter-gradient" and key not in seen and each.norm > 0]
        if names:
            text = f"{names[0]}: no gradient, where the reference has one ({counted(len(names), 'parameter')} in all)"
            module = module_of(names[0], "update")
            yield Finding(
                "missing-gradient", "error", text, phase="backward", module=module, tensor=names[0], measured=float(len(names)), limit=0.0
            )
