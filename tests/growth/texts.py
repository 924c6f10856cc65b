# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes texts of any size: ftrace's function_graph, a kernel's log of a boot, and probes of a program.

In: numbers of calls, sleeps, tasks and so on. Out: a text; probes need a program, which gcc compiles. Formats:
Documentation/trace/ftrace.rst, init/main.c (initcall_debug), docs/probe-files.md.
"""
import os
import subprocess

HEAD = """# tracer: function_graph
#
#     TIME        CPU  TASK/PID         DURATION                  FUNCTION CALLS
#      |          |     |    |           |   |                     |   |   |   |
"""
OPEN = " " * 14
RULE = " " + "-" * 42


class Text:
    """Lines of a text, and the time so far in microseconds."""

    def __init__(self, head=""):
        self.lines = [head] if head else []
        self.time = 1_000_000

    def graph(self, task, duration, text, depth):
        self.time += 1
        self.lines.append(f"{self.time / 1e6:12.6f} |   0)    {task}    | {duration} |  {'  ' * depth}{text}\n")

    def call(self, task, name):
        self.graph(task, "  1.000 us    ", f"{name}();", 0)

    def switch(self, before, after):
        self.lines.append(f"{RULE}\n 0)    {before}    =>    {after}\n{RULE}\n\n")

    def write(self, path):
        with open(path, "w") as file:
            file.writelines(self.lines)


def calls(folder, count):
    """Calls of one function."""
    text = Text(HEAD)
    for _ in range(count):
        text.call("one-100", "vfs_read")
    return text


def functions(folder, count):
    """Functions, each called once."""
    text = Text(HEAD)
    for i in range(count):
        text.call("one-100", f"function_{i}")
    return text


def tasks(folder, count):
    """Tasks that run one after the other, each with a call."""
    text = Text(HEAD)
    for i in range(count):
        text.call(f"one-{100 + i}", "vfs_read")
        text.switch(f"one-{100 + i}", f"one-{101 + i}")
    return text


def sleeps(folder, count):
    """Sleeps within one call, of two tasks that take turns."""
    text = Text(HEAD)
    both = ["one-100", "two-101"]
    for task, other in zip(both, reversed(both)):
        text.graph(task, OPEN, "vfs_read() {", 0)
        text.graph(task, OPEN, "schedule() {", 1)
        text.switch(task, other)
    for i in range(count):
        task, other = both[i % 2], both[1 - i % 2]
        text.graph(task, "+ 20.000 us   ", "} /* schedule */", 1)
        text.graph(task, OPEN, "schedule() {", 1)
        text.switch(task, other)
    return text


def open_calls(folder, count):
    """Tasks with 40 open calls each, and losses: ten a task."""
    text = Text(HEAD)
    for i in range(count):
        for depth in range(40):
            text.graph(f"one-{100 + i}", OPEN, f"function_{depth}() {{", depth)
        text.switch(f"one-{100 + i}", f"one-{101 + i}")
    text.lines += ["CPU:0 [LOST 1 EVENTS]\n"] * (10 * count)
    return text


def initcalls(folder, count):
    """Initial calls of a boot."""
    text = Text("[    0.000000] Linux version 6.12.0 (x)\n")
    for i in range(count):
        text.time += 20
        text.lines.append(f"[{text.time / 1e6:12.6f}] calling  init_{i}+0x0/0x10 @ 1\n")
        text.lines.append(f"[{(text.time + 10) / 1e6:12.6f}] initcall init_{i}+0x0/0x10 returned 0 after 10 usecs\n")
    return text


#: Functions of the program in which probes are.
FUNCTIONS = 400


def probes(folder, count):
    """Probes with a condition, each in a function of its own, of one program."""
    os.makedirs(f"{folder}/root", exist_ok=True)
    source = f"{folder}/root/program.c"
    with open(source, "w") as file:
        file.writelines(f"int function_{i}(int a, int b) {{ return a + b; }}\n" for i in range(FUNCTIONS))
        file.write("int main(void) { return 0; }\n")
    subprocess.run(["gcc", "-g", "-O1", "-o", f"{folder}/root/program", source], check=True)
    text = Text()
    text.lines += [f"function_{i} if a > b\n" for i in range(count)]
    return text


#: Families and what is run on them.
DURATIONS = [calls, functions, tasks, sleeps, open_calls]
BOOTS = [initcalls]
PROBES = [probes]
