"""How soon each strategy of the tuner finds a fast point, on simulated kernels: without a GPU, in a minute.

    python benchmarks/tuner_landscapes.py [--seeds 24] [--strategies model,random] [--cache FILE]... [--record FILE]

The spaces are those of benchmarks/tuning (SAXPY, transpose, row sum, matrix product, convolution) with their real launches, and one of a
fused product with stages and a bound on registers. The time of a point is computed from what bounds such kernels on an H200:
bytes, instructions, bank conflicts, loads in flight by occupancy, idle multiprocessors in the last wave; registers and shared memory by
formulas near what the compiler says of these kernels. So there are the cliffs of real spaces: a register more and a block fewer
resides, a bound on registers and code spills. Constants of the formulas are drawn anew for each seed, each point is off by half a
per cent that no figure explains, and a look at a point has one per cent of noise (what comes near the best so far is timed
closely: 0.3 per cent).

A strategy gets a tenth of the points, but at most `--most` (Kernel Tuner goes through 600 points of these spaces in its time). It
is told what the compiler says as in the tuner: of points that were asked for and compiled ahead, `--ahead` for each that is timed.
For each strategy: the share of the speed of the best of all points that is reached (mean, and the worst tenth of seeds), how often it
is within 1 and 2 per cent of it, and the median number of evaluations until it was within 2 per cent (of the runs that came there).
With `--cache` the times are not simulated: it takes a file of Kernel Tuner in which every point of a space was timed on a GPU (such as
https://github.com/AutoTuningAssociation/benchmark_hub publishes, plain or compressed by gzip), and nothing but the parameters is known.
The simulation shows how strategies compare; that the default suffices on a GPU is for benchmarks/peer_kernel_tuner.py to show.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from engine.cuda.load import load_program  # noqa: E402
from engine.errors import UsageError  # noqa: E402
from engine.model import LaunchConfig, Resources  # noqa: E402
from engine.predict.occupancy import Occupancy, occupancy  # noqa: E402
from engine.predict.targets import TargetParameters, figures_for  # noqa: E402
from engine.spec.find import find_spec  # noqa: E402
from engine.tune.declare import declared  # noqa: E402
from engine.tune.feasible import feasible, fits  # noqa: E402
from engine.tune.point_features import of_code, of_launch  # noqa: E402
from engine.tune.space import Condition, ParameterSpace, Point, TuneParameter  # noqa: E402
from engine.tune.strategy import Start  # noqa: E402
from engine.tune.strategy_choice import choose  # noqa: E402

STRATEGIES = ("model", "random")
SHARE, MOST = 0.1, 60
AHEAD = 3  # points compiled for each that is timed: 16 cores do some 50 a second
_NEAR = 0.995  # of the best so far: as in the evaluation on a GPU
_OFF, _LOOK, _DUEL = 0.005, 0.01, 0.003  # deviations, as shares of the time
_FAILED_MS = 1e8  # older files hold 1e20 for what failed
_H200 = figures_for("sm_90")

Values = Mapping[str, int]
Timer = Callable[[Values, LaunchConfig, Mapping[str, float]], tuple[float, Resources]]


@dataclass(frozen=True)
class Landscape:
    """Every point of a space with its true time, and what a tuner would know of it."""

    points: tuple[Point, ...]
    time_us: Mapping[Point, float]
    launched: Mapping[Point, Mapping[str, float]]
    compiled: Mapping[Point, Mapping[str, float]]
    impossible: frozenset[Point]  # found only by compiling

    @property
    def best_us(self) -> float:
        return min(self.time_us.values())


# ---- the kernels


def _norm(*terms: float) -> float:
    """Terms that overlap for the most part."""
    return math.pow(sum(t**3 for t in terms), 1 / 3)


def _resident(used: Resources, launch: LaunchConfig) -> Occupancy:
    found = occupancy(used, launch, _H200)
    return found if found.blocks else Occupancy(1, 1, 1 / 64, "registers", launch.blocks / 132, 1.0)


def _tail(found: Occupancy) -> float:
    return 1 + 0.5 * (math.ceil(found.waves) / found.waves - 1) if found.waves > 1 else 1.0


def _streamed_us(moved: float, found: Occupancy, bytes_per_thread: float, need: float) -> float:
    """Time for bytes from DRAM: by Little's law, what is in flight on all multiprocessors over the latency, up to the bandwidth."""
    flight = found.warps * 32 * bytes_per_thread / (need * 1024)
    return moved / _H200.dram_bytes_s * 1e6 * math.pow(1 + flight**-3, 1 / 3)


def _saxpy(v: Values, launch: LaunchConfig, c: Mapping[str, float]) -> tuple[float, Resources]:
    moved = v["WIDTH"] * min(v["ITEMS"], 3)
    used = Resources(10 + 2 * moved, 0, 0, 0, 0)
    found = _resident(used, launch)
    spread = 1.0 if v["STRIDED"] or v["ITEMS"] == 1 else 1 + c["spread"] * math.log2(v["ITEMS"] * v["WIDTH"])
    memory = _streamed_us(3 * 4 * 2.0**24, found, 8.0 * moved, 24 * c["need"]) * spread
    starts = launch.blocks / 132 * 0.05 * c["start"]
    return _norm(memory * _tail(found), starts), used


def _transpose(v: Values, launch: LaunchConfig, c: Mapping[str, float]) -> tuple[float, Resources]:
    edge, rows = v["EDGE"], v["ROWS"]
    used = Resources(32 if edge // rows > 4 else 26, 4 * edge * (edge + v["PAD"]) if v["STAGED"] else 0, 0, 0, 0)
    found = _resident(used, launch)
    each = edge // rows
    memory = _streamed_us(2 * 4 * 2.0**26, found, 4.0 * min(each, 8) * (0.7 if v["STAGED"] else 1.0), 22 * c["need"])
    if v["STAGED"]:
        lanes = min(32, edge)
        conflicts = min(lanes, math.gcd(edge + v["PAD"], 32))
        shared = 2.0**26 / 32 * (1 + conflicts) / 132 / _H200.clock_hz * 1e6
        sectors = 1.0 if edge >= 32 else 1 + c["spread"] if edge == 16 else 1.3 + c["spread"]
    else:
        shared, sectors = 0.0, 2.0 + 12 * c["spread"] * (1 if edge >= 32 else 0.6)
    barrier = launch.blocks * v["SWEEP"] * 0.35 * c["start"] / 132 / found.blocks if v["STAGED"] else 0.0
    starts = launch.blocks / 132 * 0.06
    return _norm(memory * sectors * _tail(found), shared, barrier, starts), used


def _row_sum(v: Values, launch: LaunchConfig, c: Mapping[str, float]) -> tuple[float, Resources]:
    team, width, unroll = v["TEAM"], v["WIDTH"], v["UNROLL"]
    trips = 4096 / (team * width)
    used = Resources(24 + 2 * width + (4 if unroll > 2 else 0), 4 * v["ROWS"] * team // 32, 0, 0, 0)
    found = _resident(used, launch)
    memory = _streamed_us(4 * 2.0**26, found, 4.0 * width * min(unroll, max(1, trips)), 26 * c["need"])
    teams = found.warps * 132 * 32 / team
    chain = 16384 / teams * (0.5 + 0.12 * c["start"] + 0.02 * team / 32) + 16384 / teams * max(trips / unroll, 1) * 0.05
    issue = 2.0**26 / 32 / width * (3 + 6 / unroll) / 4 / 132 / _H200.clock_hz * 1e6
    return _norm(memory * _tail(found), chain, issue, launch.blocks / 132 * 0.06), used


def _gemm(v: Values, launch: LaunchConfig, c: Mapping[str, float]) -> tuple[float, Resources]:
    tx, ty, bx, by, step = v["TILE_X"], v["TILE_Y"], v["BLOCK_X"], v["BLOCK_Y"], v["STEP"]
    registers = 8 * math.ceil(max(40.0, 22 + 1.15 * tx * ty + tx + ty + 1.5 * math.log2(v["UNROLL"])) / 8)
    used = Resources(registers, 4 * (by * ty * (step + 1) + step * bx * tx), 0, 0, 0)
    found = _resident(used, launch)
    total = 2048.0**3 / 32  # multiply-adds by warps
    issue = total * (1 + (tx + ty + 3 / v["UNROLL"]) / (tx * ty)) / 4
    ports = total * (tx * c["conflict"] + ty) / (tx * ty)
    hidden = min(1.0, found.warps / 4 * (0.25 + 0.12 * tx * ty) / (7 * c["need"]))
    compute = _norm(issue, ports) / 132 / _H200.clock_hz * 1e6 / hidden**0.7
    wide = min(1.0, bx * tx / 8) * min(1.0, step / 8 / c["spread"] / 8 + 0.5)
    fetched = 4 * 2048.0**3 * (1 / (bx * tx) + 1 / (by * ty)) / _H200.l2_bytes_s * 1e6 / wide
    waits = (
        launch.blocks / (132 * found.blocks) * (2048 / step) * (0.7 + 0.1 * c["start"]) / (1 + 0.6 * (found.blocks - 1))
    )
    return _norm(compute * _tail(found), fetched, waits), used


def _convolution(v: Values, launch: LaunchConfig, c: Mapping[str, float]) -> tuple[float, Resources]:
    tx, ty, bx, by = v["TILE_X"], v["TILE_Y"], v["BLOCK_X"], v["BLOCK_Y"]
    width, height = bx * tx + 14, by * ty + 14
    registers = 32 if v["SHARED"] or tx * ty < 4 else 8 * math.ceil((30 + 2.1 * tx * ty) / 8)
    used = Resources(registers, 4 * (width + v["PAD"]) * height if v["SHARED"] else 0, 0, 0, 0)
    found = _resident(used, launch)
    total = launch.blocks * bx * by * tx * ty * 225 / 32
    issue = total * (2 + 1.5 / (tx * ty)) / 4
    rows = max(1, 32 // bx)
    if v["SHARED"]:
        apart = (width + v["PAD"]) % 32
        conflicts = 1.0 if rows == 1 and bx % 32 == 0 else 1 + (c["conflict"] if abs(apart - 16) > 4 else 0.3)
        ports = total * conflicts
        stage = launch.blocks * width * height / 32 * 6 / 4
    else:
        ports, stage = total * (1.25 + 0.4 * (bx % 32 > 0) + 0.15 * c["conflict"]), 0.0
    hidden = min(1.0, found.warps * (0.5 + 0.25 * math.sqrt(tx * ty)) / (26 * c["need"]))
    compute = (_norm(issue, ports) + stage) / 132 / _H200.clock_hz * 1e6 / hidden
    waits = launch.blocks / (132 * found.blocks) * (1.2 * c["start"] if v["SHARED"] else 0.3)
    return _norm(compute * _tail(found), waits), used


_FUSED = ParameterSpace(
    (
        TuneParameter("ROWS", (32, 64, 96, 128, 192, 256)),
        TuneParameter("COLUMNS", (32, 64, 128)),
        TuneParameter("WARPS", (4, 8, 12, 16)),
        TuneParameter("STAGES", (1, 2, 3, 4)),
        TuneParameter("BOUND", (1, 2, 3, 4)),  # blocks of __launch_bounds__
    ),
    (Condition("ROWS * COLUMNS <= 2048 * WARPS"), Condition("STAGES * COLUMNS * 512 + ROWS * 256 <= 227 * 1024")),
)


def _fused(v: Values, launch: LaunchConfig, c: Mapping[str, float]) -> tuple[float, Resources]:
    threads = 32 * v["WARPS"]
    wanted = 36 + 2.0 * v["ROWS"] * v["COLUMNS"] / threads + 8 * v["STAGES"]
    bound = min(255, 65536 // (threads * v["BOUND"]) // 8 * 8)
    spilled = 4 * max(0, math.ceil(wanted) - bound)
    used = Resources(int(min(bound, 8 * math.ceil(wanted / 8))), 0, 0, spilled, 2 * spilled)
    found = _resident(used, launch)
    tile = v["ROWS"] * v["COLUMNS"] / threads
    total = 2.0**34 / 32
    issue = total * (1 + 6 / math.sqrt(tile) / 4 + c["spread"] * spilled / 12) / 4
    ports = total * 2.2 * c["conflict"] / math.sqrt(tile)
    hidden = min(1.0, found.warps / 4 * (1 + 0.05 * tile) * (1 + 0.35 * math.log2(v["STAGES"])) / (9 * c["need"]))
    compute = _norm(issue, ports) / 132 / _H200.clock_hz * 1e6 / hidden**0.8
    fetched = 4 * 2.0**34 / 128 * (1 / v["ROWS"] + 0.002) / _H200.l2_bytes_s * 1e8
    return _norm(compute * _tail(found), fetched), used


def _fused_launch(v: Values) -> LaunchConfig:
    shared = v["STAGES"] * v["COLUMNS"] * 512 + v["ROWS"] * 256
    return LaunchConfig((-(-8192 // v["ROWS"]), 16, 1), (32 * v["WARPS"], 1, 1), shared)


KERNELS: Mapping[str, Timer] = {
    "saxpy": _saxpy, "transpose": _transpose, "row_sum": _row_sum, "gemm": _gemm, "convolution": _convolution, "fused": _fused,
}  # fmt: skip


@cache
def _space(kernel: str) -> tuple[tuple[str, ...], tuple[tuple[Point, LaunchConfig], ...]]:
    """The names of a kernel's parameters, and its feasible points with their launches."""
    if kernel == "fused":
        points, _ = _FUSED.points()
        return _FUSED.names, tuple((p, _fused_launch(_FUSED.named(p))) for p in points)
    path = ROOT / "benchmarks" / "tuning" / f"{kernel}.cu"
    spec, spec_path = find_spec(ROOT, path, None)
    program = load_program(path, spec_file=spec_path, kernels=[s.kernel for s in spec.steps])
    template = declared(program, spec, spec_path)
    assert template is not None
    launches: list[tuple[Point, LaunchConfig]] = []
    for point in feasible(template, _H200.target).points:
        found = template.figures(point).launches
        assert found
        launches.append((point, found[-1][0]))
    return template.space.names, tuple(launches)


def landscape(kernel: str, seed: int, figures: TargetParameters = _H200) -> Landscape:
    """A kernel's space with constants drawn by the seed; the same for the same seed."""
    drawn = np.random.default_rng([seed, list(KERNELS).index(kernel)])
    constants = {
        "need": float(drawn.uniform(0.7, 1.4)), "spread": float(drawn.uniform(0.05, 0.25)),
        "start": float(drawn.uniform(0.5, 2.0)), "conflict": float(drawn.uniform(1.0, 1.5)),
    }  # fmt: skip
    names, launches = _space(kernel)
    times: dict[Point, float] = {}
    compiled: dict[Point, Mapping[str, float]] = {}
    impossible = set()
    for point, launch in launches:
        time_us, used = KERNELS[kernel](dict(zip(names, point, strict=True)), launch, constants)
        off = float(drawn.normal(0.0, _OFF))
        if fits((used,), ((launch,),), figures.target):
            impossible.add(point)
            continue
        times[point] = (time_us + 2.0) * math.exp(off)
        compiled[point] = of_code(used, launch, figures)
    return Landscape(
        tuple(p for p, _ in launches), times, {p: of_launch(x) for p, x in launches}, compiled, frozenset(impossible)
    )


def recorded(path: Path) -> Landscape:
    """The space of a cache file of Kernel Tuner, with the times that it holds. Raises UsageError where it is none."""
    try:
        raw = path.read_bytes()
        found = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        names = [n for n, values in found["tune_params"].items() if len(values) > 1]
        times: dict[Point, float] = {}
        for row in found["cache"].values():
            time_ms = row["time"]
            ran = isinstance(time_ms, int | float) and 0 < time_ms < _FAILED_MS
            times[tuple(int(row[n]) for n in names)] = float(time_ms) * 1000 if ran else math.inf
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"no cache file of Kernel Tuner: {error!r}"[:200], str(path)) from None
    points = tuple(sorted(times))
    ran_us = {p: t for p, t in times.items() if math.isfinite(t)}
    if not ran_us:
        raise UsageError("no point of it ran", str(path))
    nothing: Mapping[str, float] = {}
    return Landscape(
        points,
        ran_us,
        dict.fromkeys(points, nothing),
        dict.fromkeys(ran_us, nothing),
        frozenset(set(points) - set(ran_us)),
    )


# ---- the runs


def search(where: Landscape, name: str, seed: int, limit: int, ahead: int = AHEAD) -> list[float]:
    """The share of the best point's speed that the incumbent has, after each evaluation."""
    strategy, _ = choose(name, Start(where.points, seed, limit))
    noise = np.random.default_rng([seed, 7])
    start = next(p for p in where.points if p in where.time_us)  # stands for the original
    for point in where.points:
        strategy.describe(point, where.launched[point])
    strategy.tell(start, 0.0)
    compiled: set[Point] = set()
    held: Point | None = None
    shares: list[float] = []
    while len(shares) < limit:
        points = strategy.ask(8 * ahead)
        fresh = [p for p in points if p not in compiled][:ahead]
        if points and points[0] not in compiled:
            fresh = list(dict.fromkeys((points[0], *fresh)))
        for point in fresh:
            compiled.add(point)
            if point in where.compiled:
                strategy.describe(point, where.compiled[point])
        points = [p for p in strategy.ask(8 * ahead) if p in compiled]
        if not points:
            break
        point = points[0]
        if point in where.impossible:
            strategy.tell(point, None)
            continue
        time_us = where.time_us[point]
        off = float(noise.normal(0, _LOOK))
        beside = math.inf if held is None else where.time_us[held] / time_us
        if beside * math.exp(off) >= _NEAR:  # what comes near the best is timed closely, and that is what counts
            off = float(noise.normal(0, _DUEL))
        strategy.tell(point, math.log2(where.time_us[start] / time_us * math.exp(off)))
        if beside * math.exp(off) > 1.003:
            held = point
        assert held is not None
        shares.append(where.best_us / where.time_us[held])
    return shares


def measure(
    spaces: Mapping[str, Sequence[Landscape]], strategies: Sequence[str], most: int, ahead: int
) -> dict[str, Any]:
    """By space, then by strategy; each space has a landscape for each seed. See the module's docstring."""
    rows: dict[str, Any] = {}
    for kernel, grounds in spaces.items():
        limit = min(most, math.floor(SHARE * len(grounds[0].points)))
        found: dict[str, Any] = {}
        for name in strategies:
            runs = [search(ground, name, seed, limit, ahead) for seed, ground in enumerate(grounds)]
            last = sorted(run[-1] for run in runs)
            reached = [n for run in runs if (n := next((i for i, s in enumerate(run, 1) if s >= 0.98), None))]
            found[name] = {
                "share": statistics.mean(last),
                "share_worst_tenth": statistics.mean(last[: max(1, len(last) // 10)]),
                "within_1_percent": sum(s >= 0.99 for s in last) / len(last),
                "within_2_percent": sum(s >= 0.98 for s in last) / len(last),
                "evaluations_to_2_percent": statistics.median(reached) if reached else None,
                "shares": [round(run[-1], 4) for run in runs],
            }
        rows[kernel] = {"points": len(grounds[0].points), "evaluations": limit, "strategies": found}
    return rows


def render(rows: Mapping[str, Any]) -> str:
    """A Markdown table."""
    lines = [
        "| space | points | evaluations | strategy | share of the best | worst tenth | within 1 % | within 2 % | evaluations to 2 % |",
        "|---|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    for kernel, row in rows.items():
        for name, found in row["strategies"].items():
            lines.append(
                f"| {kernel} | {row['points']} | {row['evaluations']} | {name} | {found['share']:.3f} | {found['share_worst_tenth']:.3f} "
                f"| {found['within_1_percent']:.0%} | {found['within_2_percent']:.0%} | {found['evaluations_to_2_percent'] or '-'} |"
            )
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Run; exit code 0, 2 for a cache file that is none."""
    parser = argparse.ArgumentParser(description="The tuner's strategies on simulated kernels.")
    parser.add_argument("--kernels", default=",".join(KERNELS), help=f"of {', '.join(KERNELS)} (default: all)")
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="of optiml tune --strategy")
    parser.add_argument("--seeds", type=int, default=24, help="landscapes of each kernel (default: 24)")
    parser.add_argument("--most", type=int, default=MOST, help=f"evaluations at most (default: {MOST})")
    parser.add_argument("--ahead", type=int, default=AHEAD, help=f"compiled for each that is timed (default: {AHEAD})")
    parser.add_argument("--cache", type=Path, action="append", default=[], help="a space that was timed: see above")
    parser.add_argument("--record", type=Path, help="a JSON record to write")
    options = parser.parse_args(given)
    strategies = options.strategies.split(",")
    if options.cache:
        try:
            spaces = {
                f"{p.parent.name}/{p.name.partition('.')[0]}": [recorded(p)] * options.seeds for p in options.cache
            }
        except UsageError as error:
            parser.error(str(error))
    else:
        spaces = {k: [landscape(k, seed) for seed in range(options.seeds)] for k in options.kernels.split(",")}
    rows = measure(spaces, strategies, options.most, options.ahead)
    print(render(rows))
    if options.record:
        record = {
            "schema": "optiml.tuner_landscapes/1",
            "command": ["python", "benchmarks/tuner_landscapes.py", *(sys.argv[1:] if given is None else given)],
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "machine": machine(),
            "seeds": options.seeds, "most": options.most, "ahead": options.ahead, "noise": _LOOK, "rows": rows,
        }  # fmt: skip
        options.record.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
