"""Drafts with trials of the original on the CPU, as `optiml init` makes them."""

from __future__ import annotations

from pathlib import Path

from engine.cpu import CpuMachine
from engine.cpu.draft_probe import CpuProbe
from engine.process.sandbox import sandbox
from engine.settings.folders import cache_folder
from engine.spec.draft import Draft, OriginalRuns, draft
from tests.engine.spec.drafts import program


def tried(code: str, folder: Path, kernel: str = "k") -> Draft:
    made = draft(program(code), kernel)
    machine = CpuMachine(cache_folder() / "cpu", sandbox=sandbox(False), scratch=folder)
    probe = CpuProbe(program(code), made.spec, machine, folder)
    runs = OriginalRuns(probe=probe.touched, moved=probe.moved, roles=probe.roles, trials=probe)
    return draft(program(code), kernel, runs=runs)
