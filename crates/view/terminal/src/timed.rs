// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durations of functions as screens: the table of `kprism report durations`, and behind each function a histogram, its
//! callers and callees.
//!
//! In: [`Times`] and the profile that they go with. Out: screens.

use kprism_profile::units::{duration, grouped};
use kprism_profile::{Filter, Histogram, Profile, Times, TracingCost};
use kprism_report::durations as view;
use kprism_report::table::Cell;

use crate::calls::Calls;
use crate::contents::function_at;
use crate::screen::{Screen, Target};

/// Width of the longest bar.
const BAR: u128 = 30;

/// Times, and the cost of measuring them.
pub struct Timed {
    times: Times,
    cost: Option<TracingCost>,
}

impl Timed {
    /// Of a run.
    pub fn new(times: Times, cost: Option<TracingCost>) -> Self {
        Timed { times, cost }
    }

    /// The table of functions.
    pub fn functions(&self, profile: &Profile) -> Screen {
        let mut table = view::functions(profile, &self.times, &Filter::default(), self.cost.as_ref());
        view::select(&mut table, self.cost.as_ref(), None);
        Screen::of_table("durations", &table, ("function", "total_ns"), function_at(&table))
    }

    /// The screens behind a function; `None` if it was not seen.
    pub fn function(&self, name: &str, module: &str, calls: Option<&Calls>) -> Option<Vec<Screen>> {
        let profile = &calls?.profile;
        let func = profile.funcs.iter().position(|func| func.name == name && func.module == module)?;
        let mut screens = Vec::new();
        if let Some(times) = self.times.funcs.get(func) {
            let text = histogram(&times.durations);
            screens.push(Screen::text("histogram", text.lines()));
        }
        // Aggregated durations have no contexts.
        if profile.nodes.len() > profile.tasks.len() && self.times.nodes.len() == profile.nodes.len() {
            let of = |name: &str, table: kprism_report::Table, sorted| {
                Screen::of_table(name, &table, ("function", sorted), function_at(&table))
            };
            let all = Filter::default();
            screens.push(of("callees", view::callees(profile, &self.times, &all, name), "count"));
            screens.push(of("callers", view::callers(profile, &self.times, &all, name), "total_ns"));
        }
        Some(screens)
    }
}

/// The table of functions by task.
pub fn by_task(profile: &Profile, timed: &Timed) -> Screen {
    let table = view::by_task(profile, &timed.times, &Filter::default());
    let function = function_at(&table);
    let target = move |cells: &[Cell]| -> Option<Target> { function(cells) };
    Screen::of_table("by task", &table, ("comm", "total_ns"), target)
}

/// A histogram by powers of two, as text.
fn histogram(of: &Histogram) -> String {
    let mut out = format!("{} calls", grouped(of.count));
    if of.count > 0 {
        out += &format!(", {} in all, {} to {}", duration(of.sum), duration(of.min), duration(of.max));
    }
    out += "\n\n";
    // Slot 0 is of 0 ns, slot n of 2^(n-1) to 2^n - 1 ns.
    let mut slots = [0_u64; 65];
    for bin in &of.bins {
        let slot = &mut slots[(u64::BITS - bin.low.leading_zeros()) as usize];
        *slot = slot.saturating_add(bin.count);
    }
    let first = slots.iter().position(|n| *n > 0).unwrap_or(0);
    let last = slots.iter().rposition(|n| *n > 0).unwrap_or(0);
    let most = u128::from(slots.iter().copied().max().unwrap_or(0).max(1));
    for (slot, n) in slots.iter().enumerate().take(last + 1).skip(first).filter(|_| of.count > 0) {
        let bar = "█".repeat((u128::from(*n) * BAR).div_ceil(most) as usize);
        let from = if slot == 0 { 0 } else { 1_u64 << (slot - 1) };
        out += format!("{:>12} …  {:>12}  {bar}", duration(from), grouped(*n)).trim_end();
        out.push('\n');
    }
    out
}
