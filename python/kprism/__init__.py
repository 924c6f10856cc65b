# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where the time of a command went, inside the kernel: runs of kprism as tables.

    import kprism, polars

    run = kprism.open("kprism.data")
    calls = polars.DataFrame(run.table("syscalls"))

A table is handed over by Arrow's C interface, so polars, pandas, pyarrow and DuckDB take it as it is. `lab_run` and `record` make runs,
by the program that this package brings along.
"""

from ._kprism import KprismError, Table, __version__
from ._program import CommandError, command, lab_run, program, record
from ._lake import Lake, lake
from ._run import KprismWarning, Run, open

__all__ = [
    "CommandError",
    "KprismError",
    "KprismWarning",
    "Lake",
    "Run",
    "Table",
    "__version__",
    "command",
    "lab_run",
    "lake",
    "open",
    "program",
    "record",
]
