# SPDX-License-Identifier: MIT OR Apache-2.0
"""A run's folder, opened."""

from __future__ import annotations

import html
import json
import os
import warnings
from pathlib import Path
from typing import Any, Optional, Union

from . import _kprism
from ._program import command

PathLike = Union[str, "os.PathLike[str]"]


class KprismWarning(UserWarning):
    """A remark on a run: what could not be decoded, or was lost."""


class Run:
    """A run. Its tables are read when they are asked for; a run that was not decoded yet is decoded then."""

    def __init__(self, path: PathLike) -> None:
        self._run = _kprism.Run(path)
        self._decoded = False

    @property
    def path(self) -> Path:
        """The run's folder."""
        return Path(self._run.path)

    @property
    def manifest(self) -> dict[str, Any]:
        """Facts on the recording: command, kernel, clock, options, losses (see the page on the run folder)."""
        return json.loads(self._run.manifest())

    @property
    def fault(self) -> Optional[str]:
        """Why the run is not whole; `None` if nothing was lost, guessed or not understood. Decodes the run first."""
        self._decode()
        return self._run.fault()

    @property
    def guest(self) -> list[dict[str, Any]]:
        """What the guest does otherwise than a machine, as far as it matters to the run: `what`, `text`, `numbers`, `remedy`. Decodes the run
        first. Raises `KprismError` if its tables cannot be read."""
        self._decode()
        return [dict(zip(("what", "text", "numbers", "remedy"), told)) for told in self._run.guest()]

    @property
    def instruments(self) -> list[str]:
        """The instruments that recorded into it, such as `flow` or `tlb`."""
        return self._run.instruments()

    @property
    def tables(self) -> list[str]:
        """Names of its tables. Decodes the run if that was not done yet."""
        self._decode()
        return self._run.tables()

    def table(self, name: str) -> _kprism.Table:
        """A table, for whatever reads Arrow: `polars.DataFrame(run.table("syscalls"))`. Raises `KprismError` if there is none."""
        self._decode()
        return self._run.table(name)

    __getitem__ = table

    def _decode(self) -> None:
        if self._decoded:
            return
        try:
            self._run.decode()
            self._decoded = True
            fault = self._run.fault()
            if fault is not None:
                warnings.warn(f"{self.path}: not whole: {fault}", KprismWarning, stacklevel=3)
        finally:
            self._tell()

    def _tell(self) -> None:
        for note in self._run.take_notes():
            warnings.warn(note, KprismWarning, stacklevel=4)

    def report(self, *args: str) -> Any:
        """What `kprism report ARGS --json` says of this run: `run.report("cover", "kernel/sched")`."""
        done = command(["report", *args, "--json", "-i", str(self.path)], capture=True)
        return json.loads(done.stdout)

    def html(self) -> str:
        """The HTML report: one page that needs no other file."""
        try:
            return self._run.html()
        finally:
            self._tell()

    def _repr_html_(self) -> str:
        """The report in a notebook; for a run without a page, its manifest's main facts."""
        try:
            page = self.html()
        except _kprism.KprismError as error:
            return f"<p>{html.escape(repr(self))}</p><p>{html.escape(str(error))}</p>"
        # A frame of its own: the page's styles and scripts stay inside, and reach nothing of the notebook.
        return (
            '<iframe sandbox="allow-scripts" style="width:100%;height:720px;border:0" '
            f'srcdoc="{html.escape(page)}"></iframe>'
        )

    def __repr__(self) -> str:
        manifest = self.manifest
        words = " ".join(manifest.get("command") or [])
        return f"<kprism.Run {str(self.path)!r}: {words} ({', '.join(self.instruments)})>"


def open(path: PathLike = "kprism.data") -> Run:
    """Opens the run in this folder. Raises `KprismError` if there is none, or if something in it leads out of it."""
    return Run(path)
