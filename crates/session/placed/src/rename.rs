// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replaces a path in a stream of bytes. What kprism says on the target about its run must name the folder here.
//!
//! The path on the target contains a random number of 128 bits, so no other text is meant by it.

/// Replaces `from` by `to` in bytes that come in pieces.
#[derive(Debug)]
pub struct Rename {
    from: Vec<u8>,
    to: Vec<u8>,
    /// The end of the last piece, if `from` may begin there.
    held: Vec<u8>,
}

impl Rename {
    /// `from` must not be empty.
    pub fn new(from: &[u8], to: &[u8]) -> Self {
        Rename { from: from.to_vec(), to: to.to_vec(), held: Vec::new() }
    }

    /// The bytes that can be passed on after this piece.
    pub fn pass(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.held);
        bytes.extend(piece);
        let mut out = Vec::with_capacity(bytes.len());
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            if rest.starts_with(&self.from) {
                out.extend(&self.to);
                at += self.from.len();
            } else if self.from.starts_with(rest) {
                self.held = rest.to_vec();
                break;
            } else {
                out.push(bytes[at]);
                at += 1;
            }
        }
        out
    }

    /// The bytes that were held back, at the end of the stream.
    pub fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::Rename;

    #[test]
    fn wherever_the_pieces_end() {
        let (text, expected) = ("a/tmp/x/run /tmp/tmp/x/run/y /tmp/x/ru", "aHERE /tmpHERE/y /tmp/x/ru");
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let mut rename = Rename::new(b"/tmp/x/run", b"HERE");
                let mut out = Vec::new();
                for piece in [&text[..first], &text[first..second], &text[second..]] {
                    out.extend(rename.pass(piece.as_bytes()));
                }
                out.extend(rename.rest());
                assert_eq!(String::from_utf8_lossy(&out), expected, "{first}, {second}");
            }
        }
    }
}
