# SPDX-License-Identifier: MIT OR Apache-2.0
"""How work and memory grow with the input: `make test-growth`.

In: each family of made inputs (recording.py, texts.py) at N, 2N, 4N and 8N. Out: for each command the instructions and the peak memory at
each size, and the factor of a doubling; docs/growth.md with all of them. Fails if a factor is above 2.3 and the page does not
say why (EXPECTED).

The program is the tests' own build, with checks: its counts are higher than a release's, and grow alike.

Instructions are counted by `valgrind --tool=exp-bbv`, user-space only, exactly; without valgrind, the user-mode CPU time is
taken (getrusage), and the page says so. The factor of the work is that of what the last doubling adds, (8N - 4N) / (4N - 2N): the
cost of starting is no part of it. Memory grows in steps, as tables double: its factor is the mean of two doublings of what a
doubling adds, (8N - 4N) / (2N - N), unless the last adds less than 4 MiB.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import recording
import texts

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
KPRISM = os.environ.get("KPRISM", os.path.join(ROOT, "target/checked/kprism"))
PAGE = os.path.join(ROOT, "docs/growth.md")
LIMIT = 2.3
SIZES = [1, 2, 4, 8]

# N of each family.
FIRST = {
    "processes": 50, "mappings": 100, "threads": 100, "switches": 250, "losses": 100, "rewritten": 100,
    "blocks": 16000, "packets": 500, "symbols": 16000, "calls": 4000, "functions": 4000, "tasks": 500, "sleeps": 1000,
    "open_calls": 50, "initcalls": 500,
    "probes": 50, "runs": 2,
}

# Family and command whose growth is known to be more, with the reason.
EXPECTED = {}

# What is run on the input, or on its import; {file}, {run}, {out}, {root} are replaced.
FLOW = [
    ("import", ["import", "{file}", "--symfs", "{root}", "-o", "{out}"]),
    ("script insns", ["script", "insns", "-i", "{run}"]),
    ("script calls", ["script", "calls", "-i", "{run}"]),
    ("export .folded", ["export", "-i", "{run}", "-o", "{out}.folded"]),
    ("export .perf.data", ["export", "-i", "{run}", "-o", "{out}.perf.data"]),
]
DURATIONS = [
    ("import", ["import", "{file}", "-o", "{out}"]),
    ("report durations", ["report", "durations", "-i", "{run}"]),
    ("report durations --tree", ["report", "durations", "--tree", "-i", "{run}"]),
    ("script calls", ["script", "calls", "-i", "{run}"]),
]
BOOT = [
    ("import", ["import", "{file}", "-o", "{out}"]),
    ("report boot", ["report", "boot", "-i", "{run}"]),
]
PROBE = [
    ("compile", ["compile", "-f", "{file}", "--exec", "{root}/program", "-o", "{out}"]),
]
FAMILIES = [
    *((family, FLOW) for family in recording.FAMILIES),
    *((family, DURATIONS) for family in texts.DURATIONS),
    *((family, BOOT) for family in texts.BOOTS),
    *((family, PROBE) for family in texts.PROBES),
]


def valgrind():
    return shutil.which("valgrind") if os.environ.get("GROWTH_COUNT", "valgrind") == "valgrind" else None


# Runs commands for `run`. The kernel counts the memory of the process that starts a program as the program's own peak, so
# a process starts them that never grows.
STARTER = """
import json, os, subprocess, sys
for line in sys.stdin:
    command, folder = json.loads(line)
    done = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=folder)
    error = done.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(done.pid, 0)
    done.returncode = os.waitstatus_to_exitcode(status)
    print(json.dumps([done.returncode, error, round(usage.ru_utime * 1e6), usage.ru_maxrss]), flush=True)
"""
starter = subprocess.Popen([sys.executable, "-S", "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run(arguments, folder):
    """User-mode CPU time (microseconds) and peak memory (KiB) of a command."""
    print(json.dumps([[KPRISM, *arguments], folder]), file=starter.stdin, flush=True)
    code, error, time, memory = json.loads(starter.stdout.readline())
    if code != 0:
        sys.exit(f"kprism {' '.join(arguments)}: {code}: {error}")
    return time, memory


def instructions(arguments, folder):
    """Instructions of a command; None without valgrind."""
    tool = valgrind()
    if not tool:
        return None
    command = [tool, "--tool=exp-bbv", "--instr-count-only=yes", "--bb-out-file=/dev/null", KPRISM, *arguments]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=folder)
    text = done.stderr.decode(errors="replace")
    counts = [int(n) for n in re.findall(r"Total instructions: (\d+)", text)]
    if done.returncode != 0 or not counts:
        sys.exit(f"valgrind … kprism {' '.join(arguments)}: {done.returncode}: {text}")
    return sum(counts)


def clear(out):
    for name in (out, out + ".folded", out + ".perf.data"):
        if os.path.isdir(name):
            shutil.rmtree(name)
        elif os.path.exists(name):
            os.remove(name)


def measured(commands, folder):
    """The work of commands, and their peak memory. `commands`: arguments and output, of each size."""
    works, memories = [], []
    for arguments, out in commands:
        clear(out)
        time, memory = run(arguments, folder)
        memories.append(memory)
        clear(out)
        count = instructions(arguments, folder)
        works.append(time if count is None else count)
    return works, memories


def of_work(values):
    """What the last doubling adds, over what the one before it added; the whole, where they add next to nothing."""
    first, last = values[2] - values[1], values[3] - values[2]
    if last < values[3] * 0.05:
        return values[3] / values[2]
    return last / max(first, values[3] * 0.025)


def of_memory(values):
    """The mean of two doublings of what a doubling adds; None where the last one adds less than 4 MiB."""
    first, last = values[1] - values[0], values[3] - values[2]
    if last < 4 << 10:
        return None
    # Of less than this, the measure itself differs.
    return (last / max(first, 128)) ** (1 / 2)


def amounts(family):
    """The amount of a family at each size."""
    return [FIRST[family] * size for size in SIZES]


def inputs(family, listed, folder):
    """The inputs at all sizes, imported if a command reads a run: what each command's words are replaced by."""
    made = []
    for amount in amounts(family.__name__):
        place = f"{folder}/{amount}"
        os.makedirs(place)
        names = {"file": f"{place}/input", "run": f"{place}/run", "root": f"{place}/root"}
        family(place, amount).write(names["file"])
        name, arguments = listed[0]
        if name == "import":
            run([word.format(**{**names, "out": names["run"]}) for word in arguments], place)
        made.append(names)
    return made


def of_family(family, listed, folder, rows):
    made = inputs(family, listed, folder)
    out = f"{folder}/out"
    for name, arguments in listed:
        commands = [([word.format(**names, out=out) for word in arguments], out) for names in made]
        rows.append((family.__name__, name, FIRST[family.__name__], *measured(commands, folder)))
        show(rows[-1])


def of_lake(folder, rows):
    """Runs that are added to a lake."""
    place = f"{folder}/one"
    os.makedirs(place)
    recording.processes(place, 4).write(f"{place}/perf.data")
    run(["import", f"{place}/perf.data", "--symfs", f"{place}/root", "-o", f"{place}/run"], place)
    commands = []
    for step, amount in enumerate(amounts("runs")):
        names = [f"{folder}/run-{step}-{i}" for i in range(amount)]
        for name in names:
            shutil.copytree(f"{place}/run", name)
        lake = f"{folder}/lake-{step}"
        commands.append((["lake", "add", *names, "--to", lake, "--suite", "growth"], lake))
    rows.append(("runs", "lake add", FIRST["runs"], *measured(commands, folder)))
    show(rows[-1])


def judged(row):
    family, command, _, works, memories = row
    grown = of_work(works), of_memory(memories)
    return grown, max(factor or 0 for factor in grown) <= LIMIT or (family, command) in EXPECTED


def told(factor):
    return "<4 MiB" if factor is None else f"{factor:.2f}"


def show(row):
    family, command, first, works, memories = row
    (work, memory), good = judged(row)
    sizes = " ".join(f"{value:,}" for value in works)
    print(f"{family:10} {command:20} N={first}: {sizes}: {work:.2f}; {memories[-1] / 1024:.0f} MiB: {told(memory)}"
          + ("" if good else "   TOO MUCH"), flush=True)


def page(rows):
    git = ["git", "-C", ROOT, "log", "-1", "--format=%h, %cs"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    unit = "instructions (user space, by valgrind)" if valgrind() else "µs of CPU time in user mode (no valgrind)"
    lines = [
        "# Growth", "",
        "How the work and the memory of commands grow with their input. `make test-growth` writes this page, and fails if a",
        f"factor is above {LIMIT}, unless the page says why.", "",
        f"Commit {commit}. Work: {unit}; the factor is that of what the last doubling adds. Memory: the peak, mapped files included; tables",
        "double in steps, so its factor is the mean of two doublings of what a doubling adds, (8N - 4N) / (2N - N), unless the last adds less than 4 MiB.", "",
        "| family | command | N | work at N | 2N | 4N | 8N | factor | memory at 8N, MiB | factor |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        family, command, first, works, memories = row
        (work, memory), _ = judged(row)
        cells = [family, f"`{command}`", f"{first:,}", *(f"{value:,}" for value in works), f"{work:.2f}",
                 f"{memories[-1] / 1024:.0f}", told(memory)]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| family | what is doubled |", "|---|---|"]
    for family, _ in FAMILIES:
        lines.append(f"| {family.__name__} | {family.__doc__} |")
    lines.append("| runs | Runs that are added to a lake. |")
    if EXPECTED:
        lines += ["", "## Known to be more", ""]
        lines += [f"- {family}, `{command}`: {why}" for (family, command), why in EXPECTED.items()]
    lines += [
        "", "Not tried: what a guest or a kernel does while it is recorded (hits of probes, tasks that start), "
        "and many address spaces with kernel code.", "",
    ]
    with open(PAGE, "w") as file:
        file.write("\n".join(lines))


def temporary():
    return tempfile.TemporaryDirectory(prefix="kprism-growth-")


def main():
    chosen = sys.argv[1:]
    rows = []
    unknown = set(chosen) - set(FIRST)
    if unknown:
        sys.exit(f"no family {', '.join(sorted(unknown))}; there are {', '.join(FIRST)}")
    for family, listed in FAMILIES:
        if not chosen or family.__name__ in chosen:
            with temporary() as folder:
                of_family(family, listed, folder, rows)
    if not chosen or "runs" in chosen:
        with temporary() as folder:
            of_lake(folder, rows)
    if not chosen:
        page(rows)
        print(f"wrote {os.path.relpath(PAGE, ROOT)}")
    bad = [row for row in rows if not judged(row)[1]]
    print(f"{len(rows)} commands and families; {len(bad)} grow by more than {LIMIT} a doubling")
    sys.exit(1 if bad else 0)


main()
