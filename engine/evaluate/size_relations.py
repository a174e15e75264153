"""Which sizes of a spec belong together, by the buffers whose sizes and values name them."""

from collections.abc import Sequence

from engine import arith
from engine.errors import OptimlError
from engine.predict.probe_sizes import Relations
from engine.spec.kernel_spec import KernelSpec


def relations(spec: KernelSpec) -> Relations:
    """The relations of a spec's sizes: an index buffer ties its own sizes to those of the range that its values point into."""
    names = {name for case in spec.time for name in case.sizes}

    def used(text: str) -> frozenset[str]:
        try:
            return frozenset(arith.expression(text).names) & names if text else frozenset()
        except OptimlError:
            return frozenset()

    buffers = [argument for argument in spec.arguments if argument.role != "scalar"]
    sizes = {argument.name: used(argument.size) for argument in buffers}
    together = []
    for argument in buffers:
        range_of = used(argument.fill.high)
        if argument.fill.kind == "csr_offsets":
            together.append(sizes[argument.name] | sizes.get(argument.fill.of, frozenset()))
        elif range_of and argument.fill.kind in ("integers", "sorted", "offsets", "csr_columns"):
            together.append(sizes[argument.name] | range_of)
    return Relations(_joined(together), _joined(list(sizes.values())))


def _joined(groups: Sequence[frozenset[str]]) -> tuple[frozenset[str], ...]:
    """Groups that share a name as one."""
    found: list[frozenset[str]] = []
    for group in groups:
        meeting = [other for other in found if other & group]
        found = [other for other in found if not other & group]
        found.append(group.union(*meeting))
    return tuple(group for group in found if group)
