# SPDX-License-Identifier: MIT OR Apache-2.0
"""Locals of the functions around static tracepoints, on the stock kernel. Each is judged by somebody else: perf's own
reading of the debug information made into a kprobe event of ftrace at the same instruction; or, where no kprobe can be
and saved registers are used, the tracepoint's own arguments."""
import bisect
import json
import os
import re
import subprocess
import sys
import tempfile

from common import HERE, KPRISM, compiled, ended, vmlinux, write

WANTED = int(sys.argv[1]) if len(sys.argv) > 1 else 50
NAMES = """
sched:sched_switch sched:sched_wakeup_new sched:sched_process_fork sched:sched_process_exit sched:sched_process_free
sched:sched_process_exec sched:sched_process_wait sched:sched_waking sched:sched_wakeup sched:sched_stat_runtime
task:task_newtask task:task_rename signal:signal_generate signal:signal_deliver
kmem:kmem_cache_alloc kmem:kmem_cache_free kmem:kmalloc kmem:kfree kmem:mm_page_alloc kmem:mm_page_free
kmem:mm_page_free_batched irq:irq_handler_entry irq:irq_handler_exit irq:softirq_entry irq:softirq_exit irq:softirq_raise
timer:timer_start timer:timer_cancel timer:timer_expire_entry timer:timer_expire_exit timer:timer_init
timer:hrtimer_init timer:hrtimer_start timer:hrtimer_cancel timer:hrtimer_expire_entry timer:hrtimer_expire_exit
timer:itimer_state timer:itimer_expire timer:tick_stop workqueue:workqueue_queue_work
workqueue:workqueue_activate_work workqueue:workqueue_execute_start workqueue:workqueue_execute_end
raw_syscalls:sys_enter raw_syscalls:sys_exit mmap:vm_unmapped_area mmap:exit_mmap
filemap:mm_filemap_add_to_page_cache filemap:mm_filemap_delete_from_page_cache filemap:mm_filemap_map_pages
filemap:mm_filemap_get_pages filemap:mm_filemap_fault writeback:writeback_mark_inode_dirty
writeback:writeback_dirty_inode writeback:writeback_dirty_inode_start writeback:writeback_dirty_folio
percpu:percpu_alloc_percpu percpu:percpu_free_percpu filelock:locks_get_lock_context filelock:flock_lock_inode
filelock:posix_lock_inode filelock:locks_remove_posix filelock:fcntl_setlk filelock:break_lease_block
skb:consume_skb skb:kfree_skb skb:skb_copy_datagram_iovec sock:sock_send_length sock:sock_recv_length
sock:inet_sock_set_state sock:sk_data_ready net:net_dev_queue net:net_dev_xmit net:net_dev_start_xmit net:netif_rx
net:netif_receive_skb net:netif_rx_entry net:netif_rx_exit napi:napi_poll qdisc:qdisc_dequeue fib:fib_table_lookup
tcp:tcp_probe tcp:tcp_destroy_sock tcp:tcp_rcv_space_adjust udp:udp_fail_queue_rcv_skb
exceptions:page_fault_user exceptions:page_fault_kernel power:cpu_idle rcu:rcu_utilization
x86_fpu:x86_fpu_regs_activated x86_fpu:x86_fpu_regs_deactivated x86_fpu:x86_fpu_copy_src x86_fpu:x86_fpu_copy_dst
x86_fpu:x86_fpu_dropped irq_vectors:local_timer_entry irq_vectors:local_timer_exit maple_tree:ma_op maple_tree:ma_read
maple_tree:ma_write vmalloc:alloc_vmap_area vmalloc:purge_vmap_area_lazy vmalloc:free_vmap_area_noflush
tlb:tlb_flush printk:console notifier:notifier_run lock:contention_begin lock:contention_end
oom:oom_score_adj_update compaction:mm_compaction_begin compaction:mm_compaction_end
compaction:mm_compaction_isolate_freepages compaction:mm_compaction_migratepages compaction:mm_compaction_finished
vmscan:mm_shrink_slab_start vmscan:mm_shrink_slab_end rseq:rseq_update msr:write_msr msr:read_msr
cgroup:cgroup_mkdir cgroup:cgroup_attach_task csd:csd_function_entry thp:hugepage_set_pmd
huge_memory:mm_khugepaged_scan_pmd migrate:mm_migrate_pages migrate:mm_migrate_pages_start
""".split()

WORK = r"""
sh -c 'for i in 1 2 3; do ls / > /dev/null; done'
echo text > /tmp/file; cat /tmp/file > /dev/null; sync; rm /tmp/file
echo 5 > /proc/self/oom_score_adj
echo to the console > /dev/kmsg
sh -c 'kill -USR1 $$' 2>/dev/null
(sleep 0.05 & wait); cat /proc/self/maps > /dev/null
perl -e 'use Fcntl qw(:flock); open F, ">/tmp/l"; flock F, LOCK_EX; flock F, LOCK_UN; $SIG{ALRM} = sub {}; alarm 1; select undef, undef, undef, 1.1;'
perl -e 'use Socket; socketpair A, B, AF_UNIX, SOCK_STREAM, 0; syswrite A, "text"; sysread B, $t, 4;'
perl -e 'use Socket; socket S, AF_INET, SOCK_DGRAM, 0; $r = pack "a16 s x22", "lo", 0x49; ioctl S, 0x8914, $r; bind S, sockaddr_in(4000, inet_aton "127.0.0.1"); send S, "text", 0, sockaddr_in(4000, inet_aton "127.0.0.1"); recv S, $t, 9, 0; socket L, AF_INET, SOCK_STREAM, 0; bind L, sockaddr_in(4001, inet_aton "127.0.0.1"); listen L, 1; if (!fork) { socket C, AF_INET, SOCK_STREAM, 0; connect C, sockaddr_in(4001, inet_aton "127.0.0.1"); syswrite C, "text"; exit } accept T, L; sysread T, $t, 4; wait;'
echo 1 > /proc/sys/vm/compact_memory; echo 3 > /proc/sys/vm/drop_caches
mkdir -p /tmp/cg && mount -t cgroup2 none /tmp/cg 2>/dev/null && mkdir /tmp/cg/a && echo $$ > /tmp/cg/a/cgroup.procs
dd if=/dev/zero of=/tmp/zeros bs=1M count=8 2>/dev/null; rm -f /tmp/zeros
"""

SCALARS = ("int", "pointer", "bool", "char", "enum")
image = vmlinux()
listed = subprocess.run([KPRISM, "list", "events", "*:*", "-k", image, "--json"], stdout=subprocess.PIPE, check=True)
places = {event["name"]: event["places"] for event in json.loads(listed.stdout)}
events = [name for name in NAMES if places.get(name)][: int(os.environ.get("SITES_MOST", "1000"))]
plans, judges, definitions, refused = [], {}, [], []


def perf(function, variables):
    """perf's definition of a kprobe event, without the variables that it cannot find."""
    while variables:
        text = "%s %s" % (function, " ".join(variables))
        done = subprocess.run(["perf", "probe", "-k", image, "-D", text], capture_output=True, text=True)
        found = [l for l in done.stdout.splitlines() if l.split(" ")[1:2] == [function]]
        if found:
            return found[0].split(" ", 2)[2]
        bad = [v for v in variables if re.search(r"\b%s\b" % v, done.stderr)]
        variables = [v for v in variables if v not in bad] if bad else variables[1:]
    return None


for name in events:
    made, said = compiled(image, [name + "@" + places[name][0].split("+")[0].split(".")[0]], ["$args", "$locals"])
    if not made:
        refused.append((name, said.strip().splitlines()[0]))
        continue
    plan = made[0]
    items = [i for i in plan["probe"]["items"] if i["shape"] and i["shape"]["kind"] in SCALARS]
    number = len(plans)
    if "Raw" in plan["site"]:
        raw, said = compiled(image, [name], ["$args"])
        if not raw or "Raw" not in raw[0]["site"]:
            refused.append((name, "no arguments: " + said.strip()[:100]))
            continue
        plans.append(plan)
        judges[number] = ("arguments", name, len(plans))
        plans.append(raw[0])
        continue
    address = plan["site"]["Kernel"]["address"]
    nop = plan["probe"]["address"]
    function, offset = places[name][0].split(" ")[0].split("+")
    names = [i["name"] for i in items if re.fullmatch(r"\w+", i["name"])][:5]
    fetch = perf("%s+%d" % (function, int(offset, 16) + address - nop), names)
    if fetch is None:
        refused.append((name, "perf finds none of " + ", ".join(names)))
        continue
    plans.append(plan)
    judges[number] = ("perf", name, number)
    definitions.append("p:kp/s%d %#x %s" % (number, address, fetch))

with tempfile.TemporaryDirectory() as folder:
    path = lambda name: os.path.join(folder, name)
    os.mkdir(path("share"))
    write(plans, path("share/probes"))
    open(path("share/definitions"), "w").write("\n".join(definitions) + "\n")
    open(path("share/work"), "w").write(WORK)
    os.link(KPRISM, path("share/kprism")) if os.stat(KPRISM).st_dev == os.stat(folder).st_dev else subprocess.run(
        ["cp", KPRISM, path("share/kprism")], check=True)
    open(path("share/run"), "w").write("""
cd /g; T=/sys/kernel/tracing
echo mono > $T/trace_clock; echo 60000 > $T/buffer_size_kb
while read -r line; do echo "$line" >> $T/kprobe_events || echo "not taken: $line" >&2; done < definitions
echo 1 > $T/events/kp/enable
./kprism record probe --program probes --all --buffer-size 64M -o r -- sh work >&2
echo 0 > $T/events/kp/enable
./kprism script probe -i r --json
echo ===; cat r/streams/probe/probes.json | tr -d '\\n'; echo
echo ===; cat $T/trace
""")
    command = [KPRISM, "lab", "run", "--unobserved", "-o", path("run"), "--mem", "2G", "--share", path("share") + ":/g"]
    with open(path("out"), "w") as out:
        subprocess.run([*command, "--", "sh", "/g/run"], stdout=out, check=True)
    ours, description, trace = open(path("out")).read().split("===\n", 2)

records = {}
by_place = {}
for number, plan in enumerate(plans):
    by_place.setdefault((plan["probe"]["place"]), number)
for line in ours.splitlines():
    record = json.loads(line)
    records.setdefault(by_place[record["probe"]], []).append(record)
theirs = {}
for line in trace.splitlines():
    found = re.match(r".*-(\d+)\s+\[\d+\]\s+\S+\s+([\d.]+): s(\d+): \(\S+\) (.*)", line)
    if found:
        values = dict(word.split("=", 1) for word in found[4].split() if "=" in word)
        key = int(found[3]), int(found[1])
        theirs.setdefault(key, []).append((round(float(found[2]) * 1e9), values))
for rows in theirs.values():
    rows.sort(key=lambda row: row[0])


def number_of(value):
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        return int(value, 0) if re.match(r"-?\d", value) else (ord(value) if len(value) == 1 else None)
    return value


def nearest(rows, time):
    at = bisect.bisect(rows, time, key=lambda row: row[0])
    near = [row for row in rows[max(0, at - 1) : at + 1] if abs(row[0] - time) < 500_000]
    return min(near, key=lambda row: abs(row[0] - time), default=None)


good, silent, total, wrong = {}, [], 0, []
for number, (how, name, judge) in judges.items():
    checked, bad = {}, 0
    rows = {}
    if how == "arguments":
        for record in records.get(judge, []):
            rows.setdefault(record["tid"], []).append((record["time_ns"], record["values"]))
    sizes = {i["name"]: i["shape"].get("size", 8) for i in plans[number]["probe"]["items"] if i["shape"]}
    sizes |= {i["name"]: 1 for i in plans[number]["probe"]["items"] if i["shape"] and i["shape"]["kind"] in ("bool", "char")}
    for record in records.get(number, []):
        tid = record["tid"]
        other = nearest(rows.get(tid, []) if how == "arguments" else theirs.get((number, tid), []), record["time_ns"])
        if other is None:
            continue
        for variable, value in other[1].items():
            mine, their = number_of(record["values"].get(variable)), number_of(value)
            if mine is None or their is None:
                continue
            bits = 8 * min(sizes.get(variable, 8), 8)
            checked[variable] = checked.get(variable, 0) + 1
            if how == "arguments":
                bits = min(bits, 32) if variable in ("prev_state",) else bits
            if (mine - their) % 2 ** min(bits, 64) != 0:
                bad += 1
                wrong.append("%s: %s = %s, judged %s by %s" % (name, variable, mine, their, how))
    if not checked:
        silent.append(name)
    elif not bad:
        good[name] = checked
        total += sum(checked.values())
for name, checked in sorted(good.items()):
    how = [j[0] for j in judges.values() if j[1] == name][0]
    print("%-45s %-9s %s" % (name, how, ", ".join("%s × %d" % pair for pair in checked.items())))
for name, why in refused:
    print("not judged: %s: %s" % (name, why))
print("not hit, or nothing to compare: " + ", ".join(silent))
for row in wrong[:40]:
    print("differs: " + row)
systems = {name.split(":")[0] for name in good}
text = "%d tracepoints of %d subsystems, %d values of locals as their judges have them, %d differ"
ended(len(good) >= WANTED and not wrong, text % (len(good), len(systems), total, len(wrong)))
