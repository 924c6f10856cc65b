# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In the guest: the paper's program with the tracer off, and, where function_graph is built in, disabled, active, and with a
# filter. One line of numbers for each; built-in.sh makes the table.
. /bench/paper-lib.sh

# A first round meets cold caches of the file system.
program 1
echo "nop $(took program $rounds)"
grep -q function_graph $t/available_tracers || exit 0

graph 0
echo "disabled $(took program $rounds)"
for us in 0 1000; do
	graph $us
	echo 1 >$t/tracing_on
	ns=$(took program $rounds)
	echo 0 >$t/tracing_on
	echo "graph $us $ns $(stat entries) $(stat overrun)"
done
off
