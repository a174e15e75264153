"""How long a thread waits for a core when it wakes, beside busy processes that stand back and beside some that do not.

    python benchmarks/stand_back.py [--busy N] [--wakes N]

The busy processes are sessions of their own, as compilers and readers of candidates are, twice as many as cores if not said. The
figures are of this machine and of nothing else. Exit code 0.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_SPIN = "while True:\n    sum(range(100000))\n"
_WAYS = {
    "nothing beside it": None,
    "as they are": "",
    "nice": "import os\nos.nice(10)\n",
    "standing back": f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom engine.process.cores import stand_back\nstand_back()\n",
}
_SLEEP_S = 0.003
_WORK = 20_000  # steps between two waits, about half a millisecond: who only wakes is given a core sooner
_SETTLE_S = 3.0  # for all to have told the system, which hears one in a tenth of a second


def waits_ms(count: int) -> list[float]:
    """What each of so many wakes took beyond the sleep asked for, in milliseconds, rising."""
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        time.sleep(_SLEEP_S)
        found.append(1e3 * (time.perf_counter() - begin - _SLEEP_S))
        sum(range(_WORK))
    return sorted(found)


def measured(way: str | None, busy: int, wakes: int) -> list[float]:
    """The waits beside processes that begin with this code; beside none where it is None."""
    command = [sys.executable, "-c", f"{way}{_SPIN}"]
    processes = [] if way is None else [subprocess.Popen(command, start_new_session=True) for _ in range(busy)]
    try:
        time.sleep(_SETTLE_S)
        return waits_ms(wakes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--busy", type=int, default=2 * (os.cpu_count() or 1), help="busy processes (default: two a core)"
    )
    parser.add_argument("--wakes", type=int, default=1000, help="of each kind (default: 1000)")
    chosen = parser.parse_args(arguments)
    print(f"| {chosen.busy} busy processes | mean ms | 90 % below ms | longest ms |\n|---|---:|---:|---:|")
    for name, way in _WAYS.items():
        found = measured(way, chosen.busy, chosen.wakes)
        print(f"| {name} | {statistics.mean(found):.2f} | {found[int(0.9 * len(found))]:.2f} | {found[-1]:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
