// SPDX-License-Identifier: MIT OR Apache-2.0
//! Delta profiling: defines intervals that begin at one marker and end at another (paper 1, section 3.3 and algorithm
//! 1).
//!
//! Input: markers as a user writes them. Output: a [`Plan`], which lists the instructions to mark for the decoder and
//! the intervals for the analysis. A marker is one of these, or several with ` | ` between them:
//!
//! | text | when |
//! |---|---|
//! | `irqs-off`, `irqs-on` (`superCLI`, `superSTI`) | a CPU's interrupt flag changes, by whatever way |
//! | `preempt-off`, `preempt-on` | a CPU's preemption count leaves 0, comes back to 0 |
//! | `halt`, `wake` | `hlt` or `mwait`; whatever comes next on that CPU |
//! | `syscall`, `interrupt`, `exception` | the kernel is entered by one |
//! | `user` | back in user code |
//! | `switch` | another task |
//! | `func:NAME`, `ret:NAME` | a function begins, ends; `*` and `?` allowed |
//! | `tracepoint:[GROUP:]NAME` | a static tracepoint that is switched on is hit |
//! | `addr:HEX`, `NAME+0xOFFSET` | the instruction at this address |
//! | anything else | instructions, see [`kprism_image::insn::pattern`] |

use std::ops::Range;

use kprism_image::insn::pattern::{Pattern, PatternError};
use kprism_image::symbols::kallsyms::Preemption;

use crate::decode::marks::Markers;
use kprism_profile::{Scope, leaves_idle_out};

/// Maximum of intervals measured at once.
const MAX_DELTAS: usize = 64;

/// An interval to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Its name.
    pub name: String,
    /// The marker where it begins.
    pub from: String,
    /// The marker where it ends.
    pub to: String,
    /// The CPU's or the task's clock; derived from the markers if not given. Then one of a task is the CPU's where an interrupt begins
    /// it: the task that was interrupted has no part in it.
    pub scope: Option<Scope>,
    /// A beginning inside an interval begins another interval, which ends first.
    pub nested: bool,
}

/// The markers at which a CPU has a spinlock, or a reader's or writer's lock. A trylock counts as if it always got its lock, because a caller's flow does not show the result.
pub const LOCKS: &str = "ret:_raw_spin_lock* | ret:_raw_read_lock* | ret:_raw_write_lock* | ret:_raw_spin_trylock* | \
                     ret:_raw_read_trylock* | ret:_raw_write_trylock*";
/// The markers at which it gives the lock back.
pub const UNLOCKS: &str = "func:_raw_spin_unlock* | func:_raw_read_unlock* | func:_raw_write_unlock*";

/// Intervals measured by default: name, from, to, nested.
const STANDARD: [(&str, &str, &str, bool); 6] = [
    ("irqs", "irqs-off", "irqs-on", false),
    ("preempt", "preempt-off", "preempt-on", false),
    ("spinlock", LOCKS, UNLOCKS, true),
    ("contention", "func:*queued_spin_lock_slowpath", "ret:*queued_spin_lock_slowpath", true),
    ("fpu", "ret:kernel_fpu_begin*", "func:kernel_fpu_end", false),
    ("idle", "halt", "wake", false),
];

impl Spec {
    /// Interrupts off, preemption off, spinlocks held and waited for, FPU use by the kernel, idling.
    #[must_use]
    pub fn standard() -> Vec<Self> {
        STANDARD
            .iter()
            .map(|&(name, from, to, nested)| Spec {
                name: name.to_owned(),
                from: from.to_owned(),
                to: to.to_owned(),
                scope: Some(Scope::Cpu),
                nested,
            })
            .collect()
    }

    /// True if the time that a CPU waits is in none of them.
    pub(crate) fn leaves_idle_out(&self) -> bool {
        leaves_idle_out(self.from.trim(), self.to.trim(), self.scope.unwrap_or_default())
    }
}

/// Errors in a marker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Neither a marker's name nor an instruction.
    #[error("marker {text:?}: {source}")]
    Marker {
        /// The marker.
        text: String,
        /// Why it is no instruction.
        source: PatternError,
    },
    /// Not a number.
    #[error("marker {0:?}: expected an address in hex after `addr:`")]
    Address(String),
    /// No function of this name.
    #[error("marker {0:?}: no function of the run has this name")]
    Function(String),
    /// Too many at once.
    #[error("more than {MAX_DELTAS} intervals at once")]
    TooMany,
}

/// Events that markers name; indices of [`Plan::occasions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occasion {
    IrqsOff,
    IrqsOn,
    PreemptOff,
    PreemptOn,
    Halt,
    Wake,
    Syscall,
    Interrupt,
    Exception,
    User,
    Switch,
}

/// Names of occasions, in their order, with alternative names.
const OCCASIONS: [(Occasion, &str, &str); 11] = [
    (Occasion::IrqsOff, "irqs-off", "superCLI"),
    (Occasion::IrqsOn, "irqs-on", "superSTI"),
    (Occasion::PreemptOff, "preempt-off", ""),
    (Occasion::PreemptOn, "preempt-on", ""),
    (Occasion::Halt, "halt", "hlt"),
    (Occasion::Wake, "wake", ""),
    (Occasion::Syscall, "syscall", ""),
    (Occasion::Interrupt, "interrupt", "irq"),
    (Occasion::Exception, "exception", ""),
    (Occasion::User, "user", ""),
    (Occasion::Switch, "switch", ""),
];

/// Sets of intervals that begin and that end, one bit for each interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Triggers {
    pub from: u64,
    pub to: u64,
}

impl Triggers {
    fn set(&mut self, delta: usize, ends: bool) {
        let side = if ends { &mut self.to } else { &mut self.from };
        *side |= 1 << delta;
    }

    pub fn is_empty(self) -> bool {
        self.from | self.to == 0
    }
}

/// Function names, as a pattern, that begin or end intervals.
#[derive(Debug, Clone)]
pub(crate) struct FuncTrigger {
    pub glob: String,
    /// True at the function's beginning, false at its end.
    pub at_begin: bool,
    pub triggers: Triggers,
}

/// The intervals and executions to measure in one decode.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) markers: Markers,
    pub(crate) deltas: Vec<Spec>,
    /// Intervals of a task whose scope nobody chose, one bit each.
    pub(crate) by_context: u64,
    pub(crate) occasions: [Triggers; OCCASIONS.len()],
    pub(crate) funcs: Vec<FuncTrigger>,
    /// Triggers by number of the pattern or address.
    pub(crate) wanted: Vec<Triggers>,
    /// Patterns whose executions are counted: text and number.
    pub(crate) counts: Vec<(String, u32)>,
    /// All intervals that reach into this time are kept, in ns.
    pub(crate) kept: Option<Range<u64>>,
}

impl Default for Plan {
    fn default() -> Self {
        Self::new(&Spec::standard(), &[], &|_| None).unwrap_or_else(|_| Self::nothing())
    }
}

impl Plan {
    /// Measures nothing.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            markers: Markers { kernel: true, ..Markers::LONG },
            deltas: Vec::new(),
            by_context: 0,
            occasions: Default::default(),
            funcs: Vec::new(),
            wanted: Vec::new(),
            counts: Vec::new(),
            kept: None,
        }
    }

    /// Measures these intervals, and counts these instruction patterns. `address_of` returns a function's address.
    ///
    /// # Errors
    /// [`PlanError`] names the marker that cannot be parsed.
    pub fn new(
        specs: &[Spec],
        counts: &[String],
        address_of: &dyn Fn(&str) -> Option<u64>,
    ) -> Result<Self, PlanError> {
        if specs.len() > MAX_DELTAS {
            return Err(PlanError::TooMany);
        }
        let mut plan = Self::nothing();
        let mut places = Vec::new();
        for (n, spec) in specs.iter().enumerate() {
            let mut by_task = false;
            for (ends, text) in [(false, &spec.from), (true, &spec.to)] {
                for marker in text.split(" | ") {
                    by_task |= plan.add(marker.trim(), n, ends, address_of, &mut places)?;
                }
            }
            plan.by_context |= u64::from(by_task && spec.scope.is_none()) << n;
            let scope = spec.scope.unwrap_or(if by_task { Scope::Task } else { Scope::Cpu });
            plan.deltas.push(Spec { scope: Some(scope), ..spec.clone() });
        }
        for text in counts {
            let number = plan.pattern(text)?;
            if plan.counts.iter().all(|&(_, known)| known != number) {
                plan.counts.push((text.clone(), number));
            }
        }
        // The numbers of addresses follow those of the patterns.
        for (address, triggers) in places {
            plan.markers.addresses.push((address, plan.wanted.len() as u32));
            plan.wanted.push(triggers);
        }
        plan.markers.addresses.sort_unstable();
        plan.markers.counted = vec![false; plan.markers.patterns.len()];
        for &(_, n) in &plan.counts {
            plan.markers.counted[n as usize] = plan.wanted[n as usize].is_empty();
        }
        plan.markers.funcs = plan.funcs.iter().map(|f| f.glob.clone()).collect();
        Ok(plan)
    }

    /// Sets where the kernel counts what keeps a CPU from being preempted.
    #[must_use]
    pub fn with_preemption(mut self, preemption: Preemption) -> Self {
        self.markers.preemption = preemption;
        self
    }

    /// Keeps all intervals that reach into this time (ns), not only the longest: [`kprism_profile::Delta::all`]. Of each kind there is
    /// room for two million.
    #[must_use]
    pub fn keeping(mut self, time: Range<u64>) -> Self {
        self.kept = Some(time);
        self
    }

    /// Names of the intervals that begin or end with preemption, if nobody knows where the kernel counts it. They are measured by none
    /// of its marks, and are left out of the result.
    #[must_use]
    pub fn unmeasured(&self) -> Vec<&str> {
        let left_out = self.deltas.iter().enumerate().filter(|(n, _)| self.is_unmeasured(*n));
        left_out.map(|(_, spec)| spec.name.as_str()).collect()
    }

    /// True for the number of such an interval.
    pub(crate) fn is_unmeasured(&self, delta: usize) -> bool {
        let of_preemption =
            [Occasion::PreemptOff, Occasion::PreemptOn].map(|occasion| self.occasions[occasion as usize]);
        let uses = of_preemption.iter().any(|triggers| (triggers.from | triggers.to) >> delta & 1 == 1);
        uses && self.markers.preemption.count.is_none()
    }

    /// Adds a marker. Returns true if it belongs to a task rather than a CPU.
    fn add(
        &mut self,
        text: &str,
        delta: usize,
        ends: bool,
        address_of: &dyn Fn(&str) -> Option<u64>,
        places: &mut Vec<(u64, Triggers)>,
    ) -> Result<bool, PlanError> {
        let named =
            |&&(_, name, other): &&(Occasion, &str, &str)| text == name || text == other && !other.is_empty();
        if let Some((occasion, ..)) = OCCASIONS.iter().find(named) {
            self.occasions[*occasion as usize].set(delta, ends);
            return Ok(matches!(occasion, Occasion::Syscall | Occasion::User));
        }
        for (prefix, at_begin) in [("func:", true), ("ret:", false)] {
            if let Some(glob) = text.strip_prefix(prefix) {
                let mut triggers = Triggers::default();
                triggers.set(delta, ends);
                self.funcs.push(FuncTrigger { glob: glob.to_owned(), at_begin, triggers });
                return Ok(true);
            }
        }
        if let Some(name) = text.strip_prefix("tracepoint:") {
            // The function that the site calls while the tracepoint is on (include/linux/tracepoint.h). While it is
            // off, the site is a no-op without a name.
            let name = name.rsplit(':').next().unwrap_or(name);
            let mut triggers = Triggers::default();
            triggers.set(delta, ends);
            self.funcs.push(FuncTrigger { glob: format!("__traceiter_{name}"), at_begin: true, triggers });
            return Ok(false);
        }
        if let Some(address) = place(text, address_of)? {
            let mut triggers = Triggers::default();
            triggers.set(delta, ends);
            places.push((address, triggers));
            return Ok(false);
        }
        let number = self.pattern(text)?;
        self.wanted[number as usize].set(delta, ends);
        Ok(false)
    }

    /// Returns the number of an instruction pattern, and adds it if it is new.
    fn pattern(&mut self, text: &str) -> Result<u32, PlanError> {
        let pattern =
            Pattern::parse(text).map_err(|source| PlanError::Marker { text: text.to_owned(), source })?;
        if let Some(known) = self.markers.patterns.iter().position(|p| *p == pattern) {
            return Ok(known as u32);
        }
        self.markers.patterns.push(pattern);
        self.wanted.push(Triggers::default());
        Ok(self.wanted.len() as u32 - 1)
    }
}

/// Returns the address that a marker names, if it is a marker of that kind.
fn place(text: &str, address_of: &dyn Fn(&str) -> Option<u64>) -> Result<Option<u64>, PlanError> {
    if let Some(hex) = text.strip_prefix("addr:") {
        let digits = hex.strip_prefix("0x").unwrap_or(hex);
        return match u64::from_str_radix(digits, 16) {
            Ok(address) => Ok(Some(address)),
            Err(_) => Err(PlanError::Address(text.to_owned())),
        };
    }
    let Some((name, offset)) = text.rsplit_once("+0x") else { return Ok(None) };
    let Ok(offset) = u64::from_str_radix(offset, 16) else { return Ok(None) };
    match address_of(name) {
        Some(start) => Ok(Some(start.wrapping_add(offset))),
        None => Err(PlanError::Function(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(from: &str, to: &str) -> Result<Plan, PlanError> {
        let spec = Spec { name: "x".into(), from: from.into(), to: to.into(), scope: None, nested: false };
        Plan::new(&[spec], &[], &|name| (name == "vfs_read").then_some(0x1000))
    }

    #[test]
    fn preemption_is_not_measured_where_its_count_is_not_known() {
        let unknown = Plan::default();
        assert_eq!(unknown.unmeasured(), ["preempt"]);
        let known = unknown.with_preemption(Preemption { count: Some(0x3_2d08), ..Preemption::default() });
        assert!(known.unmeasured().is_empty());
        assert_eq!(plan("func:vfs_read", "preempt-on").unwrap().unmeasured(), ["x"]);
    }

    #[test]
    fn too_many_intervals_are_refused() {
        let specs = |n: usize| vec![Spec::standard()[0].clone(); n];
        assert_eq!(Plan::new(&specs(MAX_DELTAS), &[], &|_| None).unwrap().deltas.len(), MAX_DELTAS);
        let refused = Plan::new(&specs(MAX_DELTAS + 1), &[], &|_| None);
        assert!(matches!(refused, Err(PlanError::TooMany)));
    }

    #[test]
    fn markers() {
        let p = plan("superCLI", "irqs-on | user").unwrap();
        assert_eq!(p.occasions[Occasion::IrqsOff as usize], Triggers { from: 1, to: 0 });
        assert_eq!(p.occasions[Occasion::User as usize], Triggers { from: 0, to: 1 });
        let p = plan("func:vfs_*", "ret:vfs_*").unwrap();
        assert_eq!(p.deltas[0].scope, Some(Scope::Task));
        assert!(p.markers.wants_func("vfs_read") && !p.markers.wants_func("do_sys_open"));
        let p = plan("vfs_read+0x10 | mov cr3, *", "addr:ffff").unwrap();
        assert_eq!(p.markers.addresses, [(0x1010, 1), (0xffff, 2)]);
        assert_eq!(p.wanted[0], Triggers { from: 1, to: 0 });
        assert_eq!(p.deltas[0].scope, Some(Scope::Cpu));
        let p = plan("tracepoint:sched:sched_switch", "tracepoint:sched_waking").unwrap();
        assert!(
            p.markers.wants_func("__traceiter_sched_switch")
                && p.markers.wants_func("__traceiter_sched_waking")
        );
    }

    #[test]
    fn what_is_no_marker() {
        for (bad, words) in [
            ("no-such", "no x86 instruction"),
            ("addr:xyz", "in hex"),
            ("nothing+0x10", "no function"),
            ("cli | ", "an instruction is missing"),
        ] {
            let error = plan(bad, "sti").unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_standard_is_understood() {
        assert_eq!(Plan::default().deltas.len(), STANDARD.len());
    }
}
