# SPDX-License-Identifier: MIT OR Apache-2.0
"""Decodes many recordings on a Spark cluster, and adds them to a lake.

    spark-submit --archives kprism.zip#kprism_wheel decode.py --suite S --lake LAKE [--label KEY=VALUE]... RUN...

RUN is a run's folder, or a `.tar.gz` of one, that every worker can read. `kprism.zip` is the wheel under another name; without it, the package has to
be installed on the workers. A run goes to one task, which decodes a copy of it and calls `kprism lake add`: a run is in the lake whole or not at all, and
once, though a task may run twice because a worker was lost.

Prints one line of JSON a run: its id and what became of it, or the error. Ends with 1 if a run could not be decoded.
"""

import argparse
import json
import os
import shutil
import sys
import tarfile
import tempfile

SCHEMA = "run string, ok boolean, detail string"
#: The name under which --archives unpacks the wheel.
ARCHIVE = "kprism_wheel"


def package():
    """The package kprism: as it was shipped with the job, else as it is installed on this worker."""
    from pyspark import SparkFiles

    shipped = os.path.join(SparkFiles.getRootDirectory(), ARCHIVE)
    if os.path.isdir(shipped) and shipped not in sys.path:
        sys.path.insert(0, shipped)
    import kprism

    return kprism


def extract(archive, folder):
    """Extracts a tar archive, and nothing of it outside of the folder. Python has a filter for that since 3.12, 3.11.4, 3.10.12 and 3.9.17; Debian 12's
    3.11.2 has none: there, links and special files, which no run has, are refused."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
        return
    inside = os.path.realpath(folder) + os.sep
    for member in archive.getmembers():
        place = os.path.realpath(os.path.join(folder, member.name))
        if not (place + os.sep).startswith(inside) or not (member.isfile() or member.isdir()):
            raise ValueError(f"{archive.name}: {member.name} leads out of the archive, or is neither file nor folder")
        member.mode &= 0o755
    archive.extractall(folder)


def unpacked(uri, scratch):
    """The run's folder: the folder itself, copied to `scratch`, as decoding writes into it, or what the archive holds."""
    name = os.path.basename(uri.rstrip("/"))
    for suffix in (".tar.gz", ".tgz", ".tar"):
        if name.endswith(suffix):
            name = name[: -len(suffix)]
            with tarfile.open(uri) as archive:
                extract(archive, scratch)
            found = [top for top, _, files in os.walk(scratch) if "manifest.json" in files]
            if not found:
                raise ValueError(f"{uri}: no manifest.json in it: not the archive of a run")
            return min(found, key=len)
    if not os.path.isdir(uri):
        raise ValueError(f"{uri}: no such folder, or not one that this worker can read")
    folder = os.path.join(scratch, name)
    shutil.copytree(uri, folder, symlinks=True)
    return folder


def decode(uri, lake, suite, labels):
    """Decodes one run into the lake; returns what `kprism lake add --json` says of it."""
    kprism = package()
    with tempfile.TemporaryDirectory(prefix="kprism-") as scratch:
        folder = unpacked(uri, scratch)
        given = [word for label in labels for word in ("--label", label)]
        added = kprism.command(["lake", "add", "-q", folder, "--to", lake, "--suite", suite, "--json", *given], capture=True)
        [added] = json.loads(added.stdout)
        return {key: added[key] for key in ("run_id", "outcome")}


def decoder(lake, suite, labels):
    """What `mapInArrow` calls in a worker: batches of URIs in, batches of results out."""

    def batches(incoming):
        import pyarrow

        for batch in incoming:
            results = {"run": [], "ok": [], "detail": []}
            for uri in batch.column("uri").to_pylist():
                try:
                    ok, detail = True, json.dumps(decode(uri, lake, suite, labels), sort_keys=True)
                except Exception as error:  # one bad run is told, and the others go on
                    ok, detail = False, f"{type(error).__name__}: {error}"
                for column, value in zip(results.values(), (uri, ok, detail)):
                    column.append(value)
            types = pyarrow.schema([("run", pyarrow.string()), ("ok", pyarrow.bool_()), ("detail", pyarrow.string())])
            yield pyarrow.RecordBatch.from_pydict(results, schema=types)

    return batches


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--lake", required=True, help="folder of the lake, which every worker can write")
    parser.add_argument("--suite", required=True)
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="label of the runs (can be repeated)")
    given = parser.parse_args()

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("kprism decode").getOrCreate()
    # A run a task: what is lost with a worker is one run, which is then decoded by another.
    uris = spark.sparkContext.parallelize([(os.path.abspath(uri),) for uri in given.runs], len(given.runs)).toDF("uri string")
    results = uris.mapInArrow(decoder(os.path.abspath(given.lake), given.suite, given.label), SCHEMA).collect()
    failed = 0
    for row in sorted(results):
        failed += not row.ok
        print(json.dumps({"run": row.run, **(json.loads(row.detail) if row.ok else {"error": row.detail})}))
    spark.stop()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
