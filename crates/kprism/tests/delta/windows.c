// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Switches interrupts and preemption off for known numbers of instructions. Writing a digit to /proc/windows opens
 * that kind of window, as often as the file says below.
 */
#include <asm/fpu/api.h>
#include <linux/module.h>
#include <linux/preempt.h>
#include <linux/proc_fs.h>
#include <linux/smp.h>
#include <linux/spinlock.h>

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

static DEFINE_SPINLOCK(lock);

static noinline void locked(void)
{
	spin_lock(&lock);
	asm volatile(".rept 400\n\tnop\n\t.endr" ::: "memory");
	spin_unlock(&lock);
}

static noinline void floating(void)
{
	kernel_fpu_begin();
	asm volatile(".rept 700\n\tnop\n\t.endr" ::: "memory");
	kernel_fpu_end();
}

static int holds;

/*
 * Runs on another CPU: 100 times 500 rounds with the lock held. QEMU gives the turn to the next CPU at a pause, else much later.
 */
static void hold(void *unused)
{
	spin_lock(&lock);
	WRITE_ONCE(holds, 1);
	asm volatile("mov $100, %%edx\n2:\tpause\n\tmov $500, %%ecx\n1:\tdec %%ecx\n\tjnz 1b\n\tdec %%edx\n\tjnz 2b"
		     ::: "ecx", "edx", "memory");
	spin_unlock(&lock);
}

/* Waits for the lock that another CPU holds. */
static noinline void contended(void)
{
	WRITE_ONCE(holds, 0);
	if (smp_call_function_single(1, hold, NULL, 0))
		return;
	while (!READ_ONCE(holds))
		cpu_relax();
	spin_lock(&lock);
	spin_unlock(&lock);
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
	for (i = 0; kind == '6' && i < 30; i++)
		locked();
	for (i = 0; kind == '7' && i < 20; i++)
		floating();
	for (i = 0; kind == '8' && i < 5; i++)
		contended();
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
