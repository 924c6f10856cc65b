#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# PROGRAMS made-up programs (1,000,000) from SEED (1): as eBPF of v3 and v4 in the guest's stock kernel they must end as
# in the interpreter. They are made here and run there, in slices; JOBS guests (2) at a time. A slice that was done is
# not done again: remove OUT to begin anew. KPRISM is the program, KERNEL_DIFF the example of kprism-expr.
set -eu

: "${PROGRAMS:=1000000}" "${SEED:=1}" "${SLICE:=50000}" "${JOBS:=2}" "${OUT:=target/expr-kernel}"
: "${KPRISM:=target/checked/kprism}" "${KERNEL_DIFF:=target/checked/examples/kernel_diff}"
mkdir -p "$OUT"

# slice FIRST COUNT: makes them, and has a guest run them.
slice() {
	log=$OUT/$SEED-$1.log
	if grep -q '^no difference' "$log" 2>/dev/null; then return 0; fi
	share=$OUT/share-$1
	mkdir -p "$share"
	cp "$KERNEL_DIFF" "$share/kernel_diff"
	"$KERNEL_DIFF" make "$SEED" "$1" "$2" >"$share/programs"
	"$KPRISM" lab run -q --unobserved --fast -o "$OUT/run-$1" --share "$share:/diff" -- \
		/diff/kernel_diff run /diff/programs >"$log" 2>&1 || true
	rm -rf "$share" "$OUT/run-$1"
	tail -n 1 "$log" | sed "s/^/programs from $1: /"
	grep -q '^no difference' "$log"
}

job=0
pids=
while [ "$job" -lt "$JOBS" ]; do
	(
		first=$((job * SLICE))
		while [ "$first" -lt "$PROGRAMS" ]; do
			count=$((PROGRAMS - first))
			[ "$count" -lt "$SLICE" ] || count=$SLICE
			slice "$first" "$count" || exit 1
			first=$((first + JOBS * SLICE))
		done
	) &
	pids="$pids $!"
	job=$((job + 1))
done
failed=0
for pid in $pids; do wait "$pid" || failed=1; done
cat "$OUT/$SEED"-*.log | awk '/^no difference/ { p += $3; c += substr($5, 2); r += $8; f += $10; i += $12 } END {
	printf "%d programs (%d of C), %d runs in the guest (%d ended by a fault), %d instructions of eBPF\n", p, c, r, f, i }'
[ "$failed" -eq 0 ] || { echo "the kernel and the interpreter differ: see $OUT/$SEED-*.log" >&2; exit 1; }
