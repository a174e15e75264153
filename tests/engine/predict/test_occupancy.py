"""Occupancy against figures of CUDA's own calculator (cuda_occupancy.h), and the targets' table."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from engine.compile.toolkit import include_folders
from engine.errors import UsageError
from engine.model import LaunchConfig, Resources
from engine.predict.occupancy import occupancy
from engine.predict.targets import figures_for, known_targets, target_for


def at(arch: str, threads: int, registers: int, shared: int = 0, blocks: int = 100_000, dynamic: int = 0):  # type: ignore[no-untyped-def]
    launch = LaunchConfig((blocks, 1, 1), (threads, 1, 1), dynamic)
    return occupancy(Resources(registers, shared, 0, 0, 0), launch, figures_for(arch))


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "limit"),
    [
        ("sm_90", 256, 32, 0, 8, "threads"),
        ("sm_90", 256, 33, 0, 6, "registers"),  # 33 round up to 40 per thread: 12 warps per scheduler
        ("sm_90", 256, 64, 0, 4, "registers"),
        ("sm_90", 256, 255, 0, 1, "registers"),
        ("sm_90", 32, 16, 0, 32, "blocks"),
        ("sm_90", 128, 32, 48 << 10, 4, "shared memory"),  # 49 KiB with the system's own, of 228 KiB
        ("sm_90", 1024, 64, 0, 1, "registers"),
        ("sm_80", 128, 32, 48 << 10, 3, "shared memory"),
        ("sm_86", 256, 32, 0, 6, "threads"),
        ("sm_86", 64, 32, 0, 16, "blocks"),
        ("sm_89", 32, 16, 0, 24, "blocks"),
        ("sm_86", 100, 41, 0, 10, "registers"),  # four warps each
    ],
)
def test_resident_blocks(arch: str, threads: int, registers: int, shared: int, blocks: int, limit: str) -> None:
    found = at(arch, threads, registers, shared)
    assert (found.blocks, found.limit) == (blocks, limit)


def test_dynamic_shared_memory_counts() -> None:
    assert at("sm_90", 128, 32, dynamic=100 << 10).blocks == 2


def test_a_small_grid_limits() -> None:
    found = at("sm_90", 128, 32, blocks=66)
    assert (found.blocks, found.limit, found.active) == (1, "grid", 0.5)
    assert found.fraction == 4 / 64


def test_what_does_not_fit() -> None:
    assert at("sm_90", 1056, 16).limit == "does not fit"
    assert at("sm_90", 1024, 255).blocks == 0
    assert at("sm_86", 128, 32, 101 << 10).blocks == 0


def test_targets() -> None:
    assert set(known_targets()) == {"sm_80", "sm_86", "sm_89", "sm_90"}
    assert figures_for("sm_90a").target.multiprocessors == 132
    for arch in known_targets():
        assert target_for(arch) == figures_for(arch).target
        assert target_for(arch).arch == arch
    assert target_for("sm_100").max_threads_per_sm == 2048
    assert target_for("sm_75").arch == "sm_75"
    for arch in ("sm_70", "sm_120"):
        with pytest.raises(UsageError):
            figures_for(arch)
    with pytest.raises(UsageError):
        target_for("x")


_PROGRAM = r"""
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cuda_occupancy.h>
struct Device { int major, minor, registers_sm, registers_block, shared_sm, processors, threads_sm, shared_optin; };
int main() {
  Device devices[] = {{9, 0, 65536, 65536, 233472, 132, 2048, 232448}, {8, 0, 65536, 65536, 167936, 108, 2048, 166912},
                      {8, 6, 65536, 65536, 102400, 82, 1536, 101376}, {8, 9, 65536, 65536, 102400, 128, 1536, 101376}};
  int registers[] = {16, 24, 32, 33, 40, 41, 64, 72, 90, 96, 128, 168, 224, 255};
  int threads[] = {32, 64, 96, 100, 128, 192, 256, 288, 384, 512, 672, 768, 1024};
  size_t shared[] = {0, 1, 100, 1024, 8192, 20000, 32768, 49152};
  for (auto& d : devices) for (int r : registers) for (int t : threads) for (size_t s : shared) {
    cudaOccDeviceProp p{};
    p.computeMajor = d.major; p.computeMinor = d.minor; p.maxThreadsPerBlock = 1024;
    p.maxThreadsPerMultiprocessor = d.threads_sm; p.regsPerBlock = d.registers_block; p.regsPerMultiprocessor = d.registers_sm;
    p.warpSize = 32; p.sharedMemPerBlock = 49152; p.sharedMemPerMultiprocessor = d.shared_sm; p.numSms = d.processors;
    p.sharedMemPerBlockOptin = d.shared_optin; p.reservedSharedMemPerBlock = 1024;
    cudaOccFuncAttributes a{};
    a.maxThreadsPerBlock = 1024; a.numRegs = r; a.sharedSizeBytes = s; a.partitionedGCConfig = PARTITIONED_GC_OFF;
    a.shmemLimitConfig = FUNC_SHMEM_LIMIT_DEFAULT; a.maxDynamicSharedSizeBytes = 0;
    cudaOccDeviceState state{};
    state.cacheConfig = CACHE_PREFER_NONE; state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult result{};
    int error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &p, &a, &state, t, 0);
    printf("%d%d %d %d %zu %d\n", d.major, d.minor, r, t, s, error ? -1 : result.activeBlocksPerMultiprocessor);
  }
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
def test_as_cuda_itself_computes_it(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text(_PROGRAM)
    folders = [option for folder in include_folders() for option in ("-I", str(folder))]
    subprocess.run(["g++", "-w", *folders, str(tmp_path / "a.cpp"), "-o", str(tmp_path / "a")], check=True)
    lines = subprocess.run([str(tmp_path / "a")], check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(lines) == 4 * 14 * 13 * 8
    wrong = []
    for line in lines:
        capability, registers, threads, shared, blocks = map(int, line.split())
        ours = at(f"sm_{capability}", threads, registers, shared).blocks
        if ours != max(blocks, 0):
            wrong.append((line, ours))
    assert not wrong, wrong[:10]
