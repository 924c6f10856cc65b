#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs tests of the workspace as `cargo test` does, several programs at once.

    tests.py CARGO PROFILE [--results FOLDER] [--since REVISION] [--only PATTERN,…]

Cargo runs one program of tests after another, and most of ours wait: for a guest to boot, a browser, the kernel. So
cargo compiles, tells the programs, and runs the documentation's examples; this script runs the programs, one more at
once than the machine has CPUs, or KPRISM_TEST_PROGRAMS. Those that took longest the last time begin first, so that none of
them is left alone at the end. What a program prints is printed as a whole when it ends.

A test that fails is run a second time, alone, by its exact name. If it passes then, it is *unsteady*: with CI set in the
environment it is counted apart and the run goes on; without, it is a failure. Either way it is kept, with the first failure's text,
in ~/.cache/kprism/unsteady. A program in which more than RETRIED tests fail is broken rather than unsteady, and is not tried again.

Into FOLDER go `totals` (passed, failed, ignored, unsteady), and lines are added to `skipped`, `slow`, `failures` and `unsteady`.
Always the whole workspace is compiled: of a choice of packages, cargo would compile what they depend on anew, with other features.
Exits with 1 if anything failed.
"""

import argparse
import concurrent.futures
import datetime
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import typing

import changed
import outcomes

#: A program that hangs must not take the report of all others with it.
LONGEST_S = 30 * 60
#: Most failed tests of a program that are tried again.
RETRIED = 5
#: A program that took this long is in the table of what took longest.
LONG_S = 10


class Program(typing.NamedTuple):
    """A program of tests: its package and the package's folder, cargo's kind of target, the source, and the file."""

    package: str
    kind: str
    source: str
    executable: str
    folder: str

    @property
    def name(self):
        """`package::target`, by which --only chooses: `kprism::cli`, `kprism-pt::lib`."""
        stem = os.path.splitext(self.source)[0].split("/")
        last = stem[-2] if stem[-1] in ("main", "mod") and len(stem) > 2 else stem[-1]
        return f"{self.package}::{last}"


class Counts(typing.NamedTuple):
    """What became of the tests of a program, after the second try."""

    passed: int = 0
    failed: int = 0
    ignored: int = 0
    unsteady: int = 0


class Ended(typing.NamedTuple):
    """A program that was run: what to print, the counts, the lines for each file of results, its name and its seconds."""

    text: str
    counts: Counts
    lines: dict
    name: str = ""
    seconds: float = 0.0


def targets(patterns):
    """Arguments by which cargo compiles no other programs than these patterns may mean; none: it compiles all."""
    chosen = []
    for pattern in patterns:
        last = pattern.rpartition("::")[2]
        if any(sign in last for sign in "*?[") or last == "main":
            return []
        chosen += ["--lib"] if last == "lib" else ["--test", last]
    return chosen


def programs(cargo, profile, patterns=()):
    """Compiles all tests, or those that the patterns mean. Gives the programs; None: they do not compile."""
    command = [*cargo, "test", "--workspace", "--profile", profile, *targets(patterns), "--no-run", "--message-format", "json-render-diagnostics"]
    found = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as compiled:
        for line in compiled.stdout:
            message = json.loads(line)
            if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
                target, folder = message["target"], os.path.dirname(message["manifest_path"])
                source = os.path.relpath(target["src_path"], folder)
                package = changed.package_name(folder)
                found.append(Program(package, target["kind"][0], source, message["executable"], folder))
    return found if compiled.returncode == 0 else None


def library_path():
    """Where the loader finds what tests of a procedural macro link: the compiler's own libraries, as under cargo."""
    own = subprocess.run(["rustc", "--print", "target-libdir"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    return ":".join(filter(None, [own.stdout.strip(), os.environ.get("LD_LIBRARY_PATH")]))


class Ran(typing.NamedTuple):
    """A child that ended: its exit code, what it printed, why it was ended if it was, and CPU seconds with those of its children."""

    code: int
    printed: str
    why: typing.Optional[str]
    cpu_s: float


def execute(program, arguments, libraries):
    """Runs a program in its package's folder, as cargo does. Gives a `Ran`."""
    environment = os.environ | {"CARGO_MANIFEST_DIR": program.folder, "LD_LIBRARY_PATH": libraries}
    # A file and no pipe: whatever the program leaves running may hold its output open.
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen([program.executable, *arguments], cwd=program.folder, env=environment, stdin=subprocess.DEVNULL,
                                 stdout=output, stderr=subprocess.STDOUT)
        why = None

        def end():
            nonlocal why
            why = f"it was not over after {LONGEST_S // 60} minutes"
            # Not by `child.kill()`, which would take the child's end from the call below if it has just ended.
            os.kill(child.pid, signal.SIGKILL)

        late = threading.Timer(LONGEST_S, end)
        late.start()
        # Only this gives the CPU time of one child, and of those that it waited for.
        _, status, usage = os.wait4(child.pid, 0)
        late.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        printed = output.read().decode(errors="replace")
    return Ran(child.returncode, printed, why, usage.ru_utime + usage.ru_stime)


def passes_alone(program, name, libraries):
    """Runs one test again, alone. Gives whether it ran and passed, and what it printed."""
    ran = execute(program, [name, "--exact"], libraries)
    result = outcomes.outcome(ran.printed)
    return ran.code == 0 and result is not None and (result.passed, result.failed) == (1, 0), ran.printed


def run(program, libraries, lenient):
    """Runs a program, and what failed in it a second time. With `lenient`, unsteady tests are no failures."""
    code, printed, why, cpu_s = execute(program, [], libraries)
    result = outcomes.outcome(printed)
    unittests = "" if program.kind == "test" else "unittests "
    text = f"     Running {unittests}{program.source} of {program.package} ({program.executable})\n{printed}"
    lines = {"skipped": outcomes.reasons(printed), "slow": [], "failures": [], "unsteady": []}
    if result is None or why or (code != 0) != (result.failed > 0):
        why = why or f"it ended with {code} {'before' if result is None else 'after'} its result"
        error = f"error: the tests of {program.package}, {program.source}: {why}"
        lines["failures"] += [*printed.splitlines()[-10:], error]
        counts = Counts(result.passed, result.failed + 1, result.ignored) if result else Counts(failed=1)
        return Ended(f"{text}\n{error}\n", counts, lines)
    if result.seconds >= LONG_S:
        lines["slow"].append(f"{int(result.seconds):6} s  {program.source} ({program.name}), {cpu_s:.0f} s of CPU")
    if result.failed == 0:
        return Ended(text, Counts(result.passed, 0, result.ignored), lines, program.name, result.seconds)

    unsteady = 0
    again = len(result.names) == result.failed <= RETRIED
    if not again:
        text += f"\nnot tried again: {result.failed} tests failed, at most {RETRIED} are, by their names ({len(result.names)} known)\n"
    for name in result.names:
        first = outcomes.text_of(name, printed)
        good, second = passes_alone(program, name, libraries) if again else (False, "")
        if good:
            unsteady += 1
            text += f"\nunsteady: {program.name} {name} failed, and passed when it was run again\n"
            lines["unsteady"] += [f"{program.name} {name}", *(f"  {line}" for line in first)]
        elif again:
            text += f"\nfailed again: {program.name} {name}\n{second}"
        if not good or not lenient:
            known = " (it passed when it was run again: unsteady)" if good else ""
            lines["failures"] += [f"{program.name} {name}{known}", *(f"  {line}" for line in first)]
    if result.names == []:
        lines["failures"].append(f"{program.name}: {result.failed} tests, whose names it did not list")
    forgiven = unsteady if lenient else 0
    return Ended(text, Counts(result.passed, result.failed - forgiven, result.ignored, forgiven), lines)


def examples(cargo, profile):
    """Runs the examples of the documentation, by cargo, whose output has a result for each package."""
    command = [*cargo, "test", "--workspace", "--profile", profile, "--doc", "--no-fail-fast"]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    printed = ran.stdout.decode(errors="replace")
    totals = [[int(number) for number in result.groups()[1:4]] for result in outcomes.RESULT.finditer(printed)]
    passed, failed, ignored = (sum(column) for column in zip(*totals)) if totals else (0, 0, 0)
    lines = {"skipped": outcomes.reasons(printed)}
    if (ran.returncode != 0) != (failed > 0):
        failed += 1
    if failed:
        lines["failures"] = ["examples of the documentation", *printed.splitlines()[-60:]]
    return Ended(printed, Counts(passed, failed, ignored), lines)


def cache():
    """The folder of the user's caches, which is made."""
    folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kprism")
    os.makedirs(folder, exist_ok=True)
    return folder


def known_seconds():
    """How long each program took the last time, by its name. Nothing if it is not known."""
    try:
        with open(os.path.join(cache(), "test-seconds")) as file:
            return {name: float(seconds) for name, seconds in json.load(file).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def in_order(found, seconds):
    """The programs, longest first. Where it is not known: those of the command line last longest, and unit tests shortest."""
    def rank(program):
        expected = seconds.get(program.name, 60.0 if program.package == "kprism" and program.kind == "test" else 1.0)
        return -expected, program.package, program.source
    return sorted(found, key=rank)


def keep_unsteady(lines):
    """Adds unsteady tests to the user's file of them, with the date and the commit."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    with open(os.path.join(cache(), "unsteady"), "a") as file:
        file.write(f"{now} {head.stdout.strip() or 'commit not known'}\n" + "".join(f"  {line}\n" for line in lines))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cargo")
    parser.add_argument("profile")
    parser.add_argument("--results")
    parser.add_argument("--since", default="")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    cargo = given.cargo.split()
    chosen = changed.chosen(cargo, given.since) if given.since else None
    patterns = given.only.split(",") if given.only else []
    found = programs(cargo, given.profile, patterns)
    if found is None:
        return 1
    if chosen:
        found = [program for program in found if chosen.has(program)]
    if patterns:
        found = [program for program in found if any(fnmatch.fnmatchcase(program.name, pattern) for pattern in patterns)]
        if not found:
            print(f"error: no program of tests is called {given.only}")
            return 1
    seconds = known_seconds()
    found = in_order(found, seconds)
    at_once = int(os.environ.get("KPRISM_TEST_PROGRAMS", (os.cpu_count() or 1) + 1))
    libraries, lenient, total = library_path(), bool(os.environ.get("CI")), Counts()

    def add(ended):
        nonlocal total
        print(ended.text, flush=True)
        total = Counts(*map(sum, zip(total, ended.counts)))
        if ended.name:
            seconds[ended.name] = ended.seconds
        if ended.lines.get("unsteady"):
            keep_unsteady(ended.lines["unsteady"])
        for name, lines in ended.lines.items() if given.results else ():
            with open(os.path.join(given.results, name), "a") as file:
                file.writelines(f"{line}\n" for line in lines)

    with concurrent.futures.ThreadPoolExecutor(at_once) as threads:
        # The documentation's examples are one long program, and compile beside tests that wait.
        running = [] if given.only else [threads.submit(examples, cargo, given.profile)]
        running += [threads.submit(run, program, libraries, lenient) for program in found]
        for ended in concurrent.futures.as_completed(running):
            add(ended.result())
    if given.results:
        with open(os.path.join(given.results, "totals"), "w") as file:
            file.write(" ".join(map(str, total)) + "\n")
    with open(os.path.join(cache(), "test-seconds"), "w") as file:
        json.dump(seconds, file, indent=0, sort_keys=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
