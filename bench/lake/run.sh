#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# A lake of RUNS runs (1000): recorded REAL times (20) in the guest, then multiplied, each copy with a date and an id of its
# own. Prints runs/s of `lake add`, bytes a run, and the time of `regressions`, before and after `lake compact`.
# KPRISM names the program; kprism-sql is beside it.
set -eu

: "${KPRISM:=target/release/kprism}" "${RUNS:=1000}" "${REAL:=20}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

seconds() {
	begin=$(date +%s.%N)
	"$@" >/dev/null
	end=$(date +%s.%N)
	echo "$begin $end" | awk '{ printf "%.2f", $2 - $1 }'
}

n=0
while [ "$n" -lt "$REAL" ]; do
	"$KPRISM" lab run -q -o "$work/real$n" -- sh -c "ls /bin | head -n $((n + 1))" >/dev/null
	rm -rf "$work/real$n/streams" "$work/real$n/symbols"
	n=$((n + 1))
done
n=0
while [ "$n" -lt "$RUNS" ]; do
	cp -r "$work/real$((n % REAL))" "$work/run$n"
	created=$(date -u -d "2026-01-01 + $n minutes" +%Y-%m-%dT%H:%M:%SZ)
	id=$(printf '%032x' "$n")
	sed -i "s/\"created\": \"[^\"]*\"/\"created\": \"$created\"/; s/\"run_id\": \"[^\"]*\"/\"run_id\": \"$id\"/" "$work/run$n/manifest.json"
	n=$((n + 1))
done

add() {
	n=0
	while [ "$n" -lt "$RUNS" ]; do
		"$KPRISM" lake add -q "$work/run$n" --to "$work/lake" --suite bench --label commit=c$n --label position=$n
		n=$((n + 1))
	done
}
time=$(seconds add)
bytes=$(find "$work/lake" -name '*.parquet' -printf '%s\n' | awk '{ s += $1 } END { print s }')
echo "add: $RUNS runs in $time s, $(echo "$RUNS $time" | awk '{ printf "%.1f", $1 / $2 }') runs/s, $((bytes / RUNS)) bytes a run"
query="SELECT COUNT(*) FROM regressions"
echo "regressions, a file a run: $(seconds "$KPRISM" lake sql "$work/lake" "$query") s"
echo "compact: $(seconds "$KPRISM" lake compact "$work/lake" --grace 0) s"
bytes=$(find "$work/lake" -name '*.parquet' -printf '%s\n' | awk '{ s += $1 } END { print s }')
echo "merged: $((bytes / RUNS)) bytes a run"
echo "regressions, merged: $(seconds "$KPRISM" lake sql "$work/lake" "$query") s"
