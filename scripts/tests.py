#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs all tests of the workspace as `cargo test` does, several programs at once: `scripts/tests.py CARGO PROFILE`.

Cargo runs one program of tests after another, and most of ours wait: for a guest to boot, a browser, the kernel. So
cargo compiles, tells the programs, and runs the documentation's examples; this script runs the programs, as many at
once as the machine has CPUs, at most KPRISM_TEST_PROGRAMS. What a program prints is printed as a whole when it ends.
Exits with 1 if anything failed.
"""

import concurrent.futures
import json
import os
import subprocess
import sys

# A program that hangs must not take the report of all others with it.
LONGEST_S = 30 * 60


def programs(cargo, profile):
    """Compiles all tests. Gives (package, kind, source, executable, folder) of each program; None: it does not compile."""
    command = [*cargo, "test", "--workspace", "--profile", profile, "--no-run", "--message-format", "json-render-diagnostics"]
    found = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as compiled:
        for line in compiled.stdout:
            message = json.loads(line)
            if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
                target, folder = message["target"], os.path.dirname(message["manifest_path"])
                source = os.path.relpath(target["src_path"], folder)
                found.append((os.path.basename(folder), target["kind"][0], source, message["executable"], folder))
    return found if compiled.returncode == 0 else None


def library_path():
    """Where the loader finds what tests of a procedural macro link: the compiler's own libraries, as under cargo."""
    own = subprocess.run(["rustc", "--print", "target-libdir"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    return ":".join(filter(None, [own.stdout.strip(), os.environ.get("LD_LIBRARY_PATH")]))


def run(program, libraries):
    """Runs a program of tests in its package's folder, as cargo does. Gives what it printed, and whether all passed."""
    package, kind, source, executable, folder = program
    environment = os.environ | {"CARGO_MANIFEST_DIR": folder, "LD_LIBRARY_PATH": libraries}
    child = subprocess.Popen([executable], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    failure = None
    try:
        printed, _ = child.communicate(timeout=LONGEST_S)
    except subprocess.TimeoutExpired as expired:
        child.kill()
        # Not to the end of the output, which programs that it started may hold open.
        printed, failure = expired.output or b"", f"it was not over after {LONGEST_S // 60} minutes"
        child.wait()
    printed = printed.decode(errors="replace")
    if child.returncode != 0 and not failure and "\ntest result: FAILED" not in printed:
        failure = f"it ended with {child.returncode} before its result"
    unittests = "" if kind == "test" else "unittests "
    text = f"     Running {unittests}{source} of {package} ({executable})\n{printed}"
    if failure:
        text += f"\nerror: the tests of {package}, {source}: {failure}\n"
    return text, child.returncode == 0


def main():
    cargo, profile = sys.argv[1].split(), sys.argv[2]
    found = programs(cargo, profile)
    if found is None:
        return 1
    # Those of the command line last longest, and unit tests shortest: the long ones first, so that none is left alone.
    found.sort(key=lambda program: (program[0] != "kprism", program[1] != "test", program[0], program[2]))
    at_once = int(os.environ.get("KPRISM_TEST_PROGRAMS", os.cpu_count() or 1))
    passed, libraries = True, library_path()
    with concurrent.futures.ThreadPoolExecutor(at_once) as threads:
        for ended in concurrent.futures.as_completed([threads.submit(run, program, libraries) for program in found]):
            text, all_passed = ended.result()
            passed &= all_passed
            print(text, flush=True)
    examples = [*cargo, "test", "--workspace", "--profile", profile, "--doc", "--no-fail-fast"]
    passed &= subprocess.run(examples, stdin=subprocess.DEVNULL).returncode == 0
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
