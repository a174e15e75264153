"""One bundle of the bundles of jobs that shared a search: each kernel once, with what was found on every kind of device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from bot.bundle import Bundle, Elsewhere, Looked, check_bundle
from bot.changed import Skipped
from bot.errors import BundleError


@dataclass(frozen=True)
class Part:
    """What a job left: its bundle, or why there is none. `name` is the job's, `device` its kind of device ("": there is one kind)."""

    name: str
    device: str
    bundle: Bundle | None
    reason: str = ""


def merge(parts: Sequence[Part]) -> Bundle:
    """The bundle that a review is made of. Raises BundleError where no job left one, or they are for different commits.

    A kernel that was searched on several kinds of device comes with the first suggestion, in the order of the parts: a review has one
    for each line. What it brings, or another does, on the other kinds stands beside it. A kernel that got slower anywhere got slower.
    """
    there = [part.bundle for part in parts if part.bundle is not None]
    if not there:
        raise BundleError(next((part.reason for part in parts if part.reason), "no bundle"), "bundle")
    if len({(bundle.head, bundle.base) for bundle in there}) > 1:
        raise BundleError("are for different commits", "the bundles of the jobs", "run all of them again")
    found: dict[tuple[str, str], list[tuple[Part, Looked]]] = {}
    for part in parts:
        for looked in part.bundle.kernels if part.bundle is not None else ():
            found.setdefault((looked.changed.path, looked.changed.kernel), []).append((part, looked))
    skipped = dict.fromkeys(skip for bundle in there for skip in bundle.skipped)
    left = [skip for skip in skipped if (skip.path, skip.kernel) not in found]
    lost = [Skipped(f"search job {p.name}", p.reason or "it left no result") for p in parts if p.bundle is None]
    complete = not lost and all(bundle.complete for bundle in there)
    kernels = tuple(_of_all(several) for several in found.values())
    merged = Bundle(there[0].head, there[0].base, kernels, (*left, *lost), complete)
    check_bundle(merged, merged.head)
    return merged


def _of_all(several: Sequence[tuple[Part, Looked]]) -> Looked:
    """What is said of a kernel that several jobs looked at."""
    part, chosen = min(several, key=lambda each: _rank(each[1]))  # the first of equals
    slower = next((looked for _, looked in several if _slower(looked)), chosen)
    if not _slower(chosen):
        chosen = dataclasses.replace(
            chosen, comparison=slower.comparison, restore=slower.restore, history=slower.history or chosen.history
        )
    beside = tuple(_elsewhere(other, looked, chosen) for other, looked in several if other is not part)
    # What several kinds of device say together answers for none of them.
    return dataclasses.replace(chosen, elsewhere=beside, key="" if beside else chosen.key)


def _rank(looked: Looked) -> int:
    if looked.result is None:
        return 2
    return 0 if looked.result.best is not None else 1


def _slower(looked: Looked) -> bool:
    return looked.comparison is not None and looked.comparison.standing == "slower"


def _elsewhere(part: Part, looked: Looked, chosen: Looked) -> Elsewhere:
    best = looked.result.best if looked.result is not None else None
    measurement = best.evaluation.measurement if best is not None else None
    return Elsewhere(part.device or part.name, measurement, bool(looked.patch) and looked.patch == chosen.patch)
