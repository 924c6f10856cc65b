# SPDX-License-Identifier: MIT OR Apache-2.0
"""How work and memory grow with the input: `make test-growth`.

In: each family of made inputs (recording.py) at N, 2N, 4N and 8N. Out: for each command the instructions and the peak memory at
each size, and the factor of the last doubling; docs/growth.md with all of them. Fails if a factor is above 2.3 and the
page does not say why (EXPECTED).

The program is the tests' own build, with checks: its counts are higher than a release's, and grow alike.

Instructions are counted by `valgrind --tool=exp-bbv`, user-space only, exactly; without valgrind, the user-mode CPU time is
taken (getrusage), and the page says so. From both the cost of starting is taken off: the factor is that of what a doubling
adds, (8N - 4N) / (4N - 2N).
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

import recording

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
KPRISM = os.environ.get("KPRISM", os.path.join(ROOT, "target/checked/kprism"))
PAGE = os.path.join(ROOT, "docs/growth.md")
LIMIT = 2.3
SIZES = [1, 2, 4, 8]

# N of each family.
FIRST = {
    "processes": 50, "mappings": 100, "threads": 100, "switches": 250, "losses": 100, "rewritten": 100,
    "blocks": 4000, "packets": 500, "runs": 2,
}

# Family and command whose growth is known to be more, with the reason.
EXPECTED = {}

# What is run on the recording, or on its import; {file}, {run}, {out}, {root} are replaced.
COMMANDS = [
    ("import", ["import", "{file}", "--symfs", "{root}", "-o", "{out}"]),
    ("script insns", ["script", "insns", "-i", "{run}"]),
    ("script calls", ["script", "calls", "-i", "{run}"]),
    ("export .folded", ["export", "-i", "{run}", "-o", "{out}.folded"]),
    ("export .perf.data", ["export", "-i", "{run}", "-o", "{out}.perf.data"]),
]


def valgrind():
    return shutil.which("valgrind") if os.environ.get("GROWTH_COUNT", "valgrind") == "valgrind" else None


def run(arguments, folder):
    """Work (instructions, or microseconds of user-mode CPU time) and peak memory (KiB) of a command."""
    done = subprocess.Popen([KPRISM, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=folder)
    error = done.stderr.read()
    _, status, usage = os.wait4(done.pid, 0)
    done.returncode = os.waitstatus_to_exitcode(status)
    if done.returncode != 0:
        sys.exit(f"kprism {' '.join(arguments)}: {done.returncode}: {error.decode()}")
    return round(usage.ru_utime * 1e6), usage.ru_maxrss


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


def measured(arguments, folder, out):
    clear(out)
    time, memory = run(arguments, folder)
    clear(out)
    count = instructions(arguments, folder)
    return (time if count is None else count), memory


def factor(values, small):
    """What the last doubling adds, over what the one before it added; the whole, where they add next to nothing."""
    first, last = values[2] - values[1], values[3] - values[2]
    if last < values[3] * small:
        return values[3] / values[2]
    return last / max(first, values[3] * small / 2)


def inputs(family, folder):
    """The inputs at all sizes: (file, run, root) of each."""
    made = []
    for size in SIZES:
        place = f"{folder}/{family.__name__}-{size}"
        os.makedirs(place)
        family(place, FIRST[family.__name__] * size).write(f"{place}/perf.data")
        made.append((f"{place}/perf.data", f"{place}/run", f"{place}/root"))
        run(["import", made[-1][0], "--symfs", made[-1][2], "-o", made[-1][1]], place)
    return made


def of_family(family, folder, rows):
    made = inputs(family, folder)
    for name, arguments in COMMANDS:
        works, memories = [], []
        for file, done, root in made:
            out = f"{folder}/out"
            words = [word.format(file=file, run=done, root=root, out=out) for word in arguments]
            work, memory = measured(words, folder, out)
            works.append(work)
            memories.append(memory)
        rows.append((family.__name__, name, FIRST[family.__name__], works, memories))
        show(rows[-1])


def of_lake(folder, rows):
    """Runs that are added to a lake."""
    place = f"{folder}/one"
    os.makedirs(place)
    recording.processes(place, 4).write(f"{place}/perf.data")
    run(["import", f"{place}/perf.data", "--symfs", f"{place}/root", "-o", f"{place}/run"], place)
    works, memories = [], []
    for size in SIZES:
        count = FIRST["runs"] * size
        names = []
        for i in range(count):
            name = f"{folder}/lake-{size}-{i}"
            shutil.copytree(f"{place}/run", name)
            names.append(name)
        lake = f"{folder}/lake-{size}"
        command = ["lake", "add", *names, "--to", lake, "--suite", "growth"]
        work, memory = measured(command, folder, lake)
        works.append(work)
        memories.append(memory)
    rows.append(("runs", "lake add", FIRST["runs"], works, memories))
    show(rows[-1])


def judged(row):
    family, command, _, works, memories = row
    grown = factor(works, 0.05), factor(memories, 0.1)
    return grown, max(grown) <= LIMIT or (family, command) in EXPECTED


def show(row):
    family, command, first, works, memories = row
    (work, memory), good = judged(row)
    sizes = " ".join(f"{value:,}" for value in works)
    print(f"{family:10} {command:20} N={first}: {sizes}: {work:.2f}; {memories[-1] / 1024:.0f} MiB: {memory:.2f}"
          + ("" if good else "   TOO MUCH"), flush=True)


def page(rows):
    git = ["git", "-C", ROOT, "log", "-1", "--format=%h, %cs"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    unit = "instructions (user space, by valgrind)" if valgrind() else "µs of CPU time in user mode (no valgrind)"
    lines = [
        "# Growth", "",
        "How the work and the memory of commands grow with their input. `make test-growth` writes this page, and fails if a",
        f"doubling of the input adds more than {LIMIT} times what the doubling before it added, unless the page says why.", "",
        f"Commit {commit}. Work: {unit}. Memory: the peak, mapped files included.", "",
        "| family | command | N | work at N | 2N | 4N | 8N | factor | memory at 8N, MiB | factor |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        family, command, first, works, memories = row
        (work, memory), _ = judged(row)
        cells = [family, f"`{command}`", f"{first:,}", *(f"{value:,}" for value in works), f"{work:.2f}",
                 f"{memories[-1] / 1024:.0f}", f"{memory:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| family | what is doubled |", "|---|---|"]
    for family in recording.FAMILIES:
        lines.append(f"| {family.__name__} | {family.__doc__} |")
    lines.append("| runs | Runs that are added to a lake. |")
    if EXPECTED:
        lines += ["", "## Known to be more", ""]
        lines += [f"- {family}, `{command}`: {why}" for (family, command), why in EXPECTED.items()]
    lines += [
        "", "Not tried: recordings of guests (sleeps, probes, tasks that a guest starts), the size of a symbol table, "
        "and many address spaces with kernel code.", "",
    ]
    with open(PAGE, "w") as file:
        file.write("\n".join(lines))


def main():
    chosen = sys.argv[1:]
    rows = []
    with tempfile.TemporaryDirectory(prefix="kprism-growth-") as folder:
        for family in recording.FAMILIES:
            if not chosen or family.__name__ in chosen:
                of_family(family, folder, rows)
                for size in SIZES:
                    shutil.rmtree(f"{folder}/{family.__name__}-{size}")
        if not chosen or "runs" in chosen:
            of_lake(folder, rows)
    if not chosen:
        page(rows)
        print(f"wrote {os.path.relpath(PAGE, ROOT)}")
    bad = [row for row in rows if not judged(row)[1]]
    print(f"{len(rows)} commands and families; {len(bad)} grow by more than {LIMIT} a doubling")
    sys.exit(1 if bad else 0)


main()
