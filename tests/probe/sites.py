# SPDX-License-Identifier: MIT OR Apache-2.0
"""Locals of the functions around static tracepoints of the stock kernel, all those that a small workload meets. The
judge is GDB, attached to the same guest by QEMU: it stops at the same instruction before the probe is hit, and reads
the same names by itself. A stop and a record are the same if all 16 registers are.

perf is no judge here: of DWARF's expressions it takes the first operation and leaves out the rest (`group_dead` of
`do_exit`, which is `r13 & 255`, becomes the memory that r13 points to).

Usage: sites.py [TRACEPOINTS]: at least so many must be judged, and not one value may differ."""
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import time

from common import HERE, KPRISM, compiled, counts, ended, records, vmlinux, write

WANTED = int(sys.argv[1]) if len(sys.argv) > 1 else 50
# Stops of GDB at each place, and rounds of the workload.
STOPS, ROUNDS = 3, 1
# Places of one tracepoint, in different functions.
PLACES = 1
# Locals of one place, so that programs stay small: numbers, pointers and the like.
NAMES = 12
# The registers of `__schedule` are not in a record: there all values must agree for a stop to have its record.
# One CPU at a time, as code that one CPU patches while another runs it is more than QEMU promises.
GUEST = ["--mem", "2G", "--module", "loop", "--with-module", "dummy"]

# Ends of places that take one, as `kprism list events` has them.
KPROBE = ("(kprobe)", "(kprobe, out of line)")
SCALARS = ("int", "bool", "char", "enum", "pointer")

image = vmlinux()
folder = tempfile.TemporaryDirectory()
path = lambda name: os.path.join(folder.name, name)
os.mkdir(path("share"))
subprocess.run(["cc", "-O1", "-static", "-o", path("share/work"), os.path.join(HERE, "work.c")], check=True)
subprocess.run(["cp", KPRISM, path("share/kprism")], check=True)


def guest(script, name):
    open(path("share/" + name), "w").write(script)
    command = [KPRISM, "lab", "run", "--unobserved", *GUEST, "--share", path("share") + ":/g", "-o", path("tried")]
    return subprocess.Popen([*command, "--", "sh", "/g/" + name], stdout=subprocess.PIPE, text=True)


# Which tracepoints does the workload meet? ftrace tells.
MEET = r"""
T=/sys/kernel/tracing; echo 60000 > $T/buffer_size_kb; echo 1 > $T/events/enable; /g/work 1 >&2
echo 0 > $T/events/enable; sed -n 's/^[^#].\{20,50\}: \([a-z_0-9]*\): .*/\1/p' $T/trace | sort | uniq
"""
met = set(guest(MEET, "meet").communicate()[0].split())
listed = subprocess.run([KPRISM, "list", "events", "*:*", "-k", image, "--json"], stdout=subprocess.PIPE, check=True)
# By whether a kprobe can be there: then there are registers to collect.
wanted = {True: [], False: []}
for event in json.loads(listed.stdout):
    system, name = event["name"].split(":")
    if name not in met or not event["places"]:
        continue
    functions = {re.split(r"[+.]", place)[0]: place.endswith(KPROBE) for place in event["places"]}
    for function, kprobe in list(functions.items())[:PLACES]:
        wanted[kprobe].append(event["name"] + "@" + function)
print("%d tracepoints are met" % len(met), flush=True)

plans, refused = [], {}


def compile_all(specs, collect):
    made, said = compiled(image, specs, collect)
    if made is not None:
        plans.extend(made)
    elif len(specs) > 1:
        for half in (specs[: len(specs) // 2], specs[len(specs) // 2 :]):
            compile_all(half, collect)
    else:
        refused[specs[0]] = said.strip().splitlines()[-1]


for kprobe, specs in wanted.items():
    for at in range(0, len(specs), 64):
        compile_all(specs[at : at + 64], ["$args", "$locals"] + ["$regs"] * kprobe)
print("%d places, %d refused" % (len(plans), len(refused)), flush=True)

sites, place_of = [], []
seen_addresses = set()
for plan in list(plans):
    raw = "Raw" in plan["site"]
    address = plan["probe"]["address"] if raw else plan["site"]["Kernel"]["address"]
    if address in seen_addresses:
        plans.remove(plan)
        continue
    seen_addresses.add(address)
    spec = plan["probe"]["place"]
    probe = plan["probe"]
    scalar = [n for n, i in enumerate(probe["items"]) if i["shape"] and i["shape"]["kind"] in SCALARS]
    names = [probe["items"][n]["name"] for n in scalar[:NAMES]]
    kept = [n for n, i in enumerate(probe["items"]) if i["name"] in names or i["name"] == "$regs"]
    plan["slots"] = [slot for slot in plan["slots"] if slot["number"] in kept]
    for n, item in enumerate(probe["items"]):
        if n not in kept and item["shape"]:
            item.update(shape=None, missing="not wanted")
    site = {"address": address, "nop": plan["probe"]["address"], "event": re.split("[:@]", spec)[1]}
    sites.append({**site, "call": raw, "names": names})
    place_of.append(spec)
    plan["probe"]["place"] = "s%d" % (len(sites) - 1)

# Does the kernel take all these kprobes? ftrace's do not end where one is refused.
TAKE = r"""
cd /sys/kernel/tracing; while read -r name place; do echo "p:kp/$name $place" >> kprobe_events || echo $name; done < /g/places 2>/dev/null
"""
asked = [n for n, site in enumerate(sites) if not site["call"]]
open(path("share/places"), "w").write("".join("s%d %#x\n" % (n, sites[n]["address"]) for n in asked))
not_taken = {int(name[1:]) for name in guest(TAKE, "take").communicate()[0].split()}
for n in not_taken:
    refused[place_of[n]] = "the kernel takes no kprobe at %#x" % sites[n]["address"]
taken = [n for n in range(len(plans)) if n not in not_taken]
plans, sites, place_of = ([l[n] for n in taken] for l in (plans, sites, place_of))
for n, plan in enumerate(plans):
    plan["probe"]["place"] = "s%d" % n
print("%d places are taken" % len(plans), flush=True)
write(plans, path("share/probes"))
json.dump(sites, open(path("sites"), "w"))

environment = dict(os.environ, SITES=path("sites"), STOPS=str(STOPS), SOCKET=path("gdb"), READY=path("ready"),
                   BEGUN=path("begun"), OUT=path("gdb.json"))
judge = os.path.join(HERE, "gdb-sites.py")
gdb = subprocess.Popen(["gdb", "-nx", "-batch", image, "-x", judge], env=environment, stdout=subprocess.DEVNULL)
while not os.path.exists(path("ready")) and gdb.poll() is None:
    time.sleep(0.1)
recording = subprocess.Popen(
    [KPRISM, "record", "probe", "-q", "--guest", *GUEST, "--gdb", path("gdb"), "--program", path("share/probes"),
     "--all", "--buffer-size", "64M", "--share", path("share") + ":/g", "-o", path("run"), "--", "/g/work", str(ROUNDS)],
    stdout=subprocess.PIPE, stderr=open(path("notes"), "w"), text=True)
for line in recording.stdout:
    if line.strip() == "begun":
        open(path("begun"), "w").close()
if recording.wait() != 0:
    gdb.terminate()
    ended(False, open(path("notes")).read()[-2000:] + "no recording")
gdb.wait()
if not os.path.exists(path("gdb.json")):
    ended(False, "GDB did not stop in the guest")
stops = json.load(open(path("gdb.json")))
description = counts(path("run"))
by_place = collections.defaultdict(list)
for record in records(path("run")):
    by_place[int(record["probe"][1:])].append(record)
print("%d records" % sum(map(len, by_place.values())), flush=True)
if os.environ.get("KEEP"):
    json.dump([description, stops, by_place, place_of, sites], open(os.environ["KEEP"], "w"))


def number(value):
    """Characters are shown as text, addresses in hexadecimal, constants of enumerations by name or number."""
    if isinstance(value, str):
        if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", value):
            return int(value, 0)
        if value.startswith("\\x"):
            return int(value[2:], 16)
        return ord(value) if len(value) == 1 else None
    return int(value)


def same(shape, ours, theirs):
    """True, false, or none if they cannot be compared."""
    kind = shape["kind"]
    if theirs is None:
        return None
    if kind == "enum":
        names = dict(shape["names"])
        ours = names.get(ours, ours)
    bits = 8 * shape.get("size", 8 if kind == "pointer" else 1)
    mine = 0 if kind == "char" and ours == "" else number(ours)
    return None if mine is None else (mine - theirs) % 2**bits == 0


def judged(site, shapes, record, stop):
    """For each name: same, differs, neither, ours (GDB has none), GDB's (we have none), not compared."""
    found = {}
    for name in sites[site]["names"]:
        theirs = stop["values"].get(name, {"error": "?"})
        has = name in record["values"]
        if "error" in theirs:
            found[name] = "ours" if has else "neither"
        elif not has:
            found[name] = "GDB's"
        elif "entry" in theirs:
            found[name] = "of the entry"
        else:
            verdict = same(shapes[name], record["values"][name], theirs["value"])
            found[name] = {True: "same", False: "differs", None: "not compared"}[verdict]
    return found


Row = collections.namedtuple("Row", "spec how names stops unmatched")
rows, silent, wrong = [], [], []
why = collections.Counter()
total = collections.Counter()
for site, spec in enumerate(place_of):
    items = description["probes"][site]["items"]
    shapes = {i["name"]: i["shape"] for i in items}
    how = "saved registers" if sites[site]["call"] else "kprobe"
    verdicts, unmatched = collections.defaultdict(collections.Counter), 0
    free = list(by_place[site])
    for stop in stops[site]:
        if sites[site]["call"]:
            found = [r for r in free if "differs" not in judged(site, shapes, r, stop).values()]
        else:
            registers = stop["registers"]
            found = [r for r in free if all(int(r["values"]["$regs"][n], 16) == v for n, v in registers.items())]
        if not found:
            unmatched += 1
            continue
        # The same registers may be met twice.
        found.sort(key=lambda r: list(judged(site, shapes, r, stop).values()).count("differs"))
        free.remove(found[0])
        for name, verdict in judged(site, shapes, found[0], stop).items():
            verdicts[name][verdict] += 1
            total[verdict] += 1
            if verdict == "differs":
                wrong.append("%s: %s = %s, GDB %s" % (spec, name, found[0]["values"].get(name), stop["values"][name]))
            if verdict == "GDB's":
                missing = {i["name"]: i.get("missing") for i in items}[name]
                why[missing or "could not be read"] += 1
    # Hits that the recorder could not compute are counted, as where the kernel ran no program at the function's entry. Some stop has its record.
    counted = sum(description["counts"][site]["condition_errors"].values())
    if sites[site]["call"] and unmatched and counted:
        print("%s: %d of %d stops have no record, %d hits are counted as not computed" % (spec, unmatched, len(stops[site]), counted))
    if sites[site]["call"] and stops[site] and (unmatched > counted or unmatched == len(stops[site])):
        wrong.append("%s: no record for %d of %d stops" % (spec, unmatched, len(stops[site])))
    matched = len(stops[site]) - unmatched
    agreed = [n for n, v in verdicts.items() if set(v) == {"same"}]
    others = {n: max(v, key=v.get) for n, v in verdicts.items() if n not in agreed}
    if agreed:
        rows.append((spec, how, matched, agreed, others))
    else:
        silent.append((spec, len(by_place[site]), len(stops[site]), unmatched, dict(others)))
for spec, how, matched, agreed, others in sorted(rows, key=lambda row: row[:2]):
    rest = "".join("; %s: %s" % pair for pair in sorted(others.items()))
    print("%-60s %-15s %d stops  %s%s" % (spec, how, matched, ", ".join(agreed), rest))
for spec, hits, met_by_gdb, unmatched, others in silent:
    print("not judged: %s: %d records, %d stops of GDB, %d of them without a record, %s" % (spec, hits, met_by_gdb, unmatched, others))
for spec, text in refused.items():
    print("refused: %s: %s" % (spec, text))
for text, n in why.most_common():
    print("only GDB had a value, %d times: %s" % (n, text))
for row in wrong[:60]:
    print("differs: " + row)
names = {row[0].split("@")[0] for row in rows}
systems = {name.split(":")[0] for name in names}
text = "%d tracepoints of %d subsystems at %d places: %d values of %d locals are GDB's, %d differ; %d only one of both has, %d neither; %d are of the entry, where GDB is no judge"
locals_judged = sum(len(row[3]) for row in rows)
ended(len(names) >= WANTED and not wrong, text % (len(names), len(systems), len(rows), total["same"], locals_judged,
      len(wrong), total["ours"] + total["GDB's"], total["neither"], total["of the entry"]))
