# SPDX-License-Identifier: MIT OR Apache-2.0
"""scripts/compiled.py: a clone at the same path is compiled as far as it differs, and no further. Cargo is the judge."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "scripts"))
import compiled

MANIFEST = '[package]\nname = "{name}"\nversion = "0.1.0"\nedition = "2021"\n{more}'
SOURCES = {
    "Cargo.toml": '[workspace]\nmembers = ["a", "b"]\nresolver = "2"\n',
    "a/Cargo.toml": MANIFEST.format(name="a", more=""),
    "a/src/lib.rs": "pub fn one() -> u32 { 1 }\n",
    "b/Cargo.toml": MANIFEST.format(name="b", more='[dependencies]\na = { path = "../a" }\n'),
    "b/build.rs": 'fn main() { println!("cargo:rerun-if-changed=words"); }\n',
    "b/src/main.rs": 'fn main() { println!("{} {}", a::one(), env!("CARGO_MANIFEST_DIR")); }\n',
    "b/words/first": "x\n",
}


def git(*arguments, cwd):
    who = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *who, *arguments], cwd=cwd, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Compiled(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.home = pathlib.Path(holder.name).resolve()
        environment = mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(self.home / "cache"), "CARGO_TERM_COLOR": "never"})
        environment.start()
        self.addCleanup(environment.stop)
        os.environ.pop("CARGO_TARGET_DIR", None)
        self.source, self.clone = self.home / "source", self.home / "clone"
        for name, text in SOURCES.items():
            path = self.source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        git("init", cwd=self.source)
        self.commit()

    def commit(self):
        git("add", "-A", cwd=self.source)
        git("commit", "-m", "x", cwd=self.source)

    def checkout(self):
        """A new clone at the same path, as continuous integration makes it."""
        shutil.rmtree(self.clone, ignore_errors=True)
        git("clone", str(self.source), str(self.clone), cwd=self.home)

    def build(self):
        """What cargo compiles, and what the program prints."""
        built = subprocess.run(["cargo", "build", "--offline"], cwd=self.clone, check=True, stdin=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True).stderr
        printed = subprocess.run([self.clone / "target/debug/b"], check=True, stdout=subprocess.PIPE, text=True).stdout
        return {line.split()[1] for line in built.splitlines() if line.split()[:1] == ["Compiling"]}, printed.split()[0]

    def again(self):
        self.checkout()
        taken = compiled.take(self.clone)
        return taken, *self.build()

    def test_what_is_as_it_was_is_not_compiled_again_and_what_changed_is(self):
        self.checkout()
        self.assertIn("no compilation", compiled.take(self.clone))
        self.assertEqual(self.build(), ({"a", "b"}, "1"))
        compiled.keep(self.clone)
        self.assertEqual(compiled.take(self.clone), "a target folder is there already")

        taken, built, printed = self.again()
        self.assertIn("7 of 7 files", taken)
        self.assertEqual((built, printed), (set(), "1"))

        (self.source / "a/src/lib.rs").write_text("pub fn one() -> u32 { 2 }\n")
        self.commit()
        self.assertEqual(self.again()[1:], ({"a", "b"}, "2"))
        # Not kept: back to what was kept, whose bytes are those of the first commit.
        git("revert", "--no-edit", "HEAD", cwd=self.source)
        self.assertEqual(self.again()[1:], (set(), "1"))

        # A build script that watches a folder sees a new file in it.
        (self.source / "b/words/second").write_text("y\n")
        self.commit()
        self.assertEqual(self.again()[1], {"b"})

    def test_the_cache_is_not_changed_by_what_is_compiled_later(self):
        self.checkout()
        self.build()
        compiled.keep(self.clone)
        kept = compiled.place(self.clone) / "target/debug"
        before = {str(path): path.read_bytes() for path in kept.rglob("*") if path.is_file()}
        (self.source / "a/src/lib.rs").write_text("pub fn one() -> u32 { 3 }\n")
        self.commit()
        self.assertEqual(self.again()[2], "3")
        self.assertEqual({str(path): path.read_bytes() for path in kept.rglob("*") if path.is_file()}, before)

    def test_another_path_takes_nothing(self):
        self.checkout()
        self.build()
        compiled.keep(self.clone)
        self.clone = self.home / "elsewhere"
        self.checkout()
        self.assertIn("no compilation", compiled.take(self.clone))


if __name__ == "__main__":
    unittest.main()
