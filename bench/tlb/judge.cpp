// SPDX-License-Identifier: MIT OR Apache-2.0
// DynamoRIO's TLB simulator (drcachesim), fed with the accesses that crates/instrument/tlb/tests/judge.rs pipes in: records of
// 16 bytes, address, kind (0 load, 1 store, 2 fetch), bytes. Ivy Bridge-EP, 4K pages, LRU. Prints misses of data's first
// level, of code's, of the second; and on stderr how many accesses it took a second of its own CPU time. Built by judge.sh.
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tlb_simulator.h"
#include "tlb_stats.h"

using namespace dynamorio::drmemtrace;

class judged_t : public tlb_simulator_t {
public:
	explicit judged_t(const tlb_simulator_knobs_t &knobs) : tlb_simulator_t(knobs) {}
	int64_t misses(tlb_t *tlb) { return tlb->get_stats()->get_metric(metric_name_t::MISSES); }
	void tell() { printf("%ld %ld %ld\n", misses(dtlbs_[0]), misses(itlbs_[0]), misses(lltlbs_[0])); }
};

int main()
{
	tlb_simulator_knobs_t knobs;
	knobs.num_cores = 1;
	knobs.TLB_L1I_entries = knobs.TLB_L1D_entries = 64;
	knobs.TLB_L1I_assoc = knobs.TLB_L1D_assoc = 4;
	knobs.TLB_L2_entries = 512;
	knobs.TLB_L2_assoc = 4;
	knobs.TLB_replace_policy = "LRU";
	judged_t judged(knobs);
	static unsigned char bytes[16 * 65536];
	memref_t m;
	memset(&m, 0, sizeof m);
	m.data.pid = m.data.tid = 1;
	uint64_t count = 0;
	double busy = 0;
	size_t n;
	while ((n = fread(bytes, 16, sizeof bytes / 16, stdin)) > 0) {
		timespec begin, end;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
		for (size_t i = 0; i < n; i++) {
			uint64_t at;
			memcpy(&at, bytes + 16 * i, 8);
			unsigned char kind = bytes[16 * i + 8];
			m.data.type = kind == 0 ? TRACE_TYPE_READ : kind == 1 ? TRACE_TYPE_WRITE : TRACE_TYPE_INSTR;
			m.data.size = bytes[16 * i + 9];
			if (kind == 2)
				m.instr.addr = at;
			else
				m.data.addr = at;
			if (!judged.process_memref(m))
				return 1;
		}
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
		busy += (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
		count += n;
	}
	judged.tell();
	fprintf(stderr, "judge: %lu accesses, %.3f s, %.1f M/s\n", (unsigned long)count, busy, (double)count / busy / 1e6);
	return 0;
}
