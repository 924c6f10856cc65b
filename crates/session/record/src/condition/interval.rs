// SPDX-License-Identifier: MIT OR Apache-2.0
//! Intervals as conditions: in, `irqs_off > 100us`, the kernel's symbols and types; out, the event at the interval's end, and the
//! condition that its length meets.

use anyhow::{Context, Result, bail};
use kprism_btf::Btf;
use kprism_expr::watch::{Event, Interval};
use kprism_flow::delta;
use kprism_image::symbols::kallsyms;

/// The intervals that can be named.
pub const NAMES: [&str; 6] = ["irqs_off", "preempt_off", "spinlock", "contention", "wakeup", "syscall"];

/// Entries at which `syscall` and `sysenter` enter the kernel (arch/x86/entry).
const SYSCALL_ENTRIES: [&str; 4] =
    ["entry_SYSCALL_64", "entry_SYSCALL_compat", "entry_SYSENTER_compat", "entry_SYSENTER_32"];

/// Splits `NAME [COMPARISON] [if EXPR]` into the interval's name and the condition at its end, in which `$duration` stands for the
/// name. `None` if it does not begin with the name of an interval.
pub fn split(spec: &str) -> Option<(&'static str, Option<String>)> {
    let spec = spec.trim();
    let (name, rest) = NAMES.iter().find_map(|name| Some((*name, spec.strip_prefix(name)?)))?;
    if rest.starts_with(|c: char| c.is_ascii_alphanumeric() || "_%+.:@*?".contains(c)) {
        // A function whose name begins so.
        return None;
    }
    let (comparison, condition) = match rest.strip_prefix(" if ") {
        Some(condition) => ("", Some(condition)),
        None => match rest.split_once(" if ") {
            Some((comparison, condition)) => (comparison, Some(condition)),
            None => (rest, None),
        },
    };
    let condition = match (comparison.trim(), condition) {
        ("", condition) => condition.map(|condition| condition.trim().to_owned()),
        (comparison, None) => Some(format!("$duration {comparison}")),
        (comparison, Some(condition)) => Some(format!("($duration {comparison}) && ({})", condition.trim())),
    };
    Some((name, condition))
}

/// The event at the end of the interval `name`, by the text of `/proc/kallsyms` and the kernel's types, which are read if it needs
/// them.
///
/// # Errors
/// The kernel does not have what the interval is measured by.
pub fn event(
    name: &str,
    kernel: &[u8],
    btf: impl FnOnce() -> Result<Option<Btf>, kprism_btf::Error>,
) -> Result<Event> {
    let address = |name: &str| kallsyms::value_of(kernel, name);
    let needed = |function: &str| {
        address(function).with_context(|| format!("{name}: this kernel has no function {function}"))
    };
    let interval = match name {
        "irqs_off" => {
            let mut entries: Vec<u64> = SYSCALL_ENTRIES.into_iter().filter_map(address).collect();
            entries.sort_unstable();
            if entries.is_empty() {
                bail!("{name}: this kernel has no function {}", SYSCALL_ENTRIES[0]);
            }
            Interval::IrqsOff { entries }
        }
        "preempt_off" => {
            let count = kallsyms::preemption(kernel).count;
            Interval::PreemptOff {
                count: count.with_context(|| {
                    format!("{name}: this kernel counts preemption where kprism does not find it: neither __preempt_count nor pcpu_hot is among its symbols")
                })?,
            }
        }
        "spinlock" => {
            let of = |globs: &str| {
                let globs: Vec<&str> = globs
                    .split(" | ")
                    .filter_map(|marker| marker.split_once(':'))
                    .map(|(_, glob)| glob)
                    .collect();
                kallsyms::functions_like(kernel, &globs)
            };
            let (locks, unlocks) = (of(delta::LOCKS), of(delta::UNLOCKS));
            if locks.is_empty() || unlocks.is_empty() {
                bail!(
                    "{name}: this kernel has no functions _raw_spin_lock and _raw_spin_unlock; their copies in other functions are not seen"
                );
            }
            Interval::Locked { locks, unlocks }
        }
        "wakeup" => {
            let btf = btf()?.with_context(|| {
                format!("{name}: the guest's kernel was built without CONFIG_DEBUG_INFO_BTF")
            })?;
            let offset = |member: &str| {
                let offset = btf.offset("task_struct", member)?;
                Ok::<_, kprism_btf::Error>(u32::from(offset.unsigned_abs()))
            };
            Interval::Wakeup {
                wake: needed("try_to_wake_up")?,
                switch: needed("__switch_to")?,
                // Called `state` until 5.13.
                state: offset("__state").or_else(|_| offset("state"))?,
                on_rq: offset("on_rq")?,
                delayed: offset("se.sched_delayed").ok(),
            }
        }
        "syscall" => {
            return Ok(Event::Call { entry: needed("do_syscall_64")?, at_return: true, slots: 0 });
        }
        "contention" => {
            let names = ["native_queued_spin_lock_slowpath", "queued_spin_lock_slowpath"];
            let Some(entry) = names.into_iter().find_map(address) else {
                bail!("{name}: this kernel has no function {}; with one CPU it needs none", names[0]);
            };
            return Ok(Event::Call { entry, at_return: true, slots: 0 });
        }
        _ => bail!("{name}: no such interval; expected one of {}", NAMES.join(", ")),
    };
    Ok(Event::Interval(interval))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_told_from_functions() {
        let condition = |spec| split(spec).map(|(name, condition)| (name, condition.unwrap_or_default()));
        assert_eq!(condition("irqs_off > 100us"), Some(("irqs_off", "$duration > 100us".into())));
        assert_eq!(condition(" irqs_off>=1ms "), Some(("irqs_off", "$duration >=1ms".into())));
        assert_eq!(condition("wakeup"), Some(("wakeup", String::new())));
        assert_eq!(
            condition(r#"syscall > 1ms if $comm == "dd" || $cpu"#),
            Some(("syscall", r#"($duration > 1ms) && ($comm == "dd" || $cpu)"#.into()))
        );
        assert_eq!(condition("spinlock if $cpu == 1"), Some(("spinlock", "$cpu == 1".into())));
        for function in ["syscall_init_work", "wakeup_flusher_threads if x > 1", "vfs_read", "syscall%return"]
        {
            assert_eq!(condition(function), None, "{function}");
        }
    }
}
