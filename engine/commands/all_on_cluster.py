"""`optiml all --cluster`: the campaign on the workers of a cluster. Loads Dask, so it is imported where that is asked for."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from engine.campaign.campaign import CampaignEnd, CampaignRequest, run_campaign
from engine.campaign.cluster_executor import ClusterExecutor, Searches, check_sent
from engine.campaign.cluster_task import MachineWish
from engine.campaign.survey import Survey
from engine.cluster.connection import Cluster, check_alike, check_shared, connect, mixed, names_of
from engine.cluster.scheduler import ClusterRequest
from engine.commands.device_dispatch import dispatch_of_campaign
from engine.report.campaign_progress import CampaignProgress
from engine.report.device_table import CampaignDispatch
from engine.run.machine import Machine, make_machine
from engine.settings.folders import ignore_folder, trust_domain


def search(
    arguments: argparse.Namespace, request: CampaignRequest, surveyed: Callable[[Machine], Survey | None]
) -> tuple[Sequence[CampaignEnd], CampaignDispatch]:
    """The campaign, or one for each kind of device with what selects between these, over the kernels that are `surveyed` once the
    workers were looked at.

    Raises UsageError, MachineError, before work starts where that shows then.
    """
    with (
        connect(ClusterRequest(arguments.cluster, arguments.device, arguments.workers)) as cluster,
        ExitStack() as held,
    ):
        _warn(cluster)
        shared = arguments.shared or cluster.address == "local"
        if shared:
            folder = request.root / ".optiml"
            ignore_folder(folder / "all")
            check_shared(cluster, folder)
        else:
            check_sent(request.root)
        models = mixed(cluster.workers)
        if not arguments.per_device:
            check_alike(cluster.workers, "exclude some, or add --per-device for one campaign per kind")
        # GPUs are the workers'; here kernels are read, and ranked by predictions.
        gpu = cluster.workers[0].identity.gpu if cluster.measures else None
        arch = gpu.arch if gpu is not None else arguments.arch
        machine = make_machine(device="cpu", arch=arch, jobs=arguments.jobs, unsafe=arguments.unsafe_no_sandbox)
        held.callback(machine.close)
        wish = MachineWish(
            "gpu" if cluster.measures else "cpu", None if cluster.measures else machine.arch, arguments.jobs,
            arguments.unsafe_no_sandbox, trust_domain(),
        )  # fmt: skip
        survey = surveyed(machine)
        names = names_of(models) if len(models) > 1 else dict.fromkeys(models, "")
        ends = []
        for model, device in names.items():
            cluster.keep(model)
            progress = CampaignProgress(
                arguments.format, cluster.dashboard, predicted=not cluster.measures, workers=len(cluster.workers)
            )
            kind = Searches(request.root, machine.box)
            executor = ClusterExecutor(cluster, request.root, wish, kind, shared=shared, on_event=progress.saw)
            try:
                with progress.shown():
                    ends.append(run_campaign(replace(request, device=device), executor, survey))
            finally:
                executor.close()
        if len(ends) < 2 or request.interrupt.asked:
            return ends, CampaignDispatch()
        archs = {names[model]: gpu.arch for model, some in models.items() if (gpu := some[0].identity.gpu) is not None}
        return ends, dispatch_of_campaign(arguments, request.root, ends, machine, archs)


def _warn(cluster: Cluster) -> None:
    if cluster.address.startswith("tcp://"):
        print(
            "optiml: tcp:// is neither encrypted nor authenticated: anyone who can reach the scheduler can run code on the workers; "
            "use tls:// outside your own network",
            file=sys.stderr,
        )
