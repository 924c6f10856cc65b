# SPDX-License-Identifier: MIT OR Apache-2.0
"""How fast recordings are read: the flow decoder against its peers, lines of text against perf's, an import against trace-cmd's."""

import os
import pathlib
import re
import shutil
import subprocess

from . import measure
from .guest import DEMO
from .measure import figure, ratio
from .tables import table

DECODED = re.compile(r"^  (count, cold|count, warm|profile, cold|2 threads, cold) +([0-9.]+) ms", re.M)
XDC = re.compile(r"^libxdc: cold_ns (\d+) warm_ns (\d+) .* success", re.M)
BLOCKS = re.compile(r"libipt blocks: cold_ns (\d+) .* branches (\d+)")


def demo(place):
    """The run of the demo workload, recorded once for all sections."""
    run = place.work / "demo"
    if not run.exists():
        measure.run([place.kprism, "-q", "lab", "run", "-o", run, "--no-decode", "--", *DEMO])
    return run


def ours(place, folder):
    """Milliseconds of each kind of decoding, the least of three: the first finds the program's own memory not there yet."""
    said = measure.output([place.examples / "decode_bench", folder], {"RUNS": "3"})
    return {kind: float(ms) for kind, ms in DECODED.findall(said)}


def libipt(place, *stream):
    """Milliseconds of libipt's block decoder, the least of three, and the branches."""
    said = measure.output([place.oracle, "--block-bench", "3", *stream])
    ns, branches = BLOCKS.search(said).groups()
    return int(ns) / 1e6, int(branches)


def perf(place, run):
    """CPU milliseconds of perf's decoding alone: its whole command less the same without decoding. `None` without perf."""
    if not shutil.which("perf"):
        return None
    data = place.work / "demo.perf.data"
    if not data.exists():
        measure.run([place.kprism, "export", "-q", "-i", run, "-o", data])
    command = ["perf", "script", "-i", data, "--symfs", data / "symfs"]
    return 1000 * (measure.run([*command, "--itrace=e"]).cpu - measure.run([*command, "--no-itrace"]).cpu)


def captures(place):
    """Folders with a processor's captures: a name to the stream and its list of pages."""
    data = os.environ.get("KPRISM_TEST_DATA")
    if not data:
        return {}
    unpacked = place.work / "captures"
    unpacked.mkdir(exist_ok=True)
    for root, _, files in os.walk(data):
        for file in files:
            if file.endswith(".tar.xz"):
                subprocess.run(["tar", "-xf", os.path.join(root, file), "-C", unpacked], check=True)
    found = {}
    for top in [data, unpacked]:
        for root, _, files in sorted(os.walk(top)):
            if "xpages.txt" in files:
                streams = sorted(file for file in files if file.endswith(".pt"))
                if len(streams) == 1:
                    found[os.path.basename(root)] = (os.path.join(root, streams[0]), os.path.join(root, "xpages.txt"))
    return found


def decoder(place):
    """The flow decoder against libipt's and perf's, on the same bytes, all blocks still to be built."""
    run = demo(place)
    works = {"the demo": (run, [run / "streams", "0"])}
    for name, (stream, pages) in captures(place).items():
        works[f"`{name}`, a processor's capture"] = (os.path.dirname(stream), ["--raw", stream, "--pages", pages])
    rows = []
    for name, (folder, stream) in works.items():
        times = measure.turns(place.runs, {
            "libipt": lambda stream=stream: libipt(place, *stream),
            "ours": lambda folder=folder: ours(place, folder),
            "perf": lambda: perf(place, run) if folder is run else None,
        })
        theirs, branches = zip(*times["libipt"])
        count, profile, two = ([one[kind] for one in times["ours"]] for kind in ["count, cold", "profile, cold", "2 threads, cold"])
        of_perf = figure(times["perf"]).text(0) if times["perf"][0] is not None else ""
        digits = 0 if theirs[0] > 100 else 2
        rows.append([
            name, f"{branches[0]:,}", figure(theirs).text(digits), of_perf, figure(count).text(digits), figure(profile).text(digits),
            ratio(theirs, count).text(1), ratio(theirs, profile).text(1), ratio(profile, count).text(2), ratio(profile, two).text(2),
        ])
    head = [
        "stream", "branches", "libipt, ms", "perf, ms", "count, ms", "profile, ms", "libipt / count", "libipt / profile",
        "profile / count", "one thread / two",
    ]
    return table(head, rows)


def published(folder):
    """libxdc's own captures: a name to the stream and its list of pages, which are written below `folder`."""
    given = os.environ.get("KPRISM_LIBXDC_TRACES")
    if not os.environ.get("KPRISM_LIBXDC") or not given:
        raise measure.Skipped("KPRISM_LIBXDC and KPRISM_LIBXDC_TRACES name no checkouts of libxdc and of its experiments")
    data = pathlib.Path(given) / "test_data"
    names = {"mruby": "mruby/data mruby/trace", "qemu": "qemu/page_cache qemu/trace1", "unzip": "Unzip/data Unzip/trace", "foo": "foo/data foo/trace"}
    found = {}
    for name, files in names.items():
        pages, stream = files.split()
        own = folder / name
        own.mkdir(parents=True)
        shutil.copy(data / stream, own / f"{name}.pt")
        addresses = (data / f"{pages}.addr").read_bytes()
        dump, listed = (data / f"{pages}.dump").read_bytes(), []
        for at in range(0, len(addresses) - 7, 8):
            page = int.from_bytes(addresses[at : at + 8], "little")
            # Addresses with low bits stand for pages that could not be read.
            if page & 0xFFF == 0:
                (own / f"page.{at // 8:06}").write_bytes(dump[512 * at : 512 * at + 4096])
                listed.append(f"0 {page:x} 4096 page.{at // 8:06}\n")
        (own / "xpages.txt").write_text("".join(listed))
        found[name] = (own / f"{name}.pt", own / "xpages.txt")
    return found


def libxdc(place):
    """The flow decoder against libxdc's, on its own captures, which have neither RET compression nor timing packets."""
    rows = []
    for name, (stream, pages) in published(place.work / "libxdc").items():

        def theirs(stream=stream, pages=pages):
            return [int(ns) / 1e6 for ns in XDC.search(measure.output([place.oracle.with_name("xdcbench"), "2", stream, pages])).groups()]

        times = measure.turns(place.runs, {"libxdc": theirs, "ours": lambda stream=stream: ours(place, stream.parent)})
        cold, warm = zip(*times["libxdc"])
        count = [one["count, cold"] for one in times["ours"]]
        again = [one["count, warm"] for one in times["ours"]]
        columns = [figure(ms).text(2) for ms in [cold, count, warm, again]]
        rows.append([f"`{name}`", *columns, ratio(cold, count).text(1), ratio(warm, again).text(2)])
    head = ["stream", "libxdc, ms", "count, ms", "libxdc again, ms", "count again, ms", "libxdc / count", "the same again"]
    return table(head, rows)


def script(place):
    """Lines of `kprism script`, from the start of the command, and of `perf script` on the same run, both to /dev/null."""
    run = demo(place)
    kinds = {}
    for kind in ["insns", "branches", "calls", "syscalls"]:
        command = [place.kprism, "-q", "script", "-i", run, kind]
        kinds[f"`kprism script {kind}`"] = (command, lines(command))
    if shutil.which("perf"):
        perf(place, run)
        data = place.work / "demo.perf.data"
        command = ["perf", "script", "-i", data, "--symfs", data / "symfs", "--ns", "-F", "comm,tid,cpu,time,ip,sym,symoff,dso"]
        # All of its branches take perf minutes: every hundredth instruction is enough lines to time.
        for period in ["i100i", "i1000i"]:
            kinds[f"perf {period}"] = ([*command, f"--itrace={period}"], lines([*command, f"--itrace={period}"]))
    times = measure.turns(min(place.runs, 5), {name: lambda command=command: measure.run(command).cpu for name, (command, _) in kinds.items()})
    rows = []
    for name, (_, number) in kinds.items():
        if name.startswith("`"):
            # A few lines do not tell what one costs: nearly all of the time is the start and the decoding.
            each = figure(1e9 * s / number for s in times[name]).text(0) if number > 100_000 else ""
            rows.append([name, f"{number:,}", figure(times[name]).text(2), each])
    if "perf i100i" in times:
        many, few = kinds["perf i100i"][1], kinds["perf i1000i"][1]
        each = [1e9 * (a - b) / (many - few) for a, b in zip(times["perf i100i"], times["perf i1000i"])]
        insns = kinds["`kprism script insns`"][1]
        rows.append(["`perf script`, a sample more", f"{many - few:,}", "", figure(each).text(0)])
        mine = [1e9 * s / insns for s in times["`kprism script insns`"]]
        rows.append(["perf's line against one of `insns`", "", "", ratio(each, mine).text(0)])
    return table(["lines", "number", "CPU s of the whole command", "ns a line"], rows)


def lines(command):
    """How many lines a command prints."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        number = sum(block.count(b"\n") for block in iter(lambda: child.stdout.read(1 << 20), b""))
    if child.returncode != 0:
        raise measure.Failed(f"{' '.join(map(str, command))}: exit {child.returncode}")
    return number


def ftrace(place):
    """An import of a trace.dat against `trace-cmd report` of it."""
    if not shutil.which("trace-cmd"):
        raise measure.Skipped("no trace-cmd: scripts/setup.sh test")
    run, file = place.work / "find", place.work / "find.dat"
    measure.run([place.kprism, "-q", "record", "durations", "--guest", "-o", run, "--buffer-size", "64M", "--", "find", "/sys", "-xdev"])
    pages = run / "streams/ftrace"
    # trace-cmd looks for these where tracefs has them.
    for name in ["header_page", "header_event"]:
        shutil.copy(pages / name, pages / "events")
    head = place.work / "head.dat"
    measure.run(["trace-cmd", "restore", "-c", "-t", pages, "-k", run / "symbols/kallsyms", "-o", head])
    measure.run(["trace-cmd", "restore", "-i", head, "-o", file, *sorted(pages.glob("cpu*.raw"))])
    works = {
        "`kprism import`": [place.kprism, "-q", "import", file, "-o", place.work / "imported"],
        "`trace-cmd report`": ["trace-cmd", "report", "-i", file],
    }
    times = measure.turns(place.runs, {name: lambda command=command: measure.run(command) for name, command in works.items()})
    rows = [
        [name, figure(one.cpu for one in all).text(2), f"{figure(one.memory for one in all).most:.0f}"] for name, all in times.items()
    ]
    mine, theirs = ([one.cpu for one in all] for all in times.values())
    rows.append(["trace-cmd against kprism", ratio(theirs, mine).text(1), ""])
    return table([f"a trace.dat of {file.stat().st_size >> 20} MiB", "CPU s", "memory at the peak, MiB"], rows)
