// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers that took a decode of the flow, remembered.
//!
//! In: a key and an answer. Out: the answer, while it is among the latest used ones that fit. The bound is on bytes, keys
//! counted, so that a page cannot fill the memory by asking for much.

use std::collections::VecDeque;

use bytes::Bytes;

/// Answers, the latest used one last.
#[derive(Debug)]
pub struct Kept {
    answers: VecDeque<(String, Bytes)>,
    bytes: usize,
    most: usize,
}

impl Kept {
    /// Keeps at most so many bytes.
    pub fn new(most: usize) -> Self {
        Kept { answers: VecDeque::new(), bytes: 0, most }
    }

    /// The answer of a key.
    pub fn get(&mut self, key: &str) -> Option<Bytes> {
        let at = self.answers.iter().position(|(own, _)| own == key)?;
        let found = self.answers.remove(at)?;
        let answer = found.1.clone();
        self.answers.push_back(found);
        Some(answer)
    }

    /// Remembers an answer; one that is larger than the bound is not.
    pub fn put(&mut self, key: String, answer: Bytes) {
        let size = |(key, answer): &(String, Bytes)| key.len() + answer.len();
        if let Some(at) = self.answers.iter().position(|(own, _)| *own == key) {
            self.bytes -= self.answers.remove(at).as_ref().map_or(0, size);
        }
        let new = (key, answer);
        if size(&new) > self.most {
            return;
        }
        self.bytes += size(&new);
        self.answers.push_back(new);
        while self.bytes > self.most {
            self.bytes -= self.answers.pop_front().as_ref().map_or(0, size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_used_stay_and_the_bound_holds() {
        let mut kept = Kept::new(25);
        for key in ["a", "b"] {
            kept.put(key.into(), Bytes::from_static(b"123456789"));
        }
        assert!(kept.get("a").is_some());
        kept.put("c".into(), Bytes::from_static(b"123456789"));
        assert!(kept.get("b").is_none() && kept.get("a").is_some() && kept.get("c").is_some());
        kept.put("d".into(), Bytes::from(vec![0; 100]));
        assert!(kept.get("d").is_none() && kept.get("a").is_some());
        kept.put("a".into(), Bytes::from_static(b"1"));
        assert_eq!((kept.get("a").unwrap().len(), kept.bytes), (1, 12));
    }
}
