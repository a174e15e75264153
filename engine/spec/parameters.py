"""What a launch passes for each parameter and finds in constant memory: bytes, and the places of buffers' addresses among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from engine.spec.kernel_spec import KernelSpec, Step

_ADDRESS = 8  # bytes


@dataclass(frozen=True)
class Passed:
    """One parameter's bytes, and for each buffer in it the byte at which its address belongs."""

    data: bytes
    places: tuple[tuple[int, str], ...]

    def packed(self, address: Callable[[str], int]) -> bytes:
        """The bytes with the addresses put in."""
        data = bytearray(self.data)
        for at, name in self.places:
            data[at : at + _ADDRESS] = address(name).to_bytes(_ADDRESS, "little")
        return bytes(data)


def passed(spec: KernelSpec, step: Step, scalars: Mapping[str, np.generic | bytes]) -> tuple[Passed, ...]:
    """The parameters of one step in order; `scalars` are the values of `engine.spec.data.scalars`."""
    found = []
    for name in step.arguments:
        buffer = spec.argument(name).role != "scalar"
        found.append(Passed(bytes(_ADDRESS), ((0, name),)) if buffer else _image(spec, name, scalars))
    return tuple(found)


def constants(spec: KernelSpec, scalars: Mapping[str, np.generic | bytes]) -> tuple[Passed | str, ...]:
    """What stands in each of the spec's `__constant__` variables before a launch; a name: the contents of that buffer."""
    return tuple(a.name if a.role != "scalar" else _image(spec, a.name, scalars) for a in spec.symbols)


def _image(spec: KernelSpec, name: str, scalars: Mapping[str, np.generic | bytes]) -> Passed:
    """A value, with what its fields give."""
    data, places = bytearray(_bytes(scalars[name])), []
    for field in spec.fields(name):
        if field.role != "scalar":
            places.append((field.offset, field.name))
            continue
        value = _bytes(scalars[field.name])
        data[field.offset : field.offset + len(value)] = value
    return Passed(bytes(data), tuple(places))


def _bytes(value: np.generic | bytes) -> bytes:
    return value if isinstance(value, bytes) else np.asarray(value).tobytes()
