# SPDX-License-Identifier: MIT OR Apache-2.0
"""tests/papers/run.py over rows of its own: what holds, what does not, and that figures are compared."""

import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "papers"))
import run

PAGE = """## Paper 3: PTAT

| item | what it shows | command | result | state |
|---|---|---|---|---|
| figure 8 | Misses. | `echo 303633` then `echo b` | [x](x.md) | reproduced: 303,633 misses, of 12,345,678 |
| figure 9 | A drawing. | – | – | a drawing: of 1,000 |
"""


class Papers(unittest.TestCase):
    def ran(self, *commands, figures=()):
        with tempfile.TemporaryDirectory() as folder:
            row = run.Row("paper 1, table 1", list(commands), list(figures))
            return run.run(row, pathlib.Path(folder), dict(os.environ), False)

    def test_rows_with_commands_are_read_with_their_figures(self):
        self.assertEqual(run.rows(PAGE), [run.Row("paper 3, figure 8", ["echo 303633", "echo b"], ["303,633", "12,345,678"])])

    def test_a_command_must_succeed_and_print(self):
        self.assertIsNone(self.ran("echo a", "sh scripts/x.sh 2>/dev/null || :"))
        self.assertIn("it ended with 3: why", self.ran("echo why; exit 3"))
        self.assertIn("it printed nothing", self.ran("echo a", ":"))

    def test_figures_must_be_printed_in_either_form(self):
        self.assertIsNone(self.ran("echo 303633 misses", "echo of 12,345,678", figures=["303,633", "12,345,678"]))
        self.assertIsNone(self.ran("echo 305,117 misses", figures=["303,633"]))
        for other in ("1303633 misses", "1,303,633", "303,633,000", "0.303633", "307,117"):
            self.assertIn("303,633", self.ran(f"echo {other}", figures=["303,633"]))

    def test_the_pages_own_rows_are_long_or_not(self):
        rows = run.rows((run.TOP / "docs/papers.md").read_text())
        short = [row for row in rows if not row.has(run.LONG)]
        self.assertGreater(len([row for row in short if not row.has(run.SLOW)]), 10)
        self.assertGreater(len(rows), len(short))
        self.assertTrue(all(row.has(run.LONG) for row in rows if "make bench" in " ".join(row.commands)))


if __name__ == "__main__":
    unittest.main()
