#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Imports a recording of many gigabytes, in little memory: `tests/growth/large.py [GB]` (10 unless told).

Makes a perf.data with Intel PT of one program on one CPU, in pieces as perf writes them, and imports it. Prints time and the peak
of memory that is no mapped file. Fails if that is above 500 MB, or if the run is not whole. Takes three times the size on disk, in
the folder of temporary files.

Environment: KPRISM, the program; TMPDIR.
"""
import os
import struct
import subprocess
import sys
import tempfile
import time

import recording

KPRISM = os.environ.get("KPRISM", os.path.join(recording.ROOT, "target/checked/kprism"))
LIMIT = 500_000_000
# A unit is a stay in the program, from a PSB on, as often as perf's default has one.
UNIT = 4096
# Length of perf's pieces of a buffer.
PIECE = 64 << 20


class Large(recording.Recording):
    """A recording whose one CPU's packets are made while they are written."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def traces(self):
        bits = recording.tnt(recording.rounds(4500))
        for start in range(0, self.size, PIECE):
            data = struct.pack("<QQQIIII", PIECE, start, 1, 0, 0xffff_ffff, 0, 0)
            yield struct.pack("<IHH", 71, 0, 8 + len(data)) + data
            for _ in range(PIECE // UNIT):
                unit = recording.psb(self.time) + recording.tsc(self.time) + recording.on(recording.BASE) + bits
                unit += recording.tsc(self.time + 90_000) + recording.OFF
                self.time += 100_000
                yield unit.ljust(UNIT, b"\0")


def main():
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else 10) * 1e9) // PIECE * PIECE
    with tempfile.TemporaryDirectory(prefix="kprism-large-") as folder:
        made = Large(size)
        recording.program(f"{folder}/root/bin/one", recording.CODE)
        made.comm(100, 100, "one", True)
        made.mmap(100, recording.BASE, 4096, "/bin/one")
        made.switch((1, 1), (100, 100))
        made.write(f"{folder}/perf.data")
        begun = time.monotonic()
        command = [KPRISM, "import", f"{folder}/perf.data", "--symfs", f"{folder}/root", "-o", f"{folder}/run"]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        peak = 0
        while running.poll() is None:
            try:
                with open(f"/proc/{running.pid}/status") as status:
                    own = [int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon:")]
                peak = max(peak, *own) if own else peak
            except OSError:
                pass
            time.sleep(0.05)
        took = time.monotonic() - begun
        whole = subprocess.run([KPRISM, "report", "tasks", "--strict", "-i", f"{folder}/run"], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
        memory = f"at most {peak / 1e6:.0f} MB of memory beside mapped files" if peak else "memory not known"
        print(f"{size / 1e9:.1f} GB: imported in {took:.0f} s ({size / 1e6 / took:.0f} MB/s), {memory}")
        print(whole.stdout.strip())
        if not peak:
            sys.exit("the kernel does not tell RssAnon: the memory is not known")
        if running.returncode or whole.returncode or peak > LIMIT:
            sys.exit(f"import ended with {running.returncode}, report --strict with {whole.returncode}; the limit is {LIMIT / 1e6:.0f} MB")


main()
