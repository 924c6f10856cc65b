# SPDX-License-Identifier: MIT OR Apache-2.0
"""Probes of the stock kernel and of a program, switched on and off under load. What they count is held against
histograms of ftrace on the same places, hit for hit; nothing may be left, also after kill -9.
Takes the seconds (of the host) that it should last."""
import json
import os
import signal
import subprocess
import sys
import tempfile

from common import HERE, KPRISM, compiled, ended, vmlinux, write

SECONDS = int(sys.argv[1]) if len(sys.argv) > 1 else 1800
# Place, condition, and what ftrace counts: a kprobe event (its arguments) or an event that is there, and its filter.
SPECS = [
    ("vfs_read", "", "p vfs_read", ""),
    ("vfs_read%return", "", "r vfs_read", ""),
    ("vfs_read", "count > 4096", "p vfs_read count=%dx:u64", "count > 4096"),
    ("vfs_read", "count <= 4096", "p vfs_read count=%dx:u64", "count <= 4096"),
    ("vfs_write", "count % 2 == 1", "p vfs_write count=%dx:u64", "count & 1"),
    ("vfs_write%return", "$retval > 100", "r vfs_write got=$retval:s64", "got > 100"),
    ("ksys_read", "", "p ksys_read", ""),
    ("ksys_write", "fd > 3", "p ksys_write fd=%di:u32", "fd > 3"),
    ("do_sys_openat2", "", "p do_sys_openat2", ""),
    ("do_sys_openat2%return", "$retval >= 0", "r do_sys_openat2 fd=$retval:s64", "fd >= 0"),
    ("vfs_statx", "", "p vfs_statx", ""),
    ("filp_close", "", "p filp_close", ""),
    ("read_write.c:571", "", "p ADDRESS", ""),
    ("handle_mm_fault", "flags & 1", "p handle_mm_fault flags=%dx:u32", "flags & 1"),
    ("mmput", "", "p mmput", ""),
    ("sched:sched_switch", "prev_prio >= 100", "sched/sched_switch", "prev_prio >= 100"),
    ("sched:sched_wakeup_new@wake_up_new_task", "", "sched/sched_wakeup_new", ""),
    ("sched:sched_switch@__schedule", "", "sched/sched_switch", ""),
    ("sched:sched_process_exit", "", "sched/sched_process_exit", ""),
    ("kmem:mm_page_alloc", "order > 0", "kmem/mm_page_alloc", "order > 0"),
]
image = vmlinux()
plans, judges = [], []
for n, (place, condition, event, theirs) in enumerate(SPECS):
    both = condition + " && " if condition else ""
    made, said = compiled(image, ['%s if %s$comm == "load"' % (place, both)], ["$pid", "$comm"])
    if not made:
        ended(False, place + ": " + said)
    plans.append(made[0])
    definition = ""
    if "/" not in event:
        kind, _, rest = event.partition(" ")
        site, origin = made[0]["site"], made[0]["origin"]
        if rest == "ADDRESS":
            rest = "_text+%d" % (site["Kernel"]["address"] - origin["text"])
        definition = "%s:soak/s%d %s" % (kind, n, rest)
        event = "soak/s%d" % n
    judges.append("|".join([event, definition, " && " + theirs if theirs else ""]))

with tempfile.TemporaryDirectory() as folder:
    path = lambda name: os.path.join(folder, name)
    share = lambda name: path("share/" + name)
    os.mkdir(path("share"))
    write(plans, share("judged"))
    for part in range(4):
        write(plans[part::4], share(str(part)))
    open(share("judges"), "w").write("\n".join(judges) + "\n")
    subprocess.run(["cp", KPRISM, os.path.join(HERE, "soak.sh"), path("share")], check=True)
    os.rename(share(os.path.basename(KPRISM)), share("kprism"))
    subprocess.run(["cc", "-g", "-O1", "-static", "-o", share("load"), os.path.join(HERE, "load.c")], check=True)
    subprocess.run(["cc", "-O1", "-static", "-o", share("left"), os.path.join(HERE, "left.c")], check=True)
    # Not --fast: QEMU's CPUs in parallel now and then run an int3 that the other has taken away already, of which the
    # kernel dies.
    command = [KPRISM, "lab", "run", "--unobserved", "--smp", "2", "--mem", "2G", "-o", path("run")]
    command += ["--share", path("share") + ":/g", "--", "sh", "/g/soak.sh"]
    out = os.environ.get("SOAK_OUT", path("out"))
    with open(out, "w") as file:
        guest = subprocess.Popen(command, stdout=file)
        try:
            guest.wait(SECONDS)
            died = True
        except subprocess.TimeoutExpired:
            died = False
            guest.send_signal(signal.SIGINT)
            guest.wait()
    # Up to the end of the last round.
    lines = open(out).read().splitlines()
    while lines and not lines[-1].startswith("left "):
        lines.pop()

# Of each recording: what it counted, and how many records there were.
total = {"hits": 0, "passed": 0, "lost": 0, "missed": 0, "records": 0}
judged = {}
rounds = compared = same = kills = recordings = 0
wrong, left, records = [], [], {}


def against(place, ours, theirs):
    """Theirs is what somebody else counted of the same hits; what was not seen for want of a free CPU is counted."""
    global compared, same
    compared += 1
    passed, missed = ours["passed"], ours["missed"]
    same += passed == theirs
    if not passed <= theirs <= passed + missed:
        wrong.append("round %d: %s: %d, by ftrace %d, %d missed" % (rounds, place, passed, theirs, missed))


for line in lines:
    word, *rest = line.split(" ", 2)
    if word == "left":
        left.append([int(n) for n in line.split()[1:]])
    elif word == "judged":
        rounds += rest[0] == "0"
        judged[int(rest[0])] = int(rest[1]) if len(rest) > 1 and rest[1] else 0
    elif word == "work":
        work = [int(n) for n in line.split()[1:]]
    elif word == "records":
        records[rest[0]] = int(rest[1])
    elif word == "killed":
        kills += 1
    elif word == "counts":
        kind, recording = rest[0], json.loads(rest[1])
        recordings += 1
        counts = recording["counts"]
        for name in ["hits", "passed", "lost", "missed"]:
            total[name] += sum(c[name] for c in counts)
        total["records"] += records[kind]
        if sum(c["passed"] - c["lost"] for c in counts) != records[kind]:
            wrong.append("round %d: %s: %s, %d records" % (rounds, kind, counts, records[kind]))
        if any(c["passed"] > c["hits"] or c["condition_errors"] or c["value_errors"] for c in counts):
            wrong.append("round %d: %s: %s" % (rounds, kind, counts))
        if kind == "judged":
            for n, (place, condition, *_) in enumerate(SPECS):
                against(place + " if " + condition, counts[n], judged[n])
        elif kind == "user" and work:
            against("work", counts[0], work[0])
            against("work if n % 3 == 0", counts[1], work[1])
            work = None
    else:
        wrong.append(line)
first, last = left[0], left[-1]
grown = [row for row in left if row[:-1] != first[:-1]]
memory = [row[-1] for row in left]
quarter = max(1, len(memory) // 4)
mean = lambda rows: sum(rows) / max(1, len(rows))
early, late = mean(memory[quarter : 2 * quarter]), mean(memory[-quarter:])
print("\n".join(wrong[:20]))
print("programs, maps, links, kprobes, traced functions, uprobes: %s before, %s after; %d of %d rounds left something"
      % (first[:-1], last[:-1], len(grown), len(left)))
print("slab, per-CPU, vmalloc, stacks, page tables: %d KiB before, %.0f KiB in the second quarter, %.0f KiB in the last"
      % (first[-1], early, late))
print("%d recordings, %d recorders killed" % (recordings, kills))
print("%d probes held against ftrace or the program itself: %d have the same count, others the same but for what was missed"
      % (compared, same))
good = rounds > 0 and not died and not wrong and not grown and late < early + 2048
ended(good, "%d rounds of 26 probes: %d hits, %d true, %d records, %d lost, %d missed"
      % (rounds, total["hits"], total["passed"], total["records"], total["lost"], total["missed"]))
