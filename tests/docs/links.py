#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks the links of the documentation.

Every relative link and anchor in a Markdown file must resolve, every page below docs/ must be in docs/SUMMARY.md, and no
page below docs/ may link to a Markdown file outside (mdBook would not have it). Prints FILE:LINE: REASON for each
violation and exits with 1 if there is any. Needs Python 3 and nothing else.

    python3 tests/docs/links.py [ROOT]
"""

import os
import re
import sys
from urllib.parse import unquote

SKIP = {".git", "target", "node_modules"}
FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$")
CODE = re.compile(r"(`+)(?:.+?)\1")
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^\s{0,3}\[[^\]]+\]:\s+<?(\S+?)>?\s*$")
NAMED = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")
INCLUDE = re.compile(r"\{\{#include\s+([^}\s]+)\s*\}\}")
SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:", re.I)


def lines_of(path):
    """(line number, text) of the file outside of code blocks; the lines of included files count at the including line."""
    fence = None
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            mark = FENCE.match(line)
            if fence:
                if mark and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                    fence = None
                continue
            if mark:
                fence = mark.group(1)
                continue
            include = INCLUDE.search(line)
            if include:
                other = os.path.join(os.path.dirname(path), include.group(1))
                if os.path.isfile(other):
                    for _, text in lines_of(other):
                        yield number, text
                    continue
            yield number, line.rstrip("\n")


def slug(heading):
    """The anchor that GitHub and mdBook both give a heading."""
    text = re.sub(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", heading)
    text = text.replace("`", "").replace("*", "").strip().lower()
    return "".join(c if c.isalnum() or c in "_-" else "-" if c.isspace() else "" for c in text)


def anchors_of(path, known={}):
    """All anchors of a page."""
    if path not in known:
        anchors, seen = set(), {}
        for _, line in lines_of(path):
            anchors.update(NAMED.findall(line))
            heading = HEADING.match(line)
            if heading:
                name = slug(heading.group(1))
                times = seen.get(name, 0)
                seen[name] = times + 1
                anchors.add(name if not times else f"{name}-{times}")
        known[path] = anchors
    return known[path]


def links_of(path):
    """(line number, target) of every link that is not in code."""
    for number, line in lines_of(path):
        text = CODE.sub("", line)
        for target in LINK.findall(text) + REFERENCE.findall(text):
            yield number, target


def pages(root):
    """All Markdown files below the root, in a fixed order."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIP)
        for name in sorted(files):
            if name.endswith(".md"):
                yield os.path.join(folder, name)


def main():
    root = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", ".."))
    docs = os.path.join(root, "docs")
    summary = os.path.join(docs, "SUMMARY.md")
    wrong, count, listed = [], 0, set()

    def complain(path, number, reason):
        wrong.append(f"{os.path.relpath(path, root)}:{number}: {reason}")

    for page in pages(root):
        for number, target in links_of(page):
            if SCHEME.match(target) or target.startswith("//"):
                continue
            count += 1
            path, _, anchor = target.partition("#")
            other = os.path.normpath(os.path.join(os.path.dirname(page), unquote(path))) if path else page
            if os.path.commonpath([root, other]) != root:
                complain(page, number, f"{target}: outside of the repository")
                continue
            if not os.path.exists(other):
                complain(page, number, f"{target}: no such file")
                continue
            if page == summary:
                listed.add(other)
            if page.startswith(docs + os.sep) and other.endswith(".md") and not other.startswith(docs + os.sep):
                complain(page, number, f"{target}: not below docs/, so not in the book; name the file instead")
            if anchor and other.endswith(".md") and unquote(anchor) not in anchors_of(other):
                complain(page, number, f"{target}: no heading with this anchor")

    if not os.path.isfile(summary):
        complain(summary, 1, "missing")
    for page in pages(docs):
        if page != summary and page not in listed:
            complain(page, 1, "not in docs/SUMMARY.md")

    for line in wrong:
        print(line)
    print(f"{count} relative links, {len(wrong)} of them or of the pages wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
