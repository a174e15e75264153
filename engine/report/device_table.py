"""The best of each kernel on each kind of device, as a table and as data."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from engine.campaign.campaign import CampaignEnd
from engine.model import Guardrail
from engine.predicted_number import approximate
from engine.report.console import Console
from engine.report.safe_text import clean
from engine.report.terminal import how_to_take
from engine.run.device_dispatch_check import DeviceBranch


@dataclass(frozen=True)
class DeviceBest:
    """What is suggested for a kernel on one kind of device; `speedup` is None where nothing is. `patch` is a file."""

    file: str
    kernel: str
    device: str
    speedup: float | None = None
    predicted: bool = False
    patch: str = ""


@dataclass(frozen=True)
class DispatchEnd:
    """What became of the dispatch code by device: `patch` is a file, "" where there is none, for that `reason`."""

    patch: str = ""
    files: tuple[str, ...] = ()
    branches: tuple[DeviceBranch, ...] = ()
    guardrails: tuple[Guardrail, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class KernelDispatch:
    """One kernel of a campaign."""

    file: str
    kernel: str
    dispatch: DispatchEnd


@dataclass(frozen=True)
class CampaignDispatch:
    """Every kernel with a suggestion on some kind of device, the patch of all ("": there is none), and what it leaves out."""

    kernels: tuple[KernelDispatch, ...] = ()
    patch: str = ""
    notes: tuple[str, ...] = ()


def print_campaign_dispatch(end: CampaignDispatch, root: Path) -> None:
    """A sentence a kernel, and how to take the patch of all."""
    for each in end.kernels:
        print_device_dispatch(each.dispatch, f"{each.file}:{each.kernel}: ")
    console = Console(highlight=False)
    for note in end.notes:
        console.print(Text(f"Note: {clean(note)}"))
    if end.patch:
        console.print(
            Text(f"All that select by device, each checked separately. {how_to_take(Path(end.patch), root)}"),
            soft_wrap=True,
        )


def print_device_dispatch(end: DispatchEnd, of: str = "") -> None:
    """One sentence: the patch that selects by device, or why there is none."""
    said = f"No dispatch by device: {end.reason}."
    if end.patch:
        kernels = ", ".join(f"{b.kernel} on {b.device}" for b in end.branches)
        unchecked = "".join(
            f"; not checked: {g.name} ({g.detail})" for g in end.guardrails if g.verdict == "not checked"
        )
        said = f"{end.patch} selects by compute capability at run time: {kernels}, the original on other devices{unchecked}."
    Console(highlight=False).print(Text(clean(of + said)), soft_wrap=True)


def of_campaigns(ends: Sequence[CampaignEnd]) -> list[DeviceBest]:
    """What each kind of device came to, where there are several."""
    return [
        DeviceBest(k.file, k.kernel, end.device, k.speedup, patch="" if end.patch is None else str(end.patch))
        for end in ends
        for k in end.kernels
        if len(ends) > 1
    ]


def plain(rows: Sequence[DeviceBest]) -> list[dict[str, object]]:
    """The rows as JSON takes them."""
    return [asdict(row) for row in rows]


def print_device_table(rows: Sequence[DeviceBest]) -> None:
    """A row a kernel, a column a kind of device; below it the patches of each."""
    devices = list(dict.fromkeys(row.device for row in rows))
    best = {(row.file, row.kernel, row.device): row for row in rows}
    table = Table(title="best per device", title_justify="left")
    table.add_column("kernel", overflow="fold")
    for device in devices:
        table.add_column(clean(device), justify="right", overflow="fold")
    for file, kernel in dict.fromkeys((row.file, row.kernel) for row in rows):
        cells = (_cell(best.get((file, kernel, device))) for device in devices)
        table.add_row(Text(clean(f"{file}:{kernel}")), *map(Text, cells))
    console = Console(highlight=False)
    console.print(table)
    console.print("Each patch was checked only on its device; apply the one for your build:")
    for device, patch in dict.fromkeys((row.device, row.patch) for row in rows if row.patch):
        console.print(Text(clean(f"  {device}: {patch}")), soft_wrap=True)


def _cell(row: DeviceBest | None) -> str:
    if row is None or row.speedup is None:
        return "-"
    return f"{approximate(row.speedup)}× predicted" if row.predicted else f"{row.speedup:.2f}×"
