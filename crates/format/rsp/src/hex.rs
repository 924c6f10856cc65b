// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts hexadecimal numbers and bytes; a cursor over a packet's text.

use crate::Error;

/// Encodes bytes as pairs of digits.
pub fn bytes(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |n: u8| char::from(DIGITS[usize::from(n & 15)]);
    bytes.iter().flat_map(|b| [digit(b >> 4), digit(*b)]).collect()
}

/// Decodes pairs of digits. None if any is invalid.
pub fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

fn digit(c: u8) -> Option<u8> {
    char::from(c).to_digit(16).map(|n| n as u8)
}

/// A read position in a packet.
#[derive(Debug, Clone)]
pub struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Starts at this offset.
    pub fn new(text: &'a [u8], at: usize) -> Self {
        Self { text, at: at.min(text.len()) }
    }

    /// Current offset.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Returns the rest of the packet.
    pub fn rest(&self) -> &'a [u8] {
        &self.text[self.at..]
    }

    /// Returns true at the end of the packet.
    pub fn done(&self) -> bool {
        self.at >= self.text.len()
    }

    /// Returns the next byte without consuming it.
    pub fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Returns an error at the current offset.
    pub fn expected(&self, expected: &'static str) -> Error {
        Error { at: self.at, expected }
    }

    /// Consumes this text if it is next.
    pub fn eat(&mut self, text: &str) -> bool {
        let there = self.rest().starts_with(text.as_bytes());
        if there {
            self.at += text.len();
        }
        there
    }

    /// Consumes this text, or returns an error.
    pub fn need(&mut self, text: &'static str) -> Result<(), Error> {
        if self.eat(text) { Ok(()) } else { Err(self.expected(text)) }
    }

    /// Reads a number of 1 to 16 digits.
    pub fn number(&mut self) -> Result<u64, Error> {
        let digits = self.rest().iter().take_while(|c| digit(**c).is_some()).count();
        if digits == 0 || digits > 16 {
            return Err(self.expected("a hexadecimal number of 64 bits"));
        }
        let number = self.rest()[..digits].iter().fold(0, |n, c| n << 4 | u64::from(digit(*c).unwrap_or(0)));
        self.at += digits;
        Ok(number)
    }

    /// Reads a number that fits in 32 bits.
    pub fn small(&mut self) -> Result<u32, Error> {
        let here = self.clone();
        u32::try_from(self.number()?).map_err(|_| here.expected("a hexadecimal number of 32 bits"))
    }

    /// Reads a run of digits, undecoded.
    pub fn digits(&mut self) -> &'a [u8] {
        let count = self.rest().iter().take_while(|c| digit(**c).is_some()).count();
        let all = &self.rest()[..count];
        self.at += count;
        all
    }

    /// Reads this many bytes, encoded as pairs of digits.
    pub fn bytes(&mut self, count: usize) -> Result<Vec<u8>, Error> {
        let text = count.checked_mul(2).and_then(|n| self.rest().get(..n));
        let all = text.and_then(unhex).ok_or_else(|| self.expected("as many bytes as announced"))?;
        self.at += 2 * count;
        Ok(all)
    }

    /// Reads up to this byte, which is consumed too; the rest of the packet if the byte is absent.
    pub fn until(&mut self, end: u8) -> &'a [u8] {
        let rest = self.rest();
        let count = rest.iter().position(|c| *c == end).unwrap_or(rest.len());
        self.at = (self.at + count + 1).min(self.text.len());
        &rest[..count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways() {
        assert_eq!(bytes(&[0, 0xfe, 0x10]), "00fe10");
        assert_eq!(unhex(b"00Fe10"), Some(vec![0, 0xfe, 0x10]));
        assert_eq!(unhex(b"0"), None);
        assert_eq!(unhex(b"0g"), None);
    }

    #[test]
    fn cursors() {
        let mut c = Cursor::new(b"Q12,ff:rest", 1);
        assert_eq!(c.number(), Ok(0x12));
        assert_eq!(c.need(":"), Err(Error { at: 3, expected: ":" }));
        assert!(c.eat(","));
        assert_eq!(c.bytes(2), Err(Error { at: 4, expected: "as many bytes as announced" }));
        assert_eq!(c.bytes(1), Ok(vec![0xff]));
        assert_eq!((c.until(b':'), c.until(b':')), (&b""[..], &b"rest"[..]));
        assert!(c.done());
        assert!(Cursor::new(b"11112222333344445", 0).number().is_err());
    }
}
