# SPDX-License-Identifier: MIT OR Apache-2.0
"""lake.py LAKE: the same queries, and kprism's own views, over a lake by DuckDB, Polars and Spark SQL give the same rows; Delta Lake and
Iceberg read the Parquet files as they are."""

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
    "long slices": "select count(*) as slices from slices where end_ns - start_ns > 10000",
    "another day": "select count(*) as slices from slices where day = '1999-01-01'",
}


def plain(rows):
    return sorted(tuple(str(value) if value is None or isinstance(value, str) else int(value) for value in row) for row in rows)


from cluster import Cluster
from pyspark.sql import SparkSession

def session(master):
    return (
        SparkSession.builder.master(master).appName("kprism lake").config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m").config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0").config("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s")
        .config("spark.executor.memory", "512m").config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.sources.partitionColumnTypeInference.enabled", "false").getOrCreate()
    )


spark = session("local[2]")
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

# kprism's own views: the same text for all three.
import duckdb

database, by_polars, views = duckdb.connect(), polars.SQLContext(), 0
for statement in lake.statements("duckdb"):
    database.sql(statement)
for statement in lake.statements("polars"):
    by_polars.execute(statement)
for statement in lake.statements("spark"):
    spark.sql(statement)
by_hand = {}
for view in ("run_recorded", "run_pairs", "not_compared", "regressions", "first_bad_commit", "fleet_top", "syscall_percentiles"):
    query = f"select * from {view}"
    columns = [column.lower() for column in database.sql(query).columns]
    answers = {
        "DuckDB": plain(database.sql(query).fetchall()),
        "Polars": plain(by_polars.execute(query).collect().select(columns).rows()),
        "Spark": plain(spark.sql(query).select(*columns).collect()),
    }
    assert answers["DuckDB"] == answers["Polars"] == answers["Spark"], (view, {name: rows[:3] for name, rows in answers.items()})
    views += len(answers["DuckDB"])
    by_hand[query] = (columns, answers["DuckDB"])
assert views > 1000, views
print(f"views: {views} rows, the same by DuckDB, Polars and Spark")
assert lake.scan("regressions").collect().height == len(lake.sql("select * from regressions").fetchall())
spark.stop()

# Once more, on a cluster of a master and two workers.
with Cluster(place, 2, dict(os.environ)) as cluster:
    spark = session(cluster.master)
    for statement in lake.statements("spark"):
        spark.sql(statement)
    for query, (columns, expected) in by_hand.items():
        assert plain(spark.sql(query).select(*columns).collect()) == expected, query
    for name, query in QUERIES.items():
        assert plain(spark.sql(query).collect()) == plain(lake.sql(query).fetchall()), name
    workers = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    assert workers == 2, workers
    spark.stop()
print(f"a standalone cluster of {workers} workers: the same")
database = lake.connect()

# A lake with a manifest: rows of a part that another has replaced do not count.
made = place / "parts"
for part in (0, 1):
    for table, columns in {"manifest": {}, "calls": {"insns": [10 + part, 20]}}.items():
        columns = {"run_id": ["r"] * (2 if columns else 1), "part": [part] * (2 if columns else 1), **columns}
        folder = made / table / "schema=2/suite=S/day=2026-01-31"
        folder.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.table(columns), folder / f"part-{part}.parquet")
(made / "_lake").mkdir()
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
