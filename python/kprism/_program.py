# SPDX-License-Identifier: MIT OR Apache-2.0
"""The program `kprism`: the one in this package, or what KPRISM names, or that of PATH."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Optional, Sequence

from ._kprism import KprismError

if TYPE_CHECKING:
    from ._run import PathLike, Run

DEFAULT_RUN = "kprism.data"


class CommandError(KprismError):
    """A command that failed. Its text is the program's own message."""

    def __init__(self, message: str, args: Sequence[str], code: int) -> None:
        super().__init__(message)
        #: The arguments after `kprism`.
        self.command = list(args)
        #: Its exit code; -N if signal N ended it.
        self.code = code


def program() -> str:
    """Path of the program `kprism`. Raises `KprismError` if there is none."""
    named = os.environ.get("KPRISM")
    if named:
        return named
    bundled = Path(__file__).parent / "bin" / "kprism"
    if bundled.is_file():
        if not os.access(bundled, os.X_OK):
            # Unpacked as a plain archive, as Spark does, the file has lost its mode.
            bundled.chmod(0o755)
        return str(bundled)
    own = Path(sys.argv[0]).resolve()
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        found = shutil.which("kprism", path=folder)
        # The console script of this package would only come back here.
        if found and Path(found).resolve() != own and not _is_script(found):
            return found
    raise KprismError("no program kprism: this package was built without it, and there is none in PATH; KPRISM names one")


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def command(
    args: Sequence[str], *, capture: bool = False, accept: Sequence[int] = (0,), input: Optional[bytes] = None
) -> subprocess.CompletedProcess[bytes]:
    """Runs `kprism ARGS`, and returns what it printed if `capture`; else it prints where this process does.

    Raises `CommandError` with the program's message if it ends with a code that is not in `accept`. Ctrl-C lets the program end what it
    began, such as a recording, and raises `KeyboardInterrupt` then."""
    process = subprocess.Popen(
        [program(), *args],
        stdin=subprocess.PIPE if input is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE if capture else None,
        stderr=subprocess.PIPE,
    )
    interrupted = False
    while True:
        try:
            out, err = process.communicate(input)
            break
        except KeyboardInterrupt:
            # A terminal sends it to both; a notebook to this process alone. The program takes two as one request to hurry.
            if not interrupted:
                process.send_signal(signal.SIGINT)
            else:
                process.kill()
            interrupted, input = True, None
    if interrupted:
        raise KeyboardInterrupt
    said = err.decode(errors="replace")
    if process.returncode not in accept:
        raise CommandError(_message(said, args, process.returncode), args, process.returncode)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _message(said: str, args: Sequence[str], code: int) -> str:
    lines = said.strip().splitlines()
    own = [line[len("kprism: ") :] for line in lines if line.startswith("kprism: ")]
    if own:
        return "\n".join(own)
    return said.strip() or f"kprism {' '.join(args)} ended with {code}"


def _recorded(args: list[str], output: PathLike, accept: Sequence[int]) -> Run:
    from ._run import Run

    command(args, capture=True, accept=accept)
    return Run(output)


def lab_run(
    argv: Sequence[str], *, output: PathLike = DEFAULT_RUN, options: Sequence[str] = (), check: bool = True
) -> Run:
    """Runs a command in a guest and records its kernel: `kprism lab run -o OUTPUT OPTIONS -- ARGV`.

    Output of the command is in the run's folder (`stdout`, `stderr`). The program ends with the command's own code: with `check`, one that
    is not 0 raises `CommandError`; without, the run is returned whatever the command did."""
    args = ["lab", "run", "-o", os.fspath(output), *options, "--", *argv]
    return _recorded(args, output, (0,) if check else [code for code in range(256) if code not in (2, 124, 125, 130)])


def record(
    what: str,
    argv: Sequence[str],
    *,
    output: PathLike = DEFAULT_RUN,
    options: Sequence[str] = (),
    check: bool = True,
) -> Run:
    """Records a command with an instrument: `kprism record WHAT -o OUTPUT OPTIONS -- ARGV`, such as
    `record("tlb", ["ls"], options=["-g", "zen4"])`."""
    args = ["record", what, "-o", os.fspath(output), *options, "--", *argv]
    return _recorded(args, output, (0,) if check else [code for code in range(256) if code not in (2, 124, 125, 130)])


def main() -> NoReturn:
    """The console script: becomes the program."""
    try:
        path = program()
        os.execv(path, ["kprism", *sys.argv[1:]])
    except (KprismError, OSError) as error:
        print(f"kprism: {error}", file=sys.stderr)
        sys.exit(2)


