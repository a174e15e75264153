"""The simulated tuning spaces, and that the tuner's default earns its place on them."""

from __future__ import annotations

import gzip
import itertools
import json
import statistics
from pathlib import Path

import pytest

from benchmarks import tuner_landscapes as landscapes
from engine.errors import UsageError


def test_a_landscape_is_its_kernels_and_its_seeds() -> None:
    one = landscapes.landscape("transpose", 3)
    assert one == landscapes.landscape("transpose", 3)
    assert one.time_us != landscapes.landscape("transpose", 4).time_us
    assert set(one.points) == set(one.time_us) | one.impossible
    assert all({"threads", "blocks"} <= set(found) for found in one.launched.values())


def test_the_spaces_have_the_cliffs_of_real_ones() -> None:
    fused = landscapes.landscape("fused", 0)
    spilled = [t for p, t in fused.time_us.items() if fused.compiled[p]["spilled"] > 8]
    assert min(spilled) > 1.1 * fused.best_us
    assert len({round(found["occupancy"], 4) for found in fused.compiled.values()}) > 4  # steps
    tall = landscapes.landscape("gemm", 0)
    near = sum(t < 1.05 * tall.best_us for t in tall.time_us.values())
    assert 0 < near < 0.03 * len(tall.points)
    flat = landscapes.landscape("row_sum", 0)
    assert sum(t < 1.1 * flat.best_us for t in flat.time_us.values()) > 0.3 * len(flat.points)


def test_the_default_comes_near_the_best_with_less_than_a_tenth() -> None:
    grounds = [landscapes.landscape("fused", seed) for seed in range(4)]
    ours = [landscapes.search(g, "model", seed, 40)[-1] for seed, g in enumerate(grounds)]
    chance = [landscapes.search(g, "random", seed, 40)[-1] for seed, g in enumerate(grounds)]
    assert statistics.mean(ours) > 0.97
    assert statistics.mean(ours) > statistics.mean(chance) + 0.02


def test_the_incumbent_gets_no_worse_but_for_noise() -> None:
    shares = landscapes.search(landscapes.landscape("saxpy", 1), "model", 1, 25)
    assert len(shares) == 25
    assert all(b > a - 0.02 for a, b in itertools.pairwise(shares))
    assert shares[-1] <= 1.0


def test_the_command_records_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "record.json"
    options = ["--kernels", "transpose", "--strategies", "model,random", "--seeds", "3", "--most", "9"]
    assert landscapes.main([*options, "--record", str(to)]) == 0
    record = json.loads(to.read_text(encoding="utf-8"))
    row = record["rows"]["transpose"]
    assert row["evaluations"] == 9
    assert len(row["strategies"]["random"]["shares"]) == 3
    assert capsys.readouterr().out.strip() == landscapes.render(record["rows"])


def test_a_space_that_was_timed_takes_the_place_of_a_simulated_one(tmp_path: Path) -> None:
    rows = {
        f"{b},{t},1": {
            "block": b,
            "tile": t,
            "flag": 1,
            "time": "RuntimeFailedConfig" if b * t > 512 else 1.0 + abs(b * t - 256) / 64,
        }
        for b in (32, 64, 128, 256)
        for t in (1, 2, 4, 8)
    }
    held = {"tune_params": {"block": [32, 64, 128, 256], "tile": [1, 2, 4, 8], "flag": [1]}, "cache": rows}
    path = tmp_path / "A100.json.gz"
    path.write_bytes(gzip.compress(json.dumps(held).encode()))
    one = landscapes.recorded(path)
    assert len(one.points) == 16
    assert one.time_us[(64, 4)] == one.best_us == 1000.0
    assert one.impossible == {(128, 8), (256, 4), (256, 8)}
    assert landscapes.main(["--cache", str(path), "--strategies", "random", "--seeds", "2"]) == 0


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"tune_params": {}}',
        b"\x1f\x8bnothing",
        b'{"tune_params": {"a": [1, 2]}, "cache": {"x": {"time": 1}}}',
    ],
)
def test_a_file_that_is_no_cache_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "cache.json"
    path.write_bytes(text)
    with pytest.raises(UsageError, match="no cache file"):
        landscapes.recorded(path)
    with pytest.raises(SystemExit) as ended:
        landscapes.main(["--cache", str(path)])
    assert ended.value.code == 2
