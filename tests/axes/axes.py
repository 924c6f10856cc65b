#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tries the product where the world varies: `tests/axes/axes.py [INSTRUMENT…] [--sample SECONDS] [--seed N] [--page FILE]`.

Each instrument has a package here with its axes (`AXES`: a name → values), the combinations that cannot be (`goes`), and `run`,
which makes an input for a choice of values, lets kprism read it, and lets another tool judge; `is_kept` tells whether the slow part of
that is in the cache. All pairs of values of two axes are covered. A fault found outside adds an axis or a value here, not only a case.

  --sample SECONDS  some cases of each instrument, chosen by the seed, until the time is over: of those whose slow part is kept, or one
  --seed N          which covering set, and which cases of it (default: today's date); printed
  --jobs N          cases at once (default: the CPUs)
  --page FILE       writes the section of each instrument into this page (docs/axes.md)
  --case TEXT       only cases with these values, as printed: 'mode=pipe, times=MTC'
  --can             tries nothing; exits with 3 and says what is missing, if it could not
  --keep            keeps the inputs of cases with faults

Environment: KPRISM, the program. Exits with 1 if a case has a fault, 3 if it could not be tried.
"""

import argparse
import concurrent.futures
import datetime
import importlib
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kprism")
INSTRUMENTS = ["flow", "guest"]
# How a sentence of `run` begins that is no fault: the program itself says that it cannot know this.
EXPLAINED = "explained: "


def pairs_library():
    """allpairspy, from the cache that scripts/setup.sh fills."""
    tools = os.path.join(CACHE, "tools", "python-%d.%d" % sys.version_info[:2])
    sys.path.insert(0, tools)
    try:
        from allpairspy import AllPairs
    except ImportError:
        return None
    return AllPairs


def covering(axes, goes, seed, all_pairs):
    """Choices of values that have every pair of values that can be, in an order by the seed."""
    order = random.Random(seed)
    names = list(axes)
    shuffled = [order.sample(axes[name], len(axes[name])) for name in names]
    valid = lambda row: goes(dict(zip(names, row)))
    rows = [dict(zip(names, row)) for row in all_pairs(shuffled, filter_func=valid)]
    # The library works row by row, and leaves pairs out that its rows could not take.
    missing = sorted(pairs(axes, goes) - set().union(*map(pairs_of, rows)))
    while missing:
        row = completed(dict(missing.pop()), axes, goes, order)
        if row:
            rows.append(row)
            missing = [pair for pair in missing if not set(pair) <= row.items()]
    order.shuffle(rows)
    return rows


def completed(part, axes, goes, order, tries=300):
    """A choice of all values with this part in it; None if there seems to be none."""
    for _ in range(tries):
        row = dict(part)
        for name in order.sample(list(axes), len(axes)):
            if name not in row:
                fits = [value for value in axes[name] if goes({**row, name: value})]
                if not fits:
                    break
                row[name] = order.choice(fits)
        else:
            return {name: row[name] for name in axes}
    return None


def pairs(axes, goes):
    """Every pair of values of two axes that can be."""
    found = set()
    for (one, values), (other, others) in itertools.combinations(axes.items(), 2):
        found.update(((one, a), (other, b)) for a in values for b in others if goes({one: a, other: b}))
    return found


def pairs_of(case):
    return set(itertools.combinations(case.items(), 2))


def told(case, axes):
    """The values that are not the first of their axis."""
    return ", ".join(f"{name}={value}" for name, value in case.items() if value != axes[name][0]) or "all as in the guest"


def commit():
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"], stdout=subprocess.PIPE, text=True).stdout.strip()
    dirty = subprocess.run(["git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no"], stdout=subprocess.PIPE, text=True)
    return head + (" with changes" if dirty.stdout.strip() else "")


def try_case(module, case, program, keep):
    """Faults of one case: a list of sentences; those that begin with EXPLAINED are none."""
    scratch = tempfile.mkdtemp(prefix="kprism-axes-")
    faults = None
    try:
        faults = module.run(case, program, os.path.join(CACHE, "axes"), scratch)
    except Exception as error:
        faults = [f"{type(error).__name__}: {error}"]
    finally:
        if keep and any(not fault.startswith(EXPLAINED) for fault in faults or []):
            print(f"    kept in {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    return faults


def run_instrument(name, options, all_pairs, program):
    """Tries cases of one instrument. Gives its module and rows: case, faults, what is explained."""
    module = importlib.import_module(name)
    cases = covering(module.AXES, module.goes, options.seed, all_pairs)
    if options.case:
        wanted = dict(part.strip().split("=", 1) for part in options.case.split(","))
        plain = {axis: values[0] for axis, values in module.AXES.items()}
        cases = [{**plain, **wanted}]
    print(f"{name}: {len(cases)} cases cover all pairs; seed {options.seed}", flush=True)
    began = time.monotonic()
    if options.sample:
        cases = [case for case in cases if module.is_kept(case, program, os.path.join(CACHE, "axes"))] or cases[:1]

    def row(number, case):
        start = time.monotonic()
        if options.sample and number > 1 and start - began > options.sample:
            return None
        faults = try_case(module, case, program, options.keep)
        explained = [fault for fault in faults if fault.startswith(EXPLAINED)]
        faults = [fault for fault in faults if fault not in explained]
        line = f"  {number:3} {'ok   ' if not faults else 'FAULT'} {time.monotonic() - start:5.1f} s  {told(case, module.AXES)}"
        print("\n      ".join([line, *faults, *explained]), flush=True)
        return case, faults, explained

    # What tries a case are other programs, one after another: each CPU has a case of its own.
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(row, range(1, len(cases) + 1), cases))
    return module, [row for row in rows if row]


def section(name, module, rows, seed):
    """The page's section of one instrument."""
    every = pairs(module.AXES, module.goes)
    covered = set().union(*(pairs_of(row[0]) for row in rows)) & every if rows else set()
    faults = [(case, faults) for case, faults, _ in rows if faults]
    explained = [(case, explained) for case, _, explained in rows if explained]
    lines = [f"## {name}", "", f"{len(rows)} cases, {len(covered)} of {len(every)} pairs; {len(faults)} with a fault. "
             f"Judged by: {module.JUDGE}. {datetime.date.today()}, commit {commit()}, seed {seed}.", "",
             "| axis | values |", "|---|---|"]
    lines += [f"| {axis} | {', '.join(values)} |" for axis, values in module.AXES.items()]
    missing = sorted(f"{a[0]}={a[1]} with {b[0]}={b[1]}" for a, b in every - covered)
    lines += ["", f"Not tried: {'; '.join(missing) if missing else 'no pair'}."]
    if faults:
        lines += ["", "| case | fault |", "|---|---|"]
        lines += [f"| {told(case, module.AXES)} | {faults[0].replace('|', '/')} |" for case, faults in faults]
    if explained:
        lines += ["", "Less than the judge has, and the program says why:", "", "| case | explained |", "|---|---|"]
        lines += [f"| {told(case, module.AXES)} | {told_so[0][len(EXPLAINED):].replace('|', '/')} |" for case, told_so in explained]
    return "\n".join(lines) + "\n"


def write_page(path, sections):
    """Replaces the sections of these instruments, and keeps the rest of the page."""
    with open(path) as file:
        head, *old = file.read().split("\n## ")
    known = {part.split("\n", 1)[0].strip(): "## " + part.rstrip() + "\n" for part in old}
    known.update(sections)
    with open(path, "w") as file:
        file.write(head.rstrip() + "\n\n" + "\n".join(known[name] for name in sorted(known)))


def main():
    parser = argparse.ArgumentParser(description="Tries the product where the world varies.")
    parser.add_argument("instruments", nargs="*", metavar="INSTRUMENT", help=", ".join(INSTRUMENTS))
    parser.add_argument("--sample", type=float)
    parser.add_argument("--seed", type=int, default=int(datetime.date.today().strftime("%Y%m%d")))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--page")
    parser.add_argument("--case")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--can", action="store_true", help="says by its exit code whether what it needs is there")
    options = parser.parse_args()
    unknown = [name for name in options.instruments if name not in INSTRUMENTS]
    if unknown:
        parser.error(f"no axes of {', '.join(unknown)}; there are: {', '.join(INSTRUMENTS)}")
    program = os.path.abspath(os.environ.get("KPRISM", os.path.join(ROOT, "target/release/kprism")))
    all_pairs = pairs_library()
    missing = ["allpairspy"] * (all_pairs is None) + [tool for tool in ("perf", "gcc") if shutil.which(tool) is None]
    if missing or options.can:
        if missing:
            print(f"not there: {', '.join(missing)}; scripts/setup.sh test fetches it")
        return 3 if missing else 0
    sys.path.insert(0, HERE)
    failed, sections, tried = 0, {}, 0
    for name in options.instruments or INSTRUMENTS:
        module, rows = run_instrument(name, options, all_pairs, program)
        failed += sum(1 for _, faults, _ in rows if faults)
        tried += len(rows)
        sections[name] = section(name, module, rows, options.seed)
    if options.page and not options.case:
        write_page(options.page, sections)
    print(f"{tried - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
