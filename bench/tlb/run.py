#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""What it costs to see every TLB miss: our methods and others, on the same workloads, in one run. `make bench-tlb`.

CPU seconds, user and system, best of RUNS (default 2); in the guest, seconds of its wall clock, as nothing else runs there.
Ratios are to the same workload without a recorder: `user` and peers to the bare program on this machine, `observer` and
`ptat` to the bare program in the same guest. M/s are references to memory (loads, stores, fetches by block) a second.

KPRISM       the program (target/release/kprism)
OUT          folder for programs and runs (target/tlb)
KPRISM_TLB_JUDGE  DynamoRIO's simulator, as bench/tlb/judge.sh builds it: its own time alone, without DynamoRIO
KPRISM_PTAT  the module ptat.ko for the guest's kernel, as kmod/ptat/build.sh builds it
METHODS      of user, sweep, observer, ptat, lackey, dynamorio; all, if not set
"""
import json, os, re, resource, shutil, struct, subprocess, sys, tempfile

here = os.path.dirname(os.path.abspath(__file__))
out = os.path.abspath(os.environ.get("OUT", "target/tlb"))
kprism = os.path.abspath(os.environ.get("KPRISM", "target/release/kprism"))
runs = int(os.environ.get("RUNS", "2"))
methods = os.environ.get("METHODS", "user sweep observer ptat lackey dynamorio").split()
judge, module = os.environ.get("KPRISM_TLB_JUDGE"), os.environ.get("KPRISM_PTAT")
# Debian's own takes no plugins any more.
qemu = subprocess.run(["sh", os.path.join(here, "../../scripts/qemu-user.sh")], check=True, text=True,
                      stdout=subprocess.PIPE).stdout.strip()
plugin = os.path.join(os.path.dirname(kprism), "libkprism_user.so")

LARGE = ["stride 8192 2000", "gups 256M 8M", "bfs 18 16", "chase 128M 16M", "threads 2 stride 64M 8M",
         "threads 2 gups 128M 4M", "threads 2 chase 64M 8M"]
# What others can do in minutes.
SMALL = ["stride 2048 100", "gups 8M 500K", "bfs 13 8", "chase 8M 500K"]


def cpu(command):
    """CPU seconds of a command that must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def best(measure):
    return min(measure() for _ in range(runs))


def program(words):
    words = words.split()
    return [os.path.join(out, words[0])] + words[1:]


def user(words, work, record):
    folder = os.path.join(work, "user")
    shutil.rmtree(folder, ignore_errors=True)
    how = f"{plugin},out={folder},tlb=ivybridge-ep" + ("" if record else ",record=no")
    seconds = cpu([qemu, "-plugin", how] + program(words))
    counts = json.load(open(os.path.join(folder, "tlb/counts.json")))["vcpus"]
    references = sum(sum(cpu["references"].values()) for cpu in counts)
    misses = sum(sum(cpu["models"][0]["misses"].values()) for cpu in counts)
    return seconds, references, misses


def guest(words, work, options):
    """Seconds of the command in the guest."""
    run = os.path.join(work, "guest")
    shutil.rmtree(run, ignore_errors=True)
    line = [kprism, "-v"] + options + ["-o", run, "--share", f"{out}:/bench", "--", "/bench/" + words.split()[0]]
    text = subprocess.run(line + words.split()[1:], capture_output=True, text=True, check=True).stderr
    begin, end = re.search(r"took the command after ([0-9.]+) s, ended after ([0-9.]+) s", text).groups()
    shutil.rmtree(run, ignore_errors=True)
    return float(end) - float(begin)



def table_user(work):
    print("programs under QEMU's user mode: CPU seconds of the bare program, and times as many")
    print(f"{'':26}{'native s':>9}{'qemu':>8}{'counted':>9}{'recorded':>10}{'M/s':>8}{'misses':>13}")
    for words in LARGE:
        native = best(lambda: cpu(program(words)))
        bare = best(lambda: cpu([qemu] + program(words)))
        counted = min(user(words, work, False) for _ in range(runs))
        recorded = min(user(words, work, True) for _ in range(runs))
        print(f"{words:26}{native:9.2f}{bare / native:7.1f}x{counted[0] / native:8.1f}x{recorded[0] / native:9.1f}x"
              f"{recorded[1] / recorded[0] / 1e6:8.0f}{recorded[2]:13,}", flush=True)


def table_sweep(work):
    """Figure 5 of paper 3: RandomAccess over the size of its table, with 4 KB and 2 MB pages. Under QEMU's user mode all pages are 4 KB."""
    print("\nrandom updates by the table's size: of the bare program CPU seconds, and times as many recorded")
    print(f"{'4 M updates, 4 KB pages':26}{'native s':>9}{'recorded':>10}{'misses':>13}")
    for size in ("16M", "64M", "256M", "512M", "1G"):
        words = f"gups {size} 4M"
        native = best(lambda: cpu(program(words)))
        recorded = min(user(words, work, True) for _ in range(runs))
        print(f"{size:26}{native:9.2f}{recorded[0] / native:9.1f}x{recorded[2]:13,}", flush=True)
    print(f"{'in the guest, 256 K':26}{'bare s':>9}{'observer':>10}")
    for size in ("32M", "128M", "512M"):
        for pages in ("4K", "2M"):
            words = f"gups {size} 256K {pages}"
            bare = best(lambda: guest(words, work, ["lab", "run", "--unobserved", "--fast", "--mem", "2G"]))
            seen = best(lambda: guest(words, work, ["record", "tlb", "--fast", "--mem", "2G"]))
            print(f"{size + ', ' + pages + ' pages':26}{bare:9.2f}{seen / bare:9.1f}x", flush=True)


def table_guest(work):
    small = ["stride 8192 200", "gups 64M 1M", "bfs 16 8", "chase 32M 1M"]
    ptat = "ptat" in methods and module
    print("\nin the guest: seconds of the bare program, and times as many")
    print(f"{'':26}{'bare s':>9}{'observer':>10}{'ptat':>9}")
    for words in small:
        bare = best(lambda: guest(words, work, ["lab", "run", "--unobserved", "--fast"]))
        seen = best(lambda: guest(words, work, ["record", "tlb", "--fast"])) if "observer" in methods else None
        bus = best(lambda: guest(words, work, ["record", "tlb", "--method", "ptat", "--ptat", module, "--fast"])) \
            if ptat else None
        show = lambda seconds: f"{seconds / bare:.1f}x" if seconds else "-"
        print(f"{words:26}{bare:9.2f}{show(seen):>10}{show(bus):>9}", flush=True)


def lackey_records(words):
    """What valgrind's lackey sees, as judge.cpp reads it."""
    kinds = {"I  ": (2,), " L ": (0,), " S ": (1,), " M ": (0, 1)}
    line = ["valgrind", "--tool=lackey", "--trace-mem=yes", "--log-fd=2"] + program(words)
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as traced:
        for text in traced.stderr:
            for kind in kinds.get(text[:3], ()):
                at, size = text[3:].split(",")
                yield struct.pack("<QBB6x", int(at, 16), kind, min(int(size), 255))


def table_peers(work):
    print("\nothers, on what they can do in minutes: times the bare program's CPU seconds; accesses a second")
    print(f"{'':26}{'native s':>9}{'user':>8}{'M/s':>7}{'lackey':>9}{'M/s':>7}{'DynamoRIO simulator alone':>27}")
    for words in SMALL:
        native = max(best(lambda: cpu(program(words))), 1e-3)
        ours = min(user(words, work, True) for _ in range(runs))
        cells = f"{words:26}{native:9.3f}{ours[0] / native:7.1f}x{ours[1] / ours[0] / 1e6:7.0f}"
        if "lackey" in methods and shutil.which("valgrind"):
            seconds = cpu(["valgrind", "--tool=lackey", "--trace-mem=yes", "--log-file=/dev/null"] + program(words))
            cells += f"{seconds / native:8.0f}x{ours[1] / seconds / 1e6:7.1f}"
        else:
            cells += f"{'-':>9}{'-':>7}"
        if "dynamorio" in methods and judge and shutil.which("valgrind"):
            with subprocess.Popen([judge], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as other:
                for record in lackey_records(words):
                    other.stdin.write(record)
                _, said = other.communicate()
            rate = float(re.search(rb"([0-9.]+) M/s", said).group(1))
            cells += f"{rate:24.1f} M/s"
        else:
            cells += f"{'-':>27}"
        print(cells, flush=True)


def main():
    subprocess.run(["sh", os.path.join(here, "build.sh"), out], check=True)
    with tempfile.TemporaryDirectory() as work:
        if "user" in methods:
            table_user(work)
        if "sweep" in methods:
            table_sweep(work)
        if {"lackey", "dynamorio"} & set(methods):
            table_peers(work)
        if {"observer", "ptat"} & set(methods):
            table_guest(work)


main()
