#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Table 2 of Sharma and Dagenais, "Hardware-assisted instruction profiling and latency detection": the flow against ftrace,
# on Sysbench's load of files, memory and processor. Files are on ext4 and, once more, in memory (tmpfs). Each load runs by
# itself, then with ftrace, in the guest; the flow is recorded from outside. See lib.sh for KPRISM and OUT.
#
#   table2.sh [LOAD...]   file-ext4, file-memory, memory, cpu; all if none is named
set -eu
. "$(dirname "$0")/lib.sh"

# load NAME BEFORE WORD...: Sysbench's load of these words.
load() {
	name=$1 before=$2
	shift 2
	(
		cd "$OUT"
		"$KPRISM" impact -q --json --tracer function --tracer function_graph --tracer events --package sysbench \
			--disk disk.ext4 --before "$before" --cwd /mnt -o "table2-$name" -- sysbench --threads=1 --time=0 "$@" run \
			>"table2-$name.json"
		"$KPRISM" flow-cost -q -i "table2-$name/baseline" --json >"table2-$name.flow"
		# In one and the same guest, recorded and not.
		for how in --no-decode --unobserved; do
			"$KPRISM" lab run -q $how -o table2-run --package sysbench --disk disk.ext4 --before "$before" --cwd /mnt \
				-- sysbench --threads=1 --time=0 "$@" run >"table2-$name.$how"
		done
	)
}
files="sysbench fileio --file-total-size=4M --file-num=2 prepare >/dev/null"
[ $# -gt 0 ] || set -- file-ext4 file-memory memory cpu
for one in "$@"; do
	case $one in
	file-ext4) load "$one" "$mount && cd /mnt && $files" \
		fileio --file-total-size=4M --file-num=2 --file-test-mode=rndrw --events=4000 ;;
	file-memory) load "$one" "mkdir -p /mnt && busybox mount -t tmpfs none /mnt && cd /mnt && $files" \
		fileio --file-total-size=4M --file-num=2 --file-test-mode=rndrw --events=4000 ;;
	memory) load "$one" 'mkdir -p /mnt' memory --memory-block-size=1K --memory-total-size=16M ;;
	cpu) load "$one" 'mkdir -p /mnt' cpu --cpu-max-prime=2000 --events=300 ;;
	*) echo "table2.sh: $one: expected file-ext4, file-memory, memory or cpu" >&2; exit 2 ;;
	esac
done
python3 "$here/table2.py" "$OUT" "$@"
