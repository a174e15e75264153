"""The tables of `optiml bench`, by name."""

from __future__ import annotations

from benchmarks import ablation, foreign_gains, foreign_generate, peer_kernel_tuner, peers, rate, searches
from benchmarks.bench import Table

_MADE = (
    searches.examples_table(),
    searches.suite_table(),
    searches.controls_table(),
    rate.table(),
    *ablation.tables(),
    peers.pytorch_table(),
    peers.cublas_cub_table(),
    peer_kernel_tuner.table(),
    foreign_gains.table(),
    foreign_generate.table(),
)
TABLES: dict[str, Table] = {table.name: table for table in _MADE}
