# SPDX-License-Identifier: MIT OR Apache-2.0
"""Run inside GDB: the values of all variables, and of what they point to and consist of, at each hit of a place.

In: MATRIX_PLACES, a JSON list of places. Out: MATRIX_OUT, JSON: for each place its hits and, for each expression,
the value at each hit (null where GDB has none)."""
import json
import os
import traceback

import gdb

MOST_HITS = 6
# What GDB says when it has no value: it does not matter how.
FAILED = (gdb.error, gdb.MemoryError, ValueError, RuntimeError, OverflowError, TypeError, AttributeError, KeyboardInterrupt)
MOST_EXPRESSIONS = 60


def scope_off(name):
    """A base class without the scopes around it, which are outside of its template's brackets."""
    depth, at = 0, 1
    for number, c in enumerate(name[1:-1], 1):
        depth += (c == "<") - (c == ">")
        if depth == 0 and name.startswith("::", number):
            at = number + 2
    return "<" + name[at:]


def first_pointer(value):
    """The first address in a structure, or in what it consists of."""
    kind = value.type.strip_typedefs()
    if kind.code == gdb.TYPE_CODE_PTR:
        return value
    if kind.code == gdb.TYPE_CODE_STRUCT:
        for field in kind.fields():
            found = first_pointer(value[field]) if hasattr(field, "bitpos") else None
            if found is not None:
                return found
    return None


def elements(value, kind):
    """What Rust's text, slices and vectors hold, read where they say that it is; None for anything else."""
    name, fields = kind.name or "", [field.name for field in kind.fields()]
    text = name in ("&str", "&mut str") or name.split("::")[-1] == "String"
    if fields == ["data_ptr", "length"]:
        first, count = value["data_ptr"], int(value["length"])
    elif fields == ["vec"] and text:
        first, count = first_pointer(value["vec"]), int(value["vec"]["len"])
    elif name.split("<", 1)[0].split("::")[-1] == "Vec":
        of = kind.template_argument(0)
        first, count = first_pointer(value["buf"]).cast(of.pointer()), int(value["len"])
    else:
        return None
    if text:
        return {"text": bytes(gdb.selected_inferior().read_memory(int(first), count)).hex() if count else ""}
    return [plain((first + i).dereference(), 1) for i in range(count)]


def of_libstdcxx(value, kind):
    """What a string or a vector of libstdc++ holds, as the printers say that come with it; None for anything else."""
    held = (kind.name or "").removeprefix("std::").removeprefix("__cxx11::").split("<", 1)[0]
    if held not in ("basic_string", "basic_string_view", "vector"):
        return None
    printer = gdb.default_visualizer(value)
    if printer is None:
        raise gdb.error("no printers of libstdc++")
    if held == "vector":
        return [plain(item, 1) for _, item in printer.children()]
    text = printer.to_string()
    return {"text": bytes(gdb.selected_inferior().read_memory(text.address, text.length)).hex() if text.length else ""}


def plain(value, depth=0):
    """A value in the form that `kprism script probe --json` has."""
    if depth > 5:
        raise gdb.error("too deep")
    if value.is_optimized_out:
        raise gdb.error("optimized out")
    kind = value.type.strip_typedefs()
    code = kind.code
    if code in (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF):
        if depth:
            return hex(int(value.address))
        return plain(value.referenced_value(), depth)
    if code in (gdb.TYPE_CODE_PTR, gdb.TYPE_CODE_FUNC, gdb.TYPE_CODE_METHOD):
        return hex(int(value) & 2**64 - 1)
    if code == gdb.TYPE_CODE_BOOL:
        return bool(value)
    if code == gdb.TYPE_CODE_ENUM:
        number = int(value)
        for field in kind.fields():
            if field.enumval == number:
                return field.name.split("::")[-1]
        return number
    if code == gdb.TYPE_CODE_FLT:
        if kind.sizeof > 8:
            raise gdb.error("long double")
        return {"float": float(value)}
    if code in (gdb.TYPE_CODE_INT, gdb.TYPE_CODE_CHAR):
        if kind.name == "char" and kind.sizeof == 1:
            return {"char": int(value)}
        return int(value)
    if code == gdb.TYPE_CODE_ARRAY:
        low, high = kind.range()
        inner = kind.target().strip_typedefs()
        items = [value[i] for i in range(low, high + 1)]
        if inner.sizeof == 1 and inner.name in ("char", "unsigned char", "signed char"):
            return {"text": bytes(int(i) & 255 for i in items).rstrip(b"\0").hex()}
        return [plain(i, depth + 1) for i in items]
    if code in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION):
        # What is inside another structure is shown as the fields that it consists of.
        inside = elements if os.environ.get("MATRIX_RUST") else of_libstdcxx
        held = inside(value, kind) if depth == 0 else None
        if held is not None:
            return held
        out = {}
        for field in kind.fields():
            if not hasattr(field, "bitpos"):
                continue
            if field.is_base_class:
                out[scope_off("<" + (field.type.name or "") + ">")] = plain(value[field], depth + 1)
            elif field.name:
                out[field.name] = plain(value[field], depth + 1)
            else:
                out.update(plain(value[field], depth + 1))
        return out
    raise gdb.error("type code %d" % code)


def grown(name, value, out, depth=0):
    """Expressions that begin with a name: members, what pointers point to, elements."""
    if depth > 2 or len(out) > MOST_EXPRESSIONS:
        return
    out.append(name)
    try:
        kind = value.type.strip_typedefs()
        if kind.code in (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF):
            value, kind = value.referenced_value(), kind.target().strip_typedefs()
        if kind.code == gdb.TYPE_CODE_PTR:
            target = kind.target().strip_typedefs()
            if target.code in (gdb.TYPE_CODE_INT, gdb.TYPE_CODE_PTR, gdb.TYPE_CODE_FLT, gdb.TYPE_CODE_ENUM):
                out.append("*" + name)
            if target.code == gdb.TYPE_CODE_STRUCT and target.fields():
                out.append("*" + name)
                for field in target.fields():
                    if field.name and not field.is_base_class and hasattr(field, "bitpos"):
                        grown(name + "->" + field.name, value[field.name], out, depth + 1)
        elif kind.code in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION):
            for field in kind.fields():
                if field.name and not field.is_base_class and hasattr(field, "bitpos"):
                    grown(name + "." + field.name, value[field.name], out, depth + 1)
        elif kind.code == gdb.TYPE_CODE_ARRAY and kind.range()[1] > 0:
            out.append(name + "[1]")
        elif kind.code == gdb.TYPE_CODE_INT:
            out.append("%s * 3 - 1" % name)
            out.append("%s > 2" % name)
    except FAILED:
        pass


def names(frame, arguments):
    found = []
    try:
        block = frame.block()
    except RuntimeError:
        return found
    while block:
        for symbol in block:
            wanted = symbol.is_argument or (symbol.is_variable and not arguments)
            if wanted and symbol.name not in found and symbol.addr_class != gdb.SYMBOL_LOC_TYPEDEF:
                found.append(symbol.name)
        if block.function:
            break
        block = block.superblock
    return found


def main():
    gdb.execute("set pagination off")
    gdb.execute("set confirm off")
    # GDB 13 gives up on some structures that are in pieces: that expression is left out then.
    gdb.execute("maintenance set internal-error quit no")
    gdb.execute("maintenance set internal-error corefile no")
    gdb.execute("set debuginfod enabled off")
    gdb.execute("set breakpoint pending off")
    gdb.execute("set exec-wrapper env -i")
    gdb.execute("set print elements 0")
    result = {}
    for place, arguments in json.loads(os.environ["MATRIX_PLACES"]):
        entry = {"hits": 0, "values": {}, "locations": 0}
        result[place] = entry
        gdb.execute("set language auto")
        try:
            stop = gdb.Breakpoint(place)
        except gdb.error as error:
            entry["error"] = str(error)
            continue
        gdb.execute("run > /dev/null", to_string=True)
        expressions = None
        while gdb.selected_inferior().pid:
            entry["hits"] += 1
            # Members behind pointers are written as in C, whatever the program's language is.
            gdb.execute("set language c" if os.environ.get("MATRIX_RUST") else "set language auto")
            if entry["hits"] <= MOST_HITS:
                frame = gdb.selected_frame()
                if expressions is None:
                    expressions = []
                    for name in names(frame, arguments):
                        try:
                            grown(name, gdb.parse_and_eval(name), expressions)
                        except FAILED:
                            pass
                for text in expressions:
                    try:
                        value = plain(gdb.parse_and_eval(text))
                    except FAILED:
                        value = None
                    entry["values"].setdefault(text, []).append(value)
            gdb.execute("continue", to_string=True)
        info = gdb.execute("info breakpoints", to_string=True)
        entry["locations"] = max(1, info.count("\n%d." % stop.number))
        stop.delete()
    with open(os.environ["MATRIX_OUT"], "w") as out:
        json.dump(result, out)


try:
    main()
except BaseException:
    traceback.print_exc()
gdb.execute("quit 0")
