# SPDX-License-Identifier: MIT OR Apache-2.0
"""tables.py RUN...: each run in Polars, pandas, pyarrow and DuckDB has the sums that `kprism report --json` has, and each table the same
rows in all of them."""

import json
import sys

import duckdb
import kprism
import pandas
import polars
import pyarrow


def same_in_all(run, name):
    """Every table has the same columns, rows and sums, whoever reads it."""
    table = run.table(name)
    by_polars = polars.DataFrame(run.table(name))
    by_arrow = pyarrow.table(run.table(name))
    by_pandas = pandas.DataFrame.from_arrow(run.table(name)) if hasattr(pandas.DataFrame, "from_arrow") else by_arrow.to_pandas()
    by_duckdb = duckdb.from_arrow(by_arrow)
    columns = table.columns
    assert by_polars.columns == by_arrow.column_names == list(by_pandas.columns) == by_duckdb.columns == columns, name
    assert by_polars.height == by_arrow.num_rows == len(by_pandas) == by_duckdb.shape[0] == table.num_rows == len(table), name
    sums = 0
    for column in columns:
        if not by_polars[column].dtype.is_integer():
            continue
        expected = sum(value for value in by_arrow[column].to_pylist() if value is not None)
        assert by_polars[column].cast(polars.Int128).sum() == expected, (name, column)
        assert sum(int(value) for value in by_pandas[column].dropna()) == expected, (name, column)
        assert int(by_duckdb.sum(f'"{column}"').fetchall()[0][0] or 0) == expected, (name, column)
        sums += 1
    return sums


def as_reported(run):
    """Sums over the tables are those of the program's own report."""
    functions = polars.DataFrame(run.table("functions"))
    nodes = polars.DataFrame(run.table("nodes"))
    calls = polars.DataFrame(run.table("syscalls"))
    said = run.report("functions", "--limit", "0")
    assert sum(row["self_instructions"] for row in said["rows"]) == nodes["insns"].sum() > 0
    by_report = {(row["function"], row["module"]): row["self_instructions"] for row in said["rows"]}
    # A table's first column numbers its rows.
    key = functions.columns[0]
    [module] = [column for column in functions.columns if column.startswith("module")]
    of_functions = nodes.join(functions, on=key).group_by("name", module).agg(polars.col("insns").sum())
    by_table = {(name, module): insns for name, module, insns in of_functions.iter_rows()}
    # Functions of one name are one row here, and several in the report.
    named = [(row["function"], row["module"]) for row in said["rows"]]
    once = {name: insns for name, insns in by_report.items() if named.count(name) == 1}
    assert len(once) > 1000 and all(by_table[name] == insns for name, insns in once.items())
    said = run.report("syscalls", "--limit", "0")
    assert sum(row["count"] for row in said["rows"]) == calls.height > 0


for path in sys.argv[1:]:
    run = kprism.open(path)
    sums = sum(same_in_all(run, name) for name in run.tables)
    assert sums > 20, sums
    as_reported(run)
    assert run.manifest["command"] and "flow" in run.instruments, run
    page = run._repr_html_()
    assert page.startswith("<iframe") and "srcdoc=" in page and len(page) > 50_000, len(page)
    print(f"{path}: {len(run.tables)} tables, {sums} sums")
