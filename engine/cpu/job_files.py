"""The files from which the runtime reads its jobs: one for each, and one with the first contents of all their buffers."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from engine.cpu.jobs import CpuBinary, CpuJob
from engine.errors import MachineError
from engine.spec.kernel_spec import KernelSpec
from engine.spec.parameters import Passed, constants, passed

if TYPE_CHECKING:
    import numpy as np

_FLAGS = {"in": 1, "out": 2, "inout": 0, "scalar": 0, "scratch": 6}  # as in runtime/state.h


def write_jobs(folder: Path, jobs: Sequence[tuple[CpuBinary, CpuJob]], further: Sequence[str]) -> list[Path]:
    """The files of these jobs, each with further lines of its own, to be read by others. Raises MachineError."""
    path, made = folder / "data", []
    try:
        with path.open("wb") as file:
            data = _Data(file)
            for number, ((binary, job), lines) in enumerate(zip(jobs, further, strict=True)):
                rows = [f"object {binary.object}", f"data {path}", lines, *_rows(binary, job, data)]
                made.append(folder / f"{number}.job")
                made[-1].write_text("\n".join(rows) + "\n")
        for each in (path, *made):
            each.chmod(0o644)
    except OSError as error:
        raise MachineError("the scratch folder cannot be written", str(folder), str(error)) from None
    return made


class _Data:
    """The first contents of buffers in one file; an array that several jobs have is written once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._end = file, 0
        # By address and length: the jobs hold the arrays meanwhile.
        self._places: dict[tuple[int, int] | None, int] = {}

    def place(self, array: np.ndarray[Any, Any]) -> int:
        """Where the array begins: at the start of a page, so that it can be mapped."""
        key = (array.ctypes.data, array.nbytes) if array.flags.c_contiguous else None
        if key in self._places:
            return self._places[key]
        place = self._end
        self._file.seek(place)
        self._file.write(array.data if key else array.tobytes())
        self._end += -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if key:
            self._places[key] = place
        return place


def _rows(binary: CpuBinary, job: CpuJob, data: _Data) -> list[str]:
    spec = binary.spec
    names = [argument.name for argument in spec.arguments if argument.role != "scalar"]
    if len(job.launches) != len(spec.steps):
        raise MachineError(f"{len(job.launches)} launches for {len(spec.steps)} steps", spec.file)
    rows = [
        f"order {job.order}",
        f"early {int(job.early_copies)}",
        f"count {job.count + (job.count and job.every_block)}",
    ]
    # Both pointers lead to the output's buffer, which begins with what the input holds; the input's own is left alone.
    places = {name: number for number, name in enumerate(names)}
    places |= {first: places[name] for name, first in job.shared.items()}
    passed_on = {name: number for name, number in places.items() if name not in job.null}
    for name in names:
        array = job.buffers[job.shared.get(name, name)]
        size = job.sample.entries[name] * array.dtype.itemsize if job.sample else array.nbytes
        role = "inout" if name in job.shared else spec.argument(name).declared_role
        figures = (size, max(array.dtype.itemsize, 1), _FLAGS[role], data.place(array))
        rows.append(" ".join(["buffer", *map(str, figures)]))
        if job.sample:
            rows.append(f"tile {array.nbytes} {job.sample.apart[name]}")
        elif name in job.moved:
            rows.append(f"apart {array.dtype.itemsize}")
    for each in constants(spec, job.scalars):
        # As an argument of a launch, or the number of the buffer whose contents it has.
        rows.append(f"constant {f'b{places[each]}' if isinstance(each, str) else _word(each, places)}")
    if job.before is not None:
        rows += [*_launch_rows(spec, job.before, passed_on), "again"]
    return rows + _launch_rows(spec, job, passed_on)


def _launch_rows(spec: KernelSpec, job: CpuJob, passed_on: Mapping[str, int]) -> list[str]:
    rows = list[str]()
    for step, (launch, part) in enumerate(zip(job.launches, spec.steps, strict=True)):
        if not (0 < launch.threads <= 1024 and launch.blocks > 0 and 0 <= launch.shared_bytes <= 232448):
            raise MachineError(
                f"a launch beyond every GPU's limits: {launch}",
                spec.file,
                "check the launch's grid, block and shared memory",
            )
        words = [_word(each, passed_on) for each in passed(spec, part, job.scalars)]
        shape = (step, *launch.grid, *launch.block, launch.shared_bytes, len(words))
        rows.append(" ".join(["launch", *map(str, shape), *words]))
        if job.sample:
            rows.append(" ".join(["blocks", *map(str, job.sample.blocks)]))
    return rows


def _word(value: Passed, places: Mapping[str, int]) -> str:
    """A value's bytes, and for each address in it the byte and the number of the buffer."""
    return "+".join([f"s{value.data.hex()}", *(f"{at}:{places[name]}" for at, name in value.places if name in places)])
