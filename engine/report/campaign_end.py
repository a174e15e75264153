"""What a person sees at the end of a campaign."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from engine.campaign.campaign import CampaignEnd
from engine.report.console import Console
from engine.report.safe_text import clean
from engine.report.terminal import how_to_take


def print_campaign(end: CampaignEnd, said: Sequence[str], root: Path) -> None:
    """What came of every kernel, the notes, and how to take the patch."""
    table = Table(title="searched", title_justify="left")
    for name in ("kernel", "file", "state"):
        table.add_column(name, overflow="fold")
    table.add_column("result", overflow="fold")
    for kernel in end.kernels:
        table.add_row(*(Text(clean(cell)) for cell in (kernel.kernel, kernel.file, kernel.state, kernel.said)))
    console = Console(highlight=False)
    console.print(table)
    for note in said:
        console.print(Text(f"Note: {clean(note)}"))
    if end.patch is None:
        console.print("No suggestions.")
        return
    console.print(Text("Each suggestion was checked separately, not together with the others."))
    console.print(Text(how_to_take(end.patch, root)), soft_wrap=True)
