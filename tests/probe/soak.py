# SPDX-License-Identifier: MIT OR Apache-2.0
"""Twenty probes of the stock kernel switched on and off under load: every hit is accounted for, nothing is left.
Takes the seconds (of the host) that it should last."""
import json
import os
import subprocess
import sys
import tempfile

from common import KPRISM, compiled, ended, vmlinux, write

SECONDS = int(sys.argv[1]) if len(sys.argv) > 1 else 1800
SPECS = [
    "vfs_read", "vfs_read%return", "vfs_read if count > 4096", "vfs_read if count <= 4096", "vfs_write if count % 2 == 1",
    "vfs_write%return if $retval > 0", "ksys_read", "ksys_write", "do_sys_openat2", "do_sys_openat2%return",
    "vfs_statx", "filp_close", "read_write.c:571", "handle_mm_fault", "mmput", "sched:sched_switch if prev_prio >= 100",
    "sched:sched_wakeup_new@wake_up_new_task", "sched:sched_switch@__schedule", "sched:sched_process_exit",
    "kmem:mm_page_alloc if order > 0",
]
image = vmlinux()
plans = []
for spec in SPECS:
    made, said = compiled(image, [spec], ["$pid", "$comm"])
    if not made:
        ended(False, spec + ": " + said)
    plans.append(made[0])

with tempfile.TemporaryDirectory() as folder:
    path = lambda name: os.path.join(folder, name)
    os.mkdir(path("share"))
    write(plans, path("share/probes"))
    subprocess.run(["cp", KPRISM, path("share/kprism")], check=True)
    open(path("share/run"), "w").write("""
cd /g
load() { while :; do ls -R /etc /usr/share > /dev/null; dd if=/dev/zero of=/tmp/z bs=9000 count=50 2> /dev/null; done; }
load & load=$!
left() { echo "left $(grep -c ' bpf_prog_' /proc/kallsyms) $(grep -vc '^$' /sys/kernel/debug/kprobes/list) $(grep -c . /sys/kernel/tracing/kprobe_events) $(awk '/^(Slab|Percpu|VmallocUsed)/ {s += $2} END {print s}' /proc/meminfo)"; }
mount -t debugfs none /sys/kernel/debug 2>/dev/null
left
end=$(($(date +%s) + SECONDS))
round=0
while [ $(date +%s) -lt $end ]; do
	round=$((round + 1))
	./kprism record probe --program probes --all --duration 500ms --buffer-size 4M -o r > /tmp/said 2>&1 || cat /tmp/said
	echo "records $(./kprism script probe -i r --json | wc -l)"
	echo "counts $(tr -d '\\n' < r/streams/probe/probes.json)"
	rm -rf r r.old
	sleep 0.2
	left
done
kill $load
""".replace("SECONDS", str(SECONDS)))
    command = [KPRISM, "lab", "run", "--unobserved", "--fast", "--smp", "2", "-o", path("run"), "--share", path("share") + ":/g"]
    with open(path("out"), "w") as out:
        subprocess.run([*command, "--", "sh", "/g/run"], stdout=out)
    lines = open(path("out")).read().splitlines()

rounds = hits = kept = lost = missed = 0
wrong, left = [], []
for line in lines:
    word, _, rest = line.partition(" ")
    if word == "left":
        left.append([int(n or 0) for n in rest.split()])
    elif word == "records":
        records = int(rest)
    elif word == "counts":
        rounds += 1
        counts = json.loads(rest)["counts"]
        passed = sum(c["passed"] for c in counts)
        gone = sum(c["lost"] for c in counts)
        hits += sum(c["hits"] for c in counts)
        missed += sum(c["missed"] for c in counts)
        kept, lost = kept + records, lost + gone
        if passed - gone != records or any(c["passed"] > c["hits"] for c in counts):
            wrong.append("round %d: %d true, %d lost, %d records" % (rounds, passed, gone, records))
    else:
        wrong.append(line)
first, last = left[0], left[-1]
grown = [row for row in left if row[:3] != first[:3]]
print("\n".join(wrong[:20]))
print("programs, kprobes, events left: %s before, %s after; slab, per-CPU, vmalloc: %d KiB, %d KiB after the first round, %d KiB"
      % (first[:3], last[:3], first[3], left[1][3], last[3]))
text = "%d rounds of %d probes: %d hits, %d records, %d lost, %d missed; %d rounds left something"
ended(rounds > 0 and not wrong and not grown, text % (rounds, len(SPECS), hits, kept, lost, missed, len(grown)))
