"""Progress of many searches: one table on a terminal, a line an event elsewhere, or JSON lines."""

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.live import Live
from rich.table import Table
from rich.text import Text

from engine.campaign.cluster_executor import ClusterEvent
from engine.predicted_number import approximate
from engine.report.console import Console
from engine.report.safe_text import clean

SCHEMA = "optiml.event/1"
_ROWS = 30  # kernels that a table shows: those under way


class CampaignProgress:
    """Shows what happens to kernels. `dashboard` is the address of Dask's."""

    def __init__(self, form: str, dashboard: str = "", *, predicted: bool = False, workers: int = 0) -> None:
        self._json, self._dashboard, self._predicted = form == "json", dashboard, predicted
        self._workers = workers
        self._under_way: dict[int, ClusterEvent] = {}
        self._ended = 0
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the table within, on a terminal."""
        if self._json:
            self._write({"event": "cluster", "workers": self._workers, "dashboard": self._dashboard})
        if self._json or not sys.stderr.isatty():
            if self._dashboard and not self._json:
                print(f"dashboard: {clean(self._dashboard)}", file=sys.stderr)
            yield
            return
        with Live(self.table(), console=Console(stderr=True), refresh_per_second=2, transient=True) as self._live:
            yield
        self._live = None

    def saw(self, event: ClusterEvent) -> None:
        """Take in an event."""
        if event.event == "end":
            self._under_way.pop(event.rank, None)
            self._ended += 1
        else:
            self._under_way[event.rank] = event
        if self._json:
            self._write(dataclasses.asdict(event))
        elif self._live is not None:
            self._live.update(self.table())
        elif event.event != "progress":
            print(clean(_line(event)), file=sys.stderr)

    def _write(self, event: Mapping[str, object]) -> None:
        sys.stdout.write(json.dumps({"schema": SCHEMA, **event}) + "\n")
        sys.stdout.flush()

    def table(self) -> Table:
        """The kernels under way."""
        table = Table(
            title=f"{self._ended} kernels ended", title_justify="left", caption=clean(self._dashboard) or None
        )
        for name in ("kernel", "worker"):
            table.add_column(name, overflow="fold")
        for name in ("candidates", "best", "left"):
            table.add_column(name, justify="right", no_wrap=True)
        for event in list(self._under_way.values())[:_ROWS]:
            left = "" if event.left_s is None else f"{event.left_s:.0f} s"
            best = approximate(event.best) if self._predicted else f"{event.best:.2f}"
            row = (f"{event.file}:{event.kernel}", event.worker, str(event.candidates), f"{best}×", left)
            table.add_row(*(Text(clean(cell)) for cell in row))
        return table


def _line(event: ClusterEvent) -> str:
    what = f"{event.file}:{event.kernel}"
    if event.event == "begin":
        return f"{what}: on worker {event.worker}" + ("" if event.left_s is None else f", {event.left_s:.0f} s")
    if event.event == "lost":
        return f"{what}: worker {event.worker} was lost, another continues"
    return f"{what}: {event.said}"
