// SPDX-License-Identifier: GPL-2.0-or-later
//
// The function and the static tracepoint that "Conditional dynamic and static tracepoints" (Fahem and Dagenais, 2012)
// measures, in a module: writing a number to /proc/kgtp calls the function as often. A second static tracepoint has only
// one of the caller's locals.
#include <linux/module.h>
#include <linux/proc_fs.h>

#define CREATE_TRACE_POINTS
#include "kgtp_module.h"

static int kgtp_counter = 1;

static noinline int kgtp_test_function(int counter1, int counter2)
{
	kgtp_counter++;
	trace_kgtp_module_event(counter1, counter2);
	return kgtp_counter;
}

static ssize_t kgtp_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	int counter1 = 0, counter2 = 0, loops, i, error;

	error = kstrtoint_from_user(from, size, 0, &loops);
	if (error)
		return error;
	for (i = 0; i < loops; i++) {
		counter1++;
		kgtp_test_function(counter1, counter2);
		trace_kgtp_round(i);
		counter2++;
	}
	return size;
}

static const struct proc_ops kgtp_ops = {
	.proc_write = kgtp_write,
};

static int __init kgtp_init(void)
{
	return proc_create("kgtp", 0200, NULL, &kgtp_ops) ? 0 : -ENOMEM;
}

static void __exit kgtp_exit(void)
{
	remove_proc_entry("kgtp", NULL);
}

module_init(kgtp_init);
module_exit(kgtp_exit);
MODULE_DESCRIPTION("The measured function of a paper on conditional tracepoints");
MODULE_LICENSE("GPL");
