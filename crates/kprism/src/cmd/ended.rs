// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a run in the guest, and of a command after Ctrl-C, as the program's own.

use anyhow::Result;
use kprism_lab::{Ended, Full, Outcome as Ran};
use kprism_record::guest::is_interrupt;

use crate::exit::{self, Outcome};

/// Ctrl-C is an outcome, not an error.
pub fn interrupted(error: anyhow::Error) -> Result<Outcome> {
    match is_interrupt(&error) {
        true => Ok(Outcome::Code(exit::INTERRUPTED)),
        false => Err(error),
    }
}

/// The exit code that a run in the guest leads to.
pub fn code(ran: &Ran) -> u8 {
    match ran.ended {
        Ended::Normal => ran.exit_code.unwrap_or(exit::LAB_FAILED),
        Ended::Timeout | Ended::Full(Full::Size(_)) => exit::LIMIT,
        Ended::Interrupted => exit::INTERRUPTED,
        Ended::Full(Full::Disk(_)) | Ended::Panic(_) | Ended::Failed(_) => exit::LAB_FAILED,
    }
}
