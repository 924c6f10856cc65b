// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's CPU: QEMU's `max`, without what would make runs differ or slow, and with what the user adds or removes.
//!
//! In: the user's features. Out: the value of QEMU's option `-cpu`.

use std::fmt;

/// Features of QEMU's `max` that the guest's CPU lacks unless the user adds them: random instructions, and five levels of
/// page tables, which nearly no machine uses.
const WITHOUT: [&str; 3] = ["rdrand", "rdseed", "la57"];

/// Features with which the kernel clears pages and copies by `rep stosb` and `rep movsb`. QEMU carries these out byte by
/// byte: 128 MB of new pages take nine times as long as by `rep stosq` and `rep movsq`, without them. A guest whose bus is
/// watched has them: tables that are cleared byte by byte are told from entries that are written.
const BYTES: [&str; 2] = ["erms", "fsrm"];

/// A feature to add to the guest's CPU or to remove from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuFeature {
    added: bool,
    name: String,
}

impl CpuFeature {
    /// Parses `+NAME` or `-NAME`, a feature by QEMU's name for it (`qemu-system-x86_64 -cpu help`).
    ///
    /// # Errors
    /// It is not of that form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let added = text.starts_with('+');
        let name = text.strip_prefix(['+', '-']).unwrap_or_default();
        let known = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        if name.is_empty() || !name.chars().all(known) {
            return Err("expected + or -, and a feature by QEMU's name for it, as in +erms,-avx2".to_owned());
        }
        Ok(Self { added, name: name.replace('_', "-") })
    }
}

impl fmt::Display for CpuFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.added { '+' } else { '-' }, self.name)
    }
}

/// The value of QEMU's `-cpu`. The last of a feature given more than once counts. `monitored`: the guest's bus is watched.
pub(crate) fn model(features: &[CpuFeature], monitored: bool) -> String {
    let last = |name: &str| features.iter().rfind(|feature| feature.name == name);
    let mut model = "max".to_owned();
    let without = WITHOUT.iter().chain(BYTES.iter().filter(|_| !monitored));
    for name in without.filter(|name| last(name).is_none()) {
        model.push_str(&format!(",{name}=off"));
    }
    for feature in features.iter().filter(|feature| last(&feature.name).is_some_and(|last| last == *feature))
    {
        model.push_str(&format!(",{}={}", feature.name, if feature.added { "on" } else { "off" }));
    }
    // QEMU would only warn of what it cannot emulate.
    if features.iter().any(|feature| feature.added) {
        model.push_str(",enforce=on");
    }
    model
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_of_a_feature_counts() {
        assert_eq!(model(&[], false), "max,rdrand=off,rdseed=off,la57=off,erms=off,fsrm=off");
        assert_eq!(model(&[], true), "max,rdrand=off,rdseed=off,la57=off");
        let given = ["+erms", "-avx2", "+avx2", "-sse4_1"].map(|text| CpuFeature::parse(text).unwrap());
        assert_eq!(
            model(&given, false),
            "max,rdrand=off,rdseed=off,la57=off,fsrm=off,erms=on,avx2=on,sse4-1=off,enforce=on"
        );
        for odd in ["", "+", "erms", "-a,b", "+a=b", "- a"] {
            assert!(CpuFeature::parse(odd).is_err(), "{odd}");
        }
    }
}
