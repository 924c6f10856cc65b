# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs in C, C++ and Rust, built in many ways: places, counts and values are those of stock GDB.

Usage: matrix.py [--small | --slice] [--list] [--only NAME]... [--results FILE] [--seconds N]. KPRISM names the program
under test. Needs root and gdb; builds whose compiler is not installed are listed as skipped. Every value that kprism gives
has to be GDB's; what it refuses is listed by reason.

--only takes the builds whose name begins so (`--only gcc-O1`, spaces do not matter). With --results each finished build is
kept in a file, and a later run goes on behind it, unless the program under test or the sources have changed since. After
--seconds no further build is begun, and the run ends with code 3: it was not all."""
import argparse
import collections
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
KPRISM = os.environ.get("KPRISM", "kprism")

C_PLACES = ["work", "leaf", "fields", "shapes.c:LINE_WORK", "shapes.c:LINE_INLINE", "inlined", "floats", "many"]
CPP_PLACES = ["byref", "byval", "ns::Der::method", "ns::deep::f", "most", "ns::Box<int>::get", "anon",
              "Priv::getx", "cfun", "ns::Der::stat", "shapes.cpp:LINE_BYREF", "shapes.cpp:LINE_METHOD"]
RUST_PLACES = ["shapes::shape::Point::sum", "shapes::shape::area", "shapes::texts", "shapes::chars",
               "shapes.rs:LINE_AREA", "shapes.rs:LINE_TEXTS", "shapes.rs:LINE_SUM"]


# What `cargo test` runs.
SLICE = ["gcc -O0 -gdwarf-4", "gcc -O2 -gdwarf-5", "g++ -O2 -gdwarf-5", "rustc -C opt-level=0"]


# Calls that the source makes. GDB 13 takes the lowest address of an inlined copy for where it begins: of a loop's
# body that may be another instruction than the first to run, which DW_AT_entry_pc names.
TRUE_HITS = {("c", "inlined"): 18}
# What the source passes at those calls. Where GDB has missed some, its values are of other calls, and these judge.
SMALL = [(1, 2), (1, 2), (1, -1), (2, 4), (2, 4), (2, 4)]
TRUE_VALUES = {("c", "inlined"): {
    "v": [0, 1, 1, 0, 1, 2], "v * 3 - 1": [-1, 2, 2, -1, 2, 5], "v > 2": [0] * 6,
    "s->x": [x for x, _ in SMALL], "s->y": [y for _, y in SMALL], "*s": [{"x": x, "y": y} for x, y in SMALL],
}}


def found_as(name):
    """A compiler's command; clang is also there if only clang-14 is. None if it is not installed."""
    if shutil.which(name):
        return name
    numbered = glob.glob("/usr/bin/%s-[0-9]*" % glob.escape(name))
    numbered = [(int(n), path) for path in numbered for n in [path.rpartition("-")[2]] if n.isdigit()]
    return max(numbered)[1] if numbered else None


def builds(small):
    """(language, name, compilers, commands); {src} and {out} are filled in."""
    found = []
    def add(language, compiler, flags, after=()):
        name = " ".join([compiler, *flags, *[a[0] for a in after]])
        first = [found_as(compiler), "-g", *flags, "{src}", "-o", "{out}", "-w"]
        found.append((language, name, compiler, [first, *[list(a) for a in after]]))
    stripped = (["objcopy", "--only-keep-debug", "{out}", "{out}.dbg"], ["strip", "{out}"],
                ["objcopy", "--add-gnu-debuglink={out}.dbg", "{out}"])
    for level in ["-O0", "-O2"] if small else ["-O0", "-O1", "-O2", "-O3"]:
        for version in ["-gdwarf-4", "-gdwarf-5"]:
            for c, cpp in [("gcc", "g++")] if small else [("gcc", "g++"), ("gcc-11", "g++-11"), ("clang", "clang++")]:
                add("c", c, [level, version])
                if not small or (level == "-O0") == (version == "-gdwarf-4"):
                    add("cpp", cpp, [level, version])
    add("c", "gcc", ["-O2", "-gsplit-dwarf"])
    add("c", "gcc", ["-O2", "-fcf-protection"])
    add("c", "gcc", ["-O2", "-gz"], stripped)
    if not small:
        add("c", "gcc", ["-O0", "-gdwarf-2", "-gstrict-dwarf"])
        add("c", "gcc", ["-O2", "-flto"])
        add("c", "clang", ["-O2", "-gsplit-dwarf"])
        add("c", "gcc", ["-O0", "-gdwarf-4", "-fdebug-types-section"])
        add("c", "gcc", ["-O0", "-no-pie"])
        add("cpp", "g++", ["-O2", "-flto"])
        add("cpp", "g++", ["-O0", "-gdwarf-4", "-fdebug-types-section"])
        add("cpp", "g++", ["-O1", "-gsplit-dwarf"])
        add("cpp", "g++", ["-O2", "-gz"], stripped)
    for level in ["0"] if small else ["0", "1", "2", "3"]:
        found.append(("rs", "rustc -C opt-level=" + level, "rustc",
                      [[found_as("rustc"), "-g", "-C", "opt-level=" + level, "{src}", "-o", "{out}"]]))
    return found


def marked(path):
    """Lines by their marks: `// LINE_X`."""
    lines = {}
    for number, text in enumerate(open(path), 1):
        for mark in re.findall(r"LINE_[A-Z]+", text):
            lines[mark] = str(number)
    return lines


def scope_off(name):
    """A base class without the scopes around it, which are outside of its template's brackets."""
    if not name.startswith("<"):
        return name
    depth, at = 0, 1
    for number, c in enumerate(name[1:-1], 1):
        depth += (c == "<") - (c == ">")
        if depth == 0 and name.startswith("::", number):
            at = number + 2
    return "<" + name[at:]


def clean(value, theirs):
    """Ours in GDB's form, as far as GDB's says what it is."""
    if isinstance(theirs, dict) and set(theirs) == {"float"}:
        return {"float": float(value)} if isinstance(value, (int, float, str)) else value
    if isinstance(theirs, dict) and set(theirs) == {"char"}:
        if isinstance(value, str):
            n = value.encode()[0] if value else 0
            return {"char": n - 256 if n > 127 else n}
        return {"char": value}
    if isinstance(theirs, dict) and set(theirs) == {"text"}:
        raw = value.encode() if isinstance(value, str) else bytes(value) if isinstance(value, list) else b"?"
        return {"text": raw.hex()}
    if isinstance(theirs, dict) and isinstance(value, dict):
        named = {scope_off(k): clean(v, theirs.get(scope_off(k))) for k, v in value.items()}
        # A virtual base is said to be missing, and what is only declared: of that GDB has no members.
        def missing(k, v):
            return v is None and k in theirs and (k.startswith("<") or theirs[k] == {})
        return {k: theirs[k] if missing(k, v) else v for k, v in named.items()}
    if isinstance(theirs, list) and isinstance(value, list) and len(theirs) == len(value):
        return [clean(a, b) for a, b in zip(value, theirs)]
    if isinstance(theirs, int) and not isinstance(theirs, bool) and isinstance(value, str):
        # 128 bits; text at a pointer is compared by GDB's address only.
        return int(value) if re.fullmatch(r"-?\d+", value) else value
    if isinstance(theirs, bool) and isinstance(value, int):
        return bool(value)
    return value


def gdb_side(program, places, rust, out):
    env = dict(os.environ, MATRIX_PLACES=json.dumps(places), MATRIX_OUT=out)
    if rust:
        env["MATRIX_RUST"] = "1"
    run = subprocess.run(["gdb", "-nx", "-batch", "-x", os.path.join(HERE, "matrix/gdb_values.py"), program],
                         env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    if not os.path.exists(out):
        return None, run.stdout[-1500:]
    return json.load(open(out)), ""


def kprism_side(program, place, expressions, folder, refused):
    """Records of a run; expressions that are refused are taken out one by one."""
    expressions = list(expressions)
    while True:
        run = os.path.join(folder, "run")
        collect = [arg for e in expressions for arg in ("--collect", e)]
        probe = [place, *collect, "--strings", "4096", "--exec", program]
        # Compiling refuses the same, and takes a tenth of the time.
        done = subprocess.run([KPRISM, "compile", *probe, "-o", run + ".kprobe"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60)
        if done.returncode == 0:
            done = subprocess.run([KPRISM, "record", "probe", *probe, "-o", run,
                                   "--", "setarch", "-R", "env", "-i", program],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=120)
            if done.returncode in (0, 1):
                break
        lines = done.stderr.splitlines()
        bad = next((l.strip() for l in lines if l.strip() in expressions), None)
        if bad is None:
            bad = next((e for e in expressions if "`%s`" % e in done.stderr), None)
        if bad is None:
            return None, done.stderr, 0
        refused[bad] = lines[0].removeprefix("kprism: ")
        expressions.remove(bad)
    shown = subprocess.run([KPRISM, "script", "probe", "--json", "-i", run], stdout=subprocess.PIPE, text=True)
    records = [json.loads(l) for l in shown.stdout.splitlines()]
    info = json.load(open(os.path.join(run, "streams/probe/probes.json")))
    hits = sum(c["hits"] for c in info["counts"])
    return records, "", hits


def chunks(all, n):
    for at in range(0, len(all), n):
        yield all[at:at + n]


def judge(language, name, commands, folder, tally):
    source = os.path.join(HERE, "matrix/shapes." + language)
    work = tempfile.mkdtemp(dir=folder)
    program = os.path.join(work, "shapes")
    for command in commands:
        subprocess.run([a.format(src=source, out=program) for a in command], check=True, cwd=work,
                       stderr=subprocess.DEVNULL)
    marks = marked(source)
    places = {"c": C_PLACES, "cpp": CPP_PLACES, "rs": RUST_PLACES}[language]
    for mark, line in marks.items():
        places = [p.replace(mark, line) for p in places]
    # At a function's entry GDB stops behind its prologue: what is a parameter is the same there.
    theirs, error = gdb_side(program, [(p, not re.search(r":\d+$", p)) for p in places], language == "rs",
                      os.path.join(work, "gdb.json"))
    wrong = []
    if theirs is None:
        return ["%s: GDB: %s" % (name, error)]
    for place in places:
        said = theirs[place]
        if "error" in said:
            tally["places that GDB does not know"] += 1
            continue
        values = {e: v for e, v in said["values"].items()}
        for part in list(chunks(sorted(values), 20)) or [[]]:
            refused = {}
            records, error, hits = kprism_side(program, place, part, work, refused)
            if records is None:
                wrong.append("%s: %s: %s" % (name, place, error.strip().splitlines()[0]))
                break
            truth = None
            if hits == TRUE_HITS.get((language, place)) != said["hits"]:
                tally["counts that are right where GDB's is not"] += 1
                truth = TRUE_VALUES[language, place]
            elif hits != said["hits"]:
                wrong.append("%s: %s: %d hits, GDB %d" % (name, place, hits, said["hits"]))
            tally["hits compared"] += 1
            for text in part:
                if text in refused:
                    if any(v is not None for v in values[text]):
                        reason = re.sub(r"`[^`]*`", "`…`", refused[text])
                        tally["refused: " + reason] += 1
                    else:
                        tally["refused as GDB does"] += 1
                    continue
                tally["expressions"] += 1
                if truth is not None and text not in truth:
                    tally["values where GDB has not all hits"] += len(values[text])
                    continue
                for number, value in enumerate(values[text] if truth is None else truth[text]):
                    if number >= len(records):
                        break
                    own = records[number]["values"].get(text)
                    if value is None:
                        tally["values that GDB has not"] += 1
                        continue
                    if own is None and text not in records[number]["values"]:
                        tally["left out at one of several places"] += 1
                        continue
                    if own is None and text in records[number].get("missing", {}):
                        tally["left out at one of several places"] += 1
                        continue
                    own = clean(own, value)
                    # A string: GDB's value is its address.
                    if isinstance(value, str) and value.startswith("0x") and not (isinstance(own, str) and own.startswith("0x")):
                        tally["strings, where GDB has addresses"] += 1
                        continue
                    if isinstance(value, int) and isinstance(own, bool):
                        own = int(own)
                    if own == value:
                        tally["values"] += 1
                    else:
                        wrong.append("%s: %s: %s at hit %d: %s, GDB %s" % (name, place, text, number, own, value))
    return wrong


def digest():
    """Of the program under test and of what it is tested with."""
    sum = hashlib.sha256()
    sources = glob.glob(os.path.join(HERE, "matrix/*.*"))
    for path in [shutil.which(KPRISM) or KPRISM, os.path.abspath(__file__), *sorted(sources)]:
        sum.update(open(path, "rb").read())
    return sum.hexdigest()


def asked():
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--slice", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--results")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    return parser.parse_args()


def chosen(all, only):
    bare = lambda name: name.replace(" ", "")
    for wanted in only:
        if not any(bare(name).startswith(bare(wanted)) for _, name, _, _ in all):
            print("no build begins with `%s`; --list shows all" % wanted, file=sys.stderr)
            sys.exit(2)
    return [b for b in all if not only or any(bare(b[1]).startswith(bare(w)) for w in only)]


def main():
    args = asked()
    small = args.small or args.slice
    all = builds(small)
    if args.slice:
        all = [b for b in all if b[1] in SLICE]
    wanted = chosen(all, args.only)
    if args.list:
        for _, name, compiler, commands in wanted:
            print("%-60s %s" % (name, commands[0][0] or "skipped: no " + compiler))
        return
    own, kept = digest(), {}
    if args.results and os.path.exists(args.results):
        said = json.load(open(args.results))
        kept = said["builds"] if said["of"] == own else {}
    begun, tally, wrong, done = time.monotonic(), collections.Counter(), [], 0
    skipped = collections.Counter(b[2] for b in wanted if not b[3][0][0])
    for language, name, compiler, commands in wanted:
        if not commands[0][0]:
            print("%-60s skipped: no %s" % (name, compiler), flush=True)
            continue
        if name not in kept:
            if time.monotonic() - begun > args.seconds:
                continue
            counted = collections.Counter()
            with tempfile.TemporaryDirectory() as folder:
                found = judge(language, name, commands, folder, counted)
            kept[name] = {"tally": counted, "wrong": found}
            if args.results:
                with open(args.results + ".new", "w") as out:
                    json.dump({"of": own, "builds": kept}, out)
                os.replace(args.results + ".new", args.results)
        done += 1
        tally.update(kept[name]["tally"])
        wrong += kept[name]["wrong"]
        print("%-60s %d differences" % (name, len(kept[name]["wrong"])), flush=True)
    for what, n in sorted(tally.items()):
        print("%8d  %s" % (n, what))
    for line in wrong[:200]:
        print("DIFFERS " + line)
    if len(wrong) > 200:
        print("… %d more differences" % (len(wrong) - 200))
    left = len(wanted) - done - sum(skipped.values())
    text = "%d builds, %d expressions, %d values are GDB's, %d differ" % (
        done, tally["expressions"], tally["values"], len(wrong))
    if skipped:
        text += "; skipped: " + ", ".join("%d builds, no %s" % (n, c) for c, n in sorted(skipped.items()))
    if left:
        text += "; %d builds are left" % left
    print(text)
    # A part has no least number of values, but some.
    least = 1 if args.only or left else 300 if small else 3000
    if wrong or tally["values"] < least:
        sys.exit("%d differences, %d values compared (at least %d expected)" % (len(wrong), tally["values"], least))
    if left:
        sys.exit(3)


main()
