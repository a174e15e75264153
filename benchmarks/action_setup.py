"""How long the Action's set-up step takes for the gate and the posting jobs, and how much it downloads.

    python benchmarks/action_setup.py --record benchmarks/results/action_setup.json

Runs the step of action.yml as the runner does, in an empty temporary folder, several times: "network" as it is, with pip's cache
off; "local" with the same files in a folder on disk, which leaves out the network. Then the gate decides about an event that
concerns no pull request. Each round's time stands in the record by the clock and of processor time, with the machine's load. Exit
code 0, 1 where the best round or the download is over its limit (5 s, 30 MB).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script

SCHEMA = "optiml.action_setup/1"
LIMIT_S, LIMIT_BYTES = 5.0, 30_000_000


def step(number: int, folder: Path, more: Mapping[str, str]) -> tuple[float, float]:
    """Seconds of one of the Action's steps, by the clock and of processor time. Raises CalledProcessError."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("GITHUB_", "OPTIML_"))},
        "PIP_NO_CACHE_DIR": "1", "RUNNER_TEMP": str(folder), "OPTIML_SOURCE": str(ROOT), "OPTIML_EXTRAS": "",
        "OPTIML_PYTHON": getattr(sys, "_base_executable", sys.executable), "OPTIML_MODE": "gate", "GITHUB_EVENT_NAME": "push",
        "GITHUB_REPOSITORY": "o/r", **more,
    }  # fmt: skip
    begin, used = time.monotonic(), _used()
    script = action["runs"]["steps"][number]["run"]
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=300, check=True)
    return round(time.monotonic() - begin, 2), round(_used() - used, 2)


def download(folder: Path) -> list[Path]:
    """What the step downloads, into `folder`."""
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-cache-dir"]
    requirements = str(ROOT / "action" / "requirements.txt")
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "--requirement", requirements],
        capture_output=True, timeout=300, check=True,
    )  # fmt: skip
    return sorted(folder.iterdir())


def measure(rounds: int) -> dict[str, Any]:
    """All of it."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        wheels = download(Path(name))
        local = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": name, "PIP_EXTRA_INDEX_URL": ""}
        found: dict[str, list[tuple[float, float]]] = {"network": [], "local": [], "decision": []}
        for _ in range(rounds):
            for how, more in (("network", {}), ("local", local)):
                with tempfile.TemporaryDirectory() as temp:
                    found[how].append(step(0, Path(temp), more))
                    if how == "local":
                        found["decision"].append(step(1, Path(temp), more))
        size = sum(path.stat().st_size for path in wheels)
    return {
        "schema": SCHEMA,
        "command": ["python", *(a if a != sys.argv[0] else "benchmarks/action_setup.py" for a in sys.argv)],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "python": platform.python_version(),
        "load_before": round(load, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "packages": len(wheels),
        "download_bytes": size,
        "seconds_clock_and_processor": found,
        "limits": {"seconds": LIMIT_S, "bytes": LIMIT_BYTES},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path)
    parsed = parser.parse_args(arguments)
    record = measure(parsed.rounds)
    times = record["seconds_clock_and_processor"]
    for how, rounds in times.items():
        best, median = min(clock for clock, _ in rounds), sorted(clock for clock, _ in rounds)[len(rounds) // 2]
        print(
            f"{how:9} best {best:.2f} s, median {median:.2f} s, least processor time {min(cpu for _, cpu in rounds):.2f} s"
        )
    print(f"{record['packages']} packages, {record['download_bytes'] / 1e6:.1f} MB")
    if parsed.record:
        parsed.record.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    best = min(clock for clock, _ in times["network"])
    return int(best > LIMIT_S or record["download_bytes"] > LIMIT_BYTES)


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
