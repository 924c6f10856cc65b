# SPDX-License-Identifier: MIT OR Apache-2.0
"""scripts/changed.py: over a small workspace, and that its tables name what there is in this one."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "scripts"))
import changed
from changed import Package
from tests import Program

PACKAGES = {
    "base": Package("crates/base", set(), {"judge"}),
    "judge": Package("crates/judge", set(), set()),
    "view": Package("crates/view", {"base"}, set()),
    "inner": Package("crates/view/inner", set(), set()),
    "kprism": Package("crates/kprism", {"view"}, set()),
    "kprism-agent": Package("crates/agent", set(), set()),
}


def choice(*paths, top="/nowhere"):
    return changed.choose("main", paths, PACKAGES, top)


class Choices(unittest.TestCase):
    def test_what_depends_on_a_change_is_chosen(self):
        self.assertEqual(choice("crates/base/src/lib.rs").packages, {"base", "view", "kprism"})
        self.assertEqual(choice("crates/kprism/tests/cli.rs").packages, {"kprism"})
        self.assertEqual(choice("crates/view/inner/Cargo.toml").packages, {"inner"})

    def test_a_dependence_of_tests_is_not_handed_on(self):
        self.assertEqual(choice("crates/judge/src/lib.rs").packages, {"judge", "base"})

    def test_programs_that_tests_start_count(self):
        self.assertEqual(choice("crates/agent/src/main.rs").packages, {"kprism-agent", "kprism"})

    def test_the_workspaces_own_files_choose_everything(self):
        for path in changed.ALL:
            self.assertEqual(choice(path).everything, path)
            self.assertTrue(choice(path).has(Program("inner", "lib", "src/lib.rs", "", "")))

    def test_readers_of_a_page_are_chosen_and_walks_always(self):
        with tempfile.TemporaryDirectory() as top:
            tests = pathlib.Path(top) / "crates/view/tests"
            (tests / "page").mkdir(parents=True)
            (tests / "other.rs").write_text("nothing")
            (tests / "page.rs").write_text("mod page;")
            (tests / "page/inner.rs").write_text('read("docs/some.md")')
            self.assertEqual(choice("docs/some.md", top=top).programs, {"view::page"})
            (tests / "shared").mkdir()
            (tests / "shared/mod.rs").write_text('read("scripts/x.sh")')
            self.assertEqual(choice("scripts/x.sh", top=top).packages, {"view"})
        nothing = choice("docs/some.md")
        self.assertFalse(nothing.has(Program("kprism", "test", "tests/tlb.rs", "", "")))
        self.assertTrue(nothing.has(Program("kprism", "test", "tests/options.rs", "", "")))


class Tables(unittest.TestCase):
    """What the tables of changed.py name is there: a name that went would choose nothing, in silence."""

    @classmethod
    def setUpClass(cls):
        cargo = [*os.environ.get("CARGO", "cargo").split(), "metadata", "--no-deps", "--format-version", "1"]
        metadata = subprocess.run(cargo, cwd=changed.TOP, stdout=subprocess.PIPE, check=True).stdout
        cls.packages = changed.workspace(json.loads(metadata), changed.TOP)

    def test_packages_and_programs_are_there(self):
        for name in {*changed.STARTS, *(name for started in changed.STARTS.values() for name in started)}:
            self.assertIn(name, self.packages)
        for walk in changed.WALKS:
            package, program = walk.split("::")
            tests = pathlib.Path(changed.TOP) / self.packages[package].folder / "tests"
            self.assertTrue((tests / f"{program}.rs").is_file() or (tests / program / "main.rs").is_file(), walk)

    def test_names_are_those_of_cargo(self):
        for name, package in self.packages.items():
            self.assertEqual(changed.package_name(os.path.join(changed.TOP, package.folder)), name)

    def test_the_command_line_depends_on_the_packets(self):
        self.assertIn("kprism", changed.dependent({"kprism-pt"}, self.packages))
        self.assertNotIn("kprism-pt", changed.dependent({"kprism-export"}, self.packages))


if __name__ == "__main__":
    unittest.main()
