// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions, numbered in the order in which they were met.

use std::collections::{HashMap, HashSet};

use kprism_ftrace::Func;

/// A function as the source names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// By address.
    Address(u64),
    /// By name; modules as `name [module]`.
    Text(String),
}

/// What is special about a function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Role {
    /// It begins or ends the handling of an interrupt.
    pub interrupt: bool,
    /// It waits: its own time is spent off the CPU.
    pub schedules: bool,
}

impl Role {
    /// The role of a kernel function of this name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let stem = name.trim_start_matches('_');
        // What the kernel's own marks of interrupt context do not cover: they are set and taken back in these.
        let interrupt = stem.starts_with("sysvec_")
            || matches!(
                stem,
                "irq_enter_rcu"
                    | "irq_exit_rcu"
                    | "irq_enter"
                    | "irq_exit"
                    | "common_interrupt"
                    | "do_IRQ"
                    | "smp_apic_timer_interrupt"
            );
        let schedules = matches!(
            name,
            "schedule"
                | "__schedule"
                | "schedule_idle"
                | "schedule_preempt_disabled"
                | "schedule_rtlock"
                | "preempt_schedule"
                | "preempt_schedule_common"
                | "preempt_schedule_irq"
                | "preempt_schedule_notrace"
        );
        Role { interrupt, schedules }
    }
}

/// Functions and their numbers.
#[derive(Debug, Default)]
pub struct Names {
    by_address: HashMap<u64, u32>,
    by_text: HashMap<String, u32>,
    names: Vec<Name>,
    roles: Vec<Role>,
    interrupts: HashSet<u64>,
    schedulers: HashSet<u64>,
}

impl Names {
    /// Names of a machine whose functions these are: `(address, name)`. Only those with a role matter.
    pub fn new<'a>(functions: impl IntoIterator<Item = (u64, &'a str)>) -> Self {
        let mut names = Names::default();
        for (address, name) in functions {
            let role = Role::of(name);
            if role.interrupt {
                names.interrupts.insert(address);
            }
            if role.schedules {
                names.schedulers.insert(address);
            }
        }
        names
    }

    /// The number of a function.
    pub fn number(&mut self, func: Func<'_>) -> u32 {
        let next = self.names.len() as u32;
        let (known, name, role) = match func {
            Func::Address(address) => {
                let known = *self.by_address.entry(address).or_insert(next);
                let role = || Role {
                    interrupt: self.interrupts.contains(&address),
                    schedules: self.schedulers.contains(&address),
                };
                (known, Name::Address(address), (known == next).then(role))
            }
            Func::Name(name) => match self.by_text.get(name) {
                Some(&known) => return known,
                None => {
                    self.by_text.insert(name.to_owned(), next);
                    (next, Name::Text(name.to_owned()), Some(Role::of(name)))
                }
            },
        };
        if known == next {
            self.names.push(name);
            self.roles.push(role.unwrap_or_default());
        }
        known
    }

    /// What is special about a function.
    #[must_use]
    pub fn role(&self, func: u32) -> Role {
        self.roles.get(func as usize).copied().unwrap_or_default()
    }

    /// All functions, by number.
    #[must_use]
    pub fn all(&self) -> &[Name] {
        &self.names
    }
}
