# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a recording says, by perf and by kprism: for each thread the instructions in their order, as a count and a hash.

In: a recording, or a run. Out: {tid: Flow}. The idle threads of all CPUs have number 0; their instructions are counted only, as
nothing orders those of one CPU among those of another at the same nanosecond.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
PROGRAMS = os.path.join(CACHE, "kprism", "axes", "programs")


@dataclasses.dataclass
class Flow:
    """A thread's instructions: all of them, and those of programs alone, as (count, hash); each place once; names; the first and last
    time in ns, if there are times."""

    whole: tuple
    user: tuple
    first: int
    last: int
    names: set = dataclasses.field(default_factory=set)
    places: set = dataclasses.field(default_factory=set)

    @property
    def count(self):
        return self.whole[0]

    def digest(self, user):
        return self.user if user else self.whole


@contextlib.contextmanager
def locked(path):
    """Another case may make the same file or folder at the same time, in this process or in another."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def built(name, *options):
    """A C program of this folder, or of another with its path, compiled once."""
    source = os.path.join(HERE, name + ".c")
    with open(source, "rb") as file:
        key = hashlib.sha256(" ".join(options).encode() + file.read()).hexdigest()[:20]
    program = os.path.join(PROGRAMS, key, os.path.basename(name))
    with locked(program):
        if not os.path.exists(program):
            subprocess.run(["gcc", "-O2", *options, "-o", program + ".new", source], check=True)
            os.rename(program + ".new", program)
    return program


def collect(command, timed=False):
    """Adds up what a command lists. Gives {tid: Flow}, the command's exit code, and what it said."""
    with tempfile.TemporaryFile("w+") as said:
        lists = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said)
        adds = subprocess.Popen([built("digest"), *["timed"][:timed]], stdin=lists.stdout, stdout=subprocess.PIPE, text=True)
        lists.stdout.close()
        flows, flow, tid, unread = {}, None, None, None
        for line in adds.stdout:
            kind, _, rest = line[:-1].partition(" ")
            if kind == "thread":
                tid, *sums = rest.split()
                tid = int(tid)
                flow = flows[tid] = Flow((int(sums[0]), sums[1]), (int(sums[2]), sums[3]), int(sums[4]), int(sums[5]))
            elif kind == "at":
                flow.places.add(rest)
            elif kind == "unread":
                unread = int(rest)
            elif rest != f":{tid}":
                # perf writes the number where no record tells the name yet.
                flow.names.add(rest.split("/")[0] if tid == 0 else rest)
        if adds.wait() or unread:
            raise RuntimeError(f"digest ended with {adds.returncode}; {unread} lines of {command[0]} it could not read")
        code = lists.wait()
        said.seek(0)
        return flows, code, said.read()


def perf(path, symfs):
    """perf's own decoder."""
    command = ["perf", "script", "-i", path, "--symfs", symfs, "--itrace=i0ns", "-F", "comm,tid,ip"]
    flows, code, _ = collect(command)
    if code:
        raise RuntimeError(f"perf ended with {code}: {' '.join(command)}")
    return flows


def kprism(program, run):
    """kprism's decoder, with times."""
    flows, code, said = collect([program, "script", "insns", "-q", "-i", run, "--fields", "comm,pid,time,ip"], timed=True)
    if code not in (0, 1):
        raise RuntimeError(f"kprism script ended with {code}: {said.strip()}")
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
