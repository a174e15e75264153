"""The table of tasks of others for `optiml generate`: problems of ParEval, leetgpu-challenges and KernelBench.

    optiml bench foreign-generate --checkouts DIR [--only ROWS]

`DIR` holds a checkout `owner__name` of each of the three repositories, at its commit. Sentences and readings are ours
(`benchmarks/pareval`, `benchmarks/torch_tasks`), the answers a language model's, recorded beside them; drivers and tests that judge the
programs are the repositories' own. A row whose questions have no answer yet says where they wait; with the answers beside the others,
`--resume` goes on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import pareval, torch_tasks
from benchmarks.bench import Place, Row, Settings, Table
from benchmarks.foreign import misplaced
from engine.errors import UsageError

# The repository of each set, and its commit.
SETS: Mapping[str, tuple[str, str]] = {
    "pareval": ("parallelcodefoundry/ParEval", "4c9877fcf3e50ad8ac2d898187122a2d9cfd8e47"),
    "leetgpu": ("AlphaGPU/leetgpu-challenges", "5a5c5d8062d95b1dd401005f0eb298710d281652"),
    "kernelbench": ("ScalingIntelligence/KernelBench", "423217d9fda91e0c2d67e4a43bf62f96f6d104f1"),
}


def table() -> Table:
    """Tasks of others, one to five samples each, without repairs."""
    return Table(
        "foreign-generate",
        "kernels for tasks of ParEval, leetgpu-challenges and KernelBench (--checkouts)",
        Settings(),
        lambda place, settings: [f"{which}/{folder.name}" for which in SETS for folder in folders(which)],
        measure,
        summary,
        render,
        lambda settings, row: 120.0,
        checkouts=True,
    )


def folders(which: str) -> list[Path]:
    """The folders of a set's tasks."""
    root = pareval.TASKS if which == "pareval" else torch_tasks.FOLDER / which
    return sorted({path.parent for name in ("sentence.txt", "impossible.txt") for path in root.glob(f"*/{name}")})


def measure(place: Place, settings: Settings, key: str) -> Row:
    """The row of one task; `without` says why it has no sample. Raises UsageError without its checkout or while questions wait."""
    which, _, name = key.partition("/")
    repository, commit = SETS[which]
    assert place.checkouts is not None
    if wrong := misplaced(place.checkouts, {repository: commit}):
        raise UsageError(wrong, "--checkouts")
    tasks = pareval.TASKS if which == "pareval" else torch_tasks.FOLDER / which
    work = place.work / "foreign-generate"
    own = pareval.Place(
        tasks, work / "questions" / which, tasks / "answers", work / which, place.checkouts / repository.replace("/", "__"),
        settings.device,
    )  # fmt: skip
    if which != "pareval" and (why := torch_tasks.impossible(which, name)):
        return {"without": why, "stated": False, "samples": []}
    own.questions.mkdir(parents=True, exist_ok=True)
    for old in own.questions.glob(f"{name}__*.txt"):
        old.unlink()
    try:
        samples = _samples(which, name, own)
    except pareval.NoKernelError as error:
        return {"without": error.what, "stated": True, "samples": []}
    if not samples:
        raise UsageError("questions wait for answers", str(own.questions), f"put each answer into {own.answers}")
    (mode,) = {sample.pop("mode") for sample in samples}
    return {"without": "", "stated": True, "mode": mode, "samples": samples}


def _samples(which: str, name: str, place: pareval.Place) -> list[dict[str, Any]]:
    if which == "pareval":
        return pareval.samples(name, place)
    return torch_tasks.samples(which, torch_tasks.task_name(which, name), place)


def pass_at(drawn: int, right: int, k: int) -> float:
    """The unbiased estimate of pass@k from drawn samples of which some are right (Chen et al., arXiv 2107.03374)."""
    return 1.0 - math.comb(drawn - right, k) / math.comb(drawn, k)


def passes(sample: Mapping[str, Any]) -> bool:
    """Whether we accepted a sample, and the tests of its repository do not reject it."""
    return bool(sample["correct"]) and sample["tests"] in ("pass", "no tests", None)


def summary(rows: Mapping[str, Row]) -> dict[str, Any]:
    """By set: tasks, pass@1 and pass@k, and how our verdicts and the repositories' own agree. A task without a sample has failed."""
    return {which: _of_set(own) for which in SETS if (own := [r for k, r in rows.items() if k.startswith(which + "/")])}


def _of_set(rows: Sequence[Row]) -> dict[str, Any]:
    done = [row for row in rows if not row.get("error")]
    most = max((len(row["samples"]) for row in done), default=0)
    counts = [(len(row["samples"]), sum(map(passes, row["samples"]))) for row in done]
    samples = [sample for row in done for sample in row["samples"]]

    def at(k: int) -> float | None:
        values = [pass_at(drawn, right, k) if drawn >= k else 0.0 for drawn, right in counts]
        return sum(values) / len(values) if values and k else None

    return {
        "tasks": len(rows),
        "results": len(done),
        "cannot_be_stated": sum(not row["stated"] for row in done),
        "k": most,
        "pass_at_1": at(1),
        "pass_at_k": at(most),
        "samples": len(samples),
        "correct": sum(s["correct"] for s in samples),
        "judged": sum(s["tests"] is not None for s in samples),
        "accepted_but_failed": sum(s["correct"] and not passes(s) for s in samples),
        "refused_but_passed": sum(not s["correct"] and s["tests"] == "pass" for s in samples),
        "endings": dict(sorted(Counter(s["ending"] for s in samples if not s["correct"]).items())),
    }


def render(record: Mapping[str, Any]) -> str:
    """The table, and a line for each set."""
    lines = ["| task | passed | not so |", "|---|---:|---|"]
    for key, row in sorted(record["rows"].items()):
        if row.get("error") or row["without"]:
            lines.append(f"| {key} | – | {_cell(row.get('error') or row['without'])} |")
            continue
        others = [
            f"{s['sample']}: {s['ending']}: {s['reason'] or s['tests_said']} (tests: {s['tests'] or 'none'})"
            for s in row["samples"]
            if not passes(s) or not s["correct"]
        ]
        lines.append(
            f"| {key} | {sum(map(passes, row['samples']))} of {len(row['samples'])} | {_cell('; '.join(others))} |"
        )
    lines.append("")
    for which, told in record["summary"].items():
        rates = ", ".join(
            f"pass@{k} {v:.2f}" for k, v in ((1, told["pass_at_1"]), (told["k"], told["pass_at_k"])) if v is not None
        )
        lines.append(
            f"{which}: {rates or 'nothing'} over {told['results']} of {told['tasks']} tasks; {told['judged']} programs judged by their own "
            f"tests: {told['accepted_but_failed']} accepted but failed, {told['refused_but_passed']} refused but passed"
        )
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:300]
