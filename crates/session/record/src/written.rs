// SPDX-License-Identifier: MIT OR Apache-2.0
//! The size of a recording in words.
//!
//! In: what the lab measured while a recording is written. Out: the line that a terminal shows meanwhile, and the reason for which the
//! recording was ended.

use std::time::Duration;

use kprism_lab::{Full, Written};
use kprism_profile::units;

/// `0:07, 14.2 MiB of 64.0 MiB written, 3.1 MiB/s, 20.5 GiB left on the disk`; without what is not known.
pub fn line(written: &Written) -> String {
    let mut parts = vec![clock(written.elapsed)];
    if let Some(bytes) = written.bytes {
        let limit = written.limit.map_or_else(String::new, |limit| format!(" of {}", units::bytes(limit)));
        parts.push(format!("{}{limit} written", units::bytes(bytes)));
    }
    if let Some(rate) = written.per_second {
        parts.push(format!("{}/s", units::bytes(rate)));
    }
    if let Some(left) = written.left {
        parts.push(format!("{} left on the disk", units::bytes(left)));
    }
    parts.join(", ")
}

/// Why a recording was ended, for its account.
pub fn reason(full: Full) -> String {
    match full {
        Full::Size(limit) => format!("the recording reached --max-size, {}", units::bytes(limit)),
        Full::Disk(left) => {
            format!("the disk of the run folder is nearly full, {} are left", units::bytes(left))
        }
    }
}

/// Hours, minutes and seconds: `0:07`, `1:00:07`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_is_known_in_binary_units() {
        let mut written = Written {
            elapsed: Duration::from_millis(3_607_900),
            bytes: Some(3 << 19),
            per_second: Some(512),
            limit: Some(64 << 20),
            left: Some(5 << 30),
        };
        assert_eq!(line(&written), "1:00:07, 1.5 MiB of 64.0 MiB written, 512 B/s, 5.0 GiB left on the disk");
        written = Written { bytes: None, per_second: None, left: None, ..written };
        assert_eq!(line(&Written { elapsed: Duration::from_secs(67), ..written }), "1:07");
        let first = Written { bytes: Some(0), limit: None, ..written };
        assert_eq!(line(&first), "1:00:07, 0 B written");
    }

    #[test]
    fn the_account_says_which_limit_ended_a_recording() {
        assert_eq!(reason(Full::Size(8 << 20)), "the recording reached --max-size, 8.0 MiB");
        assert_eq!(
            reason(Full::Disk(200 << 20)),
            "the disk of the run folder is nearly full, 200.0 MiB are left"
        );
    }
}
