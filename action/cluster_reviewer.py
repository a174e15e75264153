"""Reviews of kernels as tasks on the workers of a cluster, in the place of the runner. Loads Dask, so it is imported where asked for.

Workers get a kernel's files of both commits, its spec and the base's settings, as plain data and bytes; what of them is code runs in
their sandbox. Keys and tokens of the job stay here: a language model is not asked, and workers that are started here get an environment
without them.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from action.kept_reviews import COMPARED_ONLY
from action.kernel_review import LEAST_S, Asked, Prepared, Reviewed, patch_of, run_review, said
from action.looker import Looker, Where
from action.search_job import ClusterError, JobInputs, command_of, run_name
from bot.bundle import Comparison
from bot.escape import without_folders
from engine.campaign.cluster_executor import Brought, ClusterEvent, ClusterExecutor, Searches
from engine.campaign.cluster_task import MachineWish
from engine.campaign.kernel_search import KernelEnd, KernelTask
from engine.cluster.connection import Cluster, check_alike, connect
from engine.cluster.scheduler import ClusterRequest, Device
from engine.errors import OptimlError
from engine.process.decode import NotThis, decode
from engine.report.run_folder import read_result
from engine.run.machine import Machine, make_machine
from engine.run.result import OptimizationResult
from engine.settings.folders import TRUST, trust_domain

NO_MODEL = "the language model was not asked: workers of a cluster get no key"
# What workers that are started here see of the job's environment. Ours.
_PASSED = re.compile(r"PATH|HOME|USER|LANG|TMPDIR|LD_LIBRARY_PATH|VIRTUAL_ENV|(LC|XDG|CUDA|NVIDIA|DASK|PYTHON)_?\w*")
_ADDRESS = re.compile(r"\b(?:tcp|tls)://[^\s;,()]*[^\s;,():.]")
_OURS = ("OPTIML_CACHE", "OPTIML_CUDA", "OPTIML_DEBUG", TRUST)


@contextmanager
def cluster_reviewer(
    looker: Looker, inputs: JobInputs, arch: str, say: Callable[[str], None]
) -> Iterator[ClusterReviewer]:  # fmt: skip
    """What reviews kernels on the workers that the input 'cluster' names. Raises ClusterError."""
    with connected(inputs.cluster, inputs.device, arch) as (cluster, machine, where):
        looker.on(machine, where)
        with _as_cluster_errors():
            reviewer = ClusterReviewer(looker, cluster, say)
        try:
            yield reviewer
        finally:
            reviewer.close()


@contextmanager
def connected(address: str, device: Device, arch: str) -> Iterator[tuple[Cluster, Machine, Where]]:
    """The workers, a machine here to read and predict with, and what the workers compute on. Raises ClusterError."""
    with ExitStack() as held:
        held.enter_context(_without_secrets())
        with _as_cluster_errors():
            cluster = held.enter_context(connect(ClusterRequest(address, device)))
            check_alike(cluster.workers, "exclude some")
            gpu = cluster.workers[0].identity.gpu if cluster.measures else None
            machine = make_machine(device="cpu", arch=gpu.arch if gpu is not None else arch)
            held.callback(machine.close)
        name = cluster.workers[0].identity.device if gpu is not None else machine.name
        yield cluster, machine, Where("measured" if cluster.measures else "predicted", machine.arch, name)


def searching(held: ExitStack, inputs: JobInputs, arch: str, root: Path) -> tuple[Machine, Where, ClusterExecutor]:
    """The same for the search of every kernel of a repository, with what searches. Raises ClusterError."""
    cluster, machine, where = held.enter_context(connected(inputs.cluster, inputs.device, arch))
    kind, shared = Searches(root, machine.box), cluster.address == "local"
    with _as_cluster_errors():
        executor = ClusterExecutor(cluster, root, wish_of(cluster, where), kind, shared=shared)
    held.callback(executor.close)
    return machine, where, executor


def wish_of(cluster: Cluster, where: Where) -> MachineWish:
    """What the workers' machines are to be."""
    if cluster.measures:
        return MachineWish("gpu", trust=trust_domain())
    return MachineWish("cpu", where.arch, trust=trust_domain())


class ClusterReviewer:
    """Reviews kernels on the workers of a cluster, one at a time on each. `close` gives up what is under way."""

    run = staticmethod(run_review)

    def __init__(self, looker: Looker, cluster: Cluster, say: Callable[[str], None]) -> None:
        self._looker, self._say = looker, say
        self._search = looker.proposing.search
        self._tasks: dict[int, tuple[KernelTask, Prepared]] = {}
        # Workers of this machine see the tree itself; of others it is no shared folder.
        self._executor = ClusterExecutor(
            cluster, looker.sides.head, wish_of(cluster, looker.where), self, shared=cluster.address == "local", on_event=self._saw
        )  # fmt: skip
        self.slots = self._executor.slots

    def close(self) -> None:
        """Give up what is under way."""
        self._executor.close()

    def begin(self, number: int, prepared: Prepared, share_s: float) -> None:
        """Send a kernel to a worker. Raises ClusterError."""
        changed = prepared.found.changed
        # A model's key does not leave the job.
        proposers = tuple(name for name in self._looker.proposing.proposers if name != "llm") or ("rules",)
        task = KernelTask(
            number, changed.path, changed.kernel, share_s, proposers=proposers, command=command_of(changed, share_s),
            prefix=f"{number + 1}+",
        )  # fmt: skip
        self._tasks[number] = task, prepared
        with _as_cluster_errors():
            self._executor.begin(task)

    def ended(self) -> list[tuple[int, Reviewed]]:
        """Wait until reviews end: their numbers with what was found. Raises ClusterError."""
        with _as_cluster_errors():
            ends = self._executor.ended()
        return [(number, self._reviewed(number, end)) for number, end in ends]

    def brought(self, task: KernelTask, *, shared: bool) -> Brought:
        """What a kernel's order brings beside the head's files."""
        prepared = self._tasks[task.rank][1]
        base = prepared.base
        asked = Asked(base is not None, self._search and (task.seconds or 0.0) >= LEAST_S, bool(prepared.text))
        extra: Mapping[str, bytes] = {} if base is None else base.files
        return Brought(prepared.spec, prepared.spec_path, dataclasses.asdict(asked), extra)

    def _reviewed(self, number: int, end: KernelEnd) -> Reviewed:
        """What a worker found, read as a stranger's."""
        task, prepared = self._tasks.pop(number)
        head = self._looker.sides.head
        try:
            found = decode(_Found, {} if end.more is None else end.more)
        except NotThis as error:
            return Reviewed(error=f"a worker's answer {error}")
        reviewed = Reviewed(found.comparison, found.device)
        if end.state == "failed":
            return dataclasses.replace(reviewed, error=without_folders(end.said))
        if prepared.text:
            return reviewed
        if not end.folder:
            return dataclasses.replace(reviewed, error=end.said if self._search else COMPARED_ONLY)
        folder = self._looker.sides.out / "runs" / run_name(number + 1, task.file)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(end.folder, folder)
            result = read_result(folder, {"result.json": (OptimizationResult,)})
        except OSError as error:
            return dataclasses.replace(reviewed, error=f"its result cannot be kept: {error.strerror}")
        except OptimlError as error:
            return dataclasses.replace(reviewed, error=said(error, head))
        if "llm" in self._looker.proposing.proposers:
            result = dataclasses.replace(result, notes=(*result.notes, NO_MODEL))
        return dataclasses.replace(reviewed, result=result, patch=patch_of(result, folder))

    def _saw(self, event: ClusterEvent) -> None:
        if event.event == "begin":
            self._say(f"{event.file}: {event.kernel}: on worker {event.worker}")
        elif event.event == "lost":
            self._say(f"{event.file}: {event.kernel}: worker {event.worker} was lost, another continues")


@dataclasses.dataclass(frozen=True)
class _Found:
    """What a worker tells of a comparison."""

    comparison: Comparison | None = None
    device: Mapping[str, str] = dataclasses.field(default_factory=dict)


@contextmanager
def _as_cluster_errors() -> Iterator[None]:
    """Errors of a cluster as one sentence for everybody, without its addresses."""
    try:
        yield
    except OptimlError as error:
        what = _ADDRESS.sub("(address)", without_folders(error.what))
        raise ClusterError(f"not searched on the cluster: {what}", error.where, error.do) from error


@contextmanager
def _without_secrets() -> Iterator[None]:
    """The job's environment without what workers that are started from here have no use for, keys and tokens among it."""
    hidden = {k: v for k, v in os.environ.items() if not _PASSED.fullmatch(k) and k not in _OURS}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)
