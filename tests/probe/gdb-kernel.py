# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs in GDB: attaches to the guest, stops where a read of an odd number of bytes begins, and prints the value of each
# expression there. So often that each group of probes, of which a record has room for 64 values, has its own stop.
import gdb
import json
import os
import time

lines = open(os.environ["CORPUS_TEXT"]).read().splitlines()
gdb.execute("set confirm off")
gdb.execute("set pagination off")
gdb.execute("set language c")
# What is in scope is read once, which takes seconds.
gdb.execute("info scope *" + os.environ["CORPUS_PLACE"], to_string=True)
open(os.environ["CORPUS_READY"], "w").close()
while not os.path.exists(os.environ["CORPUS_BEGUN"]):
    time.sleep(0.02)
gdb.execute("target remote " + os.environ["CORPUS_SOCKET"])
stops = []
gdb.execute("hbreak *%s if $rdx > 20000 && $rdx < 27000" % os.environ["CORPUS_PLACE"])
for stop in range(int(os.environ["CORPUS_STOPS"])):
    gdb.execute("continue")
    values = []
    for line in lines:
        try:
            values.append(str(int(gdb.parse_and_eval(line))))
        except Exception as error:
            values.append("error: " + str(error).splitlines()[0])
    stops.append({"count": int(gdb.parse_and_eval("$rdx")), "values": values})
    print("stop %d: count %d" % (stop, stops[-1]["count"]), flush=True)
with open(os.environ["CORPUS_OUT"], "w") as out:
    json.dump(stops, out)
gdb.execute("delete")
gdb.execute("detach")
