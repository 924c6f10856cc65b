# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tables of a Markdown page that a benchmark writes.

In: a page with `<!-- measured: NAME -->` and `<!-- end -->` around each table, and a table's rows. Out: the page with the new
table between them, and below it what it was measured on.
"""

import datetime
import os
import subprocess


def stamp(runs):
    """A line that says what was measured, when, and on what."""
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, text=True).stdout.strip()
    # What the benchmark itself writes is no change of what it measures.
    changed = [line for line in changed.splitlines() if not line.endswith("docs/benchmarks.md")]
    with open("/proc/cpuinfo") as cpuinfo:
        model = next((line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")), "an unknown processor")
    today = datetime.date.today()
    date = f"{today.day} {today:%B %Y}"
    cpus = os.cpu_count()
    load = os.getloadavg()[2]
    tree = f"commit {commit or 'unknown'}{' and changes to it' if changed else ''}"
    return f"*{tree}, {date}, {model}, {cpus} CPUs, load {load:.1f} in the 15 minutes before; the middle of {runs} runs, the least and the most in parentheses.*"


def table(head, rows):
    """A table of Markdown; the first column is text, the others are figures."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def replace(page, name, text):
    """The page's text with this text as its measured part `name`.

    Raises ValueError if the page has no such part.
    """
    begin, end = f"<!-- measured: {name} -->", "<!-- end -->"
    head, found, rest = page.partition(begin)
    old, closed, tail = rest.partition(end)
    if not found or not closed or "<!-- measured:" in old:
        raise ValueError(f"no `{begin}` with an `{end}` after it")
    return f"{head}{begin}\n{text}\n{end}{tail}"
