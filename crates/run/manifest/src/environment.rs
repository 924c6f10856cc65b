// SPDX-License-Identifier: MIT OR Apache-2.0
//! The environment of an exact run: all that its instructions depend on beside the command.
//!
//! In: names and values from the recorder, such as the kernel's build, each package of the root file system, QEMU, the
//! observer. Out: one id for all of it, and the differences of two environments.
//!
//! Two runs of a command in one environment are the same to the instruction. Runs of different environments may differ
//! for no reason of the command's own, so a comparison names what differs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::hash::{hex, of_parts};

/// Names and values, with an id of all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// 16 hexadecimal digits, the same for the same parts.
    pub id: String,
    /// Parts by name.
    pub parts: BTreeMap<String, String>,
}

/// A part of two environments that is not the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Name of the part.
    pub part: String,
    /// Value in the old run; `None` if it has no such part.
    pub old: Option<String>,
    /// Value in the new run.
    pub new: Option<String>,
}

impl Environment {
    /// Made of names and values.
    pub fn new(parts: impl IntoIterator<Item = (String, String)>) -> Self {
        let parts: BTreeMap<String, String> = parts.into_iter().collect();
        let hash = of_parts(parts.iter().flat_map(|(name, value)| [name, value]));
        let id = hex(&hash[..8]);
        Environment { id, parts }
    }

    /// The parts that differ, by name.
    pub fn differences(&self, new: &Environment) -> Vec<Difference> {
        let names: BTreeSet<&String> = self.parts.keys().chain(new.parts.keys()).collect();
        let difference = |name: &String| Difference {
            part: name.clone(),
            old: self.parts.get(name).cloned(),
            new: new.parts.get(name).cloned(),
        };
        names.into_iter().map(difference).filter(|d| d.old != d.new).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(parts: &[(&str, &str)]) -> Environment {
        Environment::new(parts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn the_id_is_of_the_parts_alone() {
        let old = environment(&[("qemu", "10.0"), ("package dash", "0.5.12")]);
        assert_eq!(old, environment(&[("package dash", "0.5.12"), ("qemu", "10.0")]));
        assert_eq!(old.id.len(), 16);
        assert_ne!(old.id, environment(&[("package dash", "0.5.1"), ("qemu", "210.0")]).id);
        assert!(old.differences(&old).is_empty());
    }

    #[test]
    fn differences_name_values_of_both() {
        let old = environment(&[("qemu", "10.0"), ("package dash", "0.5.12")]);
        let new = environment(&[("qemu", "10.0"), ("package dash", "0.5.13"), ("package bc", "1")]);
        let text = |d: &Difference| format!("{} {:?} {:?}", d.part, d.old, d.new);
        let found: Vec<String> = old.differences(&new).iter().map(text).collect();
        assert_eq!(found, ["package bc None Some(\"1\")", "package dash Some(\"0.5.12\") Some(\"0.5.13\")"]);
    }
}
