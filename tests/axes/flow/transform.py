# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes an exported run of the guest the recording of a real machine. In: a Recording, and a choice of values. Out: a folder or
a file as `perf record` leaves it, and what must come out of it.

The guest's export has the simplest form of everything: a clock that begins at 0 and ticks once a nanosecond, one piece a CPU, a
name and mappings of its own for each task. Each function here changes one of these, as the kernel and perf would write it.
"""

import fractions
import os
import struct

from . import packets
from .recording import (AUX_DATA, CALLCHAIN_DEFERRED, COMM, COMPRESSION, CONTEXT_SWITCH, EXCLUDE_KERNEL, EXIT, FINISHED_INIT,
                        FORK, HAS_ZERO, ID_INDEX, IDENTIFIER, IP, LOST, MMAP2, MULT, NONE, OVERWRITE, PER_CPU, PERIOD, SAMPLE,
                        SCHED, SHIFT, SNAPSHOT, SWITCH_CPU_WIDE, TID, TIME, TIME_CONV, TRUNCATED, ZERO, Event, Piece, compressed)

# TSC ticks of a crystal tick in the lab's streams, and what keeps CTC's 16 low bits as they are.
CRYSTAL = 40
KEEPS_CTC = CRYSTAL << 32
# About 34 hours at 1 GHz.
UPTIME = 700 * KEEPS_CTC

EXEC, SWITCH_OUT, PREEMPT = 1 << 13, 1 << 13, 1 << 14
GUEST_USER = 5
# `misc` of a mapping: its build id is stated.
BUILD_ID = 1 << 14


class Clock:
    """perf's conversion: time = zero + (ticks * mult >> shift), modulo 2^64 (tools/perf/util/tsc.c)."""

    def __init__(self, ticks_a_ns, shift, zero):
        self.shift = shift
        self.mult = max(1, int(fractions.Fraction(1 << shift) / fractions.Fraction(ticks_a_ns)))
        self.zero = zero % 2**64

    def time(self, ticks):
        quot, rem = ticks >> self.shift, ticks & ((1 << self.shift) - 1)
        return (self.zero + quot * self.mult + (rem * self.mult >> self.shift)) % 2**64


def set_clock(recording, clock, ticks):
    """Times of the recording become those of `clock`, `ticks` later; TSC packets too."""
    recording.words[SHIFT], recording.words[MULT], recording.words[ZERO] = clock.shift, clock.mult, clock.zero
    recording.words[HAS_ZERO] = 1
    for event in recording.head:
        if event.kind == TIME_CONV:
            event.body = struct.pack("<QQQ", clock.shift, clock.mult, clock.zero) + event.body[24:]
    for event in recording.events:
        event.time = clock.time(event.time + ticks)
    if ticks:
        recording.streams = {cpu: packets.shift_tsc(pt, ticks) for cpu, pt in recording.streams.items()}


def births_as_the_kernel_tells(recording, program):
    """FORK in place of the names and mappings of forked tasks; exec says so, and a task that ends has an EXIT.

    `program`: the name of the program whose tasks are the workload.
    """
    mapped = {}
    for event in recording.events:
        if event.kind == MMAP2:
            mapped.setdefault(event.pid, []).append(event)
    main, out, born, last = None, [], set(), {}
    for event in recording.events:
        if event.kind == SWITCH_CPU_WIDE and event.misc & SWITCH_OUT:
            last[event.tid] = event
    for event in recording.events:
        is_comm = event.kind == COMM and event.body[8:].split(b"\0")[0].decode() == program
        if is_comm:
            pid, tid = struct.unpack_from("<II", event.body)
            if main is None:
                main = pid
            elif tid not in born and (pid, tid) != (main, main):
                born.add(tid)
                parent = main if pid == tid else pid
                body = struct.pack("<IIIIQ", pid, parent, tid, main if pid == tid else pid, event.time)
                out.append(Event(FORK, 0, body, parent, main, event.time, event.cpu, event.id))
                if pid == tid and execs(mapped, main, pid):
                    event.misc |= EXEC
                    event.time += 1
                    out.append(event)
                continue
        if event.kind == MMAP2 and event.pid in born and not execs(mapped, main, event.pid):
            continue
        out.append(event)
    for tid in born:
        event = last.get(tid)
        if event is not None:
            body = struct.pack("<IIIIQ", event.pid, main, tid, main, event.time)
            out.append(Event(EXIT, 0, body, event.pid, tid, event.time + 1, event.cpu, event.id))
    out.sort(key=lambda event: event.time)
    recording.events = out


def execs(mapped, main, pid):
    """True if the process mapped its program anew: not at the addresses of its parent alone."""
    if pid not in mapped:
        return False
    place = lambda event: event.body[8:32]
    return {place(event) for event in mapped[pid]} != {place(event) for event in mapped.get(main, [])} or (
        mapped[pid][0].time > mapped[main][0].time and any(event.time != mapped[pid][0].time for event in mapped[pid]))


# Instructions from the record of a switch to the switch itself, at most. No program's code runs between them.
DISTANCE = 150


def ends_without_an_id(recording, program):
    """A thread that ends has no id any more when it leaves the CPU: its last switch is of task -1, after its EXIT (`pid_alive` in
    the kernel's perf_event_pid_type). `program`: the name of the program whose tasks are the workload; its first one lives on."""
    born, last = [], {}
    for event in recording.events:
        if event.kind == COMM and event.body[8:].split(b"\0")[0].decode() == program:
            born.append(struct.unpack_from("<II", event.body))
        if event.kind == FORK:
            pid, _, tid = struct.unpack_from("<III", event.body)
            born.append((pid, tid))
        if event.kind == SWITCH_CPU_WIDE and event.misc & SWITCH_OUT:
            last[event.tid] = event
    ended = {tid for pid, tid in born if (pid, tid) != born[0]} & last.keys()
    if not ended:
        raise RuntimeError("no thread ended: this case would try nothing")
    recording.events = [event for event in recording.events if event.kind != EXIT or event.tid not in ended]
    for tid in ended:
        event = last[tid]
        body = struct.pack("<IIIIQ", event.pid, born[0][0], tid, born[0][0], event.time)
        time = max(event.time - 2 * DISTANCE, 1)
        recording.events.append(Event(EXIT, 0, body, event.pid, tid, time, event.cpu, event.id))
        event.pid = event.tid = NONE
    recording.events.sort(key=lambda event: event.time)


def told_before(recording):
    """The kernel tells a switch some time before it (perf_event_task_sched_out), each by another time."""
    before = {}
    for number, event in enumerate(recording.events):
        if event.kind == SWITCH_CPU_WIDE:
            since = event.time - before.get(event.cpu, 0)
            before[event.cpu] = event.time
            early = min(DISTANCE * (number % 7 + 1) // 7, since // 3)
            if event.time > early:
                event.time -= early
    recording.events.sort(key=lambda event: event.time)


# By so many instructions the kernel maps a program before it runs.
EARLIER = 1000


def over_another(recording, deleted):
    """Each mapping lies over another one that was there before, as a library in the hole of one that dlclose took out: another part
    of the file, or a file that is nowhere any more. perf has no record of munmap."""
    out = []
    for event in recording.events:
        if event.kind in (MMAP2, COMM, FORK):
            event.time = max(event.time - EARLIER, 1)
        if event.kind == MMAP2:
            pid, tid, start, length, offset = struct.unpack_from("<IIQQQ", event.body)
            path = event.body[64:]
            if deleted:
                name = b"/tmp/gone.so (deleted)"
                path = name.ljust(-(-(len(name) + 1) // 8) * 8, b"\0")
            head = struct.pack("<IIQQQ", pid, tid, start, length, offset + 0x1000)
            out.append(Event(MMAP2, event.misc & ~BUILD_ID if deleted else event.misc, head + event.body[32:64] + path, event.pid,
                             event.tid, event.time, event.cpu, event.id))
        out.append(event)
    if len(out) == len(recording.events):
        raise RuntimeError("nothing was mapped: this case would try nothing")
    out.sort(key=lambda event: event.time)
    recording.events = out


def both_sides(recording):
    """A switch is told by the task that leaves and by the one that comes."""
    out = []
    for event in recording.events:
        out.append(event)
        if event.kind == SWITCH_CPU_WIDE and event.misc & SWITCH_OUT:
            pid, tid = struct.unpack("<II", event.body)
            body = struct.pack("<II", event.pid, event.tid)
            out.append(Event(SWITCH_CPU_WIDE, 0, body, pid, tid, event.time, event.cpu, event.id))
    recording.events = out


def guest_mappings(recording):
    """A virtual machine's programs at the same addresses."""
    own = [event for event in recording.events if event.kind == MMAP2]
    first = recording.events[0]
    copies = [Event(MMAP2, event.misc & ~7 | GUEST_USER, event.body[:64] + b"/bin/of-the-guest\0\0\0\0\0\0\0",
                    event.pid, event.tid, first.time, event.cpu, event.id) for event in own]
    recording.events = copies + recording.events


def without_branches(recording, step):
    """BranchEn off: no TNT, no addresses; a PTWRITE of its own number after each `step` packets. Gives the numbers by CPU."""
    written = {}
    for cpu, pt in recording.streams.items():
        out, count, numbers, in_psb = [pt[: max(pt.find(packets.PSB), 0)]], 0, [], False
        for _, name, packet in packets.packets(pt):
            if name in ("tnt", "tnt64", "ip"):
                count += 1
                if count % step == 0 and not in_psb:
                    number = cpu << 32 | len(numbers)
                    numbers.append(number)
                    out.append(b"\x02\x32" + number.to_bytes(8, "little"))
                continue
            in_psb = name == "psb" or in_psb and name != "psbend"
            out.append(packet)
        recording.streams[cpu], written[cpu] = b"".join(out), numbers
    recording.pt.config &= ~(1 << 13)
    recording.pt.config |= 1 << 12
    return written


def without_tnt(recording):
    """DisTNT: bit 55."""
    recording.streams = {cpu: packets.without(pt, ("tnt", "tnt64")) for cpu, pt in recording.streams.items()}
    recording.pt.config |= 1 << 55


def without_times(recording):
    """No TSC, MTC, CYC: a recording that does not know the time."""
    strip = ("tsc", "mtc", "cyc", "cyc1", "tma")
    recording.streams = {cpu: packets.without(pt, strip) for cpu, pt in recording.streams.items()}
    recording.pt.config &= ~(1 << 10 | 1 << 9 | 1 << 1)


# --- modes ------------------------------------------------------------------------------------------------


def pieces(recording, count, cut=None):
    """Each CPU's buffer in `count` pieces that end behind packets, in rounds."""
    rounds = [[] for _ in range(count)]
    for cpu, pt in recording.streams.items():
        ends = [end for end in packets.boundaries(pt) if end % 8] if count > 1 else []
        places = [0]
        for number in range(1, count):
            wanted = len(pt) * number // count
            places.append(next((end for end in ends if end >= max(wanted, places[-1])), len(pt)))
        places.append(len(pt))
        for number in range(count):
            start, stop = places[number], places[number + 1]
            data = pt[start:stop].ljust(-(-(stop - start) // 8) * 8, b"\0")
            rounds[number].append(Piece(cpu, NONE, start, data, [(start, stop - start, 0)]))
    return rounds


def truncated(recording):
    """A full buffer: what came until a later PSB is lost."""
    round_ = []
    for cpu, pt in recording.streams.items():
        stop = next((end for end in packets.boundaries(pt) if end >= len(pt) // 3), len(pt))
        begin = pt.find(packets.PSB, max(len(pt) // 2, stop))
        begin = len(pt) if begin < 0 else begin
        told = [(0, stop, TRUNCATED), (stop, len(pt) - begin, 0)]
        round_.append(Piece(cpu, NONE, 0, pt[:stop] + pt[begin:], told))
    return [round_]


def snapshots(recording):
    """Three snapshots of a ring, of which the first two overlap."""
    recording.words[SNAPSHOT] = 1
    rounds = [[] for _ in range(3)]
    for cpu, pt in recording.streams.items():
        ends, ring = packets.boundaries(pt), max(len(pt) // 4, 4096)
        for number, share in enumerate((30, 45, 90)):
            stop = next((end for end in ends if end >= len(pt) * share // 100), len(pt))
            start = max(stop - ring, 0)
            offset = stop % ring if start else 0
            rounds[number].append(Piece(cpu, NONE, offset, pt[start:stop], [(offset, ring, OVERWRITE)]))
    return rounds


def samples(recording, span):
    """What the buffer held last, in samples of another event."""
    ids = recording.add_event("cycles", 4, 0x3C, PERIOD | AUX_DATA)
    first, last = recording.events[0], recording.events[-1]
    steps = 30
    for cpu, pt in recording.streams.items():
        ends = packets.boundaries(pt)
        held = len(pt) // steps * 2 + 4096
        for step in range(1, steps + 1):
            stop = next((end for end in ends if end >= len(pt) * step // steps), len(pt))
            time = first.time + (last.time - first.time) * step // steps
            data = pt[max(stop - held, 0) : stop]
            data = data.ljust(-(-len(data) // 8) * 8, b"\0")
            body = struct.pack("<QQIIQIIQ", ids[cpu], 0x1230, 0, 0, time, cpu, 0, 1000) + struct.pack("<Q", len(data)) + data
            if len(body) > 65000:
                raise ValueError("a sample of more than 64 KiB")
            recording.events.append(Event(SAMPLE, 2, body, 0, 0, time, cpu, 0))
    recording.events.sort(key=lambda event: event.time)
    return [[]]


def threads(recording, ticks_of):
    """`--per-thread -e intel_pt//u`: a buffer for each thread, records without a CPU. `ticks_of`: the inverse of the clock."""
    buffers = {}
    for cpu, pt in recording.streams.items():
        switches = [(ticks_of(event.time), struct.unpack("<II", event.body)[1]) for event in recording.events
                    if event.kind == SWITCH_CPU_WIDE and event.misc & SWITCH_OUT and event.cpu == cpu]
        first = next(event.tid for event in recording.events if event.kind == SWITCH_CPU_WIDE and event.cpu == cpu)
        times = packets.ticks_at(pt)

        def running(ticks):
            low, high = 0, len(switches)
            while low < high:
                middle = (low + high) // 2
                low, high = (middle + 1, high) if switches[middle][0] <= ticks else (low, middle)
            return switches[low - 1][1] if low else first

        timed = lambda ticks: [b"\x19" + (ticks % (1 << 56)).to_bytes(7, "little")] if ticks else []
        for tid, data in packets.user_only(pt, running, times.get, timed).items():
            buffers.setdefault(tid, []).append(data)
    recording.events = [event for event in recording.events if event.kind != SWITCH_CPU_WIDE]
    recording.head = [event for event in recording.head if event.kind != ID_INDEX]
    recording.layout = IP | TID | TIME | IDENTIFIER
    recording.words[SCHED] = recording.words[PER_CPU] = 0
    for attr in recording.attrs:
        attr.layout = recording.layout
        attr.flags = attr.flags & ~CONTEXT_SWITCH | EXCLUDE_KERNEL
        attr.config &= ~(1 << 9 | 1 << 1)
    ids = [ident for attr in recording.attrs for ident in attr.ids]
    body = struct.pack("<Q", len(ids)) + b"".join(struct.pack("<QQQQ", ident, 0, 2**64 - 1, 2**64 - 1) for ident in ids)
    recording.head.append(Event(ID_INDEX, 0, body))
    long = {tid: b"".join(parts) for tid, parts in buffers.items() if tid > 0}
    return [[Piece(NONE, tid, 0, data, [(0, len(data), 0)]) for tid, data in long.items() if b"\xd1" in data]], sorted(long)


# --- files ------------------------------------------------------------------------------------------------

# The size of perf_event_attr, and of AUXTRACE_INFO in words.
VERSIONS = {"4.14": (112, 17), "5.10": (120, 17), "6.1": (128, 18), "7.0": (144, 20)}


def write(recording, parts, folder, form, version, cut=False):
    """Writes the recording; gives the path to import and whether it went through a pipe."""
    size, words = VERSIONS[version]
    recording.words = (recording.words + [0] * words)[:words]
    parts = [recording.info().bytes(0)] + parts[1:]
    features = {}
    if version == "7.0":
        # Record types and features that came later than any reader of today's distributions.
        first = recording.events[0]
        last = [Event(FINISHED_INIT, 0, b"").bytes(0), Event(95, 0, b"\0" * 16).bytes(0)]
        later = Event(CALLCHAIN_DEFERRED, 2, struct.pack("<QQQ", 1, 1, 0x401000), first.pid, first.tid, first.time, first.cpu, first.id)
        parts = parts[:1] + last + parts[1:] + [later.bytes(recording.layout)]
        features[60] = b"later"
    if form == "compressed":
        parts, features = compressed(parts), {**features, **COMPRESSION}
    os.makedirs(folder, exist_ok=True)
    data = os.path.join(folder, "data")
    if form == "pipe":
        content = recording.pipe(parts, size, features)
    else:
        content = recording.file(parts, size, features)
    if cut:
        content = content[: len(content) * 2 // 3]
    with open(data, "wb") as file:
        file.write(content)
    return data if form in ("pipe", "compressed") else folder


def lost_record(recording):
    """The kernel had no room for 7 records."""
    middle = recording.events[len(recording.events) // 2]
    body = struct.pack("<QQ", middle.id, 7)
    recording.events.append(Event(LOST, 0, body, middle.pid, middle.tid, middle.time, middle.cpu, middle.id))
    recording.events.sort(key=lambda event: event.time)
