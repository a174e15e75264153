"""The script that says what a search takes beside its candidates."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from benchmarks import search_phases


def test_what_ended_processes_took_counts_and_a_phase_within_another_counts_once() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    code = SimpleNamespace(inner=lambda: subprocess.run([sys.executable, "-c", burn], check=True))
    code.outer = lambda: (code.inner(), code.inner())
    phases = search_phases.Phases()
    phases.watch(code, "inner", "inner")
    phases.watch(code, "outer", "outer")
    code.outer()
    assert phases.spent["inner"] == pytest.approx(0.65, abs=0.15)
    assert phases.spent["outer"] < 0.1
