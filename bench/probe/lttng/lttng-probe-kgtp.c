// SPDX-License-Identifier: GPL-2.0-or-later
//
// LTTng's probe of the event in crates/kprism/tests/gdbserver/kgtp_module.h.
#include <linux/module.h>
#include <lttng/tracer.h>

#include "kgtp_module.h"

#undef TRACE_INCLUDE_PATH
#undef TRACE_INCLUDE_FILE
#define LTTNG_PACKAGE_BUILD
#define CREATE_TRACE_POINTS
#define TRACE_INCLUDE_PATH instrumentation/events
#include <instrumentation/events/kgtp.h>

MODULE_DESCRIPTION("LTTng's probe of a measured event");
MODULE_LICENSE("GPL");
