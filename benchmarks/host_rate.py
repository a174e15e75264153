"""What the search's host takes for a candidate, without a GPU: reading a program, and feeding simulated devices from one template.

    python benchmarks/host_rate.py [--devices 1,4] [--seconds 8] [--read 8] [FILE ...]

For each FILE (default: the matrix product of benchmarks/tuning, `gemm_bias_relu` and `conv2d` of the suite) two rows. `read`: seconds of
a core to ask all rules and templates about a program one edit away from the original, the mean over the first so many. `feed`: points a
second that the tuner's loop hands to so many devices whose evaluations take 20 ms, out of the file's largest template, and milliseconds
of a core that the loop's thread takes for each. Machine code and times are drawn from the program's text; nothing is compiled. Other
programs on the machine change the rates; compare versions in one go. Exit code 0.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from engine.compile.built import Built  # noqa: E402 - the path above makes it importable as a script
from engine.cuda.edit import edit_program  # noqa: E402
from engine.cuda.load import load_program, repository_root  # noqa: E402
from engine.evaluate.analysis import Analysis  # noqa: E402
from engine.evaluate.devices import Answer, Job  # noqa: E402
from engine.evaluate.evaluator import Signals  # noqa: E402
from engine.model import (  # noqa: E402
    Binary,
    CaseTiming,
    Evaluation,
    LaunchConfig,
    Measurement,
    Outcome,
    Program,
    Resources,
)
from engine.predict.targets import target_for  # noqa: E402
from engine.search.participants import Builds  # noqa: E402
from engine.search.progress import SPARE, Budget  # noqa: E402
from engine.spec.find import find_spec  # noqa: E402
from engine.tune.offers import Offer, offers  # noqa: E402
from engine.tune.strategy import Start  # noqa: E402
from engine.tune.strategy_choice import choose  # noqa: E402
from engine.tune.tuner import TemplateSearch, Tuner  # noqa: E402

_DEFAULT = ("benchmarks/tuning/gemm.cu", "benchmarks/suite/gemm_bias_relu.cu", "benchmarks/suite/conv2d.cu")
_EVALUATION_S = 0.02
_THREADS = 4  # that build: each takes as long as writing the point's text
_TARGET = target_for("sm_90")


class Drawn:
    """Machine code and speed of a program, drawn from its text."""

    signals = Signals("measured", {"name": "simulated"})

    def build(self, program: Program, *, by_rules: bool = False) -> Built:
        draw = random.Random(program.digest)
        used = Resources(draw.randrange(32, 128), draw.randrange(40_000), 0, 0, 0)
        launch = LaunchConfig((128, 1, 1), (draw.choice((64, 128, 256)), 1, 1))
        return Built(
            program, "", ("k",), Binary(b"", "sm_90", ("k",), (used,), program.digest), ((launch,),), by_rules=by_rules
        )

    def evaluation(self, built: Built) -> Evaluation:
        ratio = 0.5 + random.Random(built.binary.code_hash).random()
        case = CaseTiming("", 1.0, 100.0, 100.0 / ratio, ratio, ratio, ratio, 3)
        outcome = Outcome.ACCEPTED if ratio > 1 else Outcome.SLOWER
        return Evaluation(outcome, Measurement((case,), ratio, ratio, ratio), None, built.binary.resources)


class Simulated:
    """Devices that take their time, each on a thread of its own."""

    def __init__(self, count: int, drawn: Drawn) -> None:
        self.count, self._drawn = count, drawn
        self._threads = [ThreadPoolExecutor(1) for _ in range(count)]
        self._waiting = [0] * count

    def submit(self, job: Job) -> Future[Answer]:
        at = min(range(self.count), key=lambda i: self._waiting[i])
        self._waiting[at] += 1
        return self._threads[at].submit(self._answer, at, job)

    def _answer(self, at: int, job: Job) -> Answer:
        time.sleep(_EVALUATION_S)
        self._waiting[at] -= 1
        found = self._drawn.evaluation(job.built)
        assert found.measurement is not None
        return found, None if job.incumbent is None else found.measurement.ratio

    def stop(self) -> None:
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Host time of a candidate, without a GPU.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=f"kernels (default: {', '.join(_DEFAULT)})")
    parser.add_argument("--devices", default="1,4", help="simulated devices (default: 1,4)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each feed (default: 8)")
    parser.add_argument("--read", type=int, default=8, help="programs to read (default: 8)")
    options = parser.parse_args(given)
    for file in options.files or [ROOT / name for name in _DEFAULT]:
        root = repository_root(file)
        spec, spec_path = find_spec(root, file, None)
        program = load_program(file, spec_file=spec_path, kernels=[step.kernel for step in spec.steps])
        analysis = Analysis(spec, root, _TARGET, spec_path)
        found, _ = analysis.propose(program)
        templates = offers(program, spec, spec_path, _TARGET)  # both once before anything is timed
        begin = time.process_time()
        read = [edit_program(program, proposal.edits) for proposal in found[: options.read]]
        for one in read:
            analysis.propose(one)
            offers(one, spec, spec_path, _TARGET)
        if read:
            print(f"{file.stem}: read {1e3 * (time.process_time() - begin) / len(read):.0f} ms of a core", flush=True)
        if templates:
            largest = max(templates, key=lambda offer: len(offer.points.points))
            for count in map(int, options.devices.split(",")):
                print(f"{file.stem}: {feed(program, largest, count, options.seconds)}", flush=True)
    return 0


def feed(program: Program, offer: Offer, count: int, seconds: float) -> str:
    """What comes of feeding so many devices for so long, in words."""
    drawn = Drawn()
    points = offer.points.points
    search = TemplateSearch(offer.template, offer.points, choose(None, Start(points, 0, None))[0])
    with ThreadPoolExecutor(_THREADS) as executor:
        builds = Builds(executor, in_flight=16 + SPARE + count - 1)
        tuner = Tuner(program, search, drawn, _TARGET, builds)  # type: ignore[arg-type]  # it evaluates on the devices alone
        original = drawn.build(program)
        tuner.start(original, drawn.evaluation(original))
        begin, used = time.monotonic(), time.thread_time()
        tuner.run(Budget(seconds=seconds), Simulated(count, drawn))
        took_s, used_s = time.monotonic() - begin, time.thread_time() - used
    tried = max(1, tuner.progress.evaluated)
    return f"feed {count} of {len(points)} points: {tried / took_s:.1f} a second, {1e3 * used_s / tried:.1f} ms of a core each"


if __name__ == "__main__":
    sys.exit(main())
