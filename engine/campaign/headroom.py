"""How far a kernel is from its roofline: predicted time over the least time of its compulsory bytes and its arithmetic.

The roofline is that of Williams et al. 2009. A prediction, never a measurement.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from engine.cpu import CpuMachine
from engine.cuda.load import load_program
from engine.evaluate.speeds import Speeds
from engine.predict.pipe_times import pipe_times_us
from engine.predict.predictor import Predictor
from engine.predict.targets import figures_for
from engine.predict.timing_model import executions
from engine.run.machine import Machine
from engine.spec.data import buffer_elements
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Case, KernelSpec

_LEAST_US = 2.0  # no launch is shorter on current GPUs


@dataclass(frozen=True)
class Headroom:
    """Predicted time of the first timing case and its floor, in microseconds."""

    time_us: float
    floor_us: float

    @property
    def ratio(self) -> float:
        """How many times faster the kernel could be at most; at least 1."""
        return max(1.0, self.time_us / self.floor_us)


def predicted_headroom(spec: KernelSpec, spec_path: str | None, file: Path, root: Path, machine: Machine) -> Headroom:
    """The headroom of a kernel on the machine's target. Raises OptimlError where it cannot be compiled, run or counted here."""
    options = spec.compile
    program = load_program(
        file, spec_file=spec_path, kernels=[s.kernel for s in spec.steps], include=options.include, unit=options.unit
    )
    builder = machine.builder(spec, root, spec_path)
    built = builder.original(program)
    cpu = CpuMachine(machine.cache / "cpu", sandbox=machine.box, scratch=machine.scratch, jobs=1)
    binary = cpu.build(built.text, spec.file, spec, builder.expressions)
    figures = figures_for(machine.arch)
    speeds = Speeds(spec, builder, cpu, Predictor(machine.arch, sandbox=machine.box, cache=cpu.cache / "sass"))
    measurement = speeds.predict(replace(built, extra=binary))
    found = speeds.footprint(built, 0)
    floor_us = max(_LEAST_US, compulsory_bytes(spec, spec.time[0]) / figures.dram_bytes_s * 1e6)
    if found is not None:
        code = speeds.predictor.code(built.binary)
        launches = built.launches[len(spec.check)]
        for entry, launch, counted in zip(built.binary.entries, launches, found.counts.kernels, strict=True):
            if entry in code:
                runs = executions(code[entry], counted, launch)
                floor_us = max(floor_us, *pipe_times_us(code[entry], runs, figures).values())
    return Headroom(measurement.cases[0].original_us, floor_us)


def compulsory_bytes(spec: KernelSpec, case: Case) -> int:
    """Every input read once, every output written once, what is both twice."""
    elements = buffer_elements(spec, case)
    return sum(
        elements[a.name] * parse_dtype(a.type).itemsize * (2 if a.role == "inout" else 1)
        for a in spec.arguments
        if a.role != "scalar" and not a.scratch
    )
