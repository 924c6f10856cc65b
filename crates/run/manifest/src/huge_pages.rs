// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transparent huge pages of a guest and of the machine that recorded it.
//!
//! Input: the text of `/sys/kernel/mm/transparent_hugepage/enabled`. Output: [`HugePages`] in the manifest. The kernel gives a
//! program small or huge pages by this mode, so page faults, TLB misses and their costs depend on it.

use serde::{Deserialize, Serialize};

/// The kernel's file with its mode (Documentation/admin-guide/mm/transhuge.rst).
const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// A mode of transparent huge pages, or the reason why it is not known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HugePageMode {
    /// Small pages only.
    Never,
    /// Huge pages where a program asks for them by madvise(2).
    Madvise,
    /// Huge pages wherever they fit.
    Always,
    /// Not known, for this reason.
    Unknown(String),
}

impl HugePageMode {
    /// The mode with this name; with another name it is not known.
    #[must_use]
    pub fn named(name: &str) -> Self {
        match name {
            "never" => Self::Never,
            "madvise" => Self::Madvise,
            "always" => Self::Always,
            _ => Self::Unknown(format!("no such mode is known: {name:?}")),
        }
    }

    /// The mode in the kernel's text, which has it in brackets: `always [madvise] never`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let name = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        name.map_or_else(
            || Self::Unknown(format!("{ENABLED}: expected a mode in brackets: {:?}", text.trim())),
            |(name, _)| Self::named(name),
        )
    }

    /// The mode of this machine.
    #[must_use]
    pub fn of_this_machine() -> Self {
        match std::fs::read_to_string(ENABLED) {
            Ok(text) => Self::parse(&text),
            Err(error) => Self::Unknown(format!("{ENABLED}: {error}")),
        }
    }

    /// The kernel's name of the mode; `None` if it is not known.
    #[must_use]
    pub fn name(&self) -> Option<&'static str> {
        match self {
            Self::Never => Some("never"),
            Self::Madvise => Some("madvise"),
            Self::Always => Some("always"),
            Self::Unknown(_) => None,
        }
    }

    /// The mode for people, or the reason why it is not known.
    #[must_use]
    pub fn to_text(&self) -> String {
        match self {
            Self::Unknown(why) => format!("not known ({why})"),
            known => known.name().unwrap_or_default().to_owned(),
        }
    }

    /// Rank by the number of huge pages that the mode gives; `None` if it is not known.
    pub(crate) fn rank(&self) -> Option<u8> {
        match self {
            Self::Never => Some(0),
            Self::Madvise => Some(1),
            Self::Always => Some(2),
            Self::Unknown(_) => None,
        }
    }
}

/// The modes of a guest and of the machine that recorded it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HugePages {
    /// Of the guest, before the command.
    pub guest: HugePageMode,
    /// Of the machine that recorded.
    pub machine: HugePageMode,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_the_one_in_brackets() {
        assert_eq!(HugePageMode::parse("always [madvise] never\n"), HugePageMode::Madvise);
        assert_eq!(HugePageMode::parse("[always] madvise never\n"), HugePageMode::Always);
        for text in ["", "always madvise never", "[", "[other]"] {
            let mode = HugePageMode::parse(text);
            assert_eq!((mode.name(), mode.rank()), (None, None), "{text}");
            assert!(mode.to_text().starts_with("not known ("), "{text}");
        }
    }

    #[test]
    fn a_mode_and_a_reason_come_back_from_json() {
        let pages = HugePages { guest: HugePageMode::Always, machine: HugePageMode::Unknown("why".into()) };
        let value = serde_json::to_value(&pages).expect("JSON");
        assert_eq!(value, serde_json::json!({"guest": "always", "machine": {"unknown": "why"}}));
        assert_eq!(serde_json::from_value::<HugePages>(value).expect("modes"), pages);
    }
}
