# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes recordings of any size: perf.data with Intel PT of user code, and the mapped files beside it (--symfs).

In: numbers of processes, mappings, stays and so on. Out: a file, whose flow is known. Formats: perf's
tools/perf/Documentation/perf.data-file-format.txt and include/uapi/linux/perf_event.h; packets: Intel SDM volume 3, 34.4.
"""
import os
import struct

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BASE = 0x5500_0000_0000
# call f; jne to the call; syscall; jmp to the call; f at 16: jne to itself; ret
CODE = bytes.fromhex("e80b00000075f90f05ebf5".ljust(32, "0")) + bytes.fromhex("75fec3")
# f's jne taken, taken, not taken; its return is compressed
CALL = [1, 1, 0, 1]


def rounds(count):
    """Outcomes of `count` rounds of CODE's loop, up to the system call."""
    return (CALL + [1]) * (count - 1) + CALL + [0]


def symbol_table(symbols, at):
    """Sections behind the offset `at` of a file, with these functions (name, address, size): their bytes, and where the headers are."""
    names, table = bytearray(b"\0"), bytearray(24)
    for name, address, size in symbols:
        table += struct.pack("<IBBHQQ", len(names), 0x12, 0, 1, address, size)
        names += name.encode() + b"\0"
    own = b"\0.text\0.symtab\0.strtab\0.shstrtab\0"
    parts = bytes(table) + bytes(names) + own
    parts += bytes(-len(parts) % 8)
    header = lambda name, kind, flags, address, offset, size, link, info, entry: struct.pack(
        "<IIQQQQIIQQ", own.index(name + b"\0"), kind, flags, address, offset, size, link, info, 8, entry)
    strings = at + len(table)
    headers = bytes(64) + header(b".text", 1, 6, 4096, 4096, at - 4096, 0, 0, 0)
    headers += header(b".symtab", 2, 0, 0, at, len(table), 3, 1, 24) + header(b".strtab", 3, 0, 0, strings, len(names), 0, 0, 0)
    headers += header(b".shstrtab", 3, 0, 0, strings + len(names), len(own), 0, 0, 0)
    return parts + headers, at + len(parts)


def program(path, code, symbols=()):
    """An ELF file of one segment, with the code at 4096."""
    code = code.ljust(4096, b"\xcc")
    code += bytes(-len(code) % 8)
    sections, headers_at = symbol_table(symbols, 4096 + len(code)) if symbols else (b"", 0)
    described = (64, 5, 4) if symbols else (64, 0, 0)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    # ET_DYN, x86-64; one program header of 56 bytes at 64: PT_LOAD, readable and executable.
    head = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 4096, 64, headers_at, 0, 64, 56, 1, *described)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 4096, 4096, 4096, len(code), len(code), 4096)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write((head + segment).ljust(4096, b"\0") + code + sections)


def chain(blocks):
    """Code of many functions, one called after the other, 32 bytes each."""
    code = bytearray()
    for i in range(blocks):
        # call; jmp to the next, or in the last one a system call
        code += b"\xe8" + struct.pack("<i", 11)
        code += b"\xe9" + struct.pack("<i", 32 - 10) if i + 1 < blocks else bytes.fromhex("0f05ebfe90")
        code += bytes(16 - 10) + bytes.fromhex("75fec3") + bytes(32 - 19)
    return bytes(code)


def tnt(bits):
    out = bytearray()
    for at in range(0, len(bits), 6):
        part = bits[at:at + 6]
        value = 1
        for bit in part:
            value = value << 1 | bit
        out.append(value << 1)
    return bytes(out)


def tsc(time):
    return b"\x19" + struct.pack("<Q", time)[:7]


def psb(time):
    return b"\x02\x82" * 8 + tsc(time) + b"\x99\x01" + b"\x02\x23"


def on(ip):
    return b"\xd1" + struct.pack("<Q", ip)


OFF = b"\x01"
LOST = b"\x02\xf3"

LAYOUT = 0x1 | 0x2 | 0x4 | 0x80 | 0x10000  # IP TID TIME CPU IDENTIFIER


class Recording:
    """Records in order, and one CPU's packets."""

    def __init__(self):
        self.records = bytearray()
        self.head = bytearray()
        self.packets = bytearray()
        self.pieces = []
        self.time = 1000

    def record(self, kind, body, misc=0, into=None):
        into = self.records if into is None else into
        into += struct.pack("<IHH", kind, misc, 8 + len(body)) + body

    def trailer(self, pid, tid, ident=2):
        return struct.pack("<IIQIIQ", pid, tid, self.time, 0, 0, ident)

    @staticmethod
    def text(name):
        name = name.encode() + b"\0"
        return name.ljust((len(name) + 7) // 8 * 8, b"\0")

    def comm(self, pid, tid, name, executes):
        body = struct.pack("<II", pid, tid) + self.text(name) + self.trailer(pid, tid)
        self.record(3, body, 0x2000 if executes else 0)

    def fork(self, pid, tid, parent):
        self.record(7, struct.pack("<IIIIQ", pid, parent, tid, parent, self.time) + self.trailer(parent, parent))

    def mmap(self, pid, start, size, path, offset=4096):
        body = struct.pack("<IIQQQIIQQII", pid, pid, start, size, offset, 0, 0, 0, 0, 5, 2)
        self.record(10, body + self.text(path) + self.trailer(pid, pid), 2)

    def switch(self, before, after):
        self.record(15, struct.pack("<II", *after) + self.trailer(*before), 0x2000)

    def stay(self, ip, bits):
        """The program runs, from `ip` on, until the kernel is entered."""
        if len(self.packets) % 4096 < 64 or not self.packets:
            self.packets += psb(self.time)
        self.packets += tsc(self.time) + on(ip) + tnt(bits) + tsc(self.time + 50) + OFF
        self.time += 100

    def lose(self):
        """What follows is a piece of its own, before which the buffer was full."""
        self.packets += bytes(-len(self.packets) % 8)
        self.pieces.append(len(self.packets))
        self.packets += psb(self.time)

    def write(self, path):
        ids = struct.pack("<QQ", 1, 2)
        attrs_at = 104
        ids_at = attrs_at + 2 * 144
        attrs = b""
        for i, (kind, config, flags) in enumerate([(10, 0x2401, 0x60), (1, 9, 0x20)]):
            attr = struct.pack("<IIQQQQQ", kind, 128, config, 1, LAYOUT, 4, flags | 1 << 18)
            attrs += attr.ljust(128, b"\0") + struct.pack("<QQ", ids_at + 8 * i, 8)
        info = [10, 31, 1 << 31, 0, 1, 0x400, 0x800, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 0]
        self.record(70, struct.pack("<II", 1, 0) + struct.pack("<18Q", *info), into=self.head)
        self.record(12, struct.pack("<II", 1, 1) + self.trailer(1, 1, 1), into=self.head)
        data_at = ids_at + len(ids)
        with open(path, "wb") as file:
            file.write(bytes(data_at) + self.head)
            file.writelines(self.traces())
            file.write(self.records)
            size = file.tell() - data_at
            header = b"PERFILE2" + struct.pack("<QQQQQQQQ", 104, 144, attrs_at, 2 * 144, data_at, size, 0, 0)
            file.seek(0)
            file.write(header.ljust(104, b"\0") + attrs + ids)

    def traces(self):
        """The records of the packets, with the packets; adds the records of losses to the others."""
        places = [0, *self.pieces, len(self.packets)]
        for start, end in zip(places, places[1:]):
            data = bytes(self.packets[start:end])
            data += bytes(-len(data) % 8)
            gap = 1 if start else 0
            body = struct.pack("<QQQ", start, len(data), gap) + self.trailer(1, 1, 1)
            self.record(11, body)
            head = bytearray()
            self.record(71, struct.pack("<QQQIIII", len(data), start, 1, 0, 0xffff_ffff, 0, 0), into=head)
            yield bytes(head) + data


def processes(folder, count, many=5, stays=2):
    """Processes that run one after the other, each at an address of its own."""
    program(f"{folder}/root/bin/one", CODE)
    r = Recording()
    before = (1, 1)
    for i in range(count):
        pid, base = 100 + i, BASE + (i << 24)
        r.fork(pid, pid, 1)
        r.comm(pid, pid, "one", True)
        r.mmap(pid, base, 4096, "/bin/one")
        for _ in range(stays):
            r.switch(before, (pid, pid))
            r.time += 10
            r.stay(base, rounds(many))
            before = (pid, pid)
    return r


def mappings(folder, count):
    """One process that maps a file at many addresses, and runs at each."""
    program(f"{folder}/root/bin/one", CODE)
    r = Recording()
    r.comm(100, 100, "one", True)
    r.switch((1, 1), (100, 100))
    for i in range(count):
        r.mmap(100, BASE + (i << 16), 4096, "/bin/one")
        r.time += 10
        r.stay(BASE + (i << 16), rounds(5))
    return r


def threads(folder, count):
    """Threads of one process, in turn."""
    program(f"{folder}/root/bin/one", CODE)
    r = Recording()
    r.comm(100, 100, "one", True)
    r.mmap(100, BASE, 4096, "/bin/one")
    before = (1, 1)
    for i in range(count):
        if i:
            r.fork(100, 100 + i, 100)
        for _ in range(2):
            r.switch(before, (100, 100 + i))
            r.time += 10
            r.stay(BASE, rounds(5))
            before = (100, 100 + i)
    return r


def switches(folder, count):
    """Two processes that take turns."""
    program(f"{folder}/root/bin/one", CODE)
    r = Recording()
    for pid in (100, 101):
        r.comm(pid, pid, "one", True)
        r.mmap(pid, BASE, 4096, "/bin/one")
    for i in range(count):
        r.switch((101 - i % 2,) * 2, (100 + i % 2,) * 2)
        r.time += 10
        r.stay(BASE, rounds(5))
    return r


def losses(folder, count):
    """The buffer was full again and again."""
    r = processes(folder, 1, stays=1)
    for _ in range(count):
        r.lose()
        r.time += 10
        r.stay(BASE, rounds(5))
    return r


def rewritten(folder, count):
    """Other code is mapped at the same address, again and again."""
    program(f"{folder}/root/bin/one", CODE)
    program(f"{folder}/root/bin/two", CODE + b"\x90")
    r = Recording()
    r.comm(100, 100, "one", True)
    r.switch((1, 1), (100, 100))
    for i in range(count):
        r.mmap(100, BASE, 4096, "/bin/one" if i % 2 else "/bin/two")
        r.time += 10
        r.stay(BASE, rounds(5))
    return r


def blocks(folder, count):
    """Code that runs once, all of it different."""
    code = chain(count)
    program(f"{folder}/root/bin/one", code)
    r = Recording()
    r.comm(100, 100, "one", True)
    r.mmap(100, BASE, (len(code) + 4095) // 4096 * 4096, "/bin/one")
    r.switch((1, 1), (100, 100))
    r.time += 10
    r.stay(BASE, CALL * count)
    return r


def packets(folder, count):
    """A loop that runs long."""
    r = processes(folder, 1, stays=1)
    for _ in range(count):
        r.stay(BASE, rounds(20))
    return r


def symbols(folder, count):
    """Functions of a program, of which the last one runs."""
    code = bytes.fromhex("cc" * 32) * count + CODE
    functions = [(f"function_{i}", 4096 + 32 * i, 32) for i in range(count)]
    program(f"{folder}/root/bin/one", code, [*functions, ("main", 4096 + 32 * count, 19)])
    r = Recording()
    r.comm(100, 100, "one", True)
    r.mmap(100, BASE, (len(code) + 4095) // 4096 * 4096, "/bin/one")
    r.switch((1, 1), (100, 100))
    r.time += 10
    for _ in range(10):
        r.stay(BASE + 32 * count, rounds(5))
    return r


FAMILIES = [processes, mappings, threads, switches, losses, rewritten, blocks, packets, symbols]
