# SPDX-License-Identifier: MIT OR Apache-2.0
"""lake.py LAKE [VIEWS]: the same queries over a lake by DuckDB, Polars and Spark SQL give the same rows; Delta Lake and Iceberg read the
Parquet files as they are. VIEWS has what `kprism lake views` printed, one file an engine."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import kprism
import polars
import pyarrow
from pyarrow import parquet

place = Path(tempfile.mkdtemp())
lake = kprism.lake(sys.argv[1])
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

# Plain SQL, as all three know it.
QUERIES = {
    "calls by day": "select suite, day, count(*) as calls, sum(wall_ns) as ns, max(on_cpu_ns) as longest from syscalls group by suite, day",
    "nodes by kind": "select kind, count(*) as nodes, sum(calls) as calls, sum(insns) as insns, sum(self_ns) as ns from nodes group by kind",
    "tasks by name": "select comm, count(*) as tasks, min(pid) as first from tasks group by comm having count(*) > 1",
    "a day": "select count(*) as slices from slices where day = '2026-01-31' and end_ns - start_ns > 10000",
    "another day": "select count(*) as slices from slices where day = '1999-01-01'",
}


def plain(rows):
    return sorted(tuple(value if isinstance(value, str) else int(value) for value in row) for row in rows)


from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[2]").appName("kprism lake").config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "512m").config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR")
    .config("spark.sql.sources.partitionColumnTypeInference.enabled", "false").getOrCreate()
)
for table in lake.tables:
    # The pattern of a table's folder, below which suite and day are folders.
    spark.read.parquet(str(lake.path / table / "schema=2")).createOrReplaceTempView(table)
database = lake.connect()
by_polars = polars.SQLContext({table: lake.scan(table) for table in lake.tables})
answered = 0
for name, query in QUERIES.items():
    answers = {
        "DuckDB": plain(database.sql(query).fetchall()),
        "Polars": plain(by_polars.execute(query).collect().rows()),
        "Spark": plain(spark.sql(query).collect()),
    }
    assert answers["DuckDB"] == answers["Polars"] == answers["Spark"], (name, answers)
    answered += sum(map(len, answers.values()))
assert answered > 20, answered
print(f"{len(QUERIES)} queries, the same rows by DuckDB, Polars and Spark")
spark.stop()

# A lake with a manifest: rows of a part that another has replaced do not count.
made = place / "parts"
for part in (0, 1):
    for table, columns in {"manifest": {}, "calls": {"insns": [10 + part, 20]}}.items():
        columns = {"run_id": ["r"] * (2 if columns else 1), "part": [part] * (2 if columns else 1), **columns}
        folder = made / table / "schema=2/suite=S/day=2026-01-31"
        folder.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.table(columns), folder / f"part-{part}.parquet")
parts = kprism.lake(made)
assert parts.sql("select sum(insns), count(*) from calls").fetchall() == [(31, 2)]
assert parts.scan("calls").collect()["insns"].sum() == 31 and parts.scan("manifest").collect().height == 1

# Delta Lake and Iceberg register the files where they are: no byte of a table is copied.
copy = shutil.copytree(lake.path, place / "lake")
files = {path: path.stat().st_mtime_ns for path in copy.rglob("*.parquet")}
expected = database.sql("select count(*), sum(wall_ns) from syscalls").fetchall()[0]
table = copy / "syscalls/schema=2"

from deltalake import DeltaTable, Field, Schema, convert_to_deltalake

partitions = Schema([Field("suite", "string"), Field("day", "string")])
convert_to_deltalake(str(table), partition_by=partitions, partition_strategy="hive")
delta = polars.DataFrame(DeltaTable(str(table)).to_pyarrow_table())
assert (delta.height, delta["wall_ns"].sum()) == tuple(map(int, expected)), (delta.height, expected)
assert set(delta["suite"]) == {"S"}

from pyiceberg.catalog.sql import SqlCatalog

catalog = SqlCatalog("kprism", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}/warehouse")
catalog.create_namespace("kprism")
paths = sorted(str(path) for path in table.rglob("*.parquet") if "_delta_log" not in path.parts)
iceberg = catalog.create_table("kprism.syscalls", schema=parquet.read_schema(paths[0]))
iceberg.add_files(file_paths=paths)
rows = polars.DataFrame(iceberg.scan().to_arrow())
assert (rows.height, rows["wall_ns"].sum()) == tuple(map(int, expected)), (rows.height, expected)
assert {path: path.stat().st_mtime_ns for path in files} == files, "a Parquet file was written"
print(f"Delta Lake and Iceberg: {expected[0]} rows of {len(paths)} files, as they are")
shutil.rmtree(place)
