"""The table of `optiml cluster doctor`. Loads Dask, so it is imported where that is asked for."""

import argparse
import dataclasses
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from engine.cluster.connection import Cluster, ClusterWorker, connect, mixed
from engine.cluster.scheduler import ClusterRequest
from engine.commands.json_answer import print_json
from engine.report.console import Console
from engine.report.safe_text import clean

SCHEMA = "optiml.cluster/1"


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 where every worker can be used, else 1."""
    request = ClusterRequest(
        "local" if arguments.cluster is None else arguments.cluster, arguments.device, arguments.workers
    )
    with connect(request, check=False) as cluster:
        return show(cluster, as_json=arguments.format == "json")


def show(cluster: Cluster, *, as_json: bool) -> int:
    """Print what each worker is; the exit code."""
    wrong = [str(error) for error in cluster.problems()]
    models = len(mixed(cluster.workers))
    notes = []
    if models > 1:
        notes.append(f"{models} kinds of devices: their times cannot be compared (--per-device)")
    if not cluster.measures:
        notes.append("no worker offers a GPU: kernels are screened and speeds predicted")
    if as_json:
        workers = [{**dataclasses.asdict(worker), "device": worker.identity.device} for worker in cluster.workers]
        print_json(
            SCHEMA, workers=workers, problems=wrong, notes=notes, resource=dict(cluster.resource), dashboard=cluster.dashboard
        )  # fmt: skip
    else:
        _print(cluster.workers, [*wrong, *notes])
    return 1 if wrong else 0


def _print(workers: Sequence[ClusterWorker], said: Sequence[str]) -> None:
    table = Table(title=f"{len(workers)} worker{'' if len(workers) == 1 else 's'}", title_justify="left")
    for name in ("worker", "host", "device", "UUID", "clocks", "other processes", "cores"):
        table.add_column(name, overflow="fold")
    for worker in workers:
        found, gpu = worker.identity, worker.identity.gpu
        clocks = "" if gpu is None else f"SM {gpu.sm_mhz} MHz, memory {gpu.memory_mhz} MHz, {gpu.temperature_c} °C"
        foreign = "" if gpu is None else ", ".join(map(str, gpu.foreign)) or "none"
        uuid = "" if gpu is None else gpu.uuid
        cores = ",".join(map(str, worker.cores))
        row = (worker.name, found.host, found.device, uuid, clocks, foreign, cores)
        table.add_row(*(Text(clean(cell)) for cell in row))
    console = Console(highlight=False)
    console.print(table)
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for worker in workers:
        alike.setdefault(worker.identity.versions, []).append(worker.name)
    for versions, names in alike.items():
        who = "every worker has" if len(alike) == 1 else f"worker {', '.join(names)}:"
        held = ", ".join(f"{package} {version or 'missing'}" for package, version in versions)
        console.print(Text(clean(f"{who} {held}")))
    for sentence in said:
        console.print(Text(clean(sentence)))
