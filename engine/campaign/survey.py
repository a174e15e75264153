"""Looks at every kernel of a repository: its spec, its share of a recorded run's time, its predicted headroom."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from engine.campaign.headroom import predicted_headroom
from engine.capture.manifest import load_manifest, recording_folder, share_of
from engine.capture.recorded_spec import recorded_spec
from engine.compile.cache import DiskCache
from engine.cuda.compile_command import compile_command
from engine.cuda.load import load_program, read_below, source_files
from engine.cuda.parse import parse
from engine.errors import OptimlError, RefusedError
from engine.run.machine import Machine
from engine.run.ready_spec import OpenSpecError, SpecMaker
from engine.settings.config import NAMES, load_config
from engine.settings.folders import cache_folder
from engine.spec.gaps import grouped
from engine.spec.tables import SPEC_NAME

# declared: in the repository; recorded, drafted: ready without one; open: something is to be answered; refused: no search can be
# made of it; unknown: the text does not show enough, and it was not run yet.
State = Literal["declared", "recorded", "drafted", "open", "refused", "unknown"]
NOT_RUN = "analysed but not run yet: no headroom"
READY: frozenset[State] = frozenset({"declared", "recorded", "drafted"})
_VERSION = 3  # of what is kept in the cache
_WAIT_S = 0.5


@dataclass(frozen=True)
class SurveyedKernel:
    """One kernel. `share` is its part of the recorded time of all kernels (None: not recorded), `headroom` the predicted time over
    the roofline's (None: not predicted); `missing` says in one sentence what a search lacks, or why there is no prediction.
    """

    file: str
    kernel: str
    line: int
    state: State
    share: float | None = None
    headroom: float | None = None
    time_us: float | None = None
    missing: str = ""
    tried: bool = False  # False: what is said of it is from the text alone

    @property
    def weight(self) -> float | None:
        """The part of the time (of this kernel's own, where nothing was recorded) that the roofline would save; None: not known."""
        if self.headroom is None:
            return None
        return (1.0 if self.share is None else self.share) * (1.0 - 1.0 / self.headroom)


@dataclass(frozen=True)
class Survey:
    """All kernels, the most promising first. `recorded` says whether shares are known, `complete` whether all were reached."""

    kernels: tuple[SurveyedKernel, ...]
    recorded: bool
    complete: bool
    arch: str


class Surveyor:
    """Surveys one repository on one machine, with what is known of unchanged kernels from earlier.

    With `below`, a folder of the repository, the kernels there alone.
    """

    def __init__(self, root: Path, machine: Machine, below: Path | None = None) -> None:
        self._root, self._machine = root.resolve(), machine
        folder = (below or root).resolve()
        self._below = folder.relative_to(self._root).parts if folder.is_relative_to(self._root) else ()
        self._config, _ = load_config(self._root)
        self._manifest = load_manifest(recording_folder(self._root))
        if self._manifest is None and self._config.recording:
            self._manifest = load_manifest(self._root / self._config.recording)
        self._cache = DiskCache(cache_folder() / "survey")

    def survey(self, limit_s: float, on_kernel: Callable[[int, int], None] = lambda done, of: None) -> Survey:
        """Every kernel that the settings want. Each is read; what is not run within the limit is run by the next survey."""
        key = self._key("repository", self._below, *self._marks())
        kept = self._cache.get(key)
        if kept is not None:
            found = [SurveyedKernel(**each) for each in kept[0]["kernels"]]
            return self._survey(found)
        found = self._look(list(self._kernels()), time.monotonic() + limit_s, on_kernel)
        survey = self._survey(found)
        if survey.complete:
            self._cache.put(key, {"kernels": [dataclasses.asdict(k) for k in found]}, b"")
        return survey

    def _survey(self, found: Sequence[SurveyedKernel]) -> Survey:
        shared = [replace(kernel, share=self._share(kernel)) for kernel in found]
        return Survey(
            tuple(sorted(shared, key=_rank)),
            self._manifest is not None,
            all(kernel.tried for kernel in shared),
            self._machine.arch,
        )

    def _kernels(self) -> Iterator[SurveyedKernel]:
        for path in source_files(self._root):
            if not self._config.wants(path) or Path(path).parts[: len(self._below)] != self._below:
                continue
            try:
                data = read_below(self._root, path)
                if data is None or b"__global__" not in data:
                    continue
                for kernel in parse(data, path).kernels:
                    yield SurveyedKernel(
                        path, kernel.qualified, kernel.line, "unknown", missing="not analysed within the time limit"
                    )
            except OptimlError as error:
                yield SurveyedKernel(path, "", 1, "refused", missing=str(error), tried=True)

    def _look(
        self, kernels: list[SurveyedKernel], deadline: float, on_kernel: Callable[[int, int], None]
    ) -> list[SurveyedKernel]:
        kernels.sort(key=lambda k: -(self._share(k) or 0.0))
        found = {place: self._read(kernel, deadline) for place, kernel in enumerate(kernels)}
        with ThreadPoolExecutor(self._machine.jobs, thread_name_prefix="survey") as pool:
            waiting = {
                pool.submit(self._one, kernel, deadline): place for place, kernel in found.items() if not kernel.tried
            }
            done = len(found) - len(waiting)
            while waiting:
                ended, _ = wait(waiting, timeout=_WAIT_S, return_when=FIRST_COMPLETED)
                for future in ended:
                    found[waiting.pop(future)] = future.result()
                    done += 1
                on_kernel(done, len(found))
        return list(found.values())

    def _one(self, kernel: SurveyedKernel, deadline: float) -> SurveyedKernel:
        """A kernel that was tried on the CPU."""
        if time.monotonic() > deadline:
            return kernel
        try:
            looked = self._looked(kernel, static=False)
            self._keep(self.key_of(kernel), looked)
        except OptimlError as error:
            return replace(kernel, state="refused", missing=str(error), tried=True)
        return looked

    def _read(self, kernel: SurveyedKernel, deadline: float) -> SurveyedKernel:
        """What is known of a kernel from an earlier survey, else from its text."""
        if kernel.tried:
            return kernel
        try:
            key = self.key_of(kernel)
            for name in (key, f"{key}-text"):
                if (kept := self._cache.get(name)) is not None:
                    return replace(kernel, **kept[0])
            if time.monotonic() > deadline:
                return kernel
            looked = self._looked(kernel, static=True)
            self._keep(f"{key}-text", looked)
        except OptimlError as error:
            return replace(kernel, state="refused", missing=str(error), tried=True)
        return looked

    def _keep(self, key: str, kernel: SurveyedKernel) -> None:
        fields = {name: getattr(kernel, name) for name in ("state", "headroom", "time_us", "missing", "tried")}
        self._cache.put(key, fields, b"")

    def _looked(self, kernel: SurveyedKernel, *, static: bool) -> SurveyedKernel:
        maker = SpecMaker(self._root, self._machine.box, recorded=recorded_spec, static=static)
        kernel = replace(kernel, tried=not static)
        file = self._root / kernel.file
        try:
            ready = maker.ready(file, kernel.kernel)
        except OpenSpecError as error:
            why = grouped("; ".join(sentence for _, sentence in error.lines))
            if static:  # a run may show what the text does not
                return replace(kernel, state="unknown", missing=f"not run yet, and the source does not show {why}")
            return replace(kernel, state="open", missing=why)
        except RefusedError as error:
            return replace(kernel, state="refused", missing=error.what)
        if static:
            return replace(kernel, state=ready.source, missing=NOT_RUN)
        try:
            headroom = predicted_headroom(ready.spec, ready.spec_path, file, self._root, self._machine)
        except OptimlError as error:
            return replace(kernel, state=ready.source, missing=f"no prediction: {error}")
        return replace(kernel, state=ready.source, headroom=headroom.ratio, time_us=headroom.time_us, missing="")

    def _share(self, kernel: SurveyedKernel) -> float | None:
        return None if self._manifest is None else share_of(self._manifest, kernel.file, kernel.kernel)

    def key_of(self, kernel: SurveyedKernel) -> str:
        """A name for all that a kernel's row depends on."""
        command = compile_command(self._root, kernel.file)
        file = self._root / kernel.file
        program = load_program(file, kernels=[kernel.kernel], include=command.include, unit=command.unit)
        folders = [file.parent, *file.parent.parents]
        specs = [_digest(f / SPEC_NAME) for f in folders if f.is_relative_to(self._root) and (f / SPEC_NAME).is_file()]
        return self._key(
            kernel.file, kernel.kernel, program.digest, dataclasses.astuple(command), specs, self._recording()
        )

    def _key(self, *parts: object) -> str:
        text = json.dumps([_VERSION, version("optiml-cuda"), self._machine.arch, *parts], default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def _recording(self) -> str:
        return "" if self._manifest is None else hashlib.sha256(repr(self._manifest.kernels).encode()).hexdigest()

    def _marks(self) -> Iterator[object]:
        """The sizes and times of all that a survey reads."""
        yield str(self._root)
        yield self._recording()
        for path in (*source_files(self._root), *NAMES, *(str(p) for p in self._root.glob(f"**/{SPEC_NAME}"))):
            try:
                status = (self._root / path).stat()
            except OSError:
                continue
            yield path, status.st_mtime_ns, status.st_size
        yield dataclasses.astuple(compile_command(self._root, ""))


def _rank(kernel: SurveyedKernel) -> tuple[bool, float, str, int]:
    weight = kernel.weight
    return kernel.state not in READY, -(weight if weight is not None else 0.0), kernel.file, kernel.line


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
