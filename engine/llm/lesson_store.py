"""What earlier runs taught: which edit did what to which kind of kernel, kept in SQLite, found again by likeness."""

import json
import math
import random
import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from engine.errors import MachineError, UsageError
from engine.llm.plain_words import plain
from engine.model import Outcome
from engine.rewrite.proposal import Proposal
from engine.rewrite.site import Site
from engine.search.reward import failed
from engine.search.tree import Node

_SCHEMA = 1
_CREATE = """CREATE TABLE IF NOT EXISTS lessons (
    id INTEGER PRIMARY KEY, repository TEXT NOT NULL, target TEXT NOT NULL, signature TEXT NOT NULL, features TEXT NOT NULL,
    proposer TEXT NOT NULL, rule TEXT NOT NULL, idea TEXT NOT NULL, outcome TEXT NOT NULL, ratio REAL, predicted INTEGER NOT NULL,
    learned_at REAL NOT NULL,
    UNIQUE (repository, target, signature, features, rule, idea) ON CONFLICT REPLACE
) STRICT"""
# A prediction takes no measurement's place.
_INSERT = """INSERT INTO lessons (repository, target, signature, features, proposer, rule, idea, outcome, ratio, predicted, learned_at)
    SELECT :repository, :target, :signature, :features, :proposer, :rule, :idea, :outcome, :ratio, :predicted, :learned_at
    WHERE NOT (:predicted AND EXISTS (
        SELECT 1 FROM lessons WHERE repository = :repository AND target = :target AND signature = :signature AND features = :features
        AND rule = :rule AND idea = :idea AND ratio IS NOT NULL AND NOT predicted))"""
_INDEX = "CREATE INDEX IF NOT EXISTS by_repository ON lessons (repository, id)"
_NEWEST = 2_000  # so many of the newest are compared: at 4 µs each that is 8 ms
_MOST_IMPORT = 64 << 20  # bytes
# Likeness: what binds a kernel counts as much as what its code looks like; another architecture halves it. Ours.
_SIGNATURE_SHARE, _OTHER_TARGET = 0.5, 0.5
_LEAST_LIKE = 0.3
_POOL = 4  # the choice is among so many times what is asked for


@dataclass(frozen=True)
class Lesson:
    """One edit and what came of it. `ratio` is the speed after over the speed before the edit, None where it failed.

    `signature` are codes of the diagnosis before the edit, `features` counts by name of the kernel's code. `repository`
    names where it was learnt: a lesson is told elsewhere only when the user says so.
    """

    repository: str
    target: str
    signature: tuple[str, ...]
    features: Mapping[str, float]
    proposer: str
    rule: str
    idea: str
    outcome: Outcome
    ratio: float | None = None
    predicted: bool = False

    @property
    def sentence(self) -> str:
        """The lesson for a prompt or a person."""
        if self.ratio is not None and not failed(self.outcome):
            how = "was predicted to give" if self.predicted else "gave"
            what = f"{how} {self.ratio:.3g}x on {plain(self.target, 20)}"
        else:
            what = f"ended in {self.outcome.value.replace('_', ' ')} on {plain(self.target, 20)}"
        return f"{plain(self.idea)}: {what}"


@dataclass(frozen=True)
class KernelTraits:
    """What makes a kernel like another: its repository, its target, the codes of its diagnosis, counts of its code."""

    repository: str
    target: str
    signature: Sequence[str]
    features: Mapping[str, float]


def features_of(site: Site) -> dict[str, float]:
    """A kernel's features by name: what its syntax tree holds, as counts, and the shape of its launch.

    Names of the user's code are not among them, so that a lesson gives nothing of it away.
    """
    kernel = site.kernel
    found: dict[str, float] = {
        "loops": len(kernel.loops),
        "loop_depth": 1 + max((loop.depth for loop in kernel.loops), default=-1),
        "reads": sum(a.kind == "read" for a in kernel.accesses),
        "writes": sum(a.kind == "write" for a in kernel.accesses),
        "updates": sum(a.kind == "update" for a in kernel.accesses),
        "shared": len(kernel.shared),
        "pointers": sum(p.pointer for p in kernel.parameters),
        "barriers": sum(name.startswith("__sync") for name in kernel.calls),
        "shuffles": sum(name.startswith("__shfl") for name in kernel.calls),
        "atomics": sum(name.startswith("atomic") for name in kernel.calls),
    }
    for call in kernel.calls:
        if re.fullmatch(r"(?:exp|log|sqrt|rsqrt|tanh|erf|pow|sin|cos)f?|__expf|__logf", call):
            found["special"] = found.get("special", 0) + 1
    if site.configs:
        found["threads_log2"] = math.log2(max(1, site.configs[0].threads))
        found["blocks_log2"] = math.log2(max(1, site.configs[0].blocks))
    return found


def lesson_of(
    node: Node, site: Site, *, repository: str, target: str, signature: Sequence[str] = ()
) -> Lesson | None:  # fmt: skip
    """What an evaluated node teaches about its parent, whose kernel is `site` and whose diagnosis gave `signature`.

    None where it teaches nothing: the original, twins of other candidates, and what could not be measured.
    """
    evaluation, parent, proposal = node.evaluation, node.parent, node.proposal
    if evaluation is None or parent is None or parent.evaluation is None or proposal is None:
        return None
    if evaluation.outcome in (Outcome.DUPLICATE, Outcome.UNSTABLE, Outcome.SCREENED_OUT):
        return None
    before, after = parent.evaluation.measurement, evaluation.measurement
    ratio = after.ratio / before.ratio if before is not None and after is not None else None
    if ratio is None and not failed(evaluation.outcome):
        return None
    predicted = after.predicted if after is not None else False
    kernel = KernelTraits(repository, target, signature, features_of(site))
    return lesson_from(kernel, proposal, evaluation.outcome, ratio, predicted=predicted)


def lesson_from(
    kernel: KernelTraits, edit: Proposal, outcome: Outcome, ratio: float | None, *, predicted: bool
) -> Lesson:
    """What an edit of a kernel taught: its ratio, unless it failed."""
    return Lesson(
        kernel.repository, kernel.target, tuple(kernel.signature), kernel.features, edit.proposer, edit.rule, plain(edit.summary),
        outcome, None if failed(outcome) else ratio, predicted,
    )  # fmt: skip


class Memory:
    """A store of lessons in one file, shared by runs; the newest of equal ones counts. Thread-safe.

    Raises MachineError where the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _SCHEMA):
                raise MachineError(
                    "was written by another version", str(path), "export it there, or choose another file"
                )
            self._db.execute(_CREATE)
            self._db.execute(_INDEX)
            self._db.execute(f"PRAGMA user_version = {_SCHEMA}")
        except (sqlite3.Error, OSError) as error:
            raise MachineError(f"the memory cannot be opened: {error}", str(path), "choose another file") from None

    def add(self, lesson: Lesson) -> None:
        """Keep a lesson, a failure as well as a success. Raises MachineError."""
        self._insert([lesson])

    def _insert(self, lessons: Iterable[Lesson]) -> None:
        rows = [{**_row(lesson), "learned_at": time.time()} for lesson in lessons]
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany(_INSERT, rows)
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise MachineError(
                    f"the memory cannot be written: {error}", str(self._path), "free some space"
                ) from None

    def recall(
        self, kernel: KernelTraits, count: int = 4, *, seed: int = 0, across: bool = False
    ) -> list[tuple[Lesson, float]]:
        """Up to `count` lessons that are most like the kernel, each with its likeness in (0, 1].

        Chosen by weighted chance among the likest (KernelBlaster, arXiv 2602.14293: better than always the best). `across`
        also tells what was learnt in other repositories. The same seed gives the same choice.
        """
        scored = []
        for lesson in self._newest(None if across else kernel.repository):
            like = _likeness(lesson, kernel)
            if like >= _LEAST_LIKE:
                scored.append((lesson, like))
        scored.sort(key=lambda pair: (-pair[1], pair[0].predicted, -_weight(pair[0])))
        pool, chance = _distinct(scored)[: _POOL * count], random.Random(seed)
        chosen: list[tuple[Lesson, float]] = []
        while pool and len(chosen) < count:
            pick = chance.choices(range(len(pool)), [like**2 * _weight(lesson) for lesson, like in pool])[0]
            chosen.append(pool.pop(pick))
        return sorted(chosen, key=lambda pair: -pair[1])

    def priors(self, kernel: KernelTraits, *, across: bool = False) -> dict[str, float]:
        """For each rule with lessons: the mean log2 gain, weighted by likeness; a failure counts as -0.5. For other proposers.

        Predicted gains count only for rules of which none was measured.
        """
        found: dict[str, list[tuple[Lesson, float]]] = {}
        for lesson in self._newest(None if across else kernel.repository):
            like = _likeness(lesson, kernel)
            if like >= _LEAST_LIKE:
                found.setdefault(lesson.rule, []).append((lesson, like))
        return {rule: _mean_gain(lessons) for rule, lessons in found.items()}

    def _newest(self, repository: str | None) -> list[Lesson]:
        where, values = ("", ()) if repository is None else ("WHERE repository = ?", (repository,))
        return list(self._read(f"{where} ORDER BY id DESC LIMIT {_NEWEST}", values))

    def _read(self, rest: str, values: Sequence[str] = ()) -> Iterator[Lesson]:
        with self._lock:
            try:
                rows = self._db.execute(
                    "SELECT repository, target, signature, features, proposer, rule, idea, outcome, ratio, predicted FROM lessons "
                    + rest, values,
                ).fetchall()  # fmt: skip
            except sqlite3.Error as error:
                raise MachineError(f"the memory cannot be read: {error}", str(self._path), "delete it") from None
        for row in rows:
            lesson = _lesson(dict(zip((f.name for f in fields(Lesson)), row, strict=True)), parsed=False)
            if lesson is not None:
                yield lesson

    def export(self, path: Path, repository: str | None = None) -> int:
        """Write lessons (of one repository, or all) as JSON lines; how many. Raises MachineError."""
        lessons = list(self.lessons(repository))
        try:
            with path.open("w", encoding="utf-8") as file:
                for lesson in lessons:
                    file.write(json.dumps({"format": _SCHEMA, **asdict(lesson)}, sort_keys=True) + "\n")
        except OSError as error:
            raise MachineError(f"cannot be written ({error.strerror})", str(path), "name another file") from None
        return len(lessons)

    def lessons(self, repository: str | None = None) -> Iterator[Lesson]:
        """The lessons of one repository, or all, the oldest first. Raises MachineError."""
        where, values = ("", ()) if repository is None else ("WHERE repository = ?", (repository,))
        return self._read(f"{where} ORDER BY id", values)

    def load(self, path: Path, repository: str | None = None) -> int:
        """Take over exported lessons, all or none, as those of `repository`, or of where they were learnt; how many.

        Raises UsageError for what is no export.
        """
        try:
            if path.stat().st_size > _MOST_IMPORT:
                raise UsageError(f"exceeds {_MOST_IMPORT} bytes", str(path), "split it")
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise UsageError(f"cannot be read ({error.strerror})", str(path), "give an exported file") from None
        except UnicodeDecodeError:
            raise UsageError("is not text", str(path), "give an exported file") from None
        lessons = []
        for number, text in enumerate(lines, 1):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                value = None
            good = isinstance(value, dict) and value.pop("format", None) == _SCHEMA
            lesson = _lesson(value, parsed=True) if good else None
            if lesson is None:
                raise UsageError("is not a line of an export", f"{path}:{number}", "export it again")
            lessons.append(lesson if repository is None else replace(lesson, repository=repository))
        self._insert(lessons)
        return len(lessons)

    def forget(self, repository: str | None = None) -> int:
        """Delete the lessons of one repository, or all; how many. Nothing of them stays in the file."""
        with self._lock:
            try:
                self._db.execute("PRAGMA secure_delete = ON")
                if repository is None:
                    gone = self._db.execute("DELETE FROM lessons").rowcount
                else:
                    gone = self._db.execute("DELETE FROM lessons WHERE repository = ?", (repository,)).rowcount
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self._db.execute("VACUUM")
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                raise MachineError(f"the memory cannot be written: {error}", str(self._path)) from None
        return gone

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _row(lesson: Lesson) -> dict[str, str | float | int | None]:
    features = {name: float(value) for name, value in lesson.features.items()}  # in one form: equal lessons are one
    return {
        "repository": lesson.repository, "target": lesson.target, "signature": json.dumps(lesson.signature),
        "features": json.dumps(features, sort_keys=True), "proposer": lesson.proposer, "rule": lesson.rule, "idea": plain(lesson.idea),
        "outcome": lesson.outcome.value, "ratio": lesson.ratio, "predicted": int(lesson.predicted),
    }  # fmt: skip


def _lesson(value: Mapping[str, object], *, parsed: bool) -> Lesson | None:
    """A lesson from a row or an imported line, every field doubted; None where one does not fit."""
    try:
        signature = value["signature"] if parsed else json.loads(str(value["signature"]))
        features = value["features"] if parsed else json.loads(str(value["features"]))
        texts = [value[name] for name in ("repository", "target", "proposer", "rule", "idea")]
        ratio, outcome = value["ratio"], Outcome(str(value["outcome"]))
    except (KeyError, ValueError, RecursionError):
        return None
    if (
        set(value) != {f.name for f in fields(Lesson)}
        or not isinstance(signature, list)
        or not isinstance(features, dict)
    ):
        return None
    if not all(isinstance(t, str) and len(t) <= 400 for t in (*texts, *signature, *features)) or len(signature) > 64:
        return None
    numbers = [*features.values(), *([] if ratio is None else [ratio])]
    if len(features) > 64 or not all(type(n) in (int, float) and math.isfinite(float(n)) for n in numbers):
        return None
    if ratio is not None and not (isinstance(ratio, (int, float)) and 0 < ratio < 1e6):
        return None
    repository, target, proposer, rule, idea = (str(t) for t in texts)
    return Lesson(
        repository, target, tuple(signature), {k: float(v) for k, v in features.items()}, proposer, rule, plain(idea), outcome,
        None if ratio is None else float(ratio), bool(value["predicted"]),
    )  # fmt: skip


def _likeness(lesson: Lesson, kernel: KernelTraits) -> float:
    like = _signature_like(kernel.signature, lesson.signature) * _SIGNATURE_SHARE
    like += _features_like(kernel.features, lesson.features) * (1 - _SIGNATURE_SHARE)
    return like if lesson.target == kernel.target else like * _OTHER_TARGET


def _signature_like(a: Sequence[str], b: Sequence[str]) -> float:
    """Jaccard's index of two sets of codes; where one is empty (nothing was diagnosed) half."""
    first, second = set(a), set(b)
    return len(first & second) / len(first | second) if first and second else 0.5


def _features_like(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """1 / (1 + distance), each count on a logarithmic scale: one loop more matters where there are few. Half where one is of
    no code: a kernel that is not written yet."""
    if not a or not b:
        return 0.5
    squares = 0.0
    for name in a.keys() | b.keys():
        x, y = (math.copysign(math.log1p(abs(v.get(name, 0.0))), v.get(name, 0.0)) for v in (a, b))
        squares += (x - y) ** 2
    return 1.0 / (1.0 + math.sqrt(squares))


def _mean_gain(lessons: Sequence[tuple[Lesson, float]]) -> float:
    """The mean log2 gain of lessons, each with its likeness."""
    measured = any(lesson.ratio is not None and not lesson.predicted for lesson, _ in lessons)
    gains = [
        (like, -0.5 if lesson.ratio is None or failed(lesson.outcome) else math.log2(max(lesson.ratio, 0.1)))
        for lesson, like in lessons
        if not (measured and lesson.predicted)
    ]
    return sum(like * gain for like, gain in gains) / sum(like for like, _ in gains)


def _weight(lesson: Lesson) -> float:
    """What gained much is told rather than what gained little; a failure is told too, to be avoided."""
    if lesson.ratio is None or failed(lesson.outcome):
        return 0.5
    return 0.25 + min(2.0, abs(math.log2(lesson.ratio)))


def _distinct(scored: Sequence[tuple[Lesson, float]]) -> list[tuple[Lesson, float]]:
    """The likest of those that would be told in the same words."""
    seen: dict[tuple[str, str, bool], tuple[Lesson, float]] = {}
    for lesson, like in scored:
        seen.setdefault((lesson.rule, lesson.idea, failed(lesson.outcome)), (lesson, like))
    return list(seen.values())
