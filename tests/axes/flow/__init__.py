# SPDX-License-Identifier: MIT OR Apache-2.0
"""Axes of flow: recordings of real machines. A choice of values → a recording, kprism's reading of it, perf's, a verdict.

The packets come from a guest, which runs one instruction a nanosecond and whose instructions perf knows from the plain export.
`transform` gives the recording around them the form of a real machine's. What kprism then reads must be the same instructions
of the same tasks, at the times that the clock of the recording states.
"""

import hashlib
import os
import pickle
import shutil
import subprocess

from . import judge, packets, transform
from .recording import Recording

# The first value of each axis is the guest's own.
AXES = {
    "zero": ["0", "later", "negative"],
    "shift": ["31", "10"],
    "insns a ns": ["1", "0.2", "3.7", "16"],
    "TSC begins": ["0", "34 h"],
    "times": ["CYC", "MTC", "TSC", "none"],
    "mode": ["file", "pieces", "pipe", "compressed", "threads", "snapshots", "samples"],
    "branches": ["all", "DisRETC", "DisTNT", "PTWRITE only"],
    "births": ["fork", "vfork", "spawn", "thread", "exec"],
    "tasks": ["1", "10", "200"],
    "records": ["own", "FORK and exec", "both sides"],
    "ends": ["named", "without an id"],
    "distance": ["none", "before"],
    "mappings": ["as loaded", "over another file", "over a deleted file"],
    "space": ["plain", "PTI", "no ASLR"],
    "kernel": ["code", "no code"],
    "perf": ["6.1", "4.14", "5.10", "7.0"],
    "lost": ["nothing", "records", "full buffer", "end of file"],
    "machine": ["none", "mappings"],
}

JUDGE = "perf script 6.1 on the plain export with cycles, perf on the recording itself (PTWRITE), the arithmetic of the clock; with TSC alone, not the order of a thread's stays on two CPUs"


def goes(case):
    """True if a recorder could have made this; `case` has some of the axes."""
    has = lambda axis, *values: case.get(axis) in values
    # A buffer of a thread has user code only, without MTC and CYC, and tasks are known by the buffer.
    if has("mode", "threads"):
        if has("times", "MTC", "CYC", "none") or has("kernel", "no code") or has("branches", "PTWRITE only"):
            return False
        if has("records", "both sides") or has("lost", "full buffer") or has("tasks", "200"):
            return False
        if has("ends", "without an id") or has("distance", "before") or not has("mappings", "as loaded", None):
            return False
    # Between two TSC packets nothing tells when one mapping's code ends and the next one's begins; kprism says so.
    if has("mappings", "over another file", "over a deleted file") and has("times", "TSC", "none"):
        return False
    # Without a clock no record has a place.
    if has("times", "none") and has("distance", "before"):
        return False
    # Rings lose what is older anyway, and are judged by what they may have.
    if has("mode", "snapshots", "samples"):
        if has("lost", "full buffer", "end of file") or has("branches", "PTWRITE only", "DisTNT"):
            return False
    # Sixty thousand bytes are the most that a sample holds.
    if has("mode", "samples") and (has("tasks", "200") or has("times", "CYC") or has("branches", "DisRETC")):
        return False
    if has("times", "none") and (has("zero", "negative", "later") or has("insns a ns", "0.2", "3.7", "16") or has("TSC begins", "34 h")):
        return False
    # Without times nothing tells whose code it is, unless only one task runs.
    if has("times", "none") and not (has("mode", "file", None) and has("branches", "all", "DisRETC", None)):
        return False
    if has("kernel", "no code") and has("branches", "PTWRITE only"):
        return False
    return True


def base(case, program, cache):
    """A guest's run, and what perf reads of its export: (folder, (flows, spans)).

    The same guest runs the same instructions whichever packets are recorded. perf needs the time of every switch to read them, so
    it is asked about the recording with cycles."""
    folder = recorded(case, program, cache)
    exact = recorded({**case, "times": "CYC"}, program, cache)
    # perf takes minutes. Another build of the observer, which records anew, seldom writes another recording.
    flows = os.path.join(cache, "flows", digest(os.path.join(exact, "export")))
    with open(os.path.join(exact, "flows"), "w") as file:
        file.write(flows)
    with judge.locked(flows):
        if not os.path.exists(flows):
            flows_by_perf(program, exact, flows)
    with open(flows, "rb") as file:
        return folder, pickle.load(file)


def is_kept(case, program, cache):
    """True if the case needs no minutes of perf."""
    folders = [recording_of(one, program, cache)[0] for one in (case, {**case, "times": "CYC"})]
    try:
        with open(os.path.join(folders[1], "flows")) as file:
            return os.path.exists(file.read()) and os.path.exists(os.path.join(folders[0], "export"))
    except FileNotFoundError:
        return False


def digest(folder):
    """A hash of all files below a folder, with their names."""
    key = hashlib.sha256()
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(place, name)
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
            key.update(os.path.relpath(path, folder).encode() + b"\0" + content)
    return key.hexdigest()[:20]


def flows_by_perf(program, exact, flows):
    """Writes the file `flows`."""
    exported = os.path.join(exact, "export")
    told = judge.perf(exported, os.path.join(exported, "symfs"))
    times = judge.kprism(program, os.path.join(exact, "run"))
    with open(flows + ".new", "wb") as file:
        told = {tid: (flow.digest(False), flow.digest(True), flow.places, flow.names) for tid, flow in told.items()}
        spans = {tid: (flow.first, flow.last) for tid, flow in times.items() if tid}
        pickle.dump((told, spans), file)
    os.rename(flows + ".new", flows)


def recording_of(case, program, cache):
    """A guest's recording: (folder with its run and export, options, command, program of the guest)."""
    packets_of = {"CYC": [], "MTC": ["--cyc", "off"], "TSC": ["--cyc", "off", "--mtc", "off"], "none": ["--cyc", "off", "--mtc", "off"]}
    options = ["--smp", "2"] + packets_of[case["times"]]
    if case["mode"] == "threads":
        # The threads' buffers are cut at times that only cycles tell.
        options = ["--smp", "1"]
    if case["branches"] == "DisRETC":
        options += ["--retc", "off"]
    options += {"plain": [], "PTI": ["--append", "pti=on"], "no ASLR": ["--append", "norandmaps"]}[case["space"]]
    binary = judge.built("births", "-static", "-pthread")
    command = ["/axes/births", case["births"], case["tasks"]]
    text = " ".join(options + command)
    # What the guest does and what is recorded of it depends on these; another command line reads the same recordings.
    key = hashlib.sha256(text.encode())
    for part in (binary, *(os.path.join(os.path.dirname(program), name) for name in ("kprism-agent", "libkprism_observer.so"))):
        with open(part, "rb") as file:
            key.update(file.read())
    key = key.hexdigest()[:20]
    return os.path.join(cache, "bases", key), options, command, binary


def recorded(case, program, cache):
    """The folder with a guest's run and its export."""
    folder, options, command, binary = recording_of(case, program, cache)
    exported = os.path.join(folder, "export")
    with judge.locked(folder):
        if not os.path.exists(exported):
            shutil.rmtree(folder, ignore_errors=True)
            run = os.path.join(folder, "run")
            os.makedirs(folder)
            share = os.path.dirname(binary) + ":/axes"
            checked([program, "lab", "run", "-q", *options, "--share", share, "-o", run, "--", *command])
            checked([program, "export", "-q", "-i", run, "-o", exported + ".perf.data"])
            os.rename(exported + ".perf.data", exported)
    return folder


def checked(command):
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done


def make(case, exported, folder):
    """Writes the recording. Gives the path to import, the clock, the ticks at the guest's 0, and what was written."""
    recording = Recording(os.path.join(exported, "data"))
    if case["records"] == "FORK and exec":
        transform.births_as_the_kernel_tells(recording, "births")
    if case["mappings"] != "as loaded":
        transform.over_another(recording, case["mappings"] == "over a deleted file")
    if case["ends"] == "without an id":
        transform.ends_without_an_id(recording, "births")
    if case["distance"] == "before":
        transform.told_before(recording)
    if case["records"] == "both sides":
        transform.both_sides(recording)
    if case["machine"] == "mappings":
        transform.guest_mappings(recording)
    rounds = None
    if case["mode"] == "threads":
        rounds, _ = transform.threads(recording, lambda time: time)
    written = None
    if case["branches"] == "PTWRITE only":
        written = transform.without_branches(recording, 50)
    elif case["branches"] == "DisTNT":
        transform.without_tnt(recording)
    if case["times"] == "none":
        transform.without_times(recording)
    ticks = transform.UPTIME if case["TSC begins"] == "34 h" else 0
    start = recording.events[0].time + ticks
    clock = transform.Clock(case["insns a ns"], int(case["shift"]), 0)
    if case["zero"] == "negative":
        # The clock of the recording began a little before it.
        clock.zero = (-clock.time(start) + 1_000_000) % 2**64
    elif case["zero"] == "later":
        clock.zero = 10**12
    if rounds:
        for piece in rounds[0]:
            piece.data = packets.shift_tsc(piece.data, ticks)
    transform.set_clock(recording, clock, ticks)
    if case["lost"] == "records":
        transform.lost_record(recording)
    if case["lost"] == "full buffer":
        rounds = transform.truncated(recording)
    elif case["mode"] == "snapshots":
        rounds = transform.snapshots(recording)
    elif case["mode"] == "samples":
        rounds = transform.samples(recording, None)
    elif case["mode"] in ("pieces", "compressed"):
        rounds = transform.pieces(recording, 5)
    rounds = rounds or transform.pieces(recording, 1)
    path = transform.write(recording, recording.parts(rounds), folder, case["mode"], case["perf"], case["lost"] == "end of file")
    if case["kernel"] == "code":
        os.symlink(os.path.join(exported, "kcore_dir"), os.path.join(folder, "kcore_dir"))
    return path, clock, ticks, written


def run(case, program, cache, scratch):
    """Makes the recording and reads it. Gives a list of faults, each one sentence; none if all is right."""
    folder, (told, spans) = base(case, program, cache)
    exported = os.path.join(folder, "export")
    symfs = os.path.join(exported, "symfs")
    place, imported = os.path.join(scratch, "recording"), os.path.join(scratch, "run")
    path, clock, ticks, written = make(case, exported, place)
    options = ["--symfs", symfs]
    if path != place and case["kernel"] == "code":
        kcore = os.path.join(place, "kcore_dir")
        options += ["--kcore", os.path.join(kcore, "kcore"), "--kallsyms", os.path.join(kcore, "kallsyms")]
    done = subprocess.run([program, "import", "-q", path, *options, "-o", imported], stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True)
    lossy = case["lost"] != "nothing" or case["mode"] in ("snapshots", "samples") or case["kernel"] == "no code"
    if case["branches"] == "DisTNT":
        # The flow between two addresses is not in the trace: the recording is refused by the name of the setting.
        told_so = done.returncode == 2 and "DisTNT" in done.stderr
        return [] if told_so else [f"DisTNT: import ended with {done.returncode}, and does not name it: {done.stderr.strip()[-200:]}"]
    if done.returncode not in ((0, 1) if lossy else (0,)):
        return [f"import ended with {done.returncode}: {done.stderr.strip()[-300:]}"]
    if written is not None:
        if case["perf"] == "7.0":
            # perf 6.1 refuses headers of a later perf: it is asked about the same recording with its own.
            path = make({**case, "perf": "6.1"}, exported, os.path.join(scratch, "for perf"))[0]
        return ptwrites(case, path, symfs, program, imported, written)
    faults = []
    flows = judge.kprism(program, imported)
    user = case["mode"] == "threads" or case["kernel"] == "no code"
    if case["lost"] == "end of file" and not flows:
        # The records with the mappings stood in what is gone, and --strict must say that something is.
        return [] if not judge.is_whole(program, imported) else ["nothing was decoded, and --strict says that all is whole"]
    faults += compare(case, flows, told, user)
    if faults and case["times"] == "TSC" and not judge.is_whole(program, imported):
        # Between two TSC packets several tasks ran, and kprism says that it guesses which: what ran must be right all the same.
        faults = foreign(flows, told) or [f"explained: which task ran is guessed, as the note says: {faults[0]}"]
    if case["times"] != "none":
        faults += times(case, flows, spans, clock, ticks, lossy or user)
    if case["lost"] != "nothing" and judge.is_whole(program, imported):
        faults.append(f"{case['lost']} lost, and --strict says that all is whole")
    return faults


def foreign(flows, told):
    """Addresses of any thread that perf has in none."""
    ours, theirs = set().union(*(flow.places for flow in flows.values())), set().union(*(own[2] for own in told.values()))
    return [] if ours and ours <= theirs else [f"{len(ours - theirs)} of {len(ours)} addresses that perf does not have"]


def compare(case, flows, told, user):
    """kprism's instructions against perf's."""
    faults = []
    part = case["lost"] in ("full buffer", "end of file") or case["mode"] in ("snapshots", "samples")
    if case["times"] == "none":
        # Whose code it was is not known then; the places are.
        return foreign(flows, told)
    if part:
        for tid, flow in sorted(flows.items()):
            # A nameless thread 0, and thread -1, is what no record told the thread of.
            nobody = tid == 0 and flow.names == {""} or tid == 2**32 - 1
            known = set().union(*(own[2] for own in told.values())) if nobody else told[tid][2] if tid in told else set()
            other = len(flow.places - known)
            if other:
                faults.append(f"thread {tid}: {other} of {len(flow.places)} addresses that it does not have in perf's whole flow")
        total, most = sum(flow.count for flow in flows.values()), sum(own[0][0] for own in told.values())
        if not 0 < total <= most:
            faults.append(f"{total} instructions of at most {most}")
        return faults[:5]
    for tid, (whole, of_user, places, names) in sorted(told.items()):
        expected = of_user if user else whole
        if expected[0] == 0 or user and tid == 0:
            continue
        got = flows[tid].digest(user) if tid in flows else (0, "")
        if case["times"] == "TSC" and not user and got[0] == expected[0] and flows[tid].places == places:
            # Times between two TSC packets are estimates, and so is the order of a thread's stays on two CPUs.
            got = expected
        if got != expected:
            faults.append(f"thread {tid}: {got[0]} instructions, perf has {expected[0]}{' other ones' if got[0] == expected[0] else ''}")
        elif not names & flows[tid].names and names:
            faults.append(f"thread {tid}: named {sorted(flows[tid].names)}, by perf {sorted(names)}")
    for tid in sorted(flows.keys() - told.keys()):
        if flows[tid].digest(user)[0]:
            faults.append(f"thread {tid}: {flows[tid].count} instructions, perf has no such thread")
    return faults[:6] + ([f"and {len(faults) - 6} threads more"] if len(faults) > 6 else [])


# Ticks by which a time may differ: between two packets with a time it is an estimate.
SLACK = {"CYC": 200, "MTC": 2 * 320 + 200, "TSC": None}


def times(case, flows, spans, clock, ticks, part):
    """The first and last instruction of each task must be at the guest's time by the recording's clock."""
    slack = SLACK[case["times"]] if case["mode"] != "threads" else None
    if slack is None or part:
        return []
    faults = []
    for tid, (first, last) in sorted(spans.items()):
        if tid not in flows:
            continue
        for what, got, true in (("first", flows[tid].first, first), ("last", flows[tid].last, last)):
            low, high = clock.time(max(true - slack, 0) + ticks), clock.time(true + slack + ticks)
            if not low - 2 <= got <= high + 2:
                faults.append(f"thread {tid}: its {what} instruction at {got} ns, the clock says {clock.time(true + ticks)}")
    return faults[:4]


def ptwrites(case, path, symfs, program, imported, written):
    """Values written by PTWRITE: all of them, and each with perf's task."""
    ours = judge.ptwrites_by_kprism(program, imported)
    values = sorted(value for own in ours.values() for value in own)
    expected = sorted(value for own in written.values() for value in own)
    if case["lost"] in ("full buffer", "end of file"):
        return [] if values and set(values) <= set(expected) else [f"{len(values)} values of PTWRITE, at most {len(expected)} were written"]
    if values != expected:
        return [f"{len(values)} values of PTWRITE, {len(expected)} were written"]
    if case["mode"] == "pipe":
        return []
    theirs = judge.ptwrites_by_perf(path, symfs)
    differ = [task for task, own in theirs.items() if ours.get(task) != own]
    return [f"thread {task[0]}: {len(ours.get(task, []))} values of PTWRITE, perf has {len(theirs[task])}, or in another order"
            for task in differ[:5]]
