#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes a screenshot small: 256 colours or fewer, as a palette.

    python3 scripts/shrink-png.py IN.png OUT.png [MOST_BYTES]

Reads PNGs as browsers write them (8 bits, RGB or RGBA, not interlaced). If the result is larger than MOST_BYTES (150000),
colours are merged further, down to 16. Needs Python 3 and nothing else. Exits with 1, with the reason, if it cannot.
"""

import collections
import struct
import sys
import zlib


def read(path):
    """Width, height, and RGB pixels as bytes."""
    data = open(path, "rb").read()
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        sys.exit(f"{path}: no PNG")
    at, packed, head = 8, b"", None
    while at + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        at += 12 + length
        if kind == b"IHDR":
            head = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            packed += body
    if head is None or head[2] != 8 or head[3] not in (2, 6) or head[6]:
        sys.exit(f"{path}: expected 8 bits, RGB or RGBA, not interlaced: found {head}")
    width, height, bytes_each = head[0], head[1], 4 if head[3] == 6 else 3
    raw, stride = zlib.decompress(packed), width * bytes_each
    before, lines = bytearray(stride), []
    for y in range(height):
        start = y * (stride + 1)
        lines.append(before := unfilter(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), before, bytes_each))
    pixels = b"".join(lines)
    if bytes_each == 4:
        rgb = bytearray(width * height * 3)
        for channel in range(3):
            rgb[channel::3] = pixels[channel::4]
        pixels = bytes(rgb)
    return width, height, pixels


def unfilter(kind, line, before, step):
    """A line without its filter (PNG, 9.2)."""
    if kind == 1:
        for i in range(step, len(line)):
            line[i] = (line[i] + line[i - step]) & 255
    elif kind == 2:
        for i in range(len(line)):
            line[i] = (line[i] + before[i]) & 255
    elif kind == 3:
        for i in range(len(line)):
            line[i] = (line[i] + ((line[i - step] if i >= step else 0) + before[i]) // 2) & 255
    elif kind == 4:
        for i in range(len(line)):
            a, b, c = (line[i - step] if i >= step else 0), before[i], (before[i - step] if i >= step else 0)
            p = a + b - c
            near = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            line[i] = (line[i] + near) & 255
    return line


def palette(counts, most):
    """Colours that stand for all, by cutting the largest box at its median; and each colour's number."""
    boxes = [list(counts)]
    while len(boxes) < most:
        def spread(box):
            ranges = [max(c[i] for c in box) - min(c[i] for c in box) for i in range(3)]
            return max(ranges), ranges.index(max(ranges))

        ranked = [(spread(box), i) for i, box in enumerate(boxes) if len(box) > 1]
        if not ranked:
            break
        # A box counts by its width and by the pixels in it.
        (_, channel), i = max(ranked, key=lambda r: r[0][0] * sum(counts[c] for c in boxes[r[1]]) ** 0.3)
        box = sorted(boxes.pop(i), key=lambda c: c[channel])
        boxes += [box[: len(box) // 2], box[len(box) // 2 :]]
    colours, number = [], {}
    for box in boxes:
        whole = sum(counts[c] for c in box)
        common = max(box, key=lambda c: counts[c])
        # A colour of large areas stays what it is.
        mean = tuple(sum(c[i] * counts[c] for c in box) // whole for i in range(3))
        colours.append(common if counts[common] * 2 > whole else mean)
        for colour in box:
            number[colour] = len(colours) - 1
    return colours, number


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def main(source, target, most_bytes):
    width, height, rgb = read(source)
    pixels = list(zip(rgb[0::3], rgb[1::3], rgb[2::3]))
    counts = collections.Counter(pixels)
    for most in (256, 128, 64, 32, 16):
        colours, number = palette(counts, most)
        indices = bytes(number[p] for p in pixels)
        lines = b"".join(b"\0" + indices[y * width : (y + 1) * width] for y in range(height))
        out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
        out += chunk(b"PLTE", b"".join(bytes(c) for c in colours)) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
        if len(out) <= most_bytes:
            break
    if len(out) > most_bytes:
        sys.exit(f"{source}: {len(out)} bytes with 16 colours, more than {most_bytes}: take a smaller picture")
    open(target, "wb").write(out)
    print(f"{target}: {width} x {height}, {len(colours)} colours, {len(out)} bytes")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) == 4 else 150_000)
