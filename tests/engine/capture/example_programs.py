"""The examples without their specs, and programs and recordings that call them as their hand-written specs say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from engine.capture.manifest import (
    BLOBS,
    VERSION,
    Buffer,
    LaunchTimes,
    Manifest,
    RecordedArgument,
    RecordedKernel,
    RecordedLaunch,
    save_manifest,
    store_blob,
)
from engine.cuda.load import load_program
from engine.model import LaunchConfig, Program
from engine.spec.data import buffer_elements, generate, scalars
from engine.spec.dtypes import parse_dtype
from engine.spec.find import find_spec
from engine.spec.kernel_spec import Argument, Case, KernelSpec
from engine.spec.launch_config import evaluate

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = tuple(sorted(p.stem for p in EXAMPLES.glob("*.cu")))
_SPEC_LINE = re.compile(rb"^// optiml:.*\n", re.MULTILINE)


def hand_written(name: str) -> tuple[Program, KernelSpec]:
    """The example's program and its spec as the project has it."""
    file = EXAMPLES / f"{name}.cu"
    return load_program(file), find_spec(EXAMPLES.parent, file)[0]


def bare_copy(name: str, root: Path) -> Path:
    """The example without its spec, in a repository of its own."""
    (root / ".git").mkdir(exist_ok=True)
    target = root / f"{name}.cu"
    target.write_bytes(_SPEC_LINE.sub(b"", (EXAMPLES / f"{name}.cu").read_bytes()))
    return target


def shapes(spec: KernelSpec) -> tuple[Case, Case]:
    """Two shapes of a program: lengths that no block divides."""
    names = list(spec.time[0].sizes)
    values = {1: ((1000,), (700,)), 2: ((300, 500), (170, 230)), 3: ((500, 300, 400), (130, 70, 90))}[len(names)]
    return tuple(Case("", dict(zip(names, v, strict=False))) for v in values)  # type: ignore[return-value]


def synthetic_recording(name: str, root: Path) -> RecordedKernel:
    """A recording of the example as if a program had launched it with two shapes; stored in the repository."""
    program, spec = hand_written(name)
    folder = root / ".optiml" / "capture"
    launches = []
    for weight, case in zip((300.0, 100.0), shapes(spec), strict=True):
        config = evaluate(program, spec, 0, case.sizes)
        launches.append(_launch(spec, case, config, weight, folder))
    times = tuple(LaunchTimes(r.grid, r.block, r.shared, r.count, r.total_us, 1.0, 1.0, 0) for r in launches)
    kernel = RecordedKernel(
        spec.kernel, spec.kernel, f"{name}.cu", 1, spec.kernel, "", "", 1.0, 20, 400.0, 32, times, tuple(launches)
    )
    save_manifest(folder, Manifest(VERSION, ("./program",), 0, 1.0, (kernel,), ()))
    return kernel


def _launch(spec: KernelSpec, case: Case, config: LaunchConfig, total_us: float, folder: Path) -> RecordedLaunch:
    data, numbers, elements = generate(spec, case, 1, "declared"), scalars(spec, case), buffer_elements(spec, case)
    arguments = []
    address = 0x7F00_0000_0000
    for name in spec.steps[0].arguments:
        argument = spec.argument(name)
        if argument.role == "scalar":
            value = numbers[name]
            raw = value if isinstance(value, bytes) else value.tobytes()
            arguments.append(RecordedArgument(len(raw), raw.hex(), ()))
            continue
        size = elements[name] * parse_dtype(argument.type).itemsize
        before = data[name].tobytes() if name in data else bytes(size)
        after = before if argument.role == "in" else (np.frombuffer(before, np.uint8) ^ 1).tobytes()
        blobs = [_blob(folder, text) for text in (before, after)]
        buffer = Buffer(0, "device", address, size, 0, size, 0, *blobs)
        arguments.append(RecordedArgument(8, address.to_bytes(8, "little").hex(), (buffer,)))
        address += -(-size // 512) * 512
    return RecordedLaunch(
        "cuLaunchKernel", config.grid, config.block, (0, 0, 0), config.shared_bytes, "", 10, total_us, tuple(arguments)
    )


def _blob(folder: Path, data: bytes) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "contents"
    source.write_bytes(data)
    name = store_blob(folder / BLOBS, source, len(data))
    source.unlink()
    return name


_MAIN = """
#include <random>
#include <vector>
#include "{name}.cu"
static std::mt19937 random_bits(1);
template <typename T, typename F> T* filled(size_t n, F draw) {{
    std::vector<T> v(n);
    for (T& x : v) x = draw();
    T* p;
    cudaMalloc(&p, n * sizeof(T));
    cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice);
    return p;
}}
int main() {{
    for (int times = 0; times < 4; times++) {{
{calls}
    }}
    return cudaDeviceSynchronize() != cudaSuccess;
}}
"""
_DRAWN = {
    "normal": "[] {{ return std::normal_distribution<float>({low}, {high})(random_bits); }}",
    "uniform": "[] {{ return std::uniform_real_distribution<float>({low}, {high})(random_bits); }}",
    "integers": "[] {{ return std::uniform_int_distribution<int>({low}, {high} - 1)(random_bits); }}",
    "constant": "[] {{ return {low}; }}",
}
_TYPES = {"float": "float", "int32": "int", "uint8": "unsigned char"}


def program_text(name: str) -> str:
    """A program with main() that calls the example's kernel with both shapes, four times each."""
    program, spec = hand_written(name)
    calls = []
    for case in shapes(spec):
        config = evaluate(program, spec, 0, case.sizes)
        elements, numbers = buffer_elements(spec, case), scalars(spec, case)
        passed = [_passed(spec.argument(a), elements.get(a, 0), numbers.get(a)) for a in spec.steps[0].arguments]
        grid, block = (f"dim3({', '.join(map(str, extents))})" for extents in (config.grid, config.block))
        calls.append(f"        {spec.kernel}<<<{grid}, {block}, {config.shared_bytes}>>>({', '.join(passed)});")
    return _MAIN.format(name=name, calls="\n".join(calls))


def _passed(argument: Argument, elements: int, value: object) -> str:
    if argument.role == "scalar":
        return str(value)
    fill = argument.fill
    low, high = fill.low or "0", fill.high or "1"
    drawn = _DRAWN["constant" if argument.role == "out" else fill.kind].format(low=low, high=high)
    return f"filled<{_TYPES[argument.type]}>({elements}, {drawn})"
