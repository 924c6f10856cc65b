# SPDX-License-Identifier: MIT OR Apache-2.0
"""Intel PT packets, cut and rewritten. In: the bytes of a stream. Out: the same flow as other settings would have traced it.

Written from the SDM (vol. 3, "Intel Processor Trace", Packet Definitions) and not from kprism's reader, which this judges.
"""

import re

PSB = b"\x02\x82" * 8
PSBEND = b"\x02\x23"
OVF = b"\x02\xf3"

# Every packet, by its first bytes. The order matters: a PSB before the other extended packets, CYC before what is left.
PACKET = re.compile(
    rb"(?P<psb>(?:\x02\x82){8})"
    rb"|(?P<tsc>\x19.{7})"
    rb"|(?P<mtc>\x59.)"
    rb"|(?P<cyc>[\x07\x0f\x17\x1f\x27\x2f\x37\x3f\x47\x4f\x57\x5f\x67\x6f\x77\x7f\x87\x8f\x97\x9f\xa7\xaf\xb7\xbf\xc7\xcf\xd7\xdf\xe7\xef\xf7\xff]"
    rb"(?:[\x01\x03\x05\x07\x09\x0b\x0d\x0f\x11\x13\x15\x17\x19\x1b\x1d\x1f\x21\x23\x25\x27\x29\x2b\x2d\x2f\x31\x33\x35\x37\x39\x3b\x3d\x3f"
    rb"\x41\x43\x45\x47\x49\x4b\x4d\x4f\x51\x53\x55\x57\x59\x5b\x5d\x5f\x61\x63\x65\x67\x69\x6b\x6d\x6f\x71\x73\x75\x77\x79\x7b\x7d\x7f"
    rb"\x81\x83\x85\x87\x89\x8b\x8d\x8f\x91\x93\x95\x97\x99\x9b\x9d\x9f\xa1\xa3\xa5\xa7\xa9\xab\xad\xaf\xb1\xb3\xb5\xb7\xb9\xbb\xbd\xbf"
    rb"\xc1\xc3\xc5\xc7\xc9\xcb\xcd\xcf\xd1\xd3\xd5\xd7\xd9\xdb\xdd\xdf\xe1\xe3\xe5\xe7\xe9\xeb\xed\xef\xf1\xf3\xf5\xf7\xf9\xfb\xfd\xff])*.)"
    rb"|(?P<cyc1>[\x03\x0b\x13\x1b\x23\x2b\x33\x3b\x43\x4b\x53\x5b\x63\x6b\x73\x7b\x83\x8b\x93\x9b\xa3\xab\xb3\xbb\xc3\xcb\xd3\xdb\xe3\xeb\xf3\xfb])"
    rb"|(?P<tnt64>\x02\xa3.{6})"
    rb"|(?P<tma>\x02\x73.{5})"
    rb"|(?P<cbr>\x02\x03..)"
    rb"|(?P<pip>\x02\x43.{6})"
    rb"|(?P<vmcs>\x02\xc8.{5})"
    rb"|(?P<mode>\x99.)"
    rb"|(?P<psbend>\x02\x23)|(?P<ovf>\x02\xf3)|(?P<stop>\x02\x83)"
    rb"|(?P<other>\x02(?:[\x62\xe2]|\x22..|[\x12\x92].{4}|[\x32\xb2].{8}|\xc2.{8}|\xa2.{5}|\x13..|\x53.{9}))"
    rb"|(?P<pad>\x00+)"
    rb"|(?P<ip>[\x01\x0d\x11\x1d]|[\x21\x2d\x31\x3d]..|[\x41\x4d\x51\x5d].{4}|[\x61\x6d\x71\x7d\x81\x8d\x91\x9d].{6}|[\xc1\xcd\xd1\xdd].{8})"
    rb"|(?P<tnt>[\x04-\xfe])",
    re.DOTALL,
)

TIP, PGE, PGD, FUP = 0x0D, 0x11, 0x01, 0x1D
SIZES = {0: 0, 1: 2, 2: 4, 3: 6, 4: 6, 6: 8}


def packets(stream):
    """Gives (offset, name, bytes) of each packet, from the first PSB on."""
    at = max(stream.find(PSB), 0)
    while at < len(stream):
        match = PACKET.match(stream, at)
        if match is None or match.end() == at:
            raise ValueError(f"no packet at {at:#x}: {stream[at:at + 8].hex()}")
        yield at, match.lastgroup, match.group()
        at = match.end()


def boundaries(stream):
    """Offsets at which packets end."""
    return [at + len(packet) for at, _, packet in packets(stream)]


def map_packets(stream, change):
    """The stream with each packet replaced by what `change(name, bytes)` gives; before the first PSB nothing changes."""
    out = [stream[: max(stream.find(PSB), 0)]]
    out.extend(change(name, packet) for _, name, packet in packets(stream))
    return b"".join(out)


def shift_tsc(stream, ticks):
    """TSC packets state `ticks` more."""

    def change(name, packet):
        if name != "tsc":
            return packet
        tsc = int.from_bytes(packet[1:], "little") + ticks
        return packet[:1] + (tsc % (1 << 56)).to_bytes(7, "little")

    return map_packets(stream, change)


def without(stream, names):
    """Without packets of these names."""
    return map_packets(stream, lambda name, packet: b"" if name in names else packet)


class LastIp:
    """The IP compression of the SDM, in both directions."""

    def __init__(self):
        self.ip = 0

    def read(self, packet):
        """The address that an IP packet states, or None: suppressed."""
        form, payload = packet[0] >> 5, int.from_bytes(packet[1:], "little")
        if form == 0:
            return None
        if form == 1:
            self.ip = self.ip & ~0xFFFF | payload
        elif form == 2:
            self.ip = self.ip & ~0xFFFFFFFF | payload
        elif form == 3:
            self.ip = payload | (0xFFFF << 48 if payload >> 47 else 0)
        elif form == 4:
            self.ip = self.ip & ~0xFFFFFFFFFFFF | payload
        else:
            self.ip = payload
        return self.ip


def full(opcode, ip):
    """An IP packet with all bits of the address."""
    return bytes([opcode | 6 << 5]) + ip.to_bytes(8, "little")


def suppressed(opcode):
    return bytes([opcode])


class UserOnly:
    """One buffer of user code only, as `intel_pt//u` fills it: tracing goes off around each stay in the kernel."""

    def __init__(self):
        self.out = []
        self.user = False

    def off(self):
        if self.user:
            self.out.append(suppressed(PGD))
            self.user = False


def user_only(stream, buffer_at, time_of, timed):
    """Splits a stream with the kernel into buffers of user code: `buffer_at(time)` names the buffer (a CPU, a thread).

    `time_of(offset)`: the time in ticks of the packet there. `timed`: what precedes each beginning of tracing in the buffer
    (a TSC packet by default; nothing without times).
    """
    buffers, last = {}, LastIp()
    user = in_psb = False
    current = None
    for at, name, packet in packets(stream):
        ticks = time_of(at)
        key = buffer_at(ticks)
        if key not in buffers:
            buffers[key] = UserOnly()
            buffers[key].out += [PSB, *timed(ticks), PSBEND]
        buffer = buffers[key]
        if current is not None and key != current and user:
            raise ValueError("a switch inside a program")
        current = key

        def begin(ip):
            buffer.out += [*timed(ticks), full(PGE, ip)]
            buffer.user = True

        if name == "psb":
            last = LastIp()
            in_psb, was = True, user
            buffer.out.append(packet)
            if not timed(ticks):
                continue
        elif name == "psbend":
            in_psb = False
            buffer.out.append(packet)
        elif name == "ip":
            opcode, ip = packet[0] & 0x1F, last.read(packet)
            to_user = ip is not None and ip >> 63 == 0
            if opcode == FUP:
                if in_psb:
                    if to_user:
                        buffer.out.append(full(FUP, ip))
                elif user and to_user:
                    buffer.out.append(full(FUP, ip))
            elif opcode in (TIP, PGE):
                if user and to_user:
                    buffer.out.append(full(TIP, ip))
                elif user:
                    buffer.off()
                elif to_user:
                    begin(ip)
                user = to_user
            else:
                buffer.off()
                user = False
        elif name in ("tnt", "tnt64"):
            if user:
                buffer.out.append(packet)
        elif name == "tsc":
            if timed(ticks):
                buffer.out.append(packet)
        elif name == "mode":
            buffer.out.append(packet)
    return {key: b"".join(buffer.out) for key, buffer in buffers.items()}


def ticks_at(stream):
    """The time in ticks of each packet, by its offset: TSC and the cycles since; a cycle is a tick in the lab's streams."""
    times, now = {}, 0
    for at, name, packet in packets(stream):
        if name == "tsc":
            now = int.from_bytes(packet[1:], "little")
        elif name in ("cyc", "cyc1"):
            now += cycles(packet)
        times[at] = now
    return times


def cycles(packet):
    """The payload of a CYC packet: five bits of the first byte, seven of each that follows."""
    value, shift = packet[0] >> 3, 5
    for byte in packet[1:]:
        value |= (byte >> 1) << shift
        shift += 7
    return value
