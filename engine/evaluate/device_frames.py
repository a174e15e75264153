"""What travels between a search and its devices: frames of `engine.process.wire` as bytes, read by declared types on both sides."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.compile.built import Built, SizesKey
from engine.errors import CompileError, MachineError, OptimlError, RefusedError, SourceError, SpecError
from engine.model import Binary, Evaluation, LaunchConfig, Measurement, Program
from engine.predict.footprint import Footprint
from engine.process import wire
from engine.process.decode import NotThis, decode
from engine.settings.config import Guardrails
from engine.verify.defences import Defences

_KINDS: Mapping[str, type[OptimlError]] = {
    kind.__name__: kind for kind in (CompileError, MachineError, RefusedError, SourceError, SpecError)
}


@dataclass(frozen=True)
class BuiltHead:
    """A built candidate without its blobs: the changed files in order, the device slice, the machine code."""

    files: tuple[str, ...]
    expressions: tuple[str, ...]
    launches: tuple[tuple[LaunchConfig, ...], ...]
    further: tuple[tuple[SizesKey, tuple[LaunchConfig, ...]], ...]
    binary: Binary
    stage_s: Mapping[str, float]
    by_rules: bool


@dataclass(frozen=True)
class Opening:
    """What a device needs before it can evaluate candidates of a search. `secret` seeds every device alike."""

    spec: Mapping[str, Any]
    spec_path: str | None
    kernel_file: str
    limits: Guardrails
    defences: Defences
    mode: str
    arch: str
    secret: int
    original: BuiltHead
    cores: tuple[int, ...] = ()  # its share of its machine's; none: all
    confirms: bool = True  # what a confirmation needs of the CPU is begun at once


@dataclass(frozen=True)
class Request:
    """One question: `op` is "open", "evaluate", "expect" (it will likely be confirmed), "confirm" or "close".

    `incumbent` is a key; its code comes once. `any_speed` belongs to "confirm", which
    is `brief` where another device's sanitizers and checks on the CPU hold for this one too.
    """

    op: str
    session: str
    opening: Opening | None = None
    candidate: BuiltHead | None = None
    incumbent: str | None = None
    incumbent_built: BuiltHead | None = None
    incumbent_measured: Measurement | None = None  # where another device of the search has timed it closely
    brief: bool = False
    again: bool = False
    any_speed: bool = False


@dataclass(frozen=True)
class Problem:
    """An error that ends a run."""

    kind: str
    what: str
    where: str
    do: str


@dataclass(frozen=True)
class Reply:
    """What a device answers. `wanted`: the incumbent's code is not there; `built` is False where it could not add what it needs."""

    evaluation: Evaluation | None = None
    against: float | None = None
    built: bool = True
    wanted: str | None = None
    footprints: tuple[Footprint, ...] | None = None
    problem: Problem | None = None
    mode: str = ""
    device: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    cases: str = ""  # digest of the secret cases
    sizes: tuple[Mapping[str, int | float], ...] = ()  # at which every candidate's launches are wanted


def key_of(built: Built) -> str:
    """What an incumbent is known by on a device."""
    return hashlib.sha256(repr(built.identity).encode() + built.program.digest.encode()).hexdigest()


def head_of(built: Built, original: Program | None) -> tuple[BuiltHead, list[bytes]]:
    """A built candidate as a head and blobs; of its files those that differ from the original's."""
    files = built.program.files
    changed = [name for name in files if original is None or original.files.get(name) != files[name]]
    head = BuiltHead(
        tuple(changed), built.expressions, built.launches, tuple(built.further.items()), built.binary, dict(built.stage_s),
        built.by_rules,
    )  # fmt: skip
    return head, [*(files[name] for name in changed), built.text.encode(), built.binary.cubin]


def built_of(head: BuiltHead, blobs: list[bytes], original: Program | None, kernel_file: str) -> Built:
    """The built candidate; takes its blobs from the front. Raises NotThis."""
    if len(blobs) < len(head.files) + 2:
        raise NotThis("has too few blobs")
    changed = {name: blobs.pop(0) for name in head.files}
    text, cubin = blobs.pop(0), blobs.pop(0)
    program = original.replace(changed) if original is not None else Program(changed, kernel_file)
    binary = replace(head.binary, cubin=cubin)
    slice_text = text.decode("utf-8", "replace")
    return Built(
        program, slice_text, head.expressions, binary, head.launches, head.stage_s, dict(head.further), head.by_rules
    )  # fmt: skip


def problem_of(error: OptimlError) -> Problem:
    """An error as it travels."""
    kind = next((name for name, kind in _KINDS.items() if isinstance(error, kind)), "OptimlError")
    return Problem(kind, error.what, error.where, error.do)


def raised(problem: Problem) -> OptimlError:
    """The error that travelled."""
    return _KINDS.get(problem.kind, OptimlError)(problem.what, problem.where, problem.do)


def pack(message: Request | Reply, blobs: Sequence[bytes] = ()) -> bytes:
    """A message as one frame."""
    try:
        return wire.pack(wire.to_json(message, finite=True), blobs)
    except ValueError:
        return wire.pack(_finite(dataclasses.asdict(message)), blobs)


def read_request(frame: bytes) -> tuple[Request, list[bytes]]:
    """A question. Raises WireError, NotThis."""
    header, blobs = wire.unpack(frame)
    return decode(Request, header), blobs


def read_reply(frame: bytes) -> Reply:
    """An answer, of a bounded size. Raises WireError, NotThis."""
    header, _ = wire.unpack(frame)
    return decode(Reply, header)


def _finite(plain: Any) -> Any:
    """JSON has no infinities: what a candidate computed may be one."""
    if isinstance(plain, float) and not math.isfinite(plain):
        return None
    if isinstance(plain, dict):
        return {key: _finite(value) for key, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [_finite(value) for value in plain]
    return plain
