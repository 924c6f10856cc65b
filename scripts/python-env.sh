#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The packages of python/requirements.txt in an environment of their own, made once, for the tests of the Python package:
# ~/.cache/kprism/python/HASH, where HASH is of that file and Python's version.
#
#   scripts/python-env.sh          makes it if it is not there, and prints its folder
#   scripts/python-env.sh --have   prints the folder, and fails if it is not there
set -eu

cd "$(dirname "$0")/.."
python=${KPRISM_PYTHON:-python3}
hash=$({ "$python" -c 'import sys; print(sys.version_info[:2])' && cat python/requirements.txt; } | sha256sum | cut -c 1-24)
place=${XDG_CACHE_HOME:-$HOME/.cache}/kprism/python
folder=$place/$hash
echo "$folder"
[ ! -f "$folder/complete" ] || exit 0
[ "${1:-}" != --have ] || exit 1
mkdir -p "$place"
# Two that want it at once: the second waits, and finds it.
exec 9>"$place/$hash.lock"
flock 9
[ ! -f "$folder/complete" ] || exit 0
rm -rf "$folder"
"$python" -m venv "$folder" >&2
# pyspark comes as source, and is Python alone.
"$folder/bin/python" -m pip install -q --disable-pip-version-check -r python/requirements.txt >&2
touch "$folder/complete"
