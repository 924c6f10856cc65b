# SPDX-License-Identifier: MIT OR Apache-2.0
"""spark.py DECODE WHEEL LAKE RUN...: the job that decodes many recordings, on local[2] and on a standalone cluster of two workers of which one is killed
while it works. All write the same bytes, with the rows of the runs' own tables. The lake is left in LAKE."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from cluster import HOME, Cluster
from pyarrow import parquet

decode, wheel, kept, *runs = map(os.path.abspath, sys.argv[1:])
place = Path(tempfile.mkdtemp())
# Workers have no kprism of their own: theirs is the one that comes with the job.
environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "KPRISM")}
environment |= {"PYSPARK_PYTHON": os.environ["KPRISM_WORKERS_PYTHON"], "SPARK_LOCAL_IP": "127.0.0.1"}
# Seven Java machines that live for seconds: what they compile well costs more than it saves.
environment |= {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
COPIES = 3


def identity(number, run):
    return f"{number:016x}{runs.index(run):016x}"


def recordings():
    """Archives and folders, without tables: there is something to decode."""
    folder = place / "recordings"
    folder.mkdir()
    found = []
    for number in range(COPIES):
        for run in runs:
            name = f"{Path(run).stem}-{number}"
            copy = shutil.copytree(run, folder / name, ignore=shutil.ignore_patterns("tables"))
            # A recording of its own.
            manifest = json.loads((copy / "manifest.json").read_text())
            manifest["run_id"] = identity(number, run)
            (copy / "manifest.json").write_text(json.dumps(manifest))
            if number % 2:
                with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
                    archive.add(copy, arcname=name)
                shutil.rmtree(copy)
                copy = folder / f"{name}.tar.gz"
            found.append(str(copy))
    return found


def submit(master, lake, uris, log):
    """Starts the job."""
    archive = shutil.copyfile(wheel, place / "kprism.zip")
    options = ["--master", master, "--archives", f"{archive}#kprism_wheel", "--driver-memory", "512m", "--executor-memory", "512m",
               # Both workers take part, however late the second starts.
               "--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0", "--conf", "spark.scheduler.maxRegisteredResourcesWaitingTime=120s",
               "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"]
    with open(log, "wb") as err:
        return subprocess.Popen(
            [HOME / "bin/spark-submit", *options, decode, "--suite", "S", "--label", "job=test", "--lake", str(lake), *uris],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, env=environment, text=True,
        )


def finished(job, log, code=0):
    out, _ = job.communicate()
    assert job.returncode == code, f"{job.returncode}: {out}\n{log.read_text()[-6000:]}"
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def files(lake):
    """Every file of a lake, with its content's hash; none is left over from a task that was lost."""
    found = [path for path in lake.rglob("*") if path.is_file() and "_lake" not in path.parts]
    return {str(path.relative_to(lake)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


uris = recordings()
broken = place / "broken"
broken.mkdir()

log = place / "local.log"
lines = finished(submit("local[2]", place / "local", [*uris, str(broken)], log), log, code=1)
assert [line["run"] for line in lines if "error" in line] == [str(broken)], lines
assert "not a kprism run" in [line["error"] for line in lines if "error" in line][0], lines
by_local = files(place / "local")
assert len(by_local) >= 10 * len(uris), len(by_local)
for run in runs:
    for table in Path(run, "tables").glob("*.parquet"):
        [name] = [name for name in by_local if name.startswith(f"{table.stem}/") and identity(0, run) in name]
        own, added = parquet.ParquetFile(table).read(), parquet.ParquetFile(place / "local" / name).read()
        assert added.select(own.column_names).equals(own.cast(added.select(own.column_names).schema)), name
print(f"local[2]: {len(lines) - 1} recordings decoded, {len(by_local)} files")

with Cluster(place, 2, environment) as cluster:
    log = place / "cluster.log"
    job = submit(cluster.master, place / "cluster", uris, log)
    # In the middle of the job: some recordings are done, and most are not.
    while len(list((place / "cluster").glob("functions/*/*/*/*.parquet"))) < 2 and job.poll() is None:
        time.sleep(0.01)
    assert job.poll() is None, f"it ended before a worker could be killed:\n{log.read_text()[-6000:]}"
    done = len(list((place / "cluster").glob("functions/*/*/*/*.parquet")))
    cluster.kill(cluster.workers[0])
    lines = finished(job, log)
    assert done < len(uris), f"all {done} were decoded before the worker was killed"
    assert "Lost executor" in log.read_text(), f"no executor was lost:\n{log.read_text()[-6000:]}"
assert files(place / "cluster") == by_local
print(f"cluster: a worker killed after {done} of {len(uris)} recordings; the same {len(by_local)} files")
shutil.move(place / "local", kept)
shutil.rmtree(place)
