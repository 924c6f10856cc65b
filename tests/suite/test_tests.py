# SPDX-License-Identifier: MIT OR Apache-2.0
"""scripts/tests.py and scripts/outcomes.py, over programs that print what Rust's runner and ours print."""

import os
import pathlib
import stat
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "scripts"))
import outcomes
import tests

BUILTIN = """
running 3 tests
test good ... ok
test a::waits ... FAILED
test late - should panic ... FAILED
test left_out ... ignored, an hour

failures:

---- a::waits stdout ----

thread 'a::waits' (1234) panicked at src/lib.rs:4:5:
after 3 s not yet: the guest is up
note: run with `RUST_BACKTRACE=1`

---- late stdout ----
note: test did not panic as expected

failures:
    a::waits
    late

test result: FAILED. 1 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 12.51s

"""
OURS = """
running 2 tests
thread 'waits' (77) panicked at tests/lab.rs:9:5:
no answer
test passes ... ok
test waits  ... FAILED
test needs  ... ignored (needs root: run the tests as root)

failures:

---- waits ----
no answer

failures:
    waits

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s

"""
ONE = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.00s\n"
NONE = "test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s\n"


class Texts(unittest.TestCase):
    def test_totals_and_names_of_both_runners(self):
        self.assertEqual(outcomes.outcome(BUILTIN), (1, 2, 1, 12.51, ["a::waits", "late"]))
        self.assertEqual(outcomes.outcome(OURS), (1, 1, 1, 0.1, ["waits"]))
        self.assertEqual(outcomes.reasons(BUILTIN + OURS), ["left_out: an hour", "needs: needs root: run the tests as root"])

    def test_without_a_result_there_are_no_totals(self):
        self.assertIsNone(outcomes.outcome(BUILTIN.split("test result")[0]))

    def test_the_text_of_a_failure_is_its_own(self):
        self.assertIn("after 3 s not yet: the guest is up", outcomes.text_of("a::waits", BUILTIN))
        self.assertEqual(outcomes.text_of("late", BUILTIN), ["note: test did not panic as expected"])
        self.assertIn("no answer", outcomes.text_of("waits", OURS))
        self.assertEqual(outcomes.text_of("other", OURS), ["it printed no text of its own"])

    def test_a_long_text_says_how_much_is_left_out(self):
        text = outcomes.text_of("x", "---- x ----\n" + "line\n" * 100)
        self.assertEqual((len(text), text[-1]), (outcomes.LINES + 1, "… 60 more lines, above"))


class Runs(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def program(self, first, again):
        """A program that prints `first` and fails; asked for one name, it does what `again` says of it."""
        cases = ""
        for number, (name, (text, code)) in enumerate(again.items()):
            (self.folder / f"again{number}").write_text(text)
            cases += f'"{name} --exact") cat again{number}; exit {code};;\n'
        (self.folder / "first").write_text(first)
        path = self.folder / "program"
        path.write_text(f'#!/bin/sh\necho "$*" >>asked\ncase "$*" in\n{cases}"") cat first; exit 101;;\n*) exit 3;;\nesac\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return tests.Program("kprism-x", "test", "tests/lab.rs", str(path), str(self.folder))

    def run_it(self, first, again, lenient):
        return tests.run(self.program(first, again), "", lenient)

    def test_what_passes_the_second_time_is_unsteady(self):
        again = {"a::waits": (ONE, 0), "late": (BUILTIN, 101)}
        ended = self.run_it(BUILTIN, again, True)
        self.assertEqual(ended.counts, (1, 1, 1, 1))
        self.assertEqual(ended.lines["unsteady"][0], "kprism-x::lab a::waits")
        self.assertIn("  after 3 s not yet: the guest is up", ended.lines["unsteady"])
        self.assertEqual([line for line in ended.lines["failures"] if line[0] != " "], ["kprism-x::lab late"])
        self.assertEqual((self.folder / "asked").read_text(), "\na::waits --exact\nlate --exact\n")

    def test_without_leniency_it_is_a_failure_that_says_so(self):
        ended = self.run_it(OURS, {"waits": (ONE, 0)}, False)
        self.assertEqual(ended.counts, (1, 1, 1, 0))
        self.assertEqual(ended.lines["failures"][0], "kprism-x::lab waits (it passed when it was run again: unsteady)")
        self.assertEqual(ended.lines["unsteady"][0], "kprism-x::lab waits")

    def test_ignored_or_absent_the_second_time_is_not_passed(self):
        for text, code in (NONE, 0), ("", 0), (ONE, 1):
            self.assertEqual(self.run_it(OURS, {"waits": (text, code)}, True).counts, (1, 1, 1, 0))

    def test_a_broken_program_is_not_tried_again(self):
        many = "failures:\n" + "".join(f"    t{i}\n" for i in range(9))
        ended = self.run_it(f"\n{many}\ntest result: FAILED. 0 passed; 9 failed; 0 ignored; finished in 1.00s\n", {}, True)
        self.assertEqual(ended.counts, (0, 9, 0, 0))
        self.assertIn("not tried again: 9 tests failed", ended.text)
        self.assertEqual((self.folder / "asked").read_text(), "\n")

    def test_a_program_that_dies_fails_though_nothing_failed(self):
        ended = self.run_it("test good ... ok\n", {}, True)
        self.assertEqual(ended.counts, (0, 1, 0, 0))
        self.assertIn("it ended with 101 before its result", ended.text)
        # It failed after all tests passed.
        ended = self.run_it(ONE, {}, True)
        self.assertEqual(ended.counts, (1, 1, 0, 0))

    def test_the_users_file_keeps_what_was_unsteady(self):
        before = os.environ.get("XDG_CACHE_HOME")
        self.addCleanup(lambda: os.environ.pop("XDG_CACHE_HOME") if before is None else os.environ.update(XDG_CACHE_HOME=before))
        os.environ["XDG_CACHE_HOME"] = str(self.folder)
        tests.keep_unsteady(["kprism-x::lab waits", "  no answer"])
        tests.keep_unsteady(["kprism-x::lab late"])
        kept = (self.folder / "kprism/unsteady").read_text().splitlines()
        self.assertEqual(kept[1:3], ["  kprism-x::lab waits", "    no answer"])
        self.assertEqual(len(kept), 5)

    def test_only_what_is_named_is_compiled(self):
        self.assertEqual(tests.targets(["kprism::cli", "kprism-pt::lib"]), ["--test", "cli", "--lib"])
        self.assertEqual(tests.targets(["kprism::cli", "kprism-pt::*"]), [])
        self.assertEqual(tests.targets([]), [])

    def test_what_took_longest_begins_first(self):
        found = [tests.Program(package, kind, source, "", "")
                 for package, kind, source in [("kprism", "test", "tests/a.rs"), ("kprism", "test", "tests/b.rs"), ("p", "lib", "src/lib.rs")]]
        names = lambda seconds: [program.name for program in tests.in_order(found, seconds)]
        self.assertEqual(names({}), ["kprism::a", "kprism::b", "p::lib"])
        self.assertEqual(names({"p::lib": 90.0, "kprism::b": 70.5}), ["p::lib", "kprism::b", "kprism::a"])

    def test_a_damaged_file_of_seconds_is_as_none(self):
        before = os.environ.get("XDG_CACHE_HOME")
        self.addCleanup(lambda: os.environ.pop("XDG_CACHE_HOME") if before is None else os.environ.update(XDG_CACHE_HOME=before))
        os.environ["XDG_CACHE_HOME"] = str(self.folder)
        file = pathlib.Path(tests.cache()) / "test-seconds"
        for text in "{", "[1]", '{"p::lib": "x"}', '{"p::lib": [1]}', "":
            file.write_text(text)
            self.assertEqual(tests.known_seconds(), {})
        file.write_text('{"p::lib": 2}')
        self.assertEqual(tests.known_seconds(), {"p::lib": 2.0})

    def test_names_of_programs(self):
        name = lambda source: tests.Program("p", "test", source, "", "").name
        self.assertEqual([name("tests/cli.rs"), name("tests/probe/main.rs"), name("src/lib.rs")], ["p::cli", "p::probe", "p::lib"])


if __name__ == "__main__":
    unittest.main()
