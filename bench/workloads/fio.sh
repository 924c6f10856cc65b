#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The figures of docs/workloads/fio.md: random reads and writes of a file on ext4, through the page cache and past it
# (O_DIRECT), and with a second job. See lib.sh for KPRISM and OUT.
set -eu
. "$(dirname "$0")/lib.sh"

job="--name=rw --filename=/mnt/f --size=4m --bs=4k --rw=randrw --fsync=16 --thread --output-format=json"
guest="--package fio --disk disk.ext4"
# shellcheck disable=SC2086 # several words
{
	record cached $guest --before "$mount" -- fio $job
	record direct $guest --before "$mount" -- fio $job --direct=1
	record two --smp 2 $guest --before "$mount" -- fio $job --numjobs=2
}

show report syscalls -i cached --limit 8
show report functions -i cached --limit 5
show_call report tree -i cached --syscall fsync --call slowest --min-percent 8 --limit 30
show diff cached direct --syscall pread64 --limit 5
show diff cached direct --syscall pwrite64 --limit 5
show report syscalls -i two --limit 8
show report delta irqs -i cached --limit 3

# Pages taken in the longest of these intervals that began in the page allocator.
"$KPRISM" report delta irqs -q --json --limit 10 -i "$OUT/cached" >"$OUT/irqs.json"
longest=$(python3 -c 'import json, sys
rows = json.load(open(sys.argv[1]))["delta"]["longest"]
row = next(row for row in rows if "< __rmqueue_pcplist <" in row["from"])
print("--from {}ns --to {}ns".format(row["start_ns"], row["start_ns"] + row["ns"]))' "$OUT/irqs.json")
# shellcheck disable=SC2086 # several words
echo "pages in the allocator's longest: $("$KPRISM" script calls -i "$OUT/cached" --func __rmqueue_pcplist --depth 2 $longest |
	grep -c __mod_zone_page_state)"
"$KPRISM" report functions -q --json --limit 0 -i "$OUT/two" --comm fio | python3 -c 'import json, sys
for row in json.load(sys.stdin)["rows"]:
    if row["function"] in ("rwsem_down_write_slowpath", "native_queued_spin_lock_slowpath", "ext4_mpage_readpages"):
        print("two jobs:", row["function"], row["calls"], "calls,", row["total_ns"], "ns")'

# By another hand: fio's own counts and latencies, as it measured them in the recorded run.
python3 - "$KPRISM" "$OUT" <<'END'
import json, subprocess, sys
kprism, out = sys.argv[1:]
bad = False
for run in ("cached", "direct", "two"):
    text = open(f"{out}/{run}.out").read()
    report = json.loads(text[text.index("{"):])
    rows = json.loads(subprocess.check_output([kprism, "report", "syscalls", "-q", "--json", "--limit", "0", "-i", f"{out}/{run}"]))["rows"]
    rows = {row["syscall"]: row for row in rows}
    of = lambda kind: sum(job[kind]["total_ios"] for job in report["jobs"])
    for call, kind in (("pread64", "read"), ("pwrite64", "write"), ("fsync", "sync")):
        # The loader reads the C library's notes by two calls of pread64; fio writes each job's file out when it ends.
        mine, theirs = rows[call]["count"], of(kind)
        row = rows[call]
        line = f"{run}: {call}: {mine} calls, fio's {kind}: {theirs}; {row['kernel_instructions'] / mine:,.0f} kernel instructions each"
        if kind != "sync":
            mean = sum(job[kind]["clat_ns"]["mean"] * job[kind]["total_ios"] for job in report["jobs"]) / theirs
            line += f"; {row['wall_ns'] / mine:,.0f} ns in the kernel, {mean:,.0f} ns by fio's clock"
        print(line)
        bad |= not theirs <= mine <= theirs + 4
sys.exit("DIFFERENT: kprism and fio" if bad else 0)
END
