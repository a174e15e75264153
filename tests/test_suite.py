"""Every kernel of the suite parses, has a spec and a floor, and compiles; the tuner's spaces fit what Kernel Tuner is given."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from benchmarks import (
    ablation,
    kernel_tuner_side,
    peer_kernel_tuner,
    peer_operations,
    peers,
    roofline,
    searches,
    sidebyside,
)
from benchmarks.bench import Place
from engine.cuda.load import load_program
from engine.cuda.parse import parse
from engine.errors import UsageError
from engine.evaluate.build import Builder
from engine.predict.targets import figures_for
from engine.run.machine import make_machine
from engine.run.optimization import Coverage
from engine.search.journal import Entry, Journal
from engine.search.policies import Strategy
from engine.spec.data import buffer_elements
from engine.spec.find import find_spec
from tests.engine.search import fakes
from tests.runtime import with_runtime

ROOT = Path(__file__).resolve().parent.parent
SUITE = sorted((ROOT / "benchmarks" / "suite").glob("*.cu"))
FIGURES = figures_for("sm_90")


def test_the_suite_has_its_kernels_and_controls() -> None:
    controls = [p.stem for p in SUITE if p.stem.startswith("control_")]
    assert len(controls) == 4
    assert len(SUITE) - len(controls) >= 24
    assert sorted(roofline.table()) == [p.stem for p in SUITE]


def test_every_kernel_parses_and_compiles_and_its_data_is_sized_for_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTIML_CACHE", str(with_runtime(tmp_path)))
    machine = make_machine(device="cpu", arch="sm_90")
    try:
        for path in SUITE:
            assert parse(path.read_bytes(), path.name).errors == (), path.name
            spec, spec_path = find_spec(ROOT, path)
            program = load_program(path, spec_file=spec_path, kernels=[s.kernel for s in spec.steps])
            built = Builder(spec, ROOT, machine.compiler, machine.target, spec_path).original(program)
            assert all(r.spill_store_bytes == 0 for r in built.binary.resources), path.name
            assert len(spec.check) >= 3, path.name
            assert all(sum(buffer_elements(spec, case).values()) <= 60_000 for case in spec.check), path.name
            floor = roofline.floor(spec, spec.time[0], roofline.table()[path.stem], FIGURES.dram_bytes_s, FIGURES)
            assert 1.0 < floor.floor_us < 1000.0, path.name
            if floor.bound == "memory" and path.stem not in ("causal_scores", "gemv_update"):
                assert floor.bytes_moved > 60_000_000, path.name  # an H200's L2
    finally:
        machine.close()


def test_a_floor_counts_what_is_read_and_written_twice() -> None:
    spec, _ = find_spec(ROOT, ROOT / "benchmarks" / "suite" / "adamw.cu")
    n = dict(spec.time[0].sizes)["n"]
    assert roofline.compulsory_bytes(spec, spec.time[0]) == 7 * 4 * n
    floor = roofline.floor(spec, spec.time[0], {"bound": "compute", "flops": "1000000*n"}, 1e12, FIGURES)
    assert floor.floor_us > 7 * 4 * n / 1e12 * 1e6


def test_a_kernel_of_special_functions_is_held_against_their_rate() -> None:
    """The best Monte Carlo kernel takes 155 µs on an H200: 20 % of the roof of its multiply-adds alone."""
    spec, _ = find_spec(ROOT, ROOT / "benchmarks" / "suite" / "monte_carlo.cu")
    entry = roofline.table()["monte_carlo"]
    floor = roofline.floor(spec, spec.time[0], entry, FIGURES.dram_bytes_s, FIGURES)
    assert floor.limit == "special"
    assert 0.35 < floor.floor_us / 155.0 < 0.45
    plain = {"bound": "compute", "flops": entry["flops"]}
    assert roofline.floor(spec, spec.time[0], plain, FIGURES.dram_bytes_s, FIGURES).limit == "fp32"


@pytest.mark.parametrize(
    "work", ["special", "integer", "conversions", "instructions", "shared_bytes", "l2_bytes", "atomics"]
)
def test_each_part_of_the_device_has_a_floor_of_its_own(work: str) -> None:
    spec, _ = find_spec(ROOT, ROOT / "benchmarks" / "suite" / "adamw.cu")
    floor = roofline.floor(
        spec, spec.time[0], {"bound": "compute", "flops": "0", work: "100000*n"}, FIGURES.dram_bytes_s, FIGURES
    )
    assert floor.limit == work


def test_peers_are_named_for_kernels_that_are_there() -> None:
    names = {p.stem for p in SUITE}
    assert set(peer_operations.torch_operations()) <= names
    assert set(peer_operations.library_calls()) <= names
    assert set(peer_operations.formulas()) <= set(peer_operations.torch_operations())
    assert all(
        f.__doc__ for f in (*peer_operations.torch_operations().values(), *peer_operations.library_calls().values())
    )


def test_a_peer_that_steps_in_place_leaves_the_inputs_to_the_others() -> None:
    """The compiled step was held against ours after eager's had changed the inputs of both, and counted as failed."""

    class Tensor:
        def clone(self) -> Tensor:
            return Tensor()

    stepped: list[Tensor] = []

    def step(params: Any, grads: Any, means: Any, squares: Any, *rest: Any, **named: Any) -> None:
        stepped.extend([*params, *means, *squares])

    given = {name: Tensor() for name in ("param", "grad", "m", "v")}
    torch = SimpleNamespace(ones=lambda *shape, device: Tensor(), _fused_adamw_=step)
    peer_operations.torch_operations()["adamw"](torch, given, {})()
    assert len(stepped) == 3
    assert not {id(t) for t in stepped} & {id(t) for t in given.values()}


def test_a_peer_is_held_against_the_suggestion_that_the_suite_recorded(tmp_path: Path) -> None:
    place = Place(ROOT, tmp_path, tmp_path)
    assert peers.suggestion(place, "control_scale") == {}
    with pytest.raises(UsageError, match="no row for swiglu"):
        peers.suggestion(place, "swiglu")
    record = json.loads((ROOT / "benchmarks" / "results" / "suite.json").read_text())
    record["rows"] = {"swiglu": {"error": None, "files": {"a.cu": "x"}}}
    (tmp_path / "suite.part.json").write_text(json.dumps(record))
    assert peers.suggestion(place, "swiglu") == {"a.cu": "x"}


@pytest.mark.parametrize("versioned", [True, False])
def test_a_checkout_need_not_be_a_repository(tmp_path: Path, versioned: bool) -> None:
    """In an unpacked archive a kernel's repository is its own folder: its spec was not found, and its suggestion not applied."""
    folder = tmp_path / "benchmarks" / "suite"
    folder.mkdir(parents=True)
    for name in ("scan.cu", "optiml.toml"):
        (folder / name).write_bytes((ROOT / "benchmarks" / "suite" / name).read_bytes())
    if versioned:
        (tmp_path / ".git").mkdir()
    place = Place(tmp_path, tmp_path, tmp_path)
    root, spec, _, program = sidebyside.read(place, "benchmarks/suite/scan.cu")
    assert root == (tmp_path if versioned else folder)
    assert len(spec.steps) > 1
    files = sidebyside.written(place, root, {"benchmarks/suite/scan.cu": "faster"})
    assert set(files) <= set(program.files)


def test_the_files_of_a_suggestion_come_from_the_journal(tmp_path: Path) -> None:
    original = fakes.program()
    journal = Journal(tmp_path / "journal.sqlite", original, {}, resume=False)
    evaluation = fakes.FakeEvaluator().open(original)[1]
    files = {"k.cu": "kernel, but faster: µ\n".encode()}
    journal.book(Entry(0, None, "", "", {}, "the original", "", (), evaluation, {}, 0.0))
    journal.book(Entry(1, 0, "rules", "r", {}, "faster", "", (), evaluation, files, 0.1))
    journal.close()
    assert searches._files(tmp_path / "journal.sqlite", 1) == {"k.cu": "kernel, but faster: µ\n"}


def test_kernel_tuner_gets_the_text_without_our_definitions() -> None:
    text = "#define BLOCK 64\n  # define TILE_X 2 // why\n#define BLOCKS 3\nint x = BLOCK;\n"
    assert kernel_tuner_side.template_text(text, ("BLOCK", "TILE_X")) == "\n\n#define BLOCKS 3\nint x = BLOCK;\n"


def test_kernel_tuner_knows_the_blocks_extents_of_every_space() -> None:
    for name, names in kernel_tuner_side.BLOCKS.items():
        text = (ROOT / "benchmarks" / "tuning" / f"{name}.cu").read_text()
        assert all(f"// optiml: tune {parameter} =" in text for parameter in names)
        assert name in kernel_tuner_side.REFERENCES


def test_the_arms_of_an_ablation_differ_in_one_thing() -> None:
    place = Place(ROOT, ROOT, ROOT)
    for table in ablation.tables():
        arms = list(ablation.ARMS[table.name].values())
        keys = {key for arm in arms for key in arm if len({str(other.get(key)) for other in arms}) > 1}
        assert len(keys) == 1, table.name
        # A search without counters was one with them for a while: the option had got other values.
        assert {arm.get("profile", "best") for arm in arms} <= set(get_args(Coverage))
        assert {arm.get("search", "mcts") for arm in arms} <= set(get_args(Strategy))
        assert len(table.rows(place, table.defaults)) in (10, 20)


def test_a_space_where_kernel_tuner_is_near_says_what_either_spends() -> None:
    times = {"kernel tuner": 2.0, "all points": 2.0, "seed 0": 2.0}
    stages = {"compile_time": 5.0, "verification_time": 0.05, "benchmark_time": 0.1}
    row = {
        "error": None, "points": 200, "times_us": times, "tenth_ratios": [{"ratio": 1.0, "low": 1.0, "high": 1.0}],
        "theirs": {"configurations": 100, "per_s": 15.0, "stages": stages, "to_2_percent": 3},
        "ours": {"configurations": 100, "per_s": 45.0, "stages": {"verify": 0.3, "time": 1.7}}, "tenth": {"to_2_percent": [2]},
    }  # fmt: skip
    fast = row | {"ours": {**row["ours"], "per_s": 450.0}}
    rows = {"near": row, "far": fast}
    record = {"rows": rows, "summary": peer_kernel_tuner.summary(rows), "settings": {"seconds": 240.0}}
    text = peer_kernel_tuner.render(record)
    assert text.count("- Below the target") == 1
    assert (
        "- Below the target, near: Kernel Tuner compiles in 50 ms, one configuration after the other, and then needs 0.5 ms"
        in text
    )
    assert text.endswith("the best beside it 17.0 ms.")
