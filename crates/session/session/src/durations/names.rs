// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's functions by address, of 32-bit kernels too.

use std::borrow::Cow;

use kprism_durations::ftrace::Collector;
use kprism_durations::{Measured, Names};
use kprism_image::symbols::Symbols;

use super::facts::Facts;

/// The kernel's functions; none, with a note, where they cannot be told.
pub(super) fn symbols(kallsyms: &[u8], facts: &mut Facts) -> Symbols {
    Symbols::load(&widened(kallsyms), &[], None).unwrap_or_else(|error| {
        facts.notes.push(error.to_string());
        Symbols::default()
    })
}

/// The symbols of a 32-bit kernel with the addresses that [`high`] makes of them: those of the kernel are in the upper half
/// everywhere else.
fn widened(kallsyms: &[u8]) -> Cow<'_, [u8]> {
    let digits = kallsyms.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    if digits != 8 {
        return kallsyms.into();
    }
    let lines = kallsyms.split_inclusive(|&byte| byte == b'\n');
    lines.flat_map(|line| [b"ffffffff", line]).flatten().copied().collect::<Vec<u8>>().into()
}

/// The address of a kernel's function, from 32 bits too.
fn high(address: u64) -> u64 {
    if address >> 32 == 0 { address | 0xffff_ffff_0000_0000 } else { address }
}

/// The function that an address is in.
fn function(symbols: &Symbols, address: u64) -> Option<(&str, &str)> {
    let address = high(address);
    let func = symbols.function(symbols.locate(0, address, 0)?.func);
    Some((&func.name, &func.module))
}

/// A place in the kernel's code, `vfs_read+0x4`.
pub(super) fn place(symbols: &Symbols, address: u64) -> Option<String> {
    let address = high(address);
    let place = symbols.locate(0, address, 0).filter(|place| place.known)?;
    let func = symbols.function(place.func);
    Some(format!("{}+{:#x}", func.name, address.saturating_sub(func.start)))
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
