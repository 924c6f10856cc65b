# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every Python file of the repository with the oldest Python that may run it: 3.9 for the package (python/pyproject.toml), 3.11 elsewhere.

3.11 is that of Debian 12, in its first release, 3.11.2: what came to a later one of 3.11 is not there. Syntax is judged by Python's own parser
for that version; of names that are newer, those that have been used, or nearly, are known here.
"""

import ast
import io
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest

TOP = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(TOP / "contrib/spark"))
import decode

#: What is newer than the version before it, as it is written.
NEWER = {
    (3, 10): [r"\bitertools\.pairwise\b", r"\bzip\([^()]*strict=", r"\bbisect\w*\([^()]*key="],
    (3, 11): [r"\btomllib\b", r"\bdatetime\.UTC\b", r"\bfile_digest\(", r"\bStrEnum\b", r"\bcontextlib\.chdir\b"],
    (3, 12): [r"\bitertools\.batched\b", r"\bextractall\([^()]*filter=", r"\bonexc=", r"\bdelete_on_close=", r"\bsumprod\("],
}
#: Where a newer name is used only after asking for it.
ASKED = {"contrib/spark/decode.py": r"\bextractall\([^()]*filter="}


def faults(source, oldest, asked=None):
    """What this Python has not: a syntax, or a name."""
    try:
        ast.parse(source, feature_version=oldest)
    except SyntaxError as error:
        return [f"line {error.lineno}: {error.msg}"]
    names = [pattern for version, patterns in NEWER.items() if version > oldest for pattern in patterns if pattern != asked]
    return [f"{pattern}" for pattern in names if re.search(pattern, source)]


class Oldest(unittest.TestCase):
    def test_all_files_are_for_the_oldest_python(self):
        paths = subprocess.run(["git", "ls-files", "*.py"], cwd=TOP, stdout=subprocess.PIPE, text=True).stdout.split()
        # An archive without git has them, too.
        paths = paths or [str(path.relative_to(TOP)) for folder in ("scripts", "tests", "python", "contrib") for path in (TOP / folder).rglob("*.py")]
        self.assertGreater(len(paths), 30)
        for path in paths:
            # This file names what is new.
            if (TOP / path).samefile(__file__):
                continue
            oldest = (3, 9) if path.startswith("python/kprism/") else (3, 11)
            found = faults((TOP / path).read_text(), oldest, ASKED.get(path))
            self.assertEqual(found, [], f"{path}, which Python {oldest[0]}.{oldest[1]} may run")

    def test_what_is_newer_is_noticed(self):
        self.assertEqual(faults("match x:\n case 1: pass", (3, 9))[0][:5], "line ")
        self.assertTrue(faults("archive.extractall(folder, filter='data')", (3, 11)))
        self.assertTrue(faults("import tomllib", (3, 9)))
        self.assertFalse(faults("import tomllib", (3, 11)))


class Extracts(unittest.TestCase):
    """contrib/spark/decode.py with the tarfile of Python 3.11.2, and with this one's."""

    def archive(self, folder, name, kind=tarfile.REGTYPE):
        path = pathlib.Path(folder) / "run.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for member, kind, data in ("run/manifest.json", tarfile.REGTYPE, b"{}"), (name, kind, b"data"):
                info = tarfile.TarInfo(member)
                info.type, info.size, info.linkname = kind, len(data) if kind == tarfile.REGTYPE else 0, "/etc/passwd"
                archive.addfile(info, io.BytesIO(data) if kind == tarfile.REGTYPE else None)
        return str(path)

    def of_old(self):
        if hasattr(tarfile, "data_filter"):
            own = tarfile.data_filter
            del tarfile.data_filter
            self.addCleanup(setattr, tarfile, "data_filter", own)

    def test_a_run_is_extracted(self):
        for old in False, True:
            if old:
                self.of_old()
            with tempfile.TemporaryDirectory() as folder:
                run = decode.unpacked(self.archive(folder, "run/streams/cpu0.pt"), folder)
                self.assertEqual((pathlib.Path(run) / "streams/cpu0.pt").read_bytes(), b"data")

    def test_nothing_is_written_outside(self):
        for old in False, True:
            if old:
                self.of_old()
            for name, kind in ("../outside", tarfile.REGTYPE), ("run/link", tarfile.SYMTYPE):
                with tempfile.TemporaryDirectory() as folder:
                    inner = pathlib.Path(folder) / "inner"
                    inner.mkdir()
                    with self.assertRaises((ValueError, tarfile.TarError)):
                        decode.unpacked(self.archive(folder, name, kind), str(inner))
                    self.assertFalse((pathlib.Path(folder) / "outside").exists())


if __name__ == "__main__":
    unittest.main()
