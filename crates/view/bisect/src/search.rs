// SPDX-License-Identifier: MIT OR Apache-2.0
//! Binary search over an ordered list, some of whose items cannot be judged.
//!
//! In: for each item asked for, good, bad or neither. Out: the next item to try, then the first bad one, or those of which
//! one must be it.

/// A search. The first item of the list is good and the last one is bad.
#[derive(Debug, Clone)]
pub struct Search {
    good: usize,
    bad: usize,
    skipped: Vec<bool>,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Try the item of this number.
    Try(usize),
    /// This item is the first bad one, and the one before it is good.
    First(usize),
    /// One of these is the first bad one: those before the last could not be judged.
    OneOf(Vec<usize>),
}

impl Search {
    /// A search over `items` items, of which there are at least two.
    pub fn new(items: usize) -> Self {
        Search { good: 0, bad: items.saturating_sub(1).max(1), skipped: vec![false; items.max(2)] }
    }

    /// Enters that an item is good.
    pub fn good(&mut self, item: usize) {
        self.good = self.good.max(item);
    }

    /// Enters that an item is bad.
    pub fn bad(&mut self, item: usize) {
        self.bad = self.bad.min(item);
    }

    /// Enters that an item cannot be judged.
    pub fn skip(&mut self, item: usize) {
        if let Some(skipped) = self.skipped.get_mut(item) {
            *skipped = true;
        }
    }

    /// The item nearest to the middle that was not tried yet, or the result.
    pub fn next(&self) -> Step {
        let middle = self.good + (self.bad - self.good) / 2;
        let open = (self.good + 1..self.bad).filter(|&item| !self.skipped[item]);
        match open.min_by_key(|&item| item.abs_diff(middle)) {
            Some(item) => Step::Try(item),
            None if self.bad - self.good == 1 => Step::First(self.bad),
            None => Step::OneOf((self.good + 1..=self.bad).collect()),
        }
    }

    /// Number of items between the last good and the first bad one.
    pub fn left(&self) -> usize {
        self.bad - self.good - 1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The result is the first bad item, or a row of items with it in which all others cannot be judged.
        #[test]
        fn the_first_bad_item_is_found(
            (items, first) in (2usize..200).prop_flat_map(|items| (Just(items), 1..items)),
            unknown in prop::collection::vec(any::<bool>(), 200),
            may_skip in any::<bool>(),
        ) {
            let is_unknown = |item: usize| may_skip && unknown[item] && item != 0 && item != items - 1;
            let mut search = Search::new(items);
            let mut tries = 0;
            let result = loop {
                match search.next() {
                    Step::Try(item) if is_unknown(item) => search.skip(item),
                    Step::Try(item) if item < first => search.good(item),
                    Step::Try(item) => search.bad(item),
                    result => break result,
                }
                tries += 1;
                prop_assert!(tries <= items, "it does not come to an end");
            };
            match result {
                Step::First(item) => prop_assert_eq!(item, first),
                Step::OneOf(all) => {
                    prop_assert!(all.contains(&first) && all.len() > 1);
                    prop_assert!(all[..all.len() - 1].iter().all(|&item| is_unknown(item)));
                }
                Step::Try(_) => unreachable!(),
            }
            if !may_skip {
                prop_assert!(tries <= (items as f64).log2().ceil() as usize);
            }
        }
    }
}
