# SPDX-License-Identifier: MIT OR Apache-2.0
"""A corpus of expressions on the stock kernel: probes in the guest collect them, GDB attached to the same guest prints
them at the same stops, which are told apart by the number of bytes that is read. Refused must be what GDB refuses."""
import json
import os
import subprocess
import tempfile
import time

from common import HERE, KPRISM, compiled, ended, records, vmlinux, write

SPEC = "vfs_read if count > 20000 && count < 27000"
STOPS = int(os.environ.get("STOPS", "3"))
# A record has room for 64 values.
GROUP = 60

lines = open(os.path.join(HERE, "kernel.txt")).read().splitlines()
image = vmlinux()
plans, refused = [], {}
for at in range(0, len(lines), GROUP):
    made, said = compiled(image, [SPEC], ["$rdx", *[e for e in lines[at : at + GROUP] if e != "$rdx"]])
    if not made:
        ended(False, "no probe: " + said)
    plans += made
# What both must refuse.
for expression in open(os.path.join(HERE, "refused.txt")).read().splitlines():
    made, said = compiled(image, [SPEC], [expression])
    if made:
        ended(False, "not refused: " + expression)
    refused[expression] = said.strip().splitlines()[0]
lines += refused

folder = tempfile.TemporaryDirectory()
path = lambda name: os.path.join(folder.name, name)
open(path("text"), "w").write("\n".join(lines) + "\n")
write(plans, path("probes"))
address = "%#x" % plans[0]["probe"]["address"]
environment = dict(
    os.environ,
    CORPUS_TEXT=path("text"),
    CORPUS_SOCKET=path("gdb"),
    CORPUS_PLACE=address,
    CORPUS_STOPS=str(STOPS),
    CORPUS_READY=path("ready"),
    CORPUS_BEGUN=path("begun"),
    CORPUS_OUT=path("gdb.json"),
)
# GDB reads the debug information first, and attaches once the guest's command runs: before, the guest is not there yet.
gdb = subprocess.Popen(["gdb", "-nx", "-batch", image, "-x", os.path.join(HERE, "gdb-kernel.py")], env=environment)
while not os.path.exists(path("ready")) and gdb.poll() is None:
    time.sleep(0.1)
reads = "echo begun; i=20001; while [ $i -lt 26001 ]; do dd if=/dev/zero of=/dev/null bs=$i count=1 2>/dev/null; i=$((i+2)); done"
command = [KPRISM, "record", "probe", "--guest", "--gdb", path("gdb"), "--program", path("probes"), "-o", path("run")]
recording = subprocess.Popen([*command, "--", "sh", "-c", reads], stdout=subprocess.PIPE, text=True)
for line in recording.stdout:
    if line.strip() == "begun":
        open(path("begun"), "w").close()
if recording.wait() != 0:
    gdb.terminate()
    ended(False, "no recording")
if gdb.wait() != 0 or not os.path.exists(path("gdb.json")):
    ended(False, "GDB did not stop in the guest")

found = {}
for record in records(path("run")):
    values = found.setdefault(record["values"]["$rdx"], {})
    values.update(record["values"])
    values.update({name: None for name in record.get("errors", {})})


def same(ours, theirs):
    """Characters are shown as text, addresses in hexadecimal."""
    if isinstance(ours, str) and ours.startswith("\\x"):
        return (int(ours[2:], 16) - theirs) % 256 == 0
    if isinstance(ours, str) and not ours.startswith("0x"):
        return len(ours) <= 1 and ((ord(ours) if ours else 0) - theirs) % 256 == 0
    number = int(ours, 16) if isinstance(ours, str) else int(ours)
    return (number - theirs) % 2**64 == 0


equal = both = 0
wrong = []
for stop in json.load(open(path("gdb.json"))):
    if stop["count"] not in found:
        ended(False, "no record of the stop with count %d" % stop["count"])
    for expression, theirs in zip(lines, stop["values"]):
        ours = found[stop["count"]].get(expression)
        if theirs.startswith("error") and ours is None:
            both += 1
        elif theirs.startswith("error") or ours is None or not same(ours, int(theirs)):
            wrong.append("%s: kprism %s, GDB %s" % (expression, refused.get(expression, ours), theirs))
        else:
            equal += 1
for row in wrong[:60]:
    print("differs: " + row)
text = "%d expressions at %d stops: %d values are GDB's, %d are refused by both, %d differ"
ended(not wrong and equal >= 300 * STOPS, text % (len(lines), STOPS, equal, both, len(wrong)))
