// SPDX-License-Identifier: MIT OR Apache-2.0
//! Roles of Linux's functions in kernel entry, by their names.
//!
//! Since 5.8 exceptions enter at `asm_exc_*` (arch/x86/include/asm/idtentry.h); before, at the names given to
//! `idtentry` in arch/x86/entry/entry_64.S. Every other entry that the processor makes by itself is an interrupt:
//! `asm_sysvec_*` and `irq_entries_start`, before 5.8 `apic_timer_interrupt`, `reschedule_interrupt` and the like.
//! Since 4.17 a system call's body is `__x64_sys_*` (arch/x86/include/asm/syscall_wrapper.h); before, `sys_*`, which
//! the defining macros made an alias of `SyS_*`.

use crate::decode::event::flag;

/// Entries of exceptions before 5.8: the union of those of 4.9 to 5.7.
const EXCEPTIONS: [&str; 26] = [
    "alignment_check",
    "async_page_fault",
    "bounds",
    "coprocessor_error",
    "coprocessor_segment_overrun",
    "debug",
    "device_not_available",
    "divide_error",
    "double_fault",
    "general_protection",
    "int3",
    "invalid_TSS",
    "invalid_op",
    "machine_check",
    "overflow",
    "page_fault",
    "segment_not_present",
    "simd_coprocessor_error",
    "spurious_interrupt_bug",
    "stack_segment",
    "trace_page_fault",
    "xen_debug",
    "xen_int3",
    "xen_stack_segment",
    "xendebug",
    "xenint3",
];

/// Name prefixes of system calls' bodies.
const BODIES: [&str; 9] = [
    "__x64_sys_",
    "__ia32_sys_",
    "__ia32_compat_sys_",
    "__x64_compat_sys_",
    "__x32_compat_sys_",
    "SyS_",
    "sys_",
    "compat_SyS_",
    "compat_sys_",
];

/// Returns the [`flag`] bits implied by a kernel function's name.
pub(crate) fn role(name: &str) -> u8 {
    if let Some(call) = BODIES.iter().find_map(|prefix| name.strip_prefix(prefix)) {
        let forks = matches!(call, "fork" | "vfork" | "clone" | "clone3");
        flag::SYSCALL_BODY | if forks { flag::FORK } else { 0 }
    } else if name.starts_with("asm_exc_") && !is_nmi(name) || EXCEPTIONS.binary_search(&name).is_ok() {
        flag::EXCEPTION
    } else {
        0
    }
}

/// Returns true for the entry of what also comes while interrupts are off: non-maskable interrupts, and with FRED (Linux 6.9 and
/// later, arch/x86/entry/entry_64_fred.S) everything, as all events enter at two places.
pub(crate) fn is_nmi(name: &str) -> bool {
    matches!(
        name,
        "asm_exc_nmi" | "nmi" | "xennmi" | "asm_fred_entrypoint_user" | "asm_fred_entrypoint_kernel"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_old_and_new_kernels() {
        assert!(EXCEPTIONS.is_sorted());
        for name in ["asm_exc_page_fault", "page_fault", "general_protection", "int3", "machine_check"] {
            assert_eq!((role(name), is_nmi(name)), (flag::EXCEPTION, false), "{name}");
        }
        for name in ["asm_exc_nmi", "nmi", "asm_fred_entrypoint_kernel"] {
            assert_eq!((role(name), is_nmi(name)), (0, true), "{name}");
        }
        for name in ["apic_timer_interrupt", "irq_entries_start", "common_interrupt", "asm_sysvec_reboot"] {
            assert_eq!((role(name), is_nmi(name)), (0, false), "{name}");
        }
        for name in ["__x64_sys_clone", "SyS_clone", "sys_fork"] {
            assert_eq!(role(name), flag::SYSCALL_BODY | flag::FORK, "{name}");
        }
        assert_eq!(role("compat_SyS_read"), flag::SYSCALL_BODY);
        assert_eq!(role("ksys_read"), 0);
    }
}
