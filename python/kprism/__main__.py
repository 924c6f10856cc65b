# SPDX-License-Identifier: MIT OR Apache-2.0
"""`python -m kprism` is the program."""

from ._program import main

main()
