// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of functions, escaped once for printing and cached.

use kprism_image::resolve::Resolve;
use kprism_profile::units::printable;

/// A function's name in a listing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Name {
    /// Its symbol, safe for terminals.
    pub symbol: String,
    /// The module, safe for terminals.
    pub module: String,
    pub kernel: bool,
}

/// Names by the resolver's numbers.
pub(crate) struct Names<'a, R> {
    pub resolver: &'a R,
    known: Vec<Option<Name>>,
    /// The last function with a higher number.
    far: Option<Name>,
}

/// Names of functions with higher numbers, such as that of unknown code, are looked up anew each time.
const MAX: usize = 1 << 24;

impl<'a, R: Resolve> Names<'a, R> {
    pub fn new(resolver: &'a R) -> Self {
        Self { resolver, known: Vec::new(), far: None }
    }

    pub fn get(&mut self, func: u32) -> &Name {
        let place = func as usize;
        if place < MAX && place >= self.known.len() {
            self.known.resize(place + 1, None);
        }
        let resolver = self.resolver;
        let describe = || {
            let info = resolver.describe(func);
            Name { symbol: printable(&info.name), module: printable(&info.module), kernel: info.kernel }
        };
        match self.known.get_mut(place) {
            Some(name) => name.get_or_insert_with(describe),
            None => self.far.insert(describe()),
        }
    }
}
