"""What a tuning run suggests, and the user's own command: a machine with a real compiler whose times are a formula."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from engine import cli
from engine.compile.built import Built
from engine.errors import MachineError, RefusedError
from engine.evaluate.build import Builder
from engine.evaluate.evaluator import Signals, nothing
from engine.model import CaseTiming, Evaluation, Guardrail, Measurement, Outcome, Program
from engine.process.decode import decode
from engine.report.tuning import print_tuning
from engine.run.machine import Machine, make_machine
from engine.run.template_run import tune
from engine.search.progress import Budget
from engine.settings.config import Guardrails
from engine.spec.kernel_spec import KernelSpec
from engine.tune.tune_options import TuneOptions
from engine.tune.tuning_result import TuneResult
from tests.runtime import with_runtime

from .kernels import SAXPY

TEXT = (
    SAXPY.replace("tune BLOCK = 64, 128, 256, 2048", "tune BLOCK = 64, 256")
    .replace("tune ITEMS = 1, 2, 4", "tune ITEMS = 1, 4")
    .replace("// optiml: where BLOCK * ITEMS <= 4096\n", "")
)
# How much faster than the original, by threads of a block and by elements of a thread, for the small shape and for the large one.
SPEEDS = {(256, 1): (1.0, 1.0), (64, 1): (3.0, 1.5), (256, 4): (1.1, 2.0), (64, 4): (1.2, 1.4)}


class Evaluator:
    """Follows the Evaluator protocol: what it builds is real, the times are those of SPEEDS."""

    def __init__(self, spec: KernelSpec, builder: Builder) -> None:
        self._spec, self._builder = spec, builder

    @property
    def signals(self) -> Signals:
        return Signals("measured", {"name": "scripted"})

    def open(self, original: Program, ready: Callable[[], None] = nothing) -> tuple[Built, Evaluation]:
        built = self._builder.original(original)
        return built, self.confirm(built)

    def build(self, program: Program, *, by_rules: bool = False) -> Built:
        return self._builder.candidate(program)

    def evaluate(
        self, built: Built, incumbent: Built | None, *, brief: bool = False
    ) -> tuple[Evaluation, float | None]:
        mine = self._measured(built)
        return self.confirm(built), None if incumbent is None else mine.ratio / self._measured(incumbent).ratio

    def retime(self, built: Built, incumbent: Built | None) -> tuple[Evaluation, float | None]:
        return self.evaluate(built, incumbent)

    def begin_confirming(self, build: Callable[[], Built]) -> None:
        """Nothing is begun ahead."""

    def confirm(self, built: Built, *, any_speed: bool = False) -> Evaluation:
        found = self._measured(built)
        outcome = Outcome.ACCEPTED if found.ratio > 1 else Outcome.NO_DIFFERENCE
        return Evaluation(
            outcome,
            found,
            None,
            built.binary.resources,
            built.binary.code_hash,
            guardrails=(Guardrail("races", "passed"),),
        )

    def _measured(self, built: Built) -> Measurement:
        cases = []
        for case, (launch,) in zip(self._spec.time, built.launches[-len(self._spec.time) :], strict=True):
            size = int(case.sizes["n"])
            items = -(-size // (launch.blocks * launch.threads))
            ratio = SPEEDS[launch.threads, items][size > 65536]
            cases.append(CaseTiming(case.name, case.weight, 10.0, 10.0 / ratio, ratio, 0.99 * ratio, 1.01 * ratio, 9))
        ratio = 1.0
        for timing in cases:
            ratio *= timing.ratio ** (1 / len(cases))
        return Measurement(tuple(cases), ratio, 0.99 * ratio, 1.01 * ratio)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPTIML_CACHE", str(with_runtime(tmp_path_factory.mktemp("cache"))))
        found = make_machine(device="cpu", jobs=2)

    def evaluator(spec: KernelSpec, root: Path, spec_path: str | None, **named: Any) -> Evaluator:
        return Evaluator(spec, Builder(spec, root, found.compiler, found.target, spec_path))

    with mock.patch.object(found, "evaluator", evaluator):
        yield found
    found.close()


def tuned(root: Path, machine: Machine, bench: str = "", text: str = TEXT) -> tuple[TuneResult, Path]:
    """A run with `--dispatch`; `bench` is the user's command, a shell script at the root of the repository."""
    (root / ".git").mkdir()
    (root / "saxpy.cu").write_text(text)
    limits = Guardrails()
    if bench:
        (root / "bench").write_text(f"#!/bin/sh\n{bench}\n")
        (root / "bench").chmod(0o755)
        limits = Guardrails(command=("./bench",), time=20.0, end_to_end=3.0)
    options = TuneOptions(
        root / "saxpy.cu", budget=Budget(candidates=9), dispatch=True, out=root / "out", guardrails=limits
    )
    result = tune(options, machine)
    assert decode(TuneResult, json.loads((root / "out" / "result.json").read_text())) == decode(
        TuneResult, json.loads(result.to_json())
    )
    return result, root / "out"


def printed(result: TuneResult, capsys: pytest.CaptureFixture[str]) -> str:
    print_tuning(result, Path("out"))
    return " ".join(capsys.readouterr().out.split())


def test_both_are_suggested_where_the_users_command_passes(tmp_path, machine, capsys):
    result, out = tuned(tmp_path, machine, "true")
    assert result.best is not None
    assert result.best.values == {"BLOCK": 64, "ITEMS": 1}
    assert ("end-to-end command", "passed") in [(g.name, g.verdict) for g in result.best.evaluation.guardrails]
    dispatch = result.dispatch
    assert dispatch is not None
    assert [(b.text, dict(b.values)) for b in dispatch.branches] == [
        ("n from 1048576, below 16777217", {"BLOCK": 256, "ITEMS": 4}), ("all others", {"BLOCK": 64, "ITEMS": 1}),
    ]  # fmt: skip
    assert dispatch.ratio == pytest.approx(6**0.5)
    assert [(g.name, g.verdict) for g in dispatch.guardrails] == [("end-to-end command", "passed")]
    assert dispatch.patch == "dispatch.patch"
    assert (out / "dispatch.patch").is_file()
    assert (out / "best.patch").is_file()
    assert 0 < result.stages["dispatch"] < result.elapsed_s
    # Each branch is held to what one configuration is held to.
    for evaluation in dispatch.evaluations:
        names = {g.name for g in evaluation.guardrails if g.verdict == "passed"}
        assert {"races", "changes only device code and launch arguments"} <= names
    said = printed(result, capsys)
    assert "Dispatch by n: 2.45× (2.42 to 2.47) over the original, over all shapes." in said
    assert "passed: end-to-end command, of the dispatch code (" in said
    assert "Apply one of them" in said
    assert "git apply out/best.patch" in said


def test_dispatch_code_that_the_users_command_fails_with_is_no_suggestion(tmp_path, machine, capsys):
    """It was suggested without the command having run."""
    result, out = tuned(tmp_path, machine, "! grep -q 'template <int' saxpy.cu")
    assert result.best is not None
    assert (out / "best.patch").is_file()
    dispatch = result.dispatch
    assert dispatch is not None
    assert dispatch.ratio == pytest.approx(6**0.5)  # the speedup is reported all the same
    assert (dispatch.patch, dispatch.files) == ("", ())
    assert [(g.name, g.verdict) for g in dispatch.guardrails] == [("end-to-end command", "failed")]
    assert not (out / "dispatch.patch").exists()
    assert result.verdict.endswith(
        "Dispatch code by n (2.45× as fast as the original) is not suggested: end-to-end command: ends with exit code 1 where it "
        "ended with exit code 0."
    )
    said = printed(result, capsys)
    assert "failed: end-to-end command, of the dispatch code (ends with exit code 1" in said
    assert "dispatch.patch" not in said


def test_dispatch_code_that_gains_too_little_is_no_suggestion(tmp_path, machine):
    """A predicted 1.13× was a patch, where less than 1.2× is none for one configuration."""
    with mock.patch.dict("engine.run.dispatch_confirmation.LEAST", {"measured": 2.5}):
        result, out = tuned(tmp_path, machine, "touch ran")
    assert result.dispatch is not None
    assert (result.dispatch.refused, result.dispatch.patch) == ("below the threshold of 2.5×", "")
    assert result.dispatch.guardrails == ()  # nobody waited for the command
    assert not (out / "dispatch.patch").exists()


def test_a_shape_has_values_of_its_own_where_they_gain_enough(tmp_path, machine):
    """Where speeds are predicted 1 % was enough, which no prediction can tell."""
    from engine.run.template_run import _GAIN

    assert _GAIN["predicted"] >= 1.2
    with mock.patch.dict(_GAIN, {"measured": 1.34}):  # the large shape's gain is 2 / 1.5
        result, _ = tuned(tmp_path, machine)
    assert [dict(s.values) for s in result.shapes] == [{"BLOCK": 64, "ITEMS": 1}] * 2
    assert result.dispatch is None
    assert "one configuration is the best for every shape" in result.notes[-1]


def test_nothing_is_suggested_where_the_command_fails_with_every_change(tmp_path, machine, capsys):
    """The verdict said that no point is faster."""
    result, out = tuned(tmp_path, machine, "grep -q 'BLOCK 256' saxpy.cu && grep -q 'ITEMS = 1;' saxpy.cu")
    assert result.best is None
    assert [r.evaluation.outcome for r in result.refused] == [Outcome.GUARDRAIL] * 3
    assert result.verdict.startswith(
        "No suggestion for saxpy: a version 2.12× as fast (95 % interval 2.10 to 2.14) fails the guardrail "
        "'end-to-end command': ends with exit code 1 where it ended with exit code 0"
    )
    assert result.dispatch is not None
    assert result.dispatch.patch == ""
    assert sorted(p.name for p in out.iterdir() if p.suffix == ".patch") == []
    said = printed(result, capsys)
    assert "Not confirmed: BLOCK = 64, ITEMS = 1: end-to-end command" in said
    assert "Patch:" not in said


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("__global__ void", 'extern "C" __global__ void', "linkage"),
        ("    int i = blockIdx", "    const int ITEMS = 1;\n    int i = blockIdx", "ITEMS"),
        (
            "(a, x, y, n);\n}",
            "(a, x, y, (int)n);\n}",
            "passes no variable whose value differs between the timing cases",
        ),
    ],
)
def test_dispatch_code_that_cannot_be_compiled_is_refused_before_the_search(tmp_path, machine, old, new, says):
    """The compiler's error came after the search, and took its result with it."""
    assert old in TEXT
    with pytest.raises(RefusedError, match=f"no dispatch code can be generated: .*{says}"):
        tuned(tmp_path, machine, text=TEXT.replace(old, new, 1))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("error", "why"), [(MachineError("the GPU is gone"), "the GPU is gone"), (KeyboardInterrupt(), "interrupted")]
)
def test_what_was_found_stays_whatever_becomes_of_the_dispatch_code(tmp_path, machine, error, why):
    with mock.patch("engine.run.dispatch_confirmation.generate", side_effect=error), pytest.raises(type(error)):
        tuned(tmp_path, machine)
    result = decode(TuneResult, json.loads((tmp_path / "out" / "result.json").read_text()))
    assert result.best is not None
    assert result.notes[-1] == f"no dispatch code: {why}"


def test_nothing_is_claimed_where_nothing_was_tried(tmp_path, machine, capsys):
    (tmp_path / "saxpy.cu").write_text(TEXT)
    options = TuneOptions(tmp_path / "saxpy.cu", budget=Budget(seconds=0.01), out=tmp_path / "out")
    result = tune(options, machine)
    assert result.verdict.startswith(
        "No point of the template was tried for saxpy: the budget was spent on enumerating the "
    )
    assert result.counts["configurations"] == 0
    assert result.shapes == ()  # it was a table of the original's times
    assert "is faster" not in printed(result, capsys)


def test_shapes_that_no_size_tells_apart_leave_the_table_on_the_screen(tmp_path, machine, capsys, monkeypatch):
    """Nothing was printed but the error, though the result held the table."""
    monkeypatch.setattr("engine.run.machine.make_machine", lambda **_: machine)
    monkeypatch.setattr(machine, "close", lambda: None)
    why = "the shapes of the dispatch table overlap"
    (tmp_path / "saxpy.cu").write_text(TEXT)
    arguments = ["tune", str(tmp_path / "saxpy.cu"), "--budget", "9", "--out", str(tmp_path / "out"), "--dispatch"]
    with mock.patch("engine.run.dispatch_confirmation.generate", side_effect=RefusedError(why)):
        assert cli.main(arguments) == 1
        shown = capsys.readouterr()
        assert cli.main([*arguments, "--format", "json"]) == 1
        told = capsys.readouterr()
    assert "The best for each shape" in shown.out
    assert f"Note: no dispatch code: {why}" in " ".join(shown.out.split())
    assert str(tmp_path / "out") in shown.out
    assert why in shown.err
    assert json.loads(told.out) == json.loads((tmp_path / "out" / "result.json").read_text())
    assert why in told.err


def test_comments_and_namespaces_are_no_hindrance(tmp_path, machine):
    """A comment at a line's end took the rest of the launch with it, and the spec named a kernel outside of its namespace."""
    text = TEXT.replace("// optiml: args.x", 'namespace ns {\n// optiml: kernel = "ns::saxpy"\n// optiml: args.x')
    text = text.replace("\nvoid run", "}  // ns\nvoid run").replace(
        "    saxpy<<<grid, BLOCK>>>", "    ns::saxpy<<<grid,  // blocks\n        BLOCK>>>"
    )
    result, out = tuned(tmp_path, machine, text=text)
    assert result.dispatch is not None
    assert result.dispatch.patch
    patch = (out / "dispatch.patch").read_text()
    assert '+// optiml: kernel = "ns::saxpy<64, 1>"\n' in patch
    assert "+        ns::saxpy<256, 4><<<grid, 256>>>(a, x, y, n);\n" in patch


@pytest.mark.parametrize(("strategy", "early"), [("exhaustive", True), ("random", True), ("model", False)])
def test_the_first_points_are_built_beside_the_originals_validation(tmp_path, machine, strategy, early):
    """The device waited for the first compiled point of every run. What depends on what is told first is asked for after that."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "saxpy.cu").write_text(TEXT)
    built: list[Program] = []

    class Slow(Evaluator):
        def open(self, original, ready=nothing):
            made = super().open(original, ready)
            ready()
            until = time.monotonic() + (10.0 if early else 0.5)
            while len(built) < 2 and time.monotonic() < until:
                time.sleep(0.01)
            seen.append(len(built))
            return made

        def build(self, program, *, by_rules=False):
            built.append(program)
            return super().build(program, by_rules=by_rules)

    def evaluator(spec, root, spec_path, **named):
        return Slow(spec, Builder(spec, root, machine.compiler, machine.target, spec_path))

    seen: list[int] = []
    options = TuneOptions(
        path=tmp_path / "saxpy.cu", strategy=strategy, budget=Budget(candidates=4), out=tmp_path / "out"
    )
    with mock.patch.object(machine, "evaluator", evaluator):
        result = tune(options, machine)
    assert (seen[0] >= 2) is early
    assert result.counts["configurations"] == 3  # the other point is the original
    assert len({program.digest for program in built}) <= 4


def test_of_points_that_the_search_takes_for_equal_the_one_that_wins_side_by_side_is_suggested(tmp_path, machine):
    """It was whichever had the luck: of 22 evaluations of a kernel 1 % slower than what it had evaluated itself."""
    asked: list[Built] = []

    class Close(Evaluator):
        def evaluate(self, built, incumbent, *, brief=False):
            return self.confirm(built), None if incumbent is None else 1.0  # alike, as far as it can tell

        def retime(self, built, incumbent):
            asked.append(built)
            return super().evaluate(built, incumbent)

        def _measured(self, built):
            found = super()._measured(built)
            ratio = 2.0 + found.ratio / 30  # 1 to 2 % apart, in the order of SPEEDS
            cases = tuple(replace(case, ratio=ratio, low=ratio - 0.01, high=ratio + 0.01) for case in found.cases)
            return replace(found, cases=cases, ratio=ratio, low=ratio - 0.01, high=ratio + 0.01)

    def evaluator(spec, root, spec_path, **named):
        return Close(spec, Builder(spec, root, machine.compiler, machine.target, spec_path))

    (tmp_path / ".git").mkdir()
    (tmp_path / "saxpy.cu").write_text(TEXT)
    for seed in range(4):
        options = TuneOptions(path=tmp_path / "saxpy.cu", strategy="random", seed=seed, out=tmp_path / f"out{seed}")
        with mock.patch.object(machine, "evaluator", evaluator):
            result = tune(options, machine)
        assert result.best is not None
        assert result.best.values == {"BLOCK": 64, "ITEMS": 1}
    assert asked
