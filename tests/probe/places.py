# SPDX-License-Identifier: MIT OR Apache-2.0
"""Places of the stock kernel that only its debug information tells: a line, a return, per-CPU variables. What is
collected is what the commands in the guest did: twenty writes of 7 bytes. And tracepoints with a jump past them to the
instruction behind: their places in the code have as many hits as their events."""
import os
import subprocess
import tempfile

from common import KPRISM, compiled, counts, ended, records, vmlinux, write

image = vmlinux()
WRITE = "count == 7 && file->f_inode->i_rdev == 0x100003"
PROBES = [
    ("vfs_write if " + WRITE, ["count", "pcpu_hot.current_task->pid", "$pid", "runqueues.cpu", "$cpu", "runqueues.curr->comm"]),
    ("vfs_write%return if $retval == 7", ["$retval", "count", "$duration"]),
]
# The line at which GDB stops in the function.
after = subprocess.run(["gdb", "-nx", "-batch", image, "-ex", "break vfs_write"], capture_output=True, text=True).stdout
line = int(after.split("line ")[1].split(".")[0])
PROBES.append(("read_write.c:%d if %s" % (line, WRITE), ["count", "file->f_path.dentry->d_name.name", "$comm"]))
plans = []
for number, (spec, collect) in enumerate(PROBES):
    made, said = compiled(image, [spec], collect)
    if not made:
        ended(False, said)
    made[0]["probe"]["place"] = "p%d" % number
    plans += made[:1]
EVENTS = [("filelock", "locks_remove_posix", "locks_remove_posix"), ("kmem", "mm_page_alloc", "__alloc_pages_noprof"),
          ("filemap", "mm_filemap_map_pages", "filemap_map_pages")]
around = ["locks_remove_posix"]
for system, event, function in EVENTS:
    around += ["%s:%s" % (system, event), "%s:%s@%s" % (system, event, function)]
beside, said = compiled(image, around, [])
if not beside or len(beside) != len(around):
    ended(False, said)


def recorded(plans, work, folder, name):
    probes, run = os.path.join(folder, name + ".probes"), os.path.join(folder, name)
    write(plans, probes)
    command = [KPRISM, "record", "probe", "-q", "--guest", "--program", probes, "-o", run, "--", "sh", "-c", work]
    subprocess.run(command, check=True)
    return run


with tempfile.TemporaryDirectory() as folder:
    run = recorded(plans, "dd if=/dev/zero of=/dev/null bs=7 count=20 status=none", folder, "run")
    found = {n: [r["values"] for r in records(run) if r["probe"] == "p%d" % n] for n in range(len(plans))}
    lost = sum(c["lost"] for c in counts(run)["counts"])
    run = recorded(beside, "ls -l /bin > /dev/null; cat /etc/passwd > /dev/null", folder, "beside")
    hits = {place: 0 for place in around}
    for record in records(run):
        hits[record["probe"]] += 1
    lost += sum(c["lost"] for c in counts(run)["counts"])
wrong = []
for n, rows in found.items():
    if len(rows) != 20:
        wrong.append("%s: %d records" % (PROBES[n][0], len(rows)))
for row in found[0]:
    if row["pcpu_hot.current_task->pid"] != row["$pid"] or row["runqueues.cpu"] != row["$cpu"]:
        wrong.append(str(row))
    if row["runqueues.curr->comm"] != "dd":
        wrong.append(str(row))
for row in found[1]:
    if row["$retval"] != 7 or row["count"] != 7 or not 0 < row["$duration"] < 10**9:
        wrong.append(str(row))
for row in found[2]:
    if row != {"count": 7, "file->f_path.dentry->d_name.name": "null", "$comm": "dd"}:
        wrong.append(str(row))
for system, event, function in EVENTS:
    name = "%s:%s" % (system, event)
    if hits[name] != hits[name + "@" + function]:
        wrong.append("%s: %d hits, %d in %s" % (name, hits[name], hits[name + "@" + function], function))
# No process holds a lock, so none is removed, but every file that is closed passes the tracepoint by.
if not (hits["locks_remove_posix"] > 50 and hits["filelock:locks_remove_posix"] == 0 and hits["kmem:mm_page_alloc"] > 50):
    wrong.append("not as expected: %s" % hits)
for row in wrong[:20]:
    print("wrong: " + row)
text = "a function's entry with per-CPU variables, its return, and read_write.c:%d: 60 records; 3 tracepoints at their places, %d hits; %d wrong, %d lost"
ended(not wrong and not lost, text % (line, sum(hits.values()), len(wrong), lost))
