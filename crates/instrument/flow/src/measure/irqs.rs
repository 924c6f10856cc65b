// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracks on each CPU whether interrupts and preemption are on. Input: marks. Output: the state after each.
//!
//! A trace has no data, but control flow implies nearly all of it. `cli` and `sti` set the flag. Every entry into the
//! kernel goes through an interrupt gate or `syscall`, which turn interrupts off (Linux, arch/x86/kernel/idt.c and
//! `syscall_init`). Its `iret` restores the interrupted state. User code runs with interrupts on. `popf` restores the
//! flags that a `pushf` saved before the `cli` in between; such pairs are kept for each task, as they nest. After a
//! loss the state is unknown until an instruction sets it.

/// Interrupt flag of a CPU; `None` if unknown.
pub(crate) type Flag = Option<bool>;

/// Maximum of saved flags per task; then the oldest is dropped. No real code nests that deep.
const MAX_SAVED: usize = 64;

/// Interrupt flags that one task has saved.
#[derive(Debug, Default)]
pub(crate) struct Saved {
    /// Saved by kernel entries, outermost first, with [`Cpu::argument`].
    entries: Vec<(Flag, Option<i32>)>,
    /// Saved by a `pushf` with a `cli` after it.
    flags: Vec<Flag>,
    /// Flag saved by the last `pushf`, until an instruction uses it.
    pushed: Option<Flag>,
}

fn push<T>(stack: &mut Vec<T>, flag: T) {
    if stack.len() == MAX_SAVED {
        stack.remove(0);
    }
    stack.push(flag);
}

/// Bits of the preemption count that are set in an interrupt (include/linux/preempt.h): a softirq that runs (not those that are only
/// held off), hard interrupts, and NMIs.
const IN_INTERRUPT: i32 = 1 << 8 | 0xf << 16 | 0xf << 20;

/// One CPU's state.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cpu {
    /// True if interrupts are on.
    pub irqs: Flag,
    /// The preemption count.
    pub preempt: Option<i32>,
    /// Amount that a function which was called is about to add to the preemption count.
    argument: Option<i32>,
}

impl Cpu {
    /// True in an interrupt's code. False, too, where the count is not known.
    pub fn is_in_interrupt(&self) -> bool {
        self.preempt.is_some_and(|count| count & IN_INTERRUPT != 0)
    }

    pub fn cli(&mut self, saved: &mut Saved) {
        if let Some(flag) = saved.pushed.take() {
            push(&mut saved.flags, flag);
        }
        self.irqs = Some(false);
    }

    pub fn sti(&mut self) {
        self.irqs = Some(true);
    }

    pub fn pushf(&mut self, saved: &mut Saved) {
        saved.pushed = Some(self.irqs);
    }

    pub fn popf(&mut self, saved: &mut Saved) {
        saved.pushed = None;
        self.irqs = saved.flags.pop().flatten();
    }

    /// Enters the kernel. An interrupt proves that interrupts were on, unless it is an NMI.
    pub fn enter(&mut self, saved: &mut Saved, proves_on: bool) {
        if proves_on {
            self.irqs = Some(true);
        }
        push(&mut saved.entries, (self.irqs, self.argument.take()));
        self.irqs = Some(false);
    }

    /// Leaves a kernel entry and returns to kernel code.
    pub fn leave(&mut self, saved: &mut Saved) {
        (self.irqs, self.argument) = saved.entries.pop().unwrap_or_default();
    }

    /// User code runs. It can neither mask interrupts nor disable preemption.
    pub fn user(&mut self, saved: &mut Saved) {
        *saved = Saved::default();
        *self = Cpu { irqs: Some(true), preempt: Some(0), argument: None };
    }

    pub fn count(&mut self, amount: i32) {
        self.preempt = self.preempt.map(|n| n.wrapping_add(amount));
    }

    /// A function is called that adds `amount` to the preemption count; 0 if that is not known.
    pub fn call(&mut self, amount: i32) {
        self.argument = (amount != 0).then_some(amount);
    }

    /// That function adds the amount. If it is not known, the count is not known from here on.
    pub fn count_argument(&mut self) {
        self.preempt = self.preempt.zip(self.argument.take()).map(|(n, amount)| n.wrapping_add(amount));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: Flag = Some(true);
    const OFF: Flag = Some(false);

    #[test]
    fn nested_saves_and_an_interrupt() {
        let (mut cpu, mut saved) = (Cpu::default(), Saved::default());
        assert_eq!(cpu.irqs, None);
        cpu.user(&mut saved);
        cpu.enter(&mut saved, false); // a system call
        assert_eq!(cpu.irqs, OFF);
        cpu.sti();
        for _ in 0..2 {
            cpu.pushf(&mut saved);
            cpu.cli(&mut saved);
        }
        cpu.popf(&mut saved);
        assert_eq!(cpu.irqs, OFF);
        cpu.popf(&mut saved);
        assert_eq!(cpu.irqs, ON);
        // This `pushf` only reads the flags. No `popf` follows.
        cpu.pushf(&mut saved);
        cpu.enter(&mut saved, true); // an interrupt
        cpu.cli(&mut saved);
        cpu.leave(&mut saved);
        assert_eq!(cpu.irqs, ON);
        cpu.cli(&mut saved);
        cpu.enter(&mut saved, false); // an exception, with interrupts off
        cpu.sti();
        cpu.leave(&mut saved);
        assert_eq!(cpu.irqs, OFF);
        cpu.user(&mut saved);
        assert_eq!(cpu, Cpu { irqs: ON, preempt: Some(0), argument: None });
    }

    /// Deeper than flags are saved: the outermost is not known then, and not taken from another.
    #[test]
    fn flags_that_were_dropped_are_not_known() {
        for by_entry in [false, true] {
            let (mut cpu, mut saved) = (Cpu::default(), Saved::default());
            cpu.user(&mut saved);
            for _ in 0..MAX_SAVED + 1 {
                if by_entry {
                    cpu.enter(&mut saved, false);
                } else {
                    cpu.pushf(&mut saved);
                    cpu.cli(&mut saved);
                }
            }
            for _ in 0..MAX_SAVED {
                if by_entry {
                    cpu.leave(&mut saved)
                } else {
                    cpu.popf(&mut saved)
                }
                assert_eq!(cpu.irqs, OFF);
            }
            if by_entry {
                cpu.leave(&mut saved)
            } else {
                cpu.popf(&mut saved)
            }
            assert_eq!(cpu.irqs, None, "by entry: {by_entry}");
        }
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        let (mut cpu, mut saved) = (Cpu::default(), Saved::default());
        cpu.popf(&mut saved);
        cpu.leave(&mut saved);
        cpu.count(1);
        assert_eq!(cpu, Cpu::default());
        cpu.enter(&mut saved, true);
        cpu.leave(&mut saved);
        assert_eq!(cpu.irqs, ON);
    }

    /// An interrupt comes between a call and the addition, and makes such a call itself.
    #[test]
    fn bottom_halves_are_counted() {
        let (mut cpu, mut saved) = (Cpu::default(), Saved::default());
        cpu.user(&mut saved);
        cpu.count(0x200);
        cpu.call(-0x1ff);
        cpu.enter(&mut saved, true);
        cpu.call(0x201);
        cpu.count_argument();
        assert_eq!(cpu.preempt, Some(0x401));
        cpu.count(-0x201);
        cpu.leave(&mut saved);
        cpu.count_argument();
        cpu.count(-1);
        assert_eq!(cpu.preempt, Some(0));
        cpu.call(0);
        cpu.count_argument();
        assert_eq!(cpu.preempt, None, "not guessed");
    }
}
