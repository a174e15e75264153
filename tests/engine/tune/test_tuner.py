"""The tuner's loop on an evaluator whose answers are computed from the constants in the text."""

import math
import re
import threading
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from engine.compile.built import Built, NotBuilt
from engine.errors import RefusedError, UsageError
from engine.evaluate.evaluator import Signals
from engine.model import Binary, CaseTiming, Evaluation, Failure, LaunchConfig, Measurement, Outcome, Resources, Target
from engine.search.journal import Journal
from engine.search.participants import Builds
from engine.search.progress import ON_DEVICE, Budget
from engine.tune.feasible import feasible
from engine.tune.strategy import Listed, Start
from engine.tune.strategy_choice import choose
from engine.tune.tuner import Reports, TemplateSearch, Tuner

from .kernels import SAXPY, template

TEXT = SAXPY.replace("tune BLOCK = 64, 128, 256, 2048", "tune BLOCK = 64..1024 step 64").replace(
    "1, 2, 4\n", "1, 2, 4, 8\n"
)


def values(text):
    return int(re.search(r"BLOCK (\d+)", text)[1]), int(re.search(r"ITEMS = (\d+);", text)[1])


def speed(block, items):
    return 2 ** (-((math.log2(block * items) - 10) ** 2) / 4 + 0.1 * math.log2(items) + 0.5)


class Evaluator:
    """Follows the Evaluator protocol: a point in `wrong` fails, one in `heavy` uses all registers, ITEMS = 8 is ITEMS = 4."""

    def __init__(self, wrong=(), heavy=(), broken=(), slow=()):
        self.slow = set(slow)
        self.wrong, self.heavy, self.broken = set(wrong), set(heavy), set(broken)
        self.evaluated, self.retimed, self.built, self.lock = [], [], [], threading.Lock()

    @property
    def signals(self):
        return Signals("measured", {"name": "fake"})

    def open(self, original, ready=lambda: None):
        built = self.build(original)
        return built, self._evaluation(built)

    def build(self, program, *, by_rules=False):
        point = values(program.data.decode())
        with self.lock:
            self.built.append(point)
        if point in self.broken:
            raise NotBuilt("no", evaluation=Evaluation(Outcome.COMPILE_ERROR, failure=Failure("no such thing")))
        code = str((point[0], min(point[1], 4)))
        resources = (Resources(255 if point in self.heavy else 32, 0, 0, 0, 0),)
        launch = LaunchConfig((1, 1, 1), (point[0], 1, 1))
        return Built(program, code, ("k",), Binary(b"", "sm_90", ("k",), resources, code), ((launch,),))

    def _evaluation(self, built):
        block, items = eval_point(built)
        ratio = speed(block, items) / speed(256, 1)
        outcome = Outcome.ACCEPTED if ratio > 1 else Outcome.SLOWER if ratio < 1 else Outcome.NO_DIFFERENCE
        case = CaseTiming("n=1", 1.0, 100.0, 100.0 / ratio, ratio, ratio, ratio, 3)
        return Evaluation(
            outcome, Measurement((case,), ratio, ratio, ratio), None, built.binary.resources, built.binary.code_hash
        )

    def evaluate(self, built, incumbent, *, brief=False):
        point = eval_point(built)
        self.evaluated.append(point)
        if point in self.slow:
            return Evaluation(Outcome.TIMED_OUT, failure=Failure("did not finish in time")), None
        if point in self.wrong:
            return Evaluation(Outcome.WRONG_RESULT, failure=Failure("differs")), None
        mine = self._evaluation(built)
        return mine, speed(*point) / speed(*eval_point(incumbent)) if incumbent else None

    def retime(self, built, incumbent):
        self.retimed.append(eval_point(built))
        return self._evaluation(built), None

    def begin_confirming(self, build: object) -> None:
        """Nothing is begun ahead."""

    def confirm(self, built, *, any_speed=False):
        return self._evaluation(built)

    def close(self):
        pass


def eval_point(built):
    block, items = (int(n) for n in built.text.strip("()").split(","))
    return block, items


def run(tmp_path, evaluator, *, name="model", budget=30, resume=False, seed=0, text=TEXT, seconds=None, wrap=None):
    made = template(text)
    points = feasible(made, Target())
    strategy, _ = choose(name, Start(points.points, seed, budget))
    strategy = wrap(strategy) if wrap else strategy
    tmp_path.mkdir(exist_ok=True)
    journal = Journal(tmp_path / "journal.sqlite", made.original, {"kernel": "saxpy"}, resume=resume)
    try:
        with ThreadPoolExecutor(4) as executor:
            tuner = Tuner(
                made.original,
                TemplateSearch(made, points, strategy),
                evaluator,
                Target(),
                Builds(executor, in_flight=6),
                Reports(journal=journal),
            )
            tuner.start(*evaluator.open(made.original))
            tuner.run(Budget(seconds, budget))
    finally:
        journal.close()
    return tuner


@pytest.mark.parametrize("name", ["model", "random", "exhaustive"])
def test_the_best_point_is_found_and_the_budget_is_kept(tmp_path, name):
    evaluator = Evaluator()
    tuner = run(tmp_path, evaluator, name=name, budget=400)
    best = tuner.best(1)[0]
    reached = speed(best.point[0], min(best.point[1], 4))
    assert reached == max(speed(b, min(i, 4)) for b, i in tuner.feasible.points)
    assert tuner.progress.evaluated <= 400
    assert len(evaluator.evaluated) + len(evaluator.retimed) == tuner.evaluations
    assert tuner.trace[-1].ratio == pytest.approx(reached / speed(256, 1))
    assert [m.ratio for m in tuner.trace] == sorted(m.ratio for m in tuner.trace)


def test_the_number_of_configurations_is_exact(tmp_path):
    tuner = run(tmp_path, Evaluator(), budget=17)
    assert len(tuner.tried) == tuner.progress.evaluated == 17
    assert tuner.progress.stopped == "the budget is spent"


def test_equal_machine_code_is_timed_once(tmp_path):
    evaluator = Evaluator()
    tuner = run(tmp_path, evaluator, name="exhaustive", budget=400)
    duplicates = tuner.progress.outcomes[Outcome.DUPLICATE]
    assert duplicates == sum(1 for b, i in tuner.feasible.points if i == 8)
    assert len(set(evaluator.evaluated)) == len(evaluator.evaluated)
    assert tuner.evaluations + duplicates == len(tuner.tried)


def test_the_original_is_not_evaluated_again(tmp_path):
    evaluator = Evaluator()
    run(tmp_path, evaluator, name="exhaustive", budget=400)
    assert (256, 1) not in evaluator.evaluated


def test_a_template_that_does_not_reproduce_the_original_is_refused(tmp_path):
    everything = {(b, i) for b in range(64, 1025, 64) for i in (1, 2, 4, 8)}
    with pytest.raises(RefusedError, match=r"does not reproduce the original at BLOCK = \d+, ITEMS = \d: differs"):
        run(tmp_path, Evaluator(wrong=everything))


def test_one_wrong_point_later_is_a_failure_of_that_point_alone(tmp_path):
    best = (512, 4)
    tuner = run(tmp_path, Evaluator(wrong={best}), budget=60, seed=1)
    assert tuner.progress.outcomes[Outcome.WRONG_RESULT] == 1
    assert tuner.best(1)[0].point != best


def test_a_point_that_takes_too_long_says_nothing_against_the_template(tmp_path):
    slow = {(b, i) for b in range(64, 1025, 64) for i in (1, 2)} - {(512, 2)}
    tuner = run(tmp_path, Evaluator(slow=slow), name="exhaustive", budget=400)
    assert tuner.progress.outcomes[Outcome.TIMED_OUT] > 3
    assert tuner.best(1)[0].point not in slow
    assert len(tuner.checked) == 3
    assert not set(tuner.checked) & slow


def test_a_template_without_a_point_that_compiles_is_refused(tmp_path):
    everything = {(b, i) for b in range(64, 1025, 64) for i in (1, 2, 4, 8)} - {(256, 1)}
    with pytest.raises(RefusedError, match=r"no point of the template could be built and run; .* no such thing"):
        run(tmp_path, Evaluator(broken=everything))


def test_registers_times_threads_keep_a_point_off_the_device(tmp_path):
    heavy = {(b, i) for b in range(320, 1025, 64) for i in (4, 8)}  # the same machine code
    evaluator = Evaluator(heavy=heavy)
    tuner = run(tmp_path, evaluator, name="exhaustive", budget=400)
    assert not heavy & set(evaluator.evaluated)
    assert tuner.impossible == {"registers * threads <= 65536": len(heavy & set(tuner.feasible.points))}


def test_a_run_goes_on_where_it_was(tmp_path):
    first = run(tmp_path, Evaluator(), budget=20)
    evaluator = Evaluator()
    second = run(tmp_path, evaluator, budget=40, resume=True)
    assert len(second.tried) == 40
    assert not {t.point for t in first.tried} & set(evaluator.evaluated)
    assert (second.best(1)[0].value or 0) >= (first.best(1)[0].value or 0)
    assert second.evaluations == first.evaluations + len(evaluator.evaluated)


def test_a_run_of_another_source_is_not_resumed(tmp_path):
    run(tmp_path, Evaluator(), budget=5)
    with pytest.raises(UsageError, match="cannot be resumed"):
        run(tmp_path, Evaluator(), budget=9, resume=True, text=TEXT.replace("y = a * x", "y += a * x", 1))


def test_an_interrupt_leaves_everything_booked(tmp_path):
    class Interrupted(Evaluator):
        def evaluate(self, built, incumbent, *, brief=False):
            if len(self.evaluated) == 7:
                raise KeyboardInterrupt
            return super().evaluate(built, incumbent, brief=brief)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Interrupted(), budget=30)
    evaluator = Evaluator()
    assert len(run(tmp_path, evaluator, budget=30, resume=True).tried) == 30
    assert len(evaluator.evaluated) <= 23


def test_a_run_that_was_interrupted_before_its_first_point_goes_on(tmp_path):
    """The original was booked a second time: "the journal cannot be written: UNIQUE constraint failed"."""

    class Interrupted(Evaluator):
        def evaluate(self, built, incumbent, *, brief=False):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Interrupted(), budget=5)
    second = run(tmp_path, Evaluator(), budget=5, resume=True)
    assert [t.id for t in second.tried] == [1, 2, 3, 4, 5]


def test_points_compiled_ahead_are_described_before_they_are_chosen(tmp_path):
    evaluator = Evaluator()
    seen = {}

    class Watched:
        name, patient = "watched", True

        def __init__(self, strategy):
            self.inner, self.told = strategy, set()

        def ask(self, count):
            return self.inner.ask(count)

        def tell(self, trial, value):
            self.told.add(trial)
            self.inner.tell(trial, value)

        def describe(self, point, features):
            if "registers" in features:
                seen.setdefault(point, point in self.told)
                assert features["registers"] == 32
                assert features["occupancy"] > 0

    tuner = run(tmp_path, evaluator, budget=12, wrap=Watched)
    decided = {t.point for t in tuner.tried}
    assert decided <= set(seen)
    assert not any(seen.values())  # none only after it had been evaluated
    assert len(seen) > len(decided)  # and some that were never evaluated


def test_a_point_that_cannot_run_is_ruled_out_as_soon_as_it_is_compiled(tmp_path):
    heavy = {(b, i) for b in range(320, 1025, 64) for i in (2, 4, 8)}
    tuner = run(tmp_path, Evaluator(heavy=heavy), name="model", budget=12)
    assert len(tuner.tried) == 12
    assert not heavy & {t.point for t in tuner.tried}
    assert tuner.impossible["registers * threads <= 65536"] > 0


class Late(Evaluator):
    """Compiles the most wanted points last."""

    def build(self, program, *, by_rules=False):
        point = values(program.data.decode())
        if point in ((256, 1), (512, 2)):
            time.sleep(0.15)
        return super().build(program, by_rules=by_rules)


def test_the_most_wanted_point_is_waited_for_where_evaluations_are_what_is_limited(tmp_path):
    class Wants(Listed):
        patient = True

        def __init__(self, strategy):
            self.name = "wants"
            self._left = dict.fromkeys([(512, 1), (576, 1), (640, 1), (512, 2), (704, 1), (768, 1)])

    by_count, by_time = Late(), Late()
    run(tmp_path, by_count, budget=5, wrap=Wants)
    assert by_count.evaluated[3] == (512, 2)
    run(tmp_path / "timed", by_time, budget=5, wrap=Wants, seconds=60)
    assert by_time.evaluated[3] != (512, 2)


@pytest.mark.parametrize("name", ["exhaustive", "model"])
def test_a_template_is_tested_where_chance_says_and_not_where_the_compiler_is_fastest(tmp_path, name):
    """Points that compile slowly, the large ones, were left out of the test under a time limit."""
    plain = Evaluator()
    run(tmp_path, plain, name=name, budget=9)

    class Slow(Evaluator):
        def build(self, program, *, by_rules=False):
            time.sleep(0.15 if values(program.data.decode()) == plain.evaluated[0] else 0)
            return super().build(program, by_rules=by_rules)

    slow = Slow()
    run(tmp_path / "timed", slow, name=name, budget=9, seconds=60)
    assert slow.evaluated[:3] == plain.evaluated[:3]


@pytest.mark.parametrize(("seconds", "learns"), [(None, True), (60, True), (None, False)])
def test_the_next_points_are_chosen_beside_an_evaluation_unless_it_has_to_tell_what_it_can(tmp_path, seconds, learns):
    """The device stood idle meanwhile, and between two of them. Where evaluations are counted and one tells what to try next, it
    is told before the next choice."""
    beside = seconds is not None or not learns
    asked, told, met = [], [], []

    class Noting(Evaluator):
        def evaluate(self, built, incumbent, *, brief=False):
            until = time.monotonic() + (10 if beside and len(self.evaluated) < 3 else 0)
            while len(asked) < len(told) + 1 + ON_DEVICE["measured"] and time.monotonic() < until:
                time.sleep(0.001)
            met.append(len(asked) - len(told))
            return super().evaluate(built, incumbent, brief=brief)

    class Watched(Listed):
        patient = learns

        def __init__(self, strategy):
            super().__init__("exhaustive", Start(tuple(strategy._left), 0, None))

        def ask(self, count):
            asked.append(count)
            return super().ask(count)

        def tell(self, trial, value):
            if asked:  # of the original it is told before
                told.append(trial)
            super().tell(trial, value)

    tuner = run(tmp_path, Noting(), name="exhaustive", budget=6, wrap=Watched, seconds=seconds)
    assert len(tuner.tried) == len({t.point for t in tuner.tried}) == 6
    assert set(met[:3]) == {1 + ON_DEVICE["measured"] if beside else 1}  # one there, others wait for it, one is chosen


def test_a_template_is_left_with_nothing_on_the_device(tmp_path):
    """The search around it went on with another candidate while a point of the refused template still ran."""
    plain = Evaluator()
    run(tmp_path, plain, name="exhaustive", budget=1)
    every = {(block, items) for block in range(64, 1025, 64) for items in (1, 2, 4, 8)}
    ran = []

    class Slow(Evaluator):
        def evaluate(self, built, incumbent, *, brief=False):
            time.sleep(0.3)
            ran.append(eval_point(built))
            return Evaluation(Outcome.TIMED_OUT, failure=Failure("slow")), None

    slow = Slow(broken=every - {plain.evaluated[0], (256, 1)})
    with pytest.raises(RefusedError, match="no point of the template could be built"):
        run(tmp_path / "refused", slow, name="exhaustive", seconds=60)
    assert ran == plain.evaluated[:1]


def test_points_that_turn_out_to_be_known_are_booked_together(tmp_path):
    """A choice was made anew after each, with nothing on the device meanwhile."""
    asked = []

    class Same(Evaluator):
        def build(self, program, *, by_rules=False):
            built = super().build(program, by_rules=by_rules)
            return replace(built, binary=replace(built.binary, code_hash="the same"))

    class Watched(Listed):
        def __init__(self, strategy):
            super().__init__("exhaustive", Start(tuple(strategy._left), 0, None))

        def ask(self, count):
            asked.append(count)
            time.sleep(0.01)  # what was asked for before is built meanwhile
            return super().ask(count)

    tuner = run(tmp_path, Same(), name="exhaustive", budget=40, wrap=Watched, seconds=60)
    known = tuner.progress.outcomes[Outcome.DUPLICATE]
    assert known > 20
    assert len(asked) < len(tuner.tried) - known / 2


def test_what_is_built_and_waits_is_not_asked_for_again_at_each_choice():
    """Hundreds wait where a device is slow: to ask each of them, with its lock, took the thread that feeds four devices 3 ms of 4."""
    asked = []

    class Counted(Future):
        def done(self):
            asked.append(self)
            return super().done()

    class Now(Executor):
        def submit(self, fn, /, *args):
            future = Counted()
            future.set_result(fn(*args))
            return future

    class Slow(Evaluator):
        def evaluate(self, built, incumbent, *, brief=False):
            time.sleep(0.002)
            return super().evaluate(built, incumbent, brief=brief)

    made, evaluator = template(TEXT), Slow()
    points = feasible(made, Target())
    search = TemplateSearch(made, points, Listed("random", Start(points.points, 0, None)))
    tuner = Tuner(made.original, search, evaluator, Target(), Builds(Now(), in_flight=len(points.points)))
    tuner.start(*evaluator.open(made.original))
    tuner.run(Budget(seconds=60))
    assert tuner.progress.evaluated == len(points.points) - 1  # one of them is the original
    assert len(asked) < 12 * len(points.points)
