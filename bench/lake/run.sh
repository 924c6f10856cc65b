#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# A lake of RUNS runs (1000): recorded REAL times (20) in the guest, then multiplied, each copy with a date and an id of its
# own. Prints runs of `lake add` a second of CPU, bytes a run, and the CPU time of `regressions`, before and after `lake compact`.
# KPRISM names the program; kprism-sql is beside it.
set -eu

: "${KPRISM:=target/release/kprism}" "${RUNS:=1000}" "${REAL:=20}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# took COMMAND...: sets `took` to its CPU time in seconds, the difference of that of this shell's children. (`times` in a command
# substitution would tell of another shell.)
took() {
	times >"$work/before"
	"$@" >/dev/null
	times >"$work/after"
	took=$(for n in before after; do
		tail -n 1 "$work/$n" | tr 'ms' '  ' | awk '{ print $1 * 60 + $2 + $3 * 60 + $4 }'
	done | xargs | awk '{ printf "%.2f", $2 - $1 }')
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
took add
bytes() { find "$work/lake" -name '*.parquet' -printf '%s\n' | awk -v runs="$RUNS" '{ s += $1 } END { printf "%d", s / runs }'; }
echo "add: $RUNS runs, $(echo "$RUNS $took" | awk '{ printf "%.1f", $1 / $2 }') runs a second of CPU, $(bytes) bytes a run"
query="SELECT COUNT(*) FROM regressions"
took "$KPRISM" lake sql "$work/lake" "$query"
echo "regressions, a file a run: $took s of CPU"
took "$KPRISM" lake compact "$work/lake" --grace 0
echo "compact: $took s of CPU, $(bytes) bytes a run"
took "$KPRISM" lake sql "$work/lake" "$query"
echo "regressions, merged: $took s of CPU"
