"""The oracle: a reference in Python that says what a kernel has to compute. It runs in the sandbox alone, never in this process.

In: the inputs of one check as raw arrays. Out: float64 or integers, of a shape that is held against the task's. A reference is
asked twice: with its inputs in the precision that the kernel gets (half and bfloat16 as float32), and widened to float64. The
distance between the two is the rounding error that computing in that precision costs, and sets the tolerance by the rule of
`engine.verify.tolerance` (ρ = ‖candidate − ref64‖∞ / ‖ref32 − ref64‖∞ ≤ 10: KernelOPT, arXiv 2609.30059).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import OptimlError, RefusedError, UsageError
from engine.generate.task import Task, TaskArgument
from engine.llm.plain_words import plain
from engine.model import Failure
from engine.process.cores import ONE_THREAD
from engine.process.sandbox import Limits, NoSandbox, Sandbox, SandboxAccess, python_command
from engine.process.wire import WireError
from engine.process.worker_process import Worker, WorkerLost
from engine.spec.data import poisoned, scalars
from engine.spec.dtypes import DType, parse_dtype
from engine.spec.kernel_spec import Case, KernelSpec
from engine.verify.host_compare import Outputs, difference
from engine.verify.plan import Check
from engine.verify.tolerance import BLIND_ULPS, MAX_ERROR_RATIO, Noise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

_MOST_SOURCE = 256 << 10  # bytes of a reference
_START_S, _CALL_S = 30.0, 60.0
_MEMORY_BYTES = 24 << 30  # address space: three arrays in float64 of the largest task
_CPU_S = 600
_PROCESSES = 64
_MOST_ANSWER = 3 << 30
# Of an output's root mean square, times ten: beyond a tolerance of a tenth an output of zeros comes near to passing, whatever
# rounding error a reference shows (as for declared tolerances, `engine.spec.reader`).
_MOST_ERROR = 0.01


class ReferenceError_(OptimlError):
    """A reference that cannot be asked, or whose answer is not what the task says. `where` is its file."""


@dataclass(frozen=True)
class Reference:
    """A function in Python. `origin` is "user" or "drafted"; only a user's is confirmed by a person."""

    source: bytes = field(repr=False)
    function: str
    name: str  # of the file, as a person knows it
    origin: str = "user"

    @property
    def confirmed(self) -> bool:
        return self.origin == "user"


def read_reference(text: str) -> Reference:
    """The Reference of `--reference FILE.py:FUNCTION`. Raises UsageError."""
    path, colon, function = text.rpartition(":")
    if not colon or not path or not function.isidentifier():
        raise UsageError(f"invalid reference '{text[:200]}'", "--reference", "expected e.g. ref.py:softmax")
    file = Path(path)
    if file.is_dir():
        raise UsageError("is a folder", path, "give the Python file of the reference")
    try:
        with file.open("rb") as stream:
            source = stream.read(_MOST_SOURCE + 1)
    except OSError as error:
        raise UsageError(f"the reference cannot be read ({error.strerror})", path, "check the path") from None
    if len(source) > _MOST_SOURCE:
        raise UsageError(f"the reference exceeds {_MOST_SOURCE >> 10} KiB", path, "move it to a separate file")
    return Reference(source, function, file.name)


class Oracle:
    """One reference, ready to be asked. Not thread-safe.

    Raises ReferenceError_ where the file cannot be imported or has no such function.
    """

    def __init__(self, reference: Reference, box: Sandbox | NoSandbox, *, gpu: bool = False, device: int = 0) -> None:
        self.reference, self._box, self._gpu, self._device = reference, box, gpu, device
        self._worker: Worker | None = None
        self.required: tuple[str, ...] = ()
        self.optional: tuple[str, ...] = ()
        self._start()

    def _start(self) -> Worker:
        command = self._box.command(
            python_command("engine.generate.reference_worker"),
            SandboxAccess(
                gpu=self._gpu,
                device=self._device,
                environment={**ONE_THREAD, "OMP_NUM_THREADS": "1", "CUPY_CACHE_DIR": "/tmp/cupy"},
            ),
            Limits(
                memory_bytes=None if self._gpu else _MEMORY_BYTES,
                cpu_s=_CPU_S,
                processes=None if self._gpu else _PROCESSES,
                file_bytes=1 << 28,
            ),
        )
        self._worker = Worker(command, limit=_MOST_ANSWER)
        header, _ = self._request(
            {"op": "open", "function": self.reference.function}, [self.reference.source], timeout_s=_START_S
        )
        names = [header.get(k) for k in ("required", "optional")]
        if not all(isinstance(n, list) and all(isinstance(x, str) for x in n) and len(n) < 100 for n in names):
            raise self._error("sent an invalid answer")
        self.required, self.optional = tuple(header["required"]), tuple(header["optional"])
        return self._worker

    def _error(self, what: str) -> ReferenceError_:
        return ReferenceError_(
            f"the reference '{self.reference.function}' {what}", self.reference.name, "fix the reference"
        )

    def _request(
        self, header: Mapping[str, Any], blobs: Sequence[bytes], *, timeout_s: float
    ) -> tuple[dict[str, Any], list[bytes]]:
        assert self._worker is not None
        try:
            answer, out = self._worker.call(header, blobs, timeout_s=timeout_s)
        except WorkerLost as lost:
            self._worker = None
            if lost.kind == "timeout":
                raise self._error(f"did not answer in {timeout_s:.0f} s") from None
            raise self._error("ended its process (out of memory, or it called exit)") from None
        except (WireError, ValueError):
            raise self._error("sent an invalid answer") from None
        if "refused" in answer:
            # The text is the reference's own: shown to a person as one line of plain words.
            raise self._error(plain(str(answer["refused"]), 400))
        return answer, out

    def ask(
        self, task: Task, case: Case, buffers: Arrays, values: Mapping[str, Any], *, wide: bool
    ) -> dict[str, NDArray[Any]]:
        """The outputs for these contents (flat, in storage types): float64 for floats, integers in their own type.

        Raises ReferenceError_.
        """
        worker = self._worker or self._start()
        assert worker is not None
        told, blobs = [], []
        for argument in task.inputs:
            array = _given(buffers[argument.name], parse_dtype(argument.type), wide=wide)
            told.append({"name": argument.name, "dtype": array.dtype.str, "shape": task.shape(argument, case)})
            blobs.append(np.ascontiguousarray(array).tobytes())
        numbers: dict[str, float | int] = dict(case.sizes)
        for name, value in values.items():  # as the kernel gets them: rounded to their type
            numbers[name] = float(value) if isinstance(value, np.floating) else int(value)
        header = {"op": "call", "inputs": told, "scalars": numbers, "outputs": [a.name for a in task.outputs]}
        answer, out = self._request(header, blobs, timeout_s=_CALL_S)
        listed = answer.get("outputs")
        if not isinstance(listed, list) or len(listed) != len(task.outputs) or len(out) != len(listed):
            raise self._error("sent an invalid answer")
        return {
            argument.name: self._output(argument, task.shape(argument, case), one, blob, case)
            for argument, one, blob in zip(task.outputs, listed, out, strict=True)
        }

    def _output(
        self, argument: TaskArgument, shape: tuple[int, ...], told: Any, blob: bytes, case: Case
    ) -> NDArray[Any]:
        found = told.get("shape") if isinstance(told, dict) else None
        kind = told.get("dtype") if isinstance(told, dict) else None
        if kind not in ("<f8", "<i8", "<u8") or not isinstance(found, list):
            raise self._error("sent an invalid answer")
        if found != list(shape) and not (math.prod(shape) == 1 and found == []):
            raise self._error(
                f"returns '{argument.name}' with the shape {_shape(found)} where {_shape(shape)} is expected (case {case.name})"
            )
        if len(blob) != 8 * math.prod(shape):
            raise self._error("sent an invalid answer")
        array = np.frombuffer(blob, kind)
        dtype = parse_dtype(argument.type)
        if dtype.kind == "float":
            return array.astype(np.float64)
        low, high = dtype.limits
        whole = array.astype(np.float64)
        if not np.all(np.isfinite(whole)) or not np.array_equal(whole, np.trunc(whole)):
            raise self._error(f"returns numbers for '{argument.name}' that are not whole, and it holds {dtype.name}")
        if whole.size and (whole.min() < float(low) or whole.max() > float(high)):
            raise self._error(f"returns numbers for '{argument.name}' that {dtype.name} cannot hold")
        return array.astype(dtype.storage)

    def close(self) -> None:
        """End its process."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


def _shape(extents: Sequence[Any]) -> str:
    return f"({', '.join(str(e)[:12] for e in extents[:8])})"


def _given(flat: NDArray[Any], dtype: DType, *, wide: bool) -> NDArray[Any]:
    if dtype.kind == "bool":
        return flat.astype(np.bool_)
    if dtype.kind != "float":
        return flat
    real = np.float64 if wide or dtype.itemsize == 8 else np.float32
    return np.asarray(dtype.to_float64(flat)).astype(real)


@dataclass(frozen=True)
class ReferenceCheck:
    """One check with what the reference makes of it. `narrow` is in storage types, `wide` in float64 (integers as they are)."""

    index: int  # of the spec's check cases, then its timing cases
    case: Case
    family: str
    seed: int
    buffers: Arrays = field(repr=False)
    scalars: Mapping[str, Any] = field(repr=False)
    narrow: Arrays = field(repr=False)
    wide: Arrays = field(repr=False)
    noise: Mapping[str, Noise]
    unstable: bool = False  # the reference in the kernel's precision is itself further off than a kernel may be


def prepare(spec: KernelSpec, task: Task, oracles: Sequence[Oracle], checks: Sequence[Check]) -> list[ReferenceCheck]:
    """Draw the inputs of each check and ask the reference; several of them must agree, or the first difference is the error.

    The least rounding error among them counts, so that no draft can widen what a kernel is allowed. Inputs of other families than the
    declared one are left out where a reference in the kernel's precision is itself too far from float64.
    Raises ReferenceError_ and RefusedError.
    """
    found = []
    for check in checks:
        case = (*spec.check, *spec.time)[check.case]
        buffers, values = poisoned(spec, case, check.seed, check.family), scalars(spec, case)
        asked = ReferenceCheck(check.case, case, check.family, check.seed, buffers, values, {}, {}, {})
        answers = []
        for oracle in oracles:
            wide = oracle.ask(task, case, buffers, values, wide=True)
            narrow = oracle.ask(task, case, buffers, values, wide=False)
            answers.append(_answered(task, asked, narrow, wide))
        least = answers[0]
        if check.family != "declared" and any(answer.unstable for answer in answers):
            continue  # such as the softmax of scores of 1e8, whose differences single precision does not hold
        for oracle, other in zip(oracles[1:], answers[1:], strict=True):
            noise = {name: Noise(min(n.error, other.noise[name].error), n.rms) for name, n in least.noise.items()}
            least = replace(least, noise=noise)
            failure = compare(spec, task, least, other.narrow)
            if failure is not None:
                raise RefusedError(
                    f"the drafted references '{oracles[0].reference.name}' and '{oracle.reference.name}' disagree: "
                    f"'{failure.argument}'[{failure.index}] is {_number(failure.expected)} in one and {_number(failure.got)} in the "
                    f"other (case {case.name}, inputs '{check.family}')",
                    "", "describe the task more precisely, or give your own reference with --reference",
                )  # fmt: skip
        found.append(least)
    return found


def repeats(spec: KernelSpec, task: Task, oracle: Oracle, known: ReferenceCheck) -> None:
    """Ask the same question again. Raises ReferenceError_ where the reference disagrees with itself."""
    again = oracle.ask(task, known.case, known.buffers, known.scalars, wide=True)
    # Its own rounding error says nothing here: twice the same computation gives the same.
    strict = replace(known, noise={name: Noise(0.0, noise.rms) for name, noise in known.noise.items()})
    failure = compare(spec, task, strict, _stored(task, again))
    if failure is not None:
        raise ReferenceError_(
            f"the reference '{oracle.reference.function}' is not deterministic: '{failure.argument}'[{failure.index}] was "
            f"{_number(failure.expected)}, then {_number(failure.got)}, on the same inputs (case {known.case.name})",
            oracle.reference.name, "make it depend only on its inputs",
        )  # fmt: skip


def _number(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.9g}"


def _stored(task: Task, answers: Arrays) -> dict[str, NDArray[Any]]:
    """Answers rounded to what the outputs can hold."""
    kept = {}
    with np.errstate(over="ignore", invalid="ignore"):
        for argument in task.outputs:
            dtype = parse_dtype(argument.type)
            array = answers[argument.name]
            kept[argument.name] = np.asarray(dtype.from_float64(array)) if dtype.kind == "float" else array
    return kept


def _answered(task: Task, asked: ReferenceCheck, narrow: Arrays, wide: Arrays) -> ReferenceCheck:
    """A check with the answers of a reference."""
    stored = _stored(task, narrow)
    lost = np.finfo(np.float64).eps * _largest(task, asked.buffers)
    noise = {}
    unstable = False
    for argument in task.outputs:
        dtype = parse_dtype(argument.type)
        exact = np.asarray(wide[argument.name], np.float64)
        rounded = np.asarray(dtype.to_float64(stored[argument.name]))
        finite = np.isfinite(exact) & np.isfinite(rounded)
        error = rms = 0.0
        if finite.any():
            with np.errstate(over="ignore", invalid="ignore"):
                error = float(np.abs(exact - rounded)[finite].max())
                rms = math.sqrt(float(np.mean(np.square(exact[finite]))))
        # A kernel sums in another order than NumPy does, so what NumPy gets right by its order is no measure: the floor is
        # that of outputs without a twin in float64.
        if dtype.kind == "float":
            unstable = unstable or error > max(MAX_ERROR_RATIO * _MOST_ERROR * rms, lost)
            floor = BLIND_ULPS.get(dtype.itemsize, 256.0) * dtype.epsilon * rms / MAX_ERROR_RATIO
            # What is below a type's smallest number becomes zero in it, or that number; and the reference itself rounds.
            error = max(min(max(error, floor), _MOST_ERROR * rms), dtype.tiny * dtype.epsilon, lost)
        noise[argument.name] = Noise(error, rms)
    return replace(asked, narrow=stored, wide=wide, noise=noise, unstable=unstable)


def _largest(task: Task, buffers: Arrays) -> float:
    """The largest finite number of the inputs: where they cancel, a reference in float64 loses what is an epsilon of it."""
    most = 0.0
    for argument in task.inputs:
        values = np.asarray(parse_dtype(argument.type).to_float64(buffers[argument.name]))
        most = max(most, float(np.abs(values[np.isfinite(values)]).max(initial=0.0)))
    return most


def compare(spec: KernelSpec, task: Task, known: ReferenceCheck, got: Arrays) -> Failure | None:
    """Where outputs (in storage types) are further from the reference than the tolerance; None when nowhere."""
    for argument in task.outputs:
        name = argument.name
        failure = difference(spec, name, Outputs(got, known.narrow, known.wide), known.noise[name], known.case.name)
        if failure is not None:
            return replace(failure, reason=f"{failure.reason} (inputs '{known.family}')")
    return None
