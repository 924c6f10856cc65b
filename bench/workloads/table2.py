# SPDX-License-Identifier: MIT OR Apache-2.0
"""Prints the table of table2.sh from what `kprism impact` and `kprism flow-cost` measured. usage: table2.py OUT LOAD..."""

import json
import sys

out, loads = sys.argv[1], sys.argv[2:]


def read(name):
    with open(f"{out}/{name}", encoding="utf-8") as file:
        return json.load(file)


def sums(side):
    return side["instructions"], side["ns"]


print("| load | instructions | time, ms | system calls | function | function_graph | events | the flow, guest's time | the flow, a processor's time |")
print("|---|---:|---:|---:|---:|---:|---:|---:|---|")
notes, flows = [], []
for load in loads:
    impact = read(f"table2-{load}.json")
    bare = impact["tracers"][0]["total"]["bare"]
    calls = sum(row["bare"]["calls"] for row in impact["tracers"][0]["syscalls"])
    cells = [load, f"{bare['instructions']:,.0f}", f"{bare['ns'] / 1e6:.1f}", f"{calls:,.0f}"]
    each = []
    for name in ("function", "function_graph", "events"):
        tracer = next(one for one in impact["tracers"] if one["name"] == name)
        traced = tracer["total"]["traced"]
        cells.append(f"+{100 * (traced['instructions'] / bare['instructions'] - 1):.1f} %")
        before, after = (tracer["places"]["system_calls"][side]["instructions"] for side in ("bare", "traced"))
        each.append((after - before) / calls)
        notes.append(f"- `{load}`, {name}: {tracer['events']}.")
    # The load's own report of its times, byte for byte the same if it noticed nothing.
    with open(f"{out}/table2-{load}.--no-decode", "rb") as recorded, open(f"{out}/table2-{load}.--unobserved", "rb") as alone:
        first, second = recorded.read(), alone.read()
        same = first == second and first != b""
    if not same or not impact["bare_twice_the_same"]:
        sys.exit(f"{load}: two runs, or the recorded one and the other, differ")
    cells.append("+0 (its output is the same)")
    cells.append("not to be had: needs Intel PT")
    print("| " + " | ".join(cells) + " |")
    flow = read(f"table2-{load}.flow")
    notes.append(f"- `{load}`, added to a system call, mean: function +{each[0]:,.0f}, function_graph +{each[1]:,.0f},"
                 f" events +{each[2]:,.0f} instructions.")
    flows.append((load, calls, bare["instructions"], flow["rows"][0]))

print()
print("| load | bytes of packets | of them time | bits an instruction | without time | MB/s | bytes a system call |")
print("|---|---:|---:|---:|---:|---:|---:|")
for load, calls, instructions, row in flows:
    size, count = row["trace_bytes"], row["instructions"]
    time = sum(row[f"{kind}_bytes"] for kind in ("cyc", "mtc", "tsc", "cbr"))
    print(f"| {load} | {size:,} | {100 * time / size:.0f} % | {8 * size / count:.3f} | {8 * (size - time) / count:.3f}"
          f" | {row['mb_per_s']:.0f} | {size / calls:,.0f} |")
print()
print("\n".join(notes))
