#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Takes commands out of the console blocks of a page, so that a test runs what the page says.

    console.py PAGE [--root] [--skip FILE] HEADING...    one command a line

Prints the commands after `$ ` (with --root: after `# `) of the blocks below these headings. A command goes on in the next line while a
quote is open or a backslash ends the line, and is printed as one line. With --skip, a command that contains the first field of a line of FILE (`text<TAB>reason`) is
printed to standard error with the reason, instead. A line of FILE that skips nothing is an error: the page has changed.
"""

import argparse
import pathlib
import re
import shlex
import sys


def blocks(page, headings):
    """Lines of the console blocks below the headings; a heading ends at the next of the same or a higher level."""
    level, inside = 0, False
    found = set()
    for line in page.splitlines():
        heading = re.match(r"(#+) (.*)", line)
        if heading and not inside:
            if level and len(heading[1]) <= level:
                level = 0
            if not level and heading[2] in headings:
                level = len(heading[1])
                found.add(heading[2])
        elif level and line == "```console":
            inside = True
        elif line == "```":
            inside = False
        elif inside:
            yield line
    for missing in set(headings) - found:
        sys.exit(f"console: the page has no heading '{missing}'")


def whole(text):
    """True if no quote is open in a command and no backslash ends it."""
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return not text.endswith("\\")


def commands(lines, prompt):
    """Commands after the prompt."""
    text = None
    for line in lines:
        if text is not None:
            text += "\n" + line
        elif line.startswith(prompt):
            text = line[len(prompt):]
        else:
            continue
        if whole(text):
            yield text
            text = None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("headings", nargs="+")
    parser.add_argument("--root", action="store_true")
    parser.add_argument("--skip", type=pathlib.Path)
    given = parser.parse_args()
    skips = {}
    if given.skip:
        rows = [row.split("\t") for row in given.skip.read_text().splitlines() if row and not row.startswith("#")]
        skips = {row[0]: (row[1], row[2]) for row in rows if row[1] in given.headings}
    used = set()
    for heading in given.headings:
        for command in commands(blocks(given.page.read_text(), [heading]), "# " if given.root else "$ "):
            skip = next((text for text in skips if text in command), None)
            if skip is None:
                print(command.replace("\\\n", " ").replace("\n", " "))
            else:
                used.add(skip)
                print(f"not run: {command.splitlines()[0]}: {skips[skip][1]}", file=sys.stderr)
    for text in set(skips) - used:
        sys.exit(f"console: no command below these headings contains '{text}': {given.skip} is out of date")
    return 0


sys.exit(main())
