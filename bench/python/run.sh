#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# run.sh RUN [TABLE] [ROUNDS]: milliseconds to have a table (default: nodes) in pandas, from the run by `kprism.open`, and from the same rows
# exported as CSV by `pandas.read_csv`; the median of ROUNDS (default 11) in one process, with the files in memory. PYTHON names a Python that
# has kprism, pandas and pyarrow.
set -eu

run=${1:?usage: bench/python/run.sh RUN [TABLE] [ROUNDS]}
: "${PYTHON:=python3}"
csv=$(mktemp --suffix .csv)
trap 'rm -f "$csv"' EXIT
"$PYTHON" - "$run" "$csv" "${2:-nodes}" "${3:-11}" <<'PYTHON'
import os, statistics, sys, time
import kprism, pandas, pyarrow

run, csv, table, rounds = *sys.argv[1:4], int(sys.argv[4])


def median(read):
    read()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        rows = read()
        times.append(time.perf_counter() - began)
    return statistics.median(times), rows


open_s, rows = median(lambda: pyarrow.table(kprism.open(run).table(table)).to_pandas())
rows.to_csv(csv, index=False)
csv_s, lines = median(lambda: pandas.read_csv(csv))
size = os.path.getsize(os.path.join(run, "tables", f"{table}.parquet"))
print(f"kprism.open:     {open_s * 1e3:8.2f} ms  {len(rows)} rows, {len(rows.columns)} columns, {size} bytes")
print(f"pandas.read_csv: {csv_s * 1e3:8.2f} ms  {len(lines)} rows, {len(lines.columns)} columns, {os.path.getsize(csv)} bytes")
PYTHON
