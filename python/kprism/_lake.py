# SPDX-License-Identifier: MIT OR Apache-2.0
"""Many runs in one folder: `LAKE/TABLE/schema=2/suite=S/day=D/RUN.parquet`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._kprism import KprismError

if TYPE_CHECKING:
    from ._run import PathLike

#: The version of the tables that this package knows.
SCHEMA = 2


class Lake:
    """A lake. `glob` names a table's files for any reader; `scan` and `sql` hand them to Polars and DuckDB."""

    def __init__(self, path: PathLike) -> None:
        self.path = Path(os.path.abspath(path))
        if not self.path.is_dir():
            raise KprismError(f"{path}: no such folder; a lake is made by `kprism lake add`")
        if not self.tables:
            raise KprismError(f"{path}: not a lake: no folder in it is TABLE/schema={SCHEMA}; one is made by `kprism lake add`")

    @property
    def tables(self) -> list[str]:
        """Names of its tables."""
        return sorted(found.parent.name for found in self.path.glob(f"*/schema={SCHEMA}") if found.is_dir())

    def glob(self, table: str) -> str:
        """The pattern of a table's files. The folders' names `suite=…`, `day=…` are columns to readers of Hive partitions."""
        if table not in self.tables:
            raise KprismError(f"{self.path}: no table '{table}'; there are {', '.join(self.tables)}")
        return str(self.path / table / f"schema={SCHEMA}" / "**" / "*.parquet")

    def scan(self, table: str) -> Any:
        """The table as a Polars LazyFrame: filters on `suite` and `day` leave out whole folders.

        In a lake with a table `manifest`, a run's rows count in the newest part that names it; older parts are being replaced."""
        import polars

        def files(name: str) -> Any:
            return polars.scan_parquet(self.glob(name), hive_partitioning=True, try_parse_hive_dates=False)

        if "manifest" not in self.tables:
            return files(table)
        runs = files("manifest").sort("part", descending=True).unique("run_id", keep="first", maintain_order=True)
        if table == "manifest":
            return runs
        return files(table).join(runs.select("run_id", "part"), on=["run_id", "part"], how="semi")

    def sql(self, query: str) -> Any:
        """A query by DuckDB over the lake's tables, by their names. Returns DuckDB's relation."""
        return self.connect().sql(query)

    def connect(self) -> Any:
        """A DuckDB connection in memory, with a view for each table, in which the same rows count as in `scan`."""
        import duckdb

        database = duckdb.connect()
        options = "union_by_name = true, hive_partitioning = true, hive_types_autocast = false"
        parts = "manifest" in self.tables
        # The others' views refer to that of the manifest, so it comes first.
        for table in sorted(self.tables, key=lambda name: name != "manifest"):
            files = self.glob(table).replace("'", "''")
            which = ""
            if parts and table == "manifest":
                which = "qualify row_number() over (partition by run_id order by part desc) = 1"
            elif parts:
                which = "semi join manifest using (run_id, part)"
            database.sql(f"create view \"{table}\" as select * from read_parquet('{files}', {options}) {which}")
        return database

    def __repr__(self) -> str:
        return f"<kprism.Lake {str(self.path)!r}: {', '.join(self.tables)}>"


def lake(path: PathLike) -> Lake:
    """Opens a lake. Raises `KprismError` if the folder is none."""
    return Lake(path)
