# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a program of tests printed: totals, names of what failed, and why. Used by tests.py.

Input: the text of a run of Rust's built-in runner or of ours (crates/testing/test), which print alike. Output: an `Outcome`. A text without a
result line, as of a program that was killed, gives None, never zeros.
"""

import re
import typing

RESULT = re.compile(r"^test result: (ok|FAILED)\. (\d+) passed; (\d+) failed; (\d+) ignored;.*?(?:finished in ([0-9.]+)s)?$", re.M)
#: The built-in runner writes `ignored, why`, ours `ignored (why)`.
IGNORED = re.compile(r"^test (.*\S)\s*\.\.\. ignored(?:, (.*)| \((.*)\))$", re.M)
#: Lines of a failure's text that are kept.
LINES = 40


class Outcome(typing.NamedTuple):
    """Totals of a program, and the names of the tests that failed."""

    passed: int
    failed: int
    ignored: int
    seconds: float
    names: list


def outcome(printed):
    """The outcome, by the last result line; None without one."""
    results = list(RESULT.finditer(printed))
    if not results:
        return None
    last = results[-1]
    # Both list the names once more before the result, indented by four: the lines of tests may be torn by what tests print.
    listed = printed[: last.start()].rpartition("\nfailures:\n")[2] if last[1] == "FAILED" else ""
    names = [line[4:] for line in listed.splitlines() if line.startswith("    ")]
    return Outcome(int(last[2]), int(last[3]), int(last[4]), float(last[5] or 0), names)


def reasons(printed):
    """`name: why` of each ignored test that says why."""
    return [f"{name}: {why or reason}" for name, why, reason in IGNORED.findall(printed)]


def text_of(name, printed):
    """What there is of one test's failure: the runner's block for it, and the panic, wherever it was printed."""
    lines = printed.splitlines()
    heads = (f"---- {name} stdout ----", f"---- {name} ----")
    panic = re.compile(rf"^thread '{re.escape(name)}'.* panicked at ")
    kept = []
    for at, line in enumerate(lines):
        if line in heads:
            for following in lines[at + 1 :]:
                if following.startswith("---- ") or following == "failures:":
                    break
                kept.append(following)
    if not any(panic.match(line) for line in kept):
        for at, line in enumerate(lines):
            if panic.match(line):
                kept += lines[at : at + 12]
    kept = [line[:2000] for line in kept if line.strip()]
    if len(kept) > LINES:
        kept = [*kept[:LINES], f"… {len(kept) - LINES} more lines, above"]
    return kept or ["it printed no text of its own"]
