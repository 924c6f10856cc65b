#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
#   tree.sh RUN TREE   lays a run's counters out as files, with links to the notes beside them: what gcov, lcov and
#                      others want
set -eu
run=$(realpath "$1")
mkdir -p "$2"
cd "$2"
python3 - "$run/streams/gcov/counters.cpio" <<'END'
import os, sys
data = open(sys.argv[1], "rb").read()
at = 0
while True:
    field = lambda i: int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16)
    assert data[at : at + 6] == b"070701"
    size, length = field(6), field(11)
    name = data[at + 110 : at + 109 + length].decode()
    body = (at + 110 + length + 3) & ~3
    if name == "TRAILER!!!":
        break
    os.makedirs(os.path.dirname(name), exist_ok=True)
    open(name, "wb").write(data[body : body + size])
    os.symlink("/" + name[:-5] + ".gcno", name[:-5] + ".gcno")
    at = (body + size + 3) & ~3
END
