// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's functions by address, of 32-bit kernels too.

use kprism_durations::ftrace::Collector;
use kprism_durations::{Measured, Names};
use kprism_image::symbols::Symbols;
use kprism_image::symbols::kallsyms::upper_half;
use kprism_profile::units::offset_text;

use super::facts::Facts;

/// The kernel's functions; none, with a note, where they cannot be told.
pub(super) fn symbols(kallsyms: &[u8], facts: &mut Facts) -> Symbols {
    Symbols::load(kallsyms, &[], None).unwrap_or_else(|error| {
        facts.notes.push(error.to_string());
        Symbols::default()
    })
}

/// The function that an address is in.
fn function(symbols: &Symbols, address: u64) -> Option<(&str, &str)> {
    let address = upper_half(address);
    let func = symbols.function(symbols.locate(0, address, 0)?.func);
    Some((&func.name, &func.module))
}

/// A place in the kernel's code, `vfs_read+0x4`.
pub(super) fn place(symbols: &Symbols, address: u64) -> Option<String> {
    let address = upper_half(address);
    let place = symbols.locate(0, address, 0).filter(|place| place.known)?;
    let func = symbols.function(place.func);
    Some(format!("{}{}", func.name, offset_text(address.wrapping_sub(func.start))))
}

/// A collector that knows which functions are special.
pub(super) fn collector<'s>(symbols: &'s Symbols, timed: bool) -> Collector<'s> {
    Collector::new(Names::new(|address| Some(function(symbols, address)?.0)), timed)
}

pub(super) fn finish(collector: Collector<'_>, symbols: &Symbols) -> Measured {
    collector.finish(|address| {
        let (name, module) = function(symbols, address)?;
        Some((name.to_owned(), module.to_owned()))
    })
}
