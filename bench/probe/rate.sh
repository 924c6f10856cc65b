# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In the guest, whose instruction takes a nanosecond: how many records a second a CPU makes and the recorder, on the same
# CPU, takes out, with the default buffer.
for probe in ksys_read 'ksys_read if 2*(int)fd + 3*(int)count < 0'; do
	/bench/kprism record probe -q "$probe" --collect fd,count -a -o /tmp/run -- sh -c '/bench/hit read 1000 -1 0 1 >/tmp/out' >/tmp/said 2>&1 || cat /tmp/said
	echo "$probe: $(cat /tmp/out) reads in 1 s; $(sed -n 's/.*"\(hits\|passed\|lost\|missed\)": \([0-9]*\).*/\1 \2/p' /tmp/run/streams/probe/probes.json | tr '\n' ' ')"
	rm -rf /tmp/run /tmp/run.old
done
