// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks that guest time stood still while the guest was stopped for its snapshot.
//!
//! A vCPU that stops itself by a device counts as idle before QEMU's main thread, some microseconds later, has stopped the machine. In
//! between, with `-icount sleep=off`, guest time may jump to the next timer. This depends on the host's scheduler, so two boots of one
//! guest would end in two snapshots, whose runs differ by some hundred instructions. So the observer holds the vCPU while QEMU stops
//! ([`crate::hold`]); this is the check that it did.
//!
//! The agent tells the time right before its mark. The ACPI PM timer of the stopped machine tells the time after it: it counts
//! guest time at 3.579545 MHz, in 24 bits (ACPI specification, "Power Management Timer").

use serde_json::json;

use crate::error::{Error, Result};
use crate::qmp::Qmp;

/// I/O port of the PM timer on QEMU's q35 (ICH9: PMBASE + 8).
const PORT: u16 = 0x608;
const HERTZ: u128 = 3_579_545;
const BITS: u32 = 24;

/// The way from the agent's reading to the stop takes 4 µs or so. A jump leads to the next timer, hundreds of µs away.
const LONGEST_WAY_NS: u128 = 20_000;

/// Returns true if guest time jumped after `before_ns`, the guest's time stamp counter right before it stopped (1 GHz).
///
/// # Errors
/// QEMU's answer is not understood.
pub(crate) fn jumped(qmp: &mut Qmp, before_ns: u64) -> Result<bool> {
    let said = qmp.call("human-monitor-command", json!({ "command-line": format!("i /w {PORT:#x}") }))?;
    // Such as `portl[0x0608] = 0x00a1b2c3`.
    let ticks = said.as_str().and_then(|text| text.trim().rsplit_once("= 0x")).map(|(_, digits)| digits);
    let ticks = ticks.and_then(|digits| u32::from_str_radix(digits, 16).ok()).ok_or_else(|| Error::Qemu {
        reason: format!(
            "it answered {said} for the ACPI PM timer, by which guest time is checked, not `portl[…] = 0x…`"
        ),
    })?;
    Ok(is_later(ticks, before_ns))
}

/// Returns true if the timer's count is that of a time much later than `before_ns`.
fn is_later(ticks: u32, before_ns: u64) -> bool {
    let mask = (1u128 << BITS) - 1;
    let before = u128::from(before_ns) * HERTZ / 1_000_000_000;
    let since = u128::from(ticks).wrapping_sub(before) & mask;
    since > LONGEST_WAY_NS * HERTZ / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timer_is_compared_modulo_its_width() {
        // 5 s: the timer has wrapped once.
        let at = |ns: u64| (u128::from(ns) * HERTZ / 1_000_000_000) as u32 & 0xff_ffff;
        assert!(!is_later(at(5_000_004_000), 5_000_000_000));
        assert!(is_later(at(5_001_062_735), 5_000_000_000));
        assert!(!is_later(at(4_687_000_100), 4_686_999_000), "at the wrap");
    }
}
