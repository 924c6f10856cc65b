/* SPDX-License-Identifier: GPL-2.0-or-later */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM kgtp

#if !defined(KGTP_MODULE_H) || defined(TRACE_HEADER_MULTI_READ)
#define KGTP_MODULE_H
#include <linux/tracepoint.h>

TRACE_EVENT(kgtp_module_event,
	TP_PROTO(int counter1, int counter2),
	TP_ARGS(counter1, counter2),
	TP_STRUCT__entry(
		__field(int, counter1)
		__field(int, counter2)
	),
	TP_fast_assign(
		__entry->counter1 = counter1;
		__entry->counter2 = counter2;
	),
	TP_printk("counter1=%d counter2=%d", __entry->counter1, __entry->counter2)
);

TRACE_EVENT(kgtp_round,
	TP_PROTO(int round),
	TP_ARGS(round),
	TP_STRUCT__entry(
		__field(int, round)
	),
	TP_fast_assign(
		__entry->round = round;
	),
	TP_printk("round=%d", __entry->round)
);
#endif

#undef TRACE_INCLUDE_PATH
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_PATH .
#define TRACE_INCLUDE_FILE kgtp_module
#include <trace/define_trace.h>
