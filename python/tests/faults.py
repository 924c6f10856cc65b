# SPDX-License-Identifier: MIT OR Apache-2.0
"""faults.py RUN: what is no run, and what is damaged, is an exception with kprism's own words; and Ctrl-C ends a command."""

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import kprism


def refused(words, call, *args, error=kprism.KprismError):
    """The call raises this error, and its text has these words."""
    try:
        call(*args)
    except error as found:
        for word in words if isinstance(words, list) else [words]:
            assert word in str(found), f"no {word!r} in {found}"
        return found
    raise AssertionError(f"{call} {args} did not raise {error}")


good = Path(sys.argv[1]).resolve()
place = Path(tempfile.mkdtemp())
refused(["not a kprism run", str(place)], kprism.open, place)
refused("nowhere", kprism.open, place / "nowhere")


told = kprism.open(good).guest
assert [(one["what"], one["numbers"]) for one in told] == [("time_is_work", {"ns_per_instruction": 1})], told
assert told[0]["text"] and told[0]["remedy"], told


def copy(name):
    return shutil.copytree(good, place / name)


run = copy("manifest")
(run / "manifest.json").write_text("{ not json")
refused(["manifest.json", "line 1"], kprism.open, run)

run = copy("leaves")
(run / "tables/out.parquet").symlink_to("/etc/passwd")
refused(["leads out"], kprism.open, run)

run = copy("table")
(run / "tables/functions.parquet").write_bytes(b"PAR1 nothing PAR1")
refused(["functions.parquet"], kprism.open(run).table, "functions")

# Tables that cannot be read are not taken for none: lines that depend on them would be missing without a word.
run = copy("unreadable")
opened = kprism.open(run)
assert opened.tables
(run / "tables/functions.parquet").write_bytes(b"PAR1 nothing PAR1")
refused(["functions.parquet"], lambda: opened.guest)

# The footer is whole, and a page is not: whoever reads it hears of it.
run = copy("page")
tasks = (run / "tables/functions.parquet").read_bytes()
(run / "tables/functions.parquet").write_bytes(tasks[:4] + b"\xff" * 64 + tasks[68:])
import polars

try:
    rows = polars.DataFrame(kprism.open(run).table("functions"))
    raise AssertionError(f"a damaged page gave {rows.height} rows")
except AssertionError:
    raise
except BaseException as error:
    assert "functions.parquet" in str(error), error

refused(["no table 'nothing'", "functions"], kprism.open(good).table, "nothing")
found = refused("no-such-subject", kprism.open(good).report, "no-such-subject", error=kprism.CommandError)
assert found.code == 2, found.code
refused(["lake"], kprism.lake, place)
os.environ["KPRISM"] = str(place / "absent")
refused("absent", kprism.command, ["--version"], error=FileNotFoundError)
del os.environ["KPRISM"]
assert kprism.command(["--version"], capture=True).stdout.decode().startswith("kprism ")

# Ctrl-C while a program waits: as in a notebook, only this process gets the signal.
waits = place / "waits"
waits.write_text("#!/bin/sh\ntrap 'exit 130' INT\necho ready >\"$1\"\nwhile :; do sleep 0.05; done\n")
waits.chmod(0o755)
os.environ["KPRISM"] = str(waits)
ready = place / "ready"


# A shell that started this in the background has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt():
    while not ready.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


threading.Thread(target=interrupt).start()
refused("", kprism.command, [str(ready)], error=KeyboardInterrupt)
shutil.rmtree(place)
print("faults: as they should be")
