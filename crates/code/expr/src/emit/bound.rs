// SPDX-License-Identifier: MIT OR Apache-2.0
//! What only the kernel knows that runs the program: where its functions are, which cgroup is a container's. The program has
//! places for these numbers; the loader looks the names up and fills them in.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::{Program, Reloc};

/// Pairs of numbers for a name: parts of a function's code, or functions of one name.
pub const MOST_PAIRS: usize = 4;

/// The kernel's answer for a name; the meaning of the pairs is that of the [`Name`].
pub type Pairs = Vec<(u64, u64)>;

/// A name in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Name {
    /// A function. The pairs: the second address of a part of its code, the part's length.
    Function(String),
    /// A container, by its id or the beginning of it. The pair: the depth of its cgroup below the root, the cgroup's number.
    Container(String),
}

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Name::Function(name) => write!(f, "code of {name}"),
            Name::Container(id) => write!(f, "cgroup of container {id}"),
        }
    }
}

impl Program {
    /// Fills in what `find` gives for each name: up to [`MOST_PAIRS`] pairs, zeros for the others.
    ///
    /// # Errors
    /// As of `find`.
    pub fn bind<E>(&mut self, find: &mut dyn FnMut(&Name) -> Result<Pairs, E>) -> Result<(), E> {
        let found = self.names.drain(..).map(|name| find(&name)).collect::<Result<Vec<_>, E>>()?;
        let insns = &mut self.insns;
        self.relocs.retain(|(at, reloc)| {
            let Reloc::Bound(name, pair, second) = *reloc else { return true };
            let pairs = found.get(usize::from(name)).map_or(&[][..], Vec::as_slice);
            let (first, other) = pairs.get(usize::from(pair)).copied().unwrap_or_default();
            let word = if second { other } else { first };
            if let Some([low, high]) = insns.get_mut(*at..*at + 2) {
                (low.imm, high.imm) = (word as i32, (word >> 32) as i32);
            }
            false
        });
        Ok(())
    }
}
