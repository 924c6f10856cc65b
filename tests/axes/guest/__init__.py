# SPDX-License-Identifier: MIT OR Apache-2.0
"""Axes of the guest: what this machine does beside it must not change it.

A choice of values → the same run twice, on a machine that is left alone and on one that is not, and a verdict: the guest's console
with the kernel's times, what the command printed with its time in ns, and each byte that was recorded must be the same.
"""

import concurrent.futures
import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

from flow import judge

AXES = {
    "beside": ["four busy processes", "stopped now and then"],
    "work": ["forks", "timers", "files", "pipes"],
    "recorder": ["none", "flow", "tlb", "durations", "durations and events"],
    "cpus": ["1", "2", "4"],
    "snapshot": ["kept", "made anew"],
    "warm": ["0", "2"],
    "memory": ["1024", "512", "3000"],
    "storage": ["memory", "nvme", "hdd"],
    "kernel": ["plain", "PTI", "full preemption", "no mitigations"],
}

JUDGE = "the guest's own clock in ns and its kernel's log; the bytes of the streams"

HERE = os.path.dirname(os.path.abspath(__file__))
KERNEL = {"plain": [], "PTI": ["--append", "pti=on"], "full preemption": ["--append", "preempt=full"],
          "no mitigations": ["--append", "mitigations=off"]}
RECORDER = {
    "none": ["lab", "run", "--unobserved"],
    "flow": ["lab", "run"],
    "durations": ["record", "durations", "--guest"],
    "durations and events": ["record", "durations", "--guest", "-e", "sched:sched_switch"],
    "tlb": ["record", "tlb"],
}


def goes(case):
    """True if there is such a run; `case` has some of the axes."""
    return True


def is_kept(case, program, cache):
    """True if the case has no slow part: no guest is booted, but for the first case with its kernel and machine. With each of its
    functions recorded the work `forks` takes minutes."""
    return case["snapshot"] == "kept" and case["storage"] == "memory" and not (case["work"] == "forks" and case["recorder"].startswith("durations"))


def run(case, program, cache, scratch):
    """Runs the case twice. Gives a list of faults, each one sentence; none if all is right."""
    alone = outcome(case, program, scratch, "alone", None)
    beside = outcome(case, program, scratch, "beside", {"four busy processes": busy, "stopped now and then": stops}[case["beside"]])
    names = sorted(alone.keys() | beside.keys())
    faults = [f"{name}: {alone.get(name, 'not there')} alone, {beside.get(name, 'not there')} {case['beside']}"
              for name in names if alone.get(name) != beside.get(name)]
    if len(alone) < 3:
        faults.append(f"nothing to compare but {', '.join(names)}")
    return faults[:3] + ([f"and {len(faults) - 3} files more"] if len(faults) > 3 else [])


def outcome(case, program, scratch, name, disturb):
    """Runs the command. Gives what must be the same: for each file its bytes and a hash."""
    binary = judge.built(os.path.join(HERE, "works"), "-static", "-pthread")
    place = os.path.join(scratch, name)
    command = [program, *RECORDER[case["recorder"]], "--smp", case["cpus"], "--mem", case["memory"], "--warm", case["warm"], "--storage", case["storage"],
               *KERNEL[case["kernel"]], "--share", f"{binary}:/works", "-o", place, "--", "/works", case["work"]]
    environment = os.environ | ({"XDG_CACHE_HOME": without_snapshots(scratch, name)} if case["snapshot"] == "made anew" else {})
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True) as child:
        over = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            disturbed = pool.submit(disturb, child.pid, over) if disturb else None
            try:
                told = child.communicate()[1]
            finally:
                over.set()
    if disturbed and not disturbed.result():
        raise RuntimeError(f"nothing was done beside it: {case['beside']}")
    # A recorder that has filled the guest's memory stops, at the same event each time, and keeps what it has.
    if child.returncode and "stopped early" not in told:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}: {told.strip()[-300:]}")
    found = {"exit code": str(child.returncode)}
    for folder, _, names in os.walk(place):
        for file in names:
            path = os.path.join(folder, file)
            short = os.path.relpath(path, place)
            if short.startswith("streams/") or short in ("stdout", "stderr", "console.log"):
                with open(path, "rb") as contents:
                    read = contents.read()
                found[short] = f"{len(read)} bytes {hashlib.sha256(read).hexdigest()[:8]}"
                if short == "stdout":
                    found[short] = read.decode(errors="replace").strip()[-60:]
    return found


def without_snapshots(scratch, name):
    """A cache that has what the user's has, but no guest that has booted."""
    kept = os.path.join(judge.CACHE, "kprism")
    cache = os.path.join(scratch, "cache-" + name)
    os.makedirs(os.path.join(cache, "kprism"))
    for entry in os.listdir(kept):
        if entry not in ("snapshot", "ready"):
            os.symlink(os.path.join(kept, entry), os.path.join(cache, "kprism", entry))
    return cache


def busy(_pid, over):
    """Runs four busy processes. Gives how many ran until the end."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    over.wait()
    ran = sum(loop.poll() is None for loop in loops)
    for loop in loops:
        loop.kill()
        loop.wait()
    return ran


def stops(pid, over):
    """Stops QEMU for some milliseconds, again and again. Gives how often."""
    order, stopped = random.Random(pid), 0
    while not over.wait(order.uniform(0.005, 0.1)):
        for child in children(pid):
            try:
                os.kill(child, signal.SIGSTOP)
                time.sleep(order.uniform(0.005, 0.15))
                os.kill(child, signal.SIGCONT)
                stopped += 1
            except ProcessLookupError:
                pass
    return stopped


def children(pid):
    """Processes that any thread of this process has started, QEMU among them."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        return []
    return [child for child in found if re.match("qemu", name_of(child))]


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read()
    except OSError:
        return ""
