# SPDX-License-Identifier: MIT OR Apache-2.0
"""scripts/suite.sh: totals, closing lines and the file of the last run; and ./x on a machine with make and without."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

TOP = pathlib.Path(__file__).parents[2]
#: Stands for scripts/tests.py: writes what it is told to the folder after --results.
SUITE = """counted() { shift; printf '%s\\n' "$TOTALS" >"$1/totals"; echo 'lab::x waits' >>"$1/unsteady"; echo 'lab::x fails' >>"$1/failures"; return "$CODE"; }
died() { echo 'error: it does not compile'; return 1; }
"""


class Closing(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def run_it(self, script, **variables):
        environment = os.environ | {"XDG_CACHE_HOME": str(self.folder)} | variables
        return subprocess.run(["sh", "-uc", f". scripts/suite.sh\n{SUITE}{script}"], cwd=TOP, env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def test_parts_are_counted_and_what_failed_is_said_at_the_end(self):
        ran = self.run_it("check good true; check bad sh -c 'echo its text; exit 3'; skip arm 'no compiler'; closing")
        self.assertEqual(ran.returncode, 1)
        self.assertEqual(ran.stdout.splitlines()[-1], "test result: FAILED. 1 passed; 1 failed; 1 ignored")
        self.assertIn("skipped:\n  arm: no compiler\n", ran.stdout)
        self.assertIn("failed:\n  bad\n  its text\n", ran.stdout)

    def test_the_suites_totals_are_added_and_unsteady_is_apart(self):
        ran = self.run_it("check good true; suite tests counted; closing", TOTALS="10 0 3 2", CODE="0")
        self.assertEqual(ran.returncode, 0)
        self.assertEqual(ran.stdout.splitlines()[-1], "test result: ok. 11 passed; 0 failed; 3 ignored; 2 unsteady")
        self.assertIn(f"kept in {self.folder}/kprism/unsteady):\n  lab::x waits\n", ran.stdout)
        ran = self.run_it("suite tests counted; closing", TOTALS="10 1 3 0", CODE="1")
        self.assertEqual(ran.stdout.splitlines()[-1], "test result: FAILED. 10 passed; 1 failed; 3 ignored")

    def test_a_suite_that_dies_or_lies_fails(self):
        ran = self.run_it("suite tests died; closing")
        self.assertEqual(ran.stdout.splitlines()[-1], "test result: FAILED. 0 passed; 1 failed; 0 ignored")
        self.assertIn("failed:\n  tests\n  error: it does not compile", ran.stdout)
        ran = self.run_it("suite tests counted; closing", TOTALS="10 0 0 0", CODE="1")
        self.assertEqual(ran.stdout.splitlines()[-1], "test result: FAILED. 10 passed; 1 failed; 0 ignored")

    def test_the_last_run_is_kept_with_its_commit(self):
        self.run_it('suite tests counted; closing "$cache/last-test"', TOTALS="10 1 3 2", CODE="1")
        kept = (self.folder / "kprism/last-test").read_text()
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
        self.assertIn(f"commit    {head or 'not known (no git checkout)'}\n", kept)
        self.assertRegex(kept, r"tree      (clean|dirty|not known)\n")
        self.assertRegex(kept, r"date      20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ\n")
        self.assertIn("totals    test result: FAILED. 10 passed; 1 failed; 3 ignored; 2 unsteady\n", kept)
        self.assertIn("\nfailures:\n  lab::x fails\n", kept)
        self.assertIn("\nunsteady:\n  lab::x waits\n", kept)
        self.assertRegex(kept, r"\nwhat took longest:\n +\d+ s  tests, and their compilation\n")
        self.run_it('suite tests counted; closing "$cache/last-test"', TOTALS="11 0 3 0", CODE="0")
        runs = (self.folder / "kprism/runs").read_text().splitlines()
        self.assertEqual(len(runs), 2)
        self.assertRegex(runs[0], r"^20\S+Z  commit .*tree \w.* \d+ s  test result: FAILED. 10 passed; 1 failed; 3 ignored; 2 unsteady$")
        self.assertTrue(runs[1].endswith("test result: ok. 11 passed; 0 failed; 3 ignored"), runs[1])


class X(unittest.TestCase):
    def test_alone_it_lists_the_targets_of_the_makefile(self):
        said = subprocess.run(["sh", "./x"], cwd=TOP, stdout=subprocess.PIPE, text=True, check=True).stdout
        listed = re.findall(r"^  ([a-z0-9-]+) ", said, re.M)
        makefile = (TOP / "Makefile").read_text()
        # `make` alone and `make pictures` have other forms.
        self.assertGreater(len(listed), 20)
        for target in listed:
            self.assertRegex(makefile, rf"(?m)^{target}[a-z -]*:", target)
        for target in ("demo", "test", "check", "test-changed", "test-papers"):
            self.assertIn(target, listed)

    def test_it_goes_on_with_make(self):
        self.assertTrue(os.access(TOP / "x", os.X_OK))
        with tempfile.TemporaryDirectory() as folder:
            make = pathlib.Path(folder) / "make"
            make.write_text('#!/bin/sh\necho "made: $*"\n')
            make.chmod(0o755)
            said = subprocess.run([TOP / "x", "test-changed", "SINCE=x"], cwd="/", env={"PATH": f"{folder}:/usr/bin:/bin"}, stdout=subprocess.PIPE,
                                  text=True, check=True).stdout
            self.assertEqual(said, "made: test-changed SINCE=x\n")

    def test_without_make_it_is_installed_first(self):
        with tempfile.TemporaryDirectory() as folder:
            top, programs = pathlib.Path(folder) / "top", pathlib.Path(folder) / "bin"
            (top / "scripts").mkdir(parents=True)
            programs.mkdir()
            for name in ("sh", "dirname", "chmod"):
                (programs / name).symlink_to(f"/bin/{name}" if os.path.exists(f"/bin/{name}") else f"/usr/bin/{name}")
            (top / "x").write_text((TOP / "x").read_text())
            # It makes make.
            (top / "scripts/setup.sh").write_text(f'echo "setup: $*"; echo \'echo "made: $*"\' >{programs}/make; chmod 755 {programs}/make\n')
            said = subprocess.run(["/bin/sh", top / "x", "demo"], env={"PATH": str(programs)}, stdout=subprocess.PIPE, text=True).stdout
            self.assertEqual(said, "setup: --yes demo\nmade: demo\n")


if __name__ == "__main__":
    unittest.main()
