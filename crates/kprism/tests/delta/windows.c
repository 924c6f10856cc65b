// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Switches interrupts and preemption off for known numbers of instructions. Writing a digit to /proc/windows opens
 * that kind of window, as often as the file says below.
 */
#include <linux/module.h>
#include <linux/preempt.h>
#include <linux/proc_fs.h>

/* n nops between cli and sti: the interval is n + 1 instructions, as sti belongs to it. */
#define WINDOW(n) asm volatile("cli\n\t.rept " #n "\n\tnop\n\t.endr\n\tsti" ::: "memory")

/* The flags saved and restored, as older kernels do: 3 nops and the popf. Nested: the inner one opens nothing. */
static noinline void saved(void)
{
	asm volatile("pushf\n\tcli\n\tpushf\n\tcli\n\tnop\n\tpopf\n\tnop\n\tnop\n\tpopf" ::: "memory");
}

/* 300 rounds of a loop, two instructions each, after the one that counts down from: 1 + 600 + sti. */
static noinline void loop(void)
{
	asm volatile("cli\n\tmov $300, %%ecx\n1:\tdec %%ecx\n\tjnz 1b\n\tsti" ::: "ecx", "memory");
}

static noinline void held(void)
{
	preempt_disable();
	asm volatile(".rept 500\n\tnop\n\t.endr");
	preempt_enable();
}

static ssize_t windows_write(struct file *file, const char __user *data, size_t size, loff_t *pos)
{
	char kind;
	int i;

	if (get_user(kind, data))
		return -EFAULT;
	for (i = 0; kind == '1' && i < 1000; i++)
		WINDOW(90);
	for (i = 0; kind == '2' && i < 100; i++)
		WINDOW(1000);
	for (i = 0; kind == '3' && i < 10; i++)
		saved();
	for (i = 0; kind == '4' && i < 7; i++)
		loop();
	for (i = 0; kind == '5' && i < 50; i++)
		held();
	return size;
}

static const struct proc_ops windows_ops = { .proc_write = windows_write };

static int __init windows_init(void)
{
	return proc_create("windows", 0200, NULL, &windows_ops) ? 0 : -ENOMEM;
}

static void __exit windows_exit(void)
{
	remove_proc_entry("windows", NULL);
}

module_init(windows_init);
module_exit(windows_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Windows without interrupts, of known length");
