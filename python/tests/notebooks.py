# SPDX-License-Identifier: MIT OR Apache-2.0
"""notebooks.py NOTEBOOK...: runs each, cell by cell, with runs of its own below $RUNS. A cell that raises is a failure, and so is a notebook without
a figure."""

import os
import sys
import tempfile

import nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

# Longest time that a cell may take, and the start of the program that runs them, seconds.
TIMEOUT = 240

for path in sys.argv[1:]:
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    assert not any(cell.get("outputs") for cell in book.cells), f"{path}: is kept without outputs"
    with tempfile.TemporaryDirectory() as sockets:
        # A TCP port that was free when it was chosen may be another program's when it is opened.
        manager = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=os.path.join(sockets, "kernel"))
        NotebookClient(book, km=manager, timeout=TIMEOUT, startup_timeout=TIMEOUT).execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    figures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert figures, f"{path}: no figure"
    texts = [output["data"]["text/plain"] for output in outputs if "image/png" not in output.get("data", {}) and "data" in output]
    print(f"{path}: {len(figures)} figures; {texts[-1].splitlines()[0]}")
