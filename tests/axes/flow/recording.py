# SPDX-License-Identifier: MIT OR Apache-2.0
"""A perf.data file as a list of its parts, and that list as a file of another shape.

In: `data` of an exported run. Out: bytes as `perf record` of some version and mode would have written them. Written from
tools/perf/Documentation/perf.data-file-format.txt and include/uapi/linux/perf_event.h, not from kprism's reader.
"""

import dataclasses
import struct

# Types of records.
COMM, EXIT, FORK, SAMPLE, MMAP2, AUX, ITRACE_START, LOST, SWITCH, SWITCH_CPU_WIDE, TEXT_POKE = 3, 4, 7, 9, 10, 11, 12, 2, 14, 15, 20
ATTR, TRACING_DATA, FINISHED_ROUND, ID_INDEX, AUXTRACE_INFO, AUXTRACE, TIME_CONV, FEATURE, COMPRESSED, FINISHED_INIT = (
    64, 66, 68, 69, 70, 71, 79, 80, 81, 82)
CALLCHAIN_DEFERRED = 22
# perf's own records have no trailer.
OWN = 64
NONE = 0xFFFFFFFF

# sample_type.
IP, TID, TIME, CPU, PERIOD, AUX_DATA, IDENTIFIER = 1, 2, 4, 1 << 7, 1 << 8, 1 << 20, 1 << 16
LAYOUT = IP | TID | TIME | CPU | IDENTIFIER
# Flags of AUX.
TRUNCATED, OVERWRITE = 1, 2
# Bits of perf_event_attr.
INHERIT, EXCLUDE_KERNEL, CONTEXT_SWITCH, SAMPLE_ID_ALL = 1 << 1, 1 << 5, 1 << 26, 1 << 18
# Words of AUXTRACE_INFO for Intel PT (tools/perf/util/intel-pt.h).
PMU, SHIFT, MULT, ZERO, HAS_ZERO, SCHED, SNAPSHOT, PER_CPU, FILTER_LEN = 0, 1, 2, 3, 4, 7, 8, 9, 16


@dataclasses.dataclass
class Attr:
    """One event: `perf_event_attr` of 128 bytes, and its ids."""

    raw: bytearray
    ids: list
    name: str

    def word(self, at):
        return struct.unpack_from("<Q", self.raw, at)[0]

    def put(self, at, value):
        struct.pack_into("<Q", self.raw, at, value)

    @property
    def kind(self):
        return struct.unpack_from("<I", self.raw)[0]

    def is_pt(self):
        return self.kind > 5

    config = property(lambda self: self.word(8), lambda self, value: self.put(8, value))
    flags = property(lambda self: self.word(40), lambda self, value: self.put(40, value))
    layout = property(lambda self: self.word(24), lambda self, value: self.put(24, value))

    def sized(self, size):
        """As a version of perf with a structure of `size` bytes writes it."""
        raw = bytearray(self.raw[:size].ljust(size, b"\0"))
        struct.pack_into("<I", raw, 4, size)
        return bytes(raw)


@dataclasses.dataclass
class Event:
    """A record with its trailer: task, time, CPU, id."""

    kind: int
    misc: int
    body: bytes
    pid: int = 0
    tid: int = 0
    time: int = 0
    cpu: int = 0
    id: int = 0

    def bytes(self, layout):
        trailer = b""
        if self.kind < OWN and self.kind != SAMPLE:
            trailer += struct.pack("<II", self.pid, self.tid) if layout & TID else b""
            trailer += struct.pack("<Q", self.time) if layout & TIME else b""
            trailer += struct.pack("<II", self.cpu, 0) if layout & CPU else b""
            trailer += struct.pack("<Q", self.id) if layout & IDENTIFIER else b""
        body = self.body + trailer
        return struct.pack("<IHH", self.kind, self.misc, 8 + len(body)) + body


@dataclasses.dataclass
class Piece:
    """A piece of an AUX buffer, and what the kernel says of it: (offset, size, flags)."""

    cpu: int
    tid: int
    offset: int
    data: bytes
    told: list


class Recording:
    """The parts of a file: attributes, settings, records from before, events in order of time, streams."""

    def __init__(self, path):
        file = memoryview(open(path, "rb").read())
        (size, attr_size, attrs, attrs_len, data, data_len) = struct.unpack_from("<6Q", file, 8)
        self.attrs = []
        for at in range(attrs, attrs + attrs_len, attr_size):
            ids, ids_len = struct.unpack_from("<QQ", file, at + attr_size - 16)
            raw = bytearray(file[at : at + attr_size - 16])
            self.attrs.append(Attr(raw, list(struct.unpack_from(f"<{ids_len // 8}Q", file, ids)), ""))
        self.sections = self._sections(file, data + data_len)
        self._names()
        self.words, self.head, self.events, self.streams = [], [], [], {}
        self.layout = LAYOUT
        at = data
        while at < data + data_len:
            kind, misc, length = struct.unpack_from("<IHH", file, at)
            body = bytes(file[at + 8 : at + length])
            if kind == AUXTRACE:
                trace_len, _, _, _, _, cpu, _ = struct.unpack("<QQQIIII", body)
                self.streams[cpu] = bytes(file[at + length : at + length + trace_len])
                at += trace_len
            elif kind == AUXTRACE_INFO:
                self.words = list(struct.unpack(f"<{(len(body) - 8) // 8}Q", body[8:]))
            elif kind >= OWN:
                self.head.append(Event(kind, misc, body))
            else:
                pid, tid, time, cpu, _, ident = struct.unpack("<IIQIIQ", body[-32:])
                event = Event(kind, misc, body[:-32], pid, tid, time, cpu, ident)
                if kind != AUX:
                    (self.events if time else self.head).append(event)
            at += length

    def _sections(self, file, table):
        bits, sections = struct.unpack_from("<Q", file, 72)[0], {}
        for row, ident in enumerate(i for i in range(64) if bits >> i & 1):
            at, length = struct.unpack_from("<QQ", file, table + 16 * row)
            sections[ident] = bytes(file[at : at + length])
        return sections

    def _names(self):
        body = self.sections[12]
        count, size = struct.unpack_from("<II", body)
        at = 8
        for attr in self.attrs[:count]:
            ids, length = struct.unpack_from("<II", body, at + size)
            attr.name = body[at + size + 8 : at + size + 8 + length].split(b"\0")[0].decode()
            at += size + 8 + length + 8 * ids

    @property
    def pt(self):
        return next(attr for attr in self.attrs if attr.is_pt())

    def add_event(self, name, kind, config, layout):
        """Another event, with an id for each CPU."""
        first = max(ident for attr in self.attrs for ident in attr.ids) + 1
        ids = list(range(first, first + len(self.streams)))
        raw = bytearray(128)
        struct.pack_into("<IIQQQQQ", raw, 0, kind, 128, config, 1, self.layout | layout, 0, SAMPLE_ID_ALL | INHERIT)
        self.attrs.append(Attr(raw, ids, name))
        for event in self.head:
            if event.kind == ID_INDEX:
                count = struct.unpack_from("<Q", event.body)[0] + len(ids)
                more = b"".join(struct.pack("<QQQQ", ident, cpu, cpu, 2**64 - 1) for cpu, ident in enumerate(ids))
                event.body = struct.pack("<Q", count) + event.body[8:] + more
        return ids

    # --- the data ---------------------------------------------------------------------------------------

    def info(self):
        return Event(AUXTRACE_INFO, 0, struct.pack("<II", 1, 0) + struct.pack(f"<{len(self.words)}Q", *self.words))

    def parts(self, rounds):
        """Records and trace data as perf empties its buffers: in each round the trace, what the kernel says of it, events."""
        out = [self.info().bytes(0)] + [event.bytes(self.layout) for event in self.head]
        first, last = self.events[0].time, self.events[-1].time
        start = 0
        for number, pieces in enumerate(rounds, 1):
            until = first + (last - first) * number // len(rounds)
            stop = start
            while stop < len(self.events) and self.events[stop].time <= until:
                stop += 1
            for piece in pieces:
                index = piece.cpu if piece.cpu != NONE else piece.tid
                head = struct.pack("<QQQIIII", len(piece.data), piece.offset, until, index, piece.tid, piece.cpu, 0)
                out.append((Event(AUXTRACE, 0, head).bytes(0), piece.data))
                ids = self.pt.ids
                ident = ids[0 if piece.cpu == NONE else piece.cpu % len(ids)]
                for offset, size, flags in piece.told:
                    body = struct.pack("<QQQ", offset, size, flags)
                    out.append(Event(AUX, 0, body, piece.tid, piece.tid, until, piece.cpu, ident).bytes(self.layout))
            out += [event.bytes(self.layout) for event in self.events[start:stop]]
            out.append(Event(FINISHED_ROUND, 0, b"").bytes(0))
            start = stop
        return out

    def file(self, parts, attr_size=128, features=None):
        """A file that perf wrote to a disk."""
        entry = attr_size + 16
        out = bytearray(104)
        places = []
        for attr in self.attrs:
            places.append((len(out), 8 * len(attr.ids)))
            out += struct.pack(f"<{len(attr.ids)}Q", *attr.ids)
        attrs = len(out)
        for attr, place in zip(self.attrs, places):
            out += attr.sized(attr_size) + struct.pack("<QQ", *place)
        data, index = len(out), []
        for part in parts:
            if isinstance(part, tuple):
                index.append((len(out), len(part[0])))
                out += part[0] + part[1]
            else:
                out += part
        end = len(out)
        sections = self.features(attr_size, features)
        sections[18] = struct.pack("<Q", len(index)) + b"".join(struct.pack("<QQ", *place) for place in index)
        at, table, bodies, bits = end + 16 * len(sections), b"", b"", 0
        for ident in sorted(sections):
            table += struct.pack("<QQ", at + len(bodies), len(sections[ident]))
            bodies += sections[ident]
            bits |= 1 << ident
        struct.pack_into("<8s8Q", out, 0, b"PERFILE2", 104, entry, attrs, entry * len(self.attrs), data, end - data, 0, 0)
        struct.pack_into("<4Q", out, 72, bits, 0, 0, 0)
        return bytes(out + table + bodies)

    def pipe(self, parts, attr_size=128, features=None):
        """The same as perf writes it into a pipe: attributes and features are records."""
        out = [b"PERFILE2", struct.pack("<Q", 16)]
        for attr in self.attrs:
            out.append(Event(ATTR, 0, attr.sized(attr_size) + struct.pack(f"<{len(attr.ids)}Q", *attr.ids)).bytes(0))
        for ident, body in sorted(self.features(attr_size, features).items()):
            if ident == 1:
                padded = body.ljust(-(-len(body) // 8) * 8, b"\0")
                out.append(struct.pack("<IHHI", TRACING_DATA, 0, 12, len(body)) + padded)
            elif ident == 2:
                out.append(body)
            elif ident != 18:
                padded = body.ljust(-(-len(body) // 8) * 8, b"\0")
                out.append(Event(FEATURE, 0, struct.pack("<Q", ident) + padded).bytes(0))
        for part in parts:
            out.extend(part if isinstance(part, tuple) else [part])
        return b"".join(out)

    def features(self, attr_size, more):
        """The sections of the header, with the attributes in the size of that version."""
        body = struct.pack("<II", len(self.attrs), attr_size)
        for attr in self.attrs:
            name = attr.name.encode() + b"\0"
            name = name.ljust(-(-len(name) // 64) * 64, b"\0")
            body += attr.sized(attr_size) + struct.pack("<II", len(attr.ids), len(name)) + name
            body += struct.pack(f"<{len(attr.ids)}Q", *attr.ids)
        return {**self.sections, 12: body, **(more or {})}


def compressed(parts):
    """The kernel's records in COMPRESSED records: one zstd stream of blocks that store data as they are."""
    out, waiting = [], bytearray()
    head = [b"\x28\xb5\x2f\xfd\x00" + bytes([13 << 3])]

    def flush():
        for at in range(0, len(waiting), 1001):
            chunk = bytes(waiting[at : at + 1001])
            block = (head.pop() if head else b"") + (len(chunk) * 8).to_bytes(4, "little")[:3] + chunk
            out.append(struct.pack("<IHH", COMPRESSED, 0, 8 + len(block)) + block)
        waiting.clear()

    for part in parts:
        kind = None if isinstance(part, tuple) else struct.unpack_from("<I", part)[0]
        if kind is not None and kind < OWN:
            waiting.extend(part)
            continue
        if kind == FINISHED_ROUND:
            flush()
        out.append(part)
    flush()
    return out


# Version, zstd, level, ratio, size of the ring buffer.
COMPRESSION = {27: struct.pack("<5I", 1, 1, 1, 1, 1 << 20)}
