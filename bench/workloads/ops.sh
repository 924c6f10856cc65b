#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Instructions of single operations of the kernel (ops.c): files, faults, mappings, processes, context switches, pipes,
# sockets, connections. A nanosecond of the guest is an instruction, so the program's own clock counts them. Each operation has
# a run of its own, as what one leaves to the kernel to be done later would be counted to the next; each run is made twice and
# must be the same. With two kernels, what the second adds to each: gcov's counters, for instance.
#
#   ops.sh [IMAGE [IMAGE]]   images (bzImage); without any, the lab's own kernel. See lib.sh for KPRISM and OUT.
set -eu
. "$(dirname "$0")/lib.sh"

mkdir -p "$OUT/ops"
cc -O2 -Wall -static -o "$OUT/ops/ops" "$here/ops.c"
operations=$(sed -n 's/^\t{ "\([a-z0-9-]*\)", .*/\1/p' "$here/ops.c")

# measure NAME [IMAGE]: a line of the program for each operation.
measure() {
	name=$1
	shift
	[ $# -eq 0 ] || set -- --kernel "$(realpath "$1")"
	for again in "" .again; do
		for operation in $operations; do
			# Files are deleted in the run that creates them.
			deleted=
			case $operation in
			create-*) deleted=delete-${operation#create-} ;;
			delete-*) continue ;;
			esac
			(cd "$OUT" && "$KPRISM" lab run -q --unobserved -o ops-run "$@" --share ops --cwd /tmp -- \
				/share/ops 500 "$operation" ${deleted:+"$deleted"})
		done >"$OUT/ops-$name$again"
	done
	cmp "$OUT/ops-$name" "$OUT/ops-$name.again"
}
# Each on a line of its own: `set -e` does not end a script within `&&`.
case $# in
0)
	measure debian
	set -- debian
	;;
1)
	measure first "$1"
	set -- first
	;;
*)
	measure first "$1"
	measure second "$2"
	set -- first second
	;;
esac
python3 - "$OUT" "$@" <<'END'
import math, sys
out, names = sys.argv[1], sys.argv[2:]
rows = [dict((line.split()[0], line.split()[1:]) for line in open(f"{out}/ops-{name}")) for name in names]
print(f"{'operation':<16}{'times':>6}" + "".join(f"{name:>12}" for name in names) + ("   ratio" if len(rows) > 1 else ""))
ratios = []
for name, (times, value) in rows[0].items():
    line = f"{name:<16}{times:>6}" + "".join(f"{float(row[name][1]):>12,.0f}" for row in rows)
    if len(rows) > 1:
        ratios.append(float(rows[1][name][1]) / float(value))
        line += f"{ratios[-1]:>8.3f}"
    print(line)
if ratios:
    print(f"geometric mean of the ratios: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}")
END
