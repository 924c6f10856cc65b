#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""What it costs to see every TLB miss: our methods and others, on the same workloads, in one run. `make bench-tlb`.

CPU seconds, user and system, best of RUNS (default 2), so that what else runs on the machine matters little. In the guest they
are those of the whole command, QEMU and kprism's own work with it, less those of a program that does nothing.
Ratios are to the same workload without a recorder: `user` and peers to the bare program on this machine, `observer` and
`ptat` to the bare program in the same guest. M/s are references to memory (loads, stores, fetches by block) a second.

KPRISM       the program (target/release/kprism)
OUT          folder for programs and runs (target/tlb)
KPRISM_TLB_JUDGE  DynamoRIO's simulator, as bench/tlb/judge.sh builds it: its own time alone, without DynamoRIO
KPRISM_PTAT  the module ptat.ko for the guest's kernel, as kmod/ptat/build.sh builds it
METHODS      of large, views, sweep (tables of their own), user, observer, ptat, lackey, dynamorio (columns of the last table); all, if not set
"""
import json, os, re, resource, shutil, struct, subprocess, sys, tempfile

here = os.path.dirname(os.path.abspath(__file__))
out = os.path.abspath(os.environ.get("OUT", "target/tlb"))
kprism = os.path.abspath(os.environ.get("KPRISM", "target/release/kprism"))
runs = int(os.environ.get("RUNS", "2"))
methods = os.environ.get("METHODS", "large views sweep user observer ptat lackey dynamorio").split()
judge, module = os.environ.get("KPRISM_TLB_JUDGE"), os.environ.get("KPRISM_PTAT")
# Debian's own takes no plugins any more.
qemu = subprocess.run(["sh", os.path.join(here, "../../scripts/qemu-user.sh")], check=True, text=True,
                      stdout=subprocess.PIPE).stdout.strip()
plugin = os.path.join(os.path.dirname(kprism), "libkprism_user.so")

LARGE = ["stride 8192 2000", "gups 256M 8M", "bfs 18 16", "chase 128M 16M", "threads 2 stride 64M 8M",
         "threads 2 gups 128M 4M", "threads 2 chase 64M 8M"]
# What others can do in minutes, and a guest not too fast.
SMALL = ["stride 8192 400", "gups 16M 2M", "bfs 15 8", "chase 32M 2M"]
# In the guest: a program that does nothing.
NOTHING = "stride 1 1"
nothing = {}


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
    """CPU seconds of a command in the guest, less those of one that does nothing."""
    run = os.path.join(work, "guest")

    def once(words):
        shutil.rmtree(run, ignore_errors=True)
        program, *rest = words.split()
        return cpu([kprism, "-q"] + options + ["-o", run, "--share", f"{out}:/bench", "--", "/bench/" + program] + rest)

    method = " ".join(options)
    measured = []
    for _ in range(runs):
        measured.append(once(words))
        # In turn with the first, so that both see the same machine.
        if len(nothing.setdefault(method, [])) < runs:
            nothing[method].append(once(NOTHING))
    return max(min(measured) - min(nothing[method]), 1e-3)


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


def table_views(work):
    """The whole command that records many misses, each view of them, and the peak of its memory."""
    words = "gups 256M 24M"
    run = os.path.join(work, "many")
    native = best(lambda: cpu(program(words)))

    def recorded():
        shutil.rmtree(run, ignore_errors=True)
        return cpu([kprism, "-q", "record", "tlb", "--method", "user", "-o", run, "--"] + program(words))

    seconds = best(recorded)
    misses = sum(sum(c["models"][0]["misses"].values()) for c in json.load(open(os.path.join(run, "streams/tlb/counts.json")))["vcpus"])
    size = lambda *parts: os.path.getsize(os.path.join(run, *parts)) / misses
    print(f"\n{words}: {misses:,} misses; {size('streams/tlb/cpu0.miss'):.1f} bytes of the stream and "
          f"{size('tables/tlb_misses.parquet'):.1f} of the table to each")
    print(f"{'whole command':26}{'CPU s':>8}{'ns a miss':>11}{'peak MiB':>10}")
    line = lambda what, s, peak: print(f"{what:26}{s:8.2f}{1e9 * s / misses:11.0f}{peak:>10}", flush=True)
    line(f"record, {seconds / native:.1f}x native", seconds, "")
    for view in ("objects", "pages", "distribution", "heat", "advice", "--html"):
        asked = ["--html", os.path.join(work, "many.html")] if view == "--html" else [view]
        command = [kprism, "-q", "report", "tlb", *asked, "-i", run]
        peak = []

        def once():
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            _, status, used = os.wait4(child.pid, 0)
            assert status == 0, command
            peak.append(used.ru_maxrss // 1024)
            return used.ru_utime + used.ru_stime

        took = best(once)
        line(view, took, str(max(peak)))


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


def lackey_records(words):
    """What valgrind's lackey sees, as judge.cpp reads it."""
    kinds = {"I  ": (2,), " L ": (0,), " S ": (1,), " M ": (0, 1)}
    line = ["valgrind", "--tool=lackey", "--trace-mem=yes", "--log-fd=2"] + program(words)
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as traced:
        for text in traced.stderr:
            for kind in kinds.get(text[:3], ()):
                at, size = text[3:].split(",")
                yield struct.pack("<QBB6x", int(at, 16), kind, min(int(size), 255))


def simulated(words):
    """DynamoRIO's simulator on the accesses that lackey sees: millions a second, of its own time."""
    with subprocess.Popen([judge], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as other:
        for record in lackey_records(words):
            other.stdin.write(record)
        _, said = other.communicate()
    return float(re.search(rb"([0-9.]+) M/s", said).group(1))


def table_all(work):
    """Figure 4 of paper 3, as far as it goes here: every way to see misses, on the same workloads."""
    bare = ["lab", "run", "--unobserved", "--fast"]
    observer = ["record", "tlb", "--fast"]
    ptat = ["record", "tlb", "--method", "ptat", "--ptat", module or "", "--fast"]
    print("\nevery method: times the CPU seconds of the bare program on this machine, or in the guest")
    print(f"{'':20}{'native s':>9}{'user':>8}{'lackey':>9}{'DynamoRIO':>11}{'guest s':>9}{'observer':>10}{'ptat':>8}")
    for words in SMALL:
        native = max(best(lambda: cpu(program(words))), 1e-3)
        cells = f"{words:20}{native:9.3f}"
        show = lambda ratio, width: f"{ratio:.1f}x".rjust(width) if ratio is not None else "-".rjust(width)
        ours = min(user(words, work, True) for _ in range(runs)) if "user" in methods else None
        cells += show(ours and ours[0] / native, 8)
        seconds = None
        if "lackey" in methods and shutil.which("valgrind"):
            seconds = cpu(["valgrind", "--tool=lackey", "--trace-mem=yes", "--log-file=/dev/null"] + program(words))
        cells += show(seconds and seconds / native, 9)
        other = simulated(words) if "dynamorio" in methods and judge and shutil.which("valgrind") else None
        cells += f"{other:7.1f} M/s" if other else f"{'-':>11}"
        inside = guest(words, work, bare) if {"observer", "ptat"} & set(methods) else None
        cells += f"{inside:9.2f}" if inside else f"{'-':>9}"
        cells += show(guest(words, work, observer) / inside if inside and "observer" in methods else None, 10)
        cells += show(guest(words, work, ptat) / inside if inside and module and "ptat" in methods else None, 8)
        print(cells, flush=True)


def main():
    subprocess.run(["sh", os.path.join(here, "build.sh"), out], check=True)
    with tempfile.TemporaryDirectory() as work:
        if "large" in methods:
            table_user(work)
        if "views" in methods:
            table_views(work)
        if "sweep" in methods:
            table_sweep(work)
        table_all(work)


main()
