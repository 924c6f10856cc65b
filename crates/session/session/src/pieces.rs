// SPDX-License-Identifier: MIT OR Apache-2.0
//! A text in pieces of whole lines: in, a reader; out, one piece after the other, in a buffer of bounded size. Only a line
//! that is longer makes it grow.

use std::io::{ErrorKind, Read, Result};

/// Size of a piece, bytes.
pub const PIECE: usize = 1 << 20;

/// The pieces of a text.
pub struct Pieces<R> {
    from: R,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were given.
    given: usize,
    /// Bytes of the buffer that were read.
    filled: usize,
}

impl<R: Read> Pieces<R> {
    /// The pieces of all that a reader gives.
    pub fn new(from: R) -> Self {
        Pieces { from, buffer: Vec::new(), given: 0, filled: 0 }
    }

    /// The next piece; none at the end.
    ///
    /// # Errors
    /// Those of the reader.
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        self.buffer.copy_within(self.given..self.filled, 0);
        self.filled -= self.given;
        self.given = 0;
        loop {
            if self.filled == self.buffer.len() {
                self.buffer.resize((2 * self.filled).max(PIECE), 0);
            }
            match self.from.read(&mut self.buffer[self.filled..]) {
                Ok(0) => {
                    self.given = self.filled;
                    break;
                }
                Ok(more) => self.filled += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.filled == self.buffer.len()
                && let Some(end) = self.buffer.iter().rposition(|&byte| byte == b'\n')
            {
                self.given = end + 1;
                break;
            }
        }
        Ok((self.given > 0).then(|| &self.buffer[..self.given]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes at once, as a pipe may.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> Result<usize> {
            let size = self.0.len().min(into.len()).min(70_001);
            into[..size].copy_from_slice(&self.0[..size]);
            self.0 = &self.0[size..];
            Ok(size)
        }
    }

    fn pieces(text: &[u8]) -> Vec<Vec<u8>> {
        let (mut pieces, mut all) = (Pieces::new(Slow(text)), Vec::new());
        while let Some(piece) = pieces.next().unwrap() {
            all.push(piece.to_vec());
        }
        all
    }

    #[test]
    fn pieces_are_whole_lines_and_join_to_the_text() {
        let line = |length: usize| [vec![b'x'; length], b"\n".to_vec()].concat();
        let texts =
            [vec![], b"\n".to_vec(), b"no end".to_vec(), line(PIECE - 1), line(PIECE), line(3 * PIECE)];
        let many: Vec<u8> = (0..40_000).flat_map(|n| line(n % 97)).collect();
        for text in texts.into_iter().chain([many.clone(), [many, b"cut".to_vec()].concat()]) {
            let pieces = pieces(&text);
            assert_eq!(pieces.concat(), text);
            let (last, before) = pieces.split_last().map_or((None, &[][..]), |(l, b)| (Some(l), b));
            assert!(before.iter().all(|piece| piece.ends_with(b"\n")));
            assert!(last.is_none_or(|piece| !piece.is_empty()));
            let longest = text.split(|&b| b == b'\n').map(<[u8]>::len).max().unwrap_or(0);
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE.max(2 * longest + 2)));
        }
    }
}
