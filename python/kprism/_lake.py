# SPDX-License-Identifier: MIT OR Apache-2.0
"""Many runs in one folder: `LAKE/TABLE/schema=2/suite=S/day=D/RUN.parquet`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._kprism import KprismError
from ._program import command

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

    def statements(self, engine: str) -> list[str]:
        """SQL that makes a view of each table, with the rows that count, and of each question (`regressions` and others), for the engine
        `duckdb`, `polars` or `spark`: what `kprism lake views` prints, statement by statement."""
        said = command(["lake", "views", self.path, "--engine", engine], capture=True).stdout.decode()
        lines = (line for line in said.splitlines() if not line.lstrip().startswith("--"))
        return [statement for statement in "\n".join(lines).split(";\n") if statement.strip()]

    def scan(self, table: str) -> Any:
        """The table, or the view of a question, as a Polars LazyFrame."""
        import polars

        context = polars.SQLContext()
        for statement in self.statements("polars"):
            context.execute(statement)
        if table not in context.tables():
            raise KprismError(f"{self.path}: no table or view '{table}'; there are {', '.join(context.tables())}")
        return context.execute(f'select * from "{table}"', eager=False)

    def sql(self, query: str) -> Any:
        """A query by DuckDB over the lake's tables and views, by their names. Returns DuckDB's relation."""
        return self.connect().sql(query)

    def connect(self) -> Any:
        """A DuckDB connection in memory, with a view for each table and each question."""
        import duckdb

        database = duckdb.connect()
        for statement in self.statements("duckdb"):
            database.sql(statement)
        return database

    def __repr__(self) -> str:
        return f"<kprism.Lake {str(self.path)!r}: {', '.join(self.tables)}>"


def lake(path: PathLike) -> Lake:
    """Opens a lake. Raises `KprismError` if the folder is none."""
    return Lake(path)
