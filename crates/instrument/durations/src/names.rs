// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions, numbered in order of appearance.

use foldhash::HashMap;
use kprism_ftrace::Func;

/// A function as the source names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// By address.
    Address(u64),
    /// By name; modules as `name [module]`.
    Text(String),
}

/// Special properties of a function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Role {
    /// It begins or ends the handling of an interrupt.
    pub interrupt: bool,
    /// It waits: its own time is off the CPU.
    pub schedules: bool,
    /// It passes a tracepoint to its listeners.
    pub tracepoint: bool,
}

impl Role {
    /// The role of the kernel function with this name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let stem = name.trim_start_matches('_');
        // Functions outside the kernel's marks of interrupt context, because they set and clear those marks.
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
        Role { interrupt, schedules, tracepoint: name.starts_with("__traceiter_") }
    }
}

/// Functions and their numbers.
#[derive(Default)]
pub struct Names<'n> {
    by_address: HashMap<u64, u32>,
    by_text: HashMap<String, u32>,
    /// Functions that were looked up last, each at a place that follows from its address.
    recent: Vec<Option<(u64, u32)>>,
    names: Vec<Name>,
    roles: Vec<Role>,
    /// Returns the role of the function at an address.
    role_at: Option<Box<dyn Fn(u64) -> Role + 'n>>,
}

/// Number of functions that are found without a search.
const RECENT: usize = 1024;

impl<'n> Names<'n> {
    /// Functions of a machine. `name_at` returns the function that contains an address. ftrace's addresses are a few
    /// bytes after the start of their functions.
    pub fn new<S: AsRef<str>>(name_at: impl Fn(u64) -> Option<S> + 'n) -> Self {
        let role = move |address| name_at(address).map_or(Role::default(), |name| Role::of(name.as_ref()));
        Names { role_at: Some(Box::new(role)), ..Names::default() }
    }

    /// The number of a function.
    pub fn number(&mut self, func: Func<'_>) -> u32 {
        let next = self.names.len() as u32;
        let (known, name, role) = match func {
            Func::Address(address) => {
                // Functions begin at multiples of 16.
                let place = (address >> 4) as usize % RECENT;
                if let Some(Some((recent, known))) = self.recent.get(place)
                    && *recent == address
                {
                    return *known;
                }
                let known = *self.by_address.entry(address).or_insert(next);
                self.recent.resize(RECENT, None);
                self.recent[place] = Some((address, known));
                if known != next {
                    return known;
                }
                let role = self.role_at.as_ref().map_or(Role::default(), |role_at| role_at(address));
                (next, Name::Address(address), role)
            }
            Func::Name(name) => match self.by_text.get(name) {
                Some(&known) => return known,
                None => {
                    self.by_text.insert(name.to_owned(), next);
                    (next, Name::Text(name.to_owned()), Role::of(name))
                }
            },
        };
        self.names.push(name);
        self.roles.push(role);
        known
    }

    /// The special properties of a function.
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
