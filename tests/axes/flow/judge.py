# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a recording says, by perf and by kprism: for each thread the instructions in their order, as a count and a hash.

In: a recording, or a run. Out: {tid: Flow}. The idle threads of all CPUs have number 0; their instructions are counted only, as
nothing orders those of one CPU among those of another at the same nanosecond.
"""

import dataclasses
import hashlib
import json
import os
import subprocess

KERNEL = "f"


@dataclasses.dataclass
class Flow:
    """A thread's instructions: all of them, and those of programs alone; each place once; names; the first and last time in ns."""

    names: set = dataclasses.field(default_factory=set)
    count: int = 0
    hash: object = dataclasses.field(default_factory=hashlib.blake2b)
    user_count: int = 0
    user_hash: object = dataclasses.field(default_factory=hashlib.blake2b)
    places: set = dataclasses.field(default_factory=set)
    first: int = None
    last: int = None

    def digest(self, user):
        return (self.user_count, self.user_hash.hexdigest()[:16]) if user else (self.count, self.hash.hexdigest()[:16])


def collect(lines, split, timed=False):
    """Adds up lines; `split` gives (name and thread, address in hex[, ns]) of one."""
    flows, last, flow = {}, None, None
    for line in lines:
        parts = split(line)
        if parts is None:
            continue
        ip = parts[1]
        if parts[0] != last:
            last = parts[0]
            flow = flows.setdefault(last[1], Flow())
            # perf writes the number where no record tells the name yet.
            if last[0] != f":{last[1]}":
                flow.names.add(last[0].split("/")[0] if last[1] == 0 else last[0])
        text = ip.encode()
        flow.count += 1
        if last[1]:
            flow.hash.update(text)
        if not (len(ip) == 16 and ip[0] == KERNEL):
            flow.user_count += 1
            flow.user_hash.update(text)
        flow.places.add(ip)
        if timed:
            flow.first = parts[2] if flow.first is None else flow.first
            flow.last = parts[2]
    return flows


def perf(path, symfs, extra=()):
    """perf's own decoder."""
    command = ["perf", "script", "-i", path, "--symfs", symfs, "--itrace=i0ns", "-F", "comm,tid,ip", *extra]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:

        def split(line):
            parts = line.split()
            # A task's name may have spaces; the address is the last word, the number before it.
            return ((" ".join(parts[:-2]), int(parts[-2])), parts[-1]) if len(parts) >= 3 else None

        flows = collect(child.stdout, split)
    if child.returncode:
        raise RuntimeError(f"perf ended with {child.returncode}: {' '.join(command)}")
    return flows


def kprism(program, run):
    """kprism's decoder, with times."""
    command = [program, "script", "insns", "-q", "-i", run, "--fields", "comm,pid,time,ip"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:

        def split(line):
            parts = line.split()
            seconds, _, part = parts[-2].rstrip(":").partition(".")
            return (" ".join(parts[:-3]), int(parts[-3])), parts[-1], int(seconds) * 10**9 + int(part)

        flows = collect(child.stdout, split, timed=True)
        error = child.stderr.read()
    if child.returncode not in (0, 1):
        raise RuntimeError(f"kprism script ended with {child.returncode}: {error.strip()}")
    return flows


def ptwrites_by_perf(path, symfs):
    """(task, value) of each PTWRITE, in perf's order for each task (`task_of`)."""
    command = ["perf", "script", "-i", path, "--symfs", symfs, "--itrace=w", "-F", "tid,cpu,synth"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    values = {}
    for line in printed.splitlines():
        words = line.split()
        if "payload:" in words:
            task = task_of(int(words[0]), int(words[1].strip("[]")))
            values.setdefault(task, []).append(int(words[words.index("payload:") + 1], 16))
    return values


def task_of(tid, cpu):
    """A task: a thread, or of the idle threads, which all have number 0, a CPU's."""
    return (tid, cpu if tid == 0 else None)


def ptwrites_by_kprism(program, run):
    command = [program, "script", "events", "-q", "-i", run, "--event", "ptwrite", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"kprism script events ended with {done.returncode}: {done.stderr.strip()}")
    values = {}
    for line in done.stdout.splitlines():
        event = json.loads(line)
        values.setdefault(task_of(event.get("pid", -1), event["cpu"]), []).append(int(str(event["value"]), 0))
    return values


def on_cpu(program, run):
    """(the sum of the tasks' time on a CPU, the recording's span times its CPUs), ns; None where kprism does not know."""
    done = subprocess.run([program, "report", "tasks", "-q", "-i", run, "--json", "--limit", "0"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"kprism report tasks ended with {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def is_whole(program, run):
    """True if kprism says that nothing was lost, guessed or not understood."""
    done = subprocess.run([program, "report", "tasks", "-q", "--strict", "-i", run], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL)
    return done.returncode == 0


def size(folder):
    return sum(os.path.getsize(os.path.join(at, file)) for at, _, files in os.walk(folder) for file in files)
