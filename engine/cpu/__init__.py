"""Runs CUDA kernels on the CPU: every access checked, races looked for, accesses counted. It refutes; it verifies nothing."""

from engine.cpu.cpu_machine import CpuMachine
from engine.cpu.features import unsupported
from engine.cpu.jobs import CpuBinary, CpuFinding, CpuJob, CpuRun, FindingKind, Unsupported

__all__ = ["CpuBinary", "CpuFinding", "CpuJob", "CpuMachine", "CpuRun", "FindingKind", "Unsupported", "unsupported"]
