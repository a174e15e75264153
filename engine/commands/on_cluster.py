"""One search over the workers of a cluster: their devices in the place of this machine's."""

import argparse
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager

from engine.cluster.connection import Cluster, check_alike, connect, mixed, names_of
from engine.cluster.links import Links, links
from engine.cluster.scheduler import ClusterRequest
from engine.errors import UsageError
from engine.evaluate.build import Builder
from engine.evaluate.remote import DeviceLost, RemoteEvaluator
from engine.run.device_service import answer
from engine.run.machine import Machine, make_machine
from engine.spec.kernel_spec import KernelSpec

_ALONE_S = 60.0  # for a worker to come back where none is left: as of a campaign


def machines_per_device(arguments: argparse.Namespace) -> Generator[tuple[str, Machine], None, None]:
    """For each kind of device among the workers its name and a machine, as `machine_on_cluster`; close the iterator."""
    check_workers(arguments)
    with connect(ClusterRequest(arguments.cluster, arguments.device, arguments.workers)) as cluster:
        for model, name in names_of(mixed(cluster.workers)).items():
            cluster.keep(model)
            with links(cluster, answer, DeviceLost) as found, closing(_machine(arguments, cluster, found)) as machine:
                yield name, machine


@contextmanager
def machine_on_cluster(arguments: argparse.Namespace) -> Iterator[Machine]:
    """This machine to build on, with the devices of the workers that `--cluster` names; whoever asks closes it.

    Raises UsageError, MachineError, before work starts.
    """
    check_workers(arguments)
    with connect(ClusterRequest(arguments.cluster, arguments.device, arguments.workers)) as cluster:
        each = ", or add --per-device for one search per kind" if hasattr(arguments, "per_device") else ""
        check_alike(cluster.workers, f"exclude some{each}")
        with links(cluster, answer, DeviceLost) as found:
            yield _machine(arguments, cluster, found)


def check_workers(arguments: argparse.Namespace) -> None:
    """Raises UsageError where --workers says nothing that can be."""
    if arguments.workers is not None and not (arguments.cluster == "local" and arguments.workers > 0):
        raise UsageError(
            "expected the number of workers that --cluster local starts, at least 1", "--workers", "omit it"
        )


def _machine(arguments: argparse.Namespace, cluster: Cluster, found: Links) -> Machine:
    gpu = cluster.workers[0].identity.gpu
    arch = gpu.arch if cluster.measures and gpu is not None else arguments.arch
    if arguments.arch is not None and arguments.arch.rstrip("a") != (arch or "").rstrip("a"):
        raise UsageError(f"the workers' GPUs are {arch}, so nothing can be measured for {arguments.arch}", "--arch")
    machine = make_machine(device="cpu", arch=arch, jobs=arguments.jobs, unsafe=arguments.unsafe_no_sandbox)
    machine.mode = "measured" if cluster.measures else "predicted"
    machine.devices = len(found)

    def remote(spec: KernelSpec, builder: Builder) -> RemoteEvaluator:
        evaluator = RemoteEvaluator(spec, builder.spec_path, builder, found, machine.mode, alone_s=_ALONE_S)
        found.joined = evaluator.join
        return evaluator

    machine.remote = remote
    return machine
