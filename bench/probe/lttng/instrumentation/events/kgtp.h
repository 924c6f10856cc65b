/* SPDX-License-Identifier: GPL-2.0-or-later */
/* LTTng's description of the event of kgtp_module.h. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM kgtp

#if !defined(LTTNG_TRACE_KGTP_H) || defined(TRACE_HEADER_MULTI_READ)
#define LTTNG_TRACE_KGTP_H
#include <lttng/tracepoint-event.h>

LTTNG_TRACEPOINT_EVENT(kgtp_module_event,
	TP_PROTO(int counter1, int counter2),
	TP_ARGS(counter1, counter2),
	TP_FIELDS(
		ctf_integer(int, counter1, counter1)
		ctf_integer(int, counter2, counter2)
	)
)
#endif

#include <lttng/define_trace.h>
