#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
#   compare-info.sh OURS THEIRS   two tracefiles: each line's and function's count, and the totals; fails if a count
#                                 differs
set -eu
python3 - "$1" "$2" <<'END'
import os, sys

def read(path):
    lines, functions, branches, source = {}, {}, [0, 0], None
    for text in open(path, errors="replace"):
        key, _, value = text.rstrip("\n").partition(":")
        if key == "SF":
            source = os.path.realpath(value)
        elif key == "DA":
            number, count = value.split(",")[:2]
            place = (source, int(number))
            lines[place] = lines.get(place, 0) + int(count)
        elif key == "FNDA":
            count, name = value.split(",", 1)
            functions[(source, name)] = functions.get((source, name), 0) + int(count)
        elif key == "BRDA":
            branches[0] += 1
            branches[1] += value.rsplit(",", 1)[1] not in ("-", "0")
    return lines, functions, branches

ours, theirs = read(sys.argv[1]), read(sys.argv[2])
bad = 0
for what, a, b in (("lines", ours[0], theirs[0]), ("functions", ours[1], theirs[1])):
    different = sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k))
    hit = lambda all: sum(count != 0 for count in all.values())
    print(f"{what}: ours {hit(a)} of {len(a)}, theirs {hit(b)} of {len(b)}, {len(different)} differ")
    for place in different[:20]:
        print("  ", place, a.get(place), b.get(place))
    bad += len(different)
print(f"branches: ours {ours[2][1]} of {ours[2][0]}, theirs {theirs[2][1]} of {theirs[2][0]} (tools merge them differently)")
sys.exit(bad != 0)
END
