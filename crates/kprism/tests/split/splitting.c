// SPDX-License-Identifier: GPL-2.0-or-later
// Calls whose time is their own, sleep, or an interrupt's, in known parts: each write to /proc/splitting makes all.

#include <linux/delay.h>
#include <linux/hrtimer.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/version.h>

// N turns of two instructions.
#define SPIN(n)                                                                                                   \
	do {                                                                                                      \
		unsigned int turns = (n);                                                                         \
		asm volatile("1: dec %0\n\tjnz 1b" : "+r"(turns));                                                \
	} while (0)

static struct hrtimer timer;

static noinline void split_own(void)
{
	SPIN(500000);
}

static noinline void split_down(int n)
{
	if (n > 1)
		split_down(n - 1);
	SPIN(50000);
}

static noinline void split_sleeper(void)
{
	SPIN(50000);
	msleep(20);
	// Else it would be a jump, and the sleep its caller's.
	asm volatile("");
}

static noinline enum hrtimer_restart split_tick(struct hrtimer *unused)
{
	SPIN(1000000);
	return HRTIMER_NORESTART;
}

static noinline void split_interrupted(void)
{
	hrtimer_start(&timer, ms_to_ktime(1), HRTIMER_MODE_REL_PINNED_HARD);
	SPIN(5000000);
}

static noinline void split_outer(void)
{
	split_own();
	split_down(5);
	split_sleeper();
	split_interrupted();
	asm volatile("");
}

static ssize_t splitting_write(struct file *file, const char __user *text, size_t size, loff_t *at)
{
	split_outer();
	return size;
}

static const struct proc_ops splitting_ops = { .proc_write = splitting_write };

static int __init splitting_init(void)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
	hrtimer_setup(&timer, split_tick, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
#else
	hrtimer_init(&timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
	timer.function = split_tick;
#endif
	return proc_create("splitting", 0200, NULL, &splitting_ops) ? 0 : -ENOMEM;
}

static void __exit splitting_exit(void)
{
	hrtimer_cancel(&timer);
	remove_proc_entry("splitting", NULL);
}

module_init(splitting_init);
module_exit(splitting_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Calls of known parts");
