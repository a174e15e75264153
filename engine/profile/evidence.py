"""What a diagnosis needs beside counters, from a built program and its spec."""

import re

from engine.compile.built import Built
from engine.errors import OptimlError
from engine.predict.occupancy import Occupancy, occupancy
from engine.predict.targets import figures_for
from engine.profile.counters import ProfileRequest
from engine.profile.diagnosis import Evidence
from engine.spec.data import buffer_elements
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import KernelSpec

# Words by which a lane moves more than one element, or by which that cannot be told: vector types, casts, bulk copies.
_WIDE = re.compile(
    r"\b(?:(?:u?(?:char|short|int|long|longlong)|float|double|half|nv_bfloat16|__nv_bfloat16)[2348]|reinterpret_cast|memcpy\w*|"
    r"__half2|half2|int4|asm)\b|\(\s*(?:const\s+)?\w+[248]\s*\*\s*\)"
)


def request_for(built: Built, spec: KernelSpec, case: int | None = None, key: str = "") -> ProfileRequest:
    """What the profiler is asked for a built program: on the heaviest timing case, or on `case`."""
    index = heaviest_case(spec) if case is None else case
    return ProfileRequest(key or built.binary.code_hash, built.binary, tuple(built.launches[index]), index)


def heaviest_case(spec: KernelSpec) -> int:
    """The timing case with the most bytes, as an index over the check cases and then the timing cases."""
    bytes_of = [array_bytes(spec, len(spec.check) + i) for i in range(len(spec.time))]
    return len(spec.check) + max(range(len(bytes_of)), key=lambda i: bytes_of[i])


def array_bytes(spec: KernelSpec, case: int) -> float:
    """Bytes that a case's arrays but scratch hold, those both read and written counted twice: what a single pass must move."""
    sizes = (*spec.check, *spec.time)[case]
    elements = buffer_elements(spec, sizes)
    total = 0.0
    for argument in spec.arguments:
        if argument.role != "scalar" and not argument.scratch:
            passes = 2 if argument.role == "inout" else 1
            total += passes * elements[argument.name] * parse_dtype(argument.type).itemsize
    return total


def evidence_for(built: Built, spec: KernelSpec, case: int) -> tuple[Evidence, ...]:
    """Resources, launch, occupancy and, where the text shows no wider access, bytes per lane: one entry per step."""
    width = None if _WIDE.search(built.text) else _widest_element(spec)
    return tuple(
        Evidence(resources, launch, _occupancy(built, step, case), width, width)
        for step, (resources, launch) in enumerate(zip(built.binary.resources, built.launches[case], strict=True))
    )


def _widest_element(spec: KernelSpec) -> float:
    return float(max((parse_dtype(a.type).itemsize for a in spec.arguments if a.role != "scalar"), default=4))


def _occupancy(built: Built, step: int, case: int) -> Occupancy | None:
    try:
        figures = figures_for(built.binary.arch)
    except OptimlError:
        return None  # an architecture whose figures are not known
    return occupancy(built.binary.resources[step], built.launches[case][step], figures)
