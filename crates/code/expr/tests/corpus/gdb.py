# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs in GDB: at each stop prints the registers' core file, the address, and the value of each expression.
import gdb
import os

folder = os.environ["CORPUS_OUT"]
lines = open(os.environ["CORPUS_TEXT"]).read().splitlines()
gdb.execute("set confirm off")
gdb.execute("set pagination off")
for index, spec in enumerate(os.environ["CORPUS_STOPS"].split()):
    gdb.execute("tbreak " + spec)
    gdb.execute("continue" if index else "run")
    gdb.execute("gcore %s/core.%d" % (folder, index))
    with open("%s/values.%d" % (folder, index), "w") as out:
        out.write("%d\n" % int(gdb.parse_and_eval("(unsigned long)$pc")))
        for line in lines:
            try:
                value = gdb.parse_and_eval(line)
                text = str(int(value))
            except Exception as error:
                text = "error: " + str(error).splitlines()[0]
            out.write(text + "\n")
    with open("%s/agent.%d" % (folder, index), "w") as out:
        for line in lines:
            for form in ["agent-eval %s", "agent %s", 'agent-printf "v %%d",%s']:
                try:
                    text = gdb.execute("maint " + form % line, to_string=True)
                    text = text.replace("\n", ";")
                except Exception as error:
                    text = "error: " + str(error).splitlines()[0]
                out.write(text + "\n")
gdb.execute("kill")
