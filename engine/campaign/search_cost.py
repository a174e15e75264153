"""What a kernel's search is expected to take: as long for each candidate as the earlier run in its folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from engine.campaign.kernel_search import KernelTask
from engine.campaign.queue import Queued, folder_prefixes
from engine.process.decode import NotThis, load
from engine.settings.folders import read_regular

_MOST_RESULT = 64 << 20


def expected_s(root: Path, kernels: Sequence[Queued], device: str = "") -> Mapping[int, float]:
    """Seconds for each candidate, by rank; the mean of the others for a kernel that was not searched before, {} where none was."""
    prefixes = folder_prefixes(kernels)
    found = {k.rank: _earlier_s(root, _task(k, device, prefixes[k.rank])) for k in kernels}
    known = [seconds for seconds in found.values() if seconds is not None]
    if not known:
        return {}
    mean = fmean(known)
    return {rank: mean if seconds is None else seconds for rank, seconds in found.items()}


def _task(kernel: Queued, device: str, prefix: str) -> KernelTask:
    return KernelTask(kernel.rank, kernel.file, kernel.kernel, device=device, prefix=prefix)


def _earlier_s(root: Path, task: KernelTask) -> float | None:
    data = read_regular(task.folder(root, task.kernel) / "result.json", _MOST_RESULT)
    try:
        result = load(data) if data is not None else None
    except NotThis:
        return None
    if not isinstance(result, dict) or not isinstance(counts := result.get("counts"), dict):
        return None
    seconds, candidates = result.get("elapsed_s"), counts.get("candidates")
    if not isinstance(seconds, float) or not isinstance(candidates, int) or candidates < 1 or not seconds > 0:
        return None
    return seconds / candidates
