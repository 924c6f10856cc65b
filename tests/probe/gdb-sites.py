# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs in GDB: attaches to the guest, stops a few times at each place, and notes the registers and what GDB itself
# reads as the value of each parameter and local there.
import gdb
import json
import os
import re
import time

sites = json.load(open(os.environ["SITES"]))
STOPS = int(os.environ["STOPS"])
REGISTERS = "rax rbx rcx rdx rsi rdi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15".split()
SCALARS = (
    gdb.TYPE_CODE_INT, gdb.TYPE_CODE_PTR, gdb.TYPE_CODE_ENUM, gdb.TYPE_CODE_BOOL, gdb.TYPE_CODE_CHAR,
)


def execute(command):
    return gdb.execute(command, to_string=True)


def plain(value):
    """A number; None for what is not compared."""
    return int(value) if value.type.strip_typedefs().code in SCALARS else None


def symbols(pc):
    """Parameters and locals by name: of blocks from the innermost on, through inlined functions to the function."""
    found, block = {}, gdb.block_for_pc(pc)
    while block is not None and not block.is_static and not block.is_global:
        for symbol in block:
            if (symbol.is_variable or symbol.is_argument) and symbol.name not in found:
                found[symbol.name] = symbol
        block = block.superblock
    return found


def declared(frame, name):
    """Whether the frame's own function has it: GDB would go on to globals of that name."""
    block = frame.block()
    while block is not None:
        if any(symbol.name == name for symbol in block):
            return True
        block = None if block.function is not None else block.superblock
    return False


def at_entry(pc, name):
    """Whether debug information says no more than what it was at the function's entry. Our probe keeps that at the
    entry; GDB works it out from what the caller put there, by registers of the caller's that it finds wrong here (a
    `_Bool` of 248, a file descriptor of 69,517,440)."""
    frame = gdb.newest_frame()
    while frame is not None:
        if not declared(frame, name):
            # What is inlined here does not know it, but what that is inlined in may.
            frame = frame.older() if frame.type() == gdb.INLINE_FRAME else None
            continue
        frame.select()
        described = execute("info address " + name)
        ranges = r"Range (0x[0-9a-f]+)-(0x[0-9a-f]+): (.*?)(?=\n *(?:Base address .*)?Range |\Z)"
        here = [text for low, high, text in re.findall(ranges, described, re.S) if int(low, 16) <= pc < int(high, 16)]
        return any("entry_value" in text for text in here)
    return False


def recorder():
    """Whether the recorder runs, whose own hits are not recorded. Its threads have names of their own."""
    task = gdb.parse_and_eval("*(struct task_struct **)((unsigned long)&pcpu_hot + (unsigned long)$gs_base)")
    return task["group_leader"]["comm"].string() == "kprism"


def seen(pc, names):
    frame, values = gdb.newest_frame(), {}
    known = symbols(pc)
    for name in names:
        try:
            value = known[name].value(frame)
            if value.is_optimized_out:
                values[name] = {"error": "optimised out"}
            elif at_entry(pc, name):
                values[name] = {"value": plain(value), "entry": True}
            else:
                values[name] = {"value": plain(value)}
        except Exception as error:
            values[name] = {"error": str(error).splitlines()[0] if str(error) else "?"}
    return values


def call(site):
    """The static call that a tracepoint makes, behind its place."""
    function = gdb.block_for_pc(site["address"])
    while function.superblock and not function.superblock.is_static:
        function = function.superblock
    wanted = "<__SCT__tp_func_%s>" % site["event"]
    code = gdb.selected_inferior().architecture().disassemble(function.start, function.end - 1)
    calls = [i["addr"] for i in code if i["asm"].startswith("call") and wanted in i["asm"]]
    return calls[0]


execute("set confirm off")
execute("set pagination off")
execute("set language c")
for site in sites:
    # The tracepoint's own instruction, before the probe's. GDB steps over a breakpoint, which QEMU gets wrong where the
    # guest itself has one: the trap is lost, and the guest goes on behind its first byte.
    site["pc"] = call(site) if site["call"] else site["nop"]
    symbols(site["pc"])
open(os.environ["READY"], "w").close()
while not os.path.exists(os.environ["BEGUN"]):
    time.sleep(0.02)
execute("target remote " + os.environ["SOCKET"])
points, stops = {}, []
for site in sites:
    points[site["pc"]] = (gdb.Breakpoint("*%#x" % site["pc"], type=gdb.BP_HARDWARE_BREAKPOINT), site, [])
left = len(points)
while left:
    try:
        execute("continue")
        pc = int(gdb.parse_and_eval("(unsigned long)$pc"))
    except gdb.error:
        # The guest has ended.
        break
    if pc not in points:
        break
    point, site, rows = points[pc]
    if not site["call"]:
        execute("stepi")
        pc = int(gdb.parse_and_eval("(unsigned long)$pc"))
        if pc != site["address"]:
            # Somebody has switched the tracepoint on, or not yet.
            continue
    if recorder():
        continue
    registers = {name: int(gdb.parse_and_eval("(unsigned long)$" + name)) for name in REGISTERS}
    rows.append({"registers": registers, "values": seen(pc, site["names"])})
    if len(rows) >= STOPS:
        point.delete()
        left -= 1
json.dump([points[site["pc"]][2] for site in sites], open(os.environ["OUT"], "w"))
