"""Runs of an original's twin in double precision on the CPU: the same inputs, as doubles."""

from dataclasses import replace

from engine.cpu import CpuJob
from engine.spec.kernel_spec import KernelSpec
from engine.verify.widen import wide_buffers, wide_scalars

_GROWTH = 4  # of dynamic shared memory: halves become doubles
_MOST_SHARED = 232_448  # bytes of a block, as the CPU machine allows


def twin_job(spec: KernelSpec, job: CpuJob) -> CpuJob:
    """A job of the original's, for its twin."""
    launches = tuple(
        replace(each, shared_bytes=max(each.shared_bytes, min(_GROWTH * each.shared_bytes, _MOST_SHARED)))
        for each in job.launches
    )
    buffers = wide_buffers(spec, dict(job.buffers))
    return replace(job, launches=launches, buffers=buffers, scalars=wide_scalars(spec, job.scalars))
