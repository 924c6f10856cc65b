// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text for terminals from runs that were recorded elsewhere: names of tasks, functions, files and strings may hold whatever
//! their program chose. In: bytes. Out: the same, but what would command a terminal is spelled out (`^[`), but for the colours
//! that kprism itself writes.

use std::io::{self, Write};

/// Passes text on, without commands to a terminal.
#[derive(Debug)]
pub struct Plain<W> {
    to: W,
    state: State,
}

/// Progress in reading a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Text,
    /// After ESC.
    Escape,
    /// `ESC [` and so many digits and semicolons were.
    Colour(u8, [u8; MOST]),
    /// The first byte of U+0080 to U+00BF was.
    Two,
}

/// Digits and semicolons of a colour.
const MOST: usize = 12;

impl<W: Write> Plain<W> {
    /// In front of this.
    pub fn new(to: W) -> Self {
        Self { to, state: State::Text }
    }

    /// A byte as it may be shown.
    fn show(out: &mut Vec<u8>, byte: u8) {
        match byte {
            b'\n' | b'\t' => out.push(byte),
            0..0x20 => out.extend([b'^', byte + b'@']),
            0x7f => out.extend(b"^?"),
            _ => out.push(byte),
        }
    }

    fn push(&mut self, out: &mut Vec<u8>, byte: u8) {
        self.state = match (self.state, byte) {
            (State::Text, 0x1b) => State::Escape,
            (State::Text, 0xc2) => State::Two,
            (State::Text, _) => {
                Self::show(out, byte);
                State::Text
            }
            (State::Two, 0x80..=0x9f) => {
                out.extend(format!("<{byte:02x}>").bytes());
                State::Text
            }
            (State::Escape, b'[') => State::Colour(0, [0; MOST]),
            (State::Colour(n, mut text), b'0'..=b'9' | b';') if usize::from(n) < MOST => {
                text[usize::from(n)] = byte;
                State::Colour(n + 1, text)
            }
            (State::Colour(n, text), b'm') => {
                out.extend(b"\x1b[");
                out.extend(&text[..usize::from(n)]);
                out.push(b'm');
                State::Text
            }
            // It was none: what was held back is text.
            (_, _) => {
                self.held(out);
                self.state = State::Text;
                return self.push(out, byte);
            }
        };
    }

    /// The bytes that were held back, as text.
    fn held(&self, out: &mut Vec<u8>) {
        match self.state {
            State::Text => {}
            State::Escape => out.extend(b"^["),
            State::Colour(n, text) => {
                out.extend(b"^[[");
                out.extend(&text[..usize::from(n)]);
            }
            State::Two => out.push(0xc2),
        }
    }
}

impl<W: Write> Write for Plain<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Most output passes as it is: a listing has gigabytes of it.
        let plain = if self.state == State::Text { harmless(bytes) } else { 0 };
        self.to.write_all(&bytes[..plain])?;
        let mut rest = &bytes[plain..];
        let mut out = Vec::with_capacity(rest.len());
        while let Some((&byte, after)) = rest.split_first() {
            self.push(&mut out, byte);
            let plain = if self.state == State::Text { harmless(after) } else { 0 };
            out.extend_from_slice(&after[..plain]);
            rest = &after[plain..];
        }
        self.to.write_all(&out)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut out = Vec::new();
        self.held(&mut out);
        self.state = State::Text;
        self.to.write_all(&out)?;
        self.to.flush()
    }
}

/// Number of leading bytes that need no change.
fn harmless(bytes: &[u8]) -> usize {
    let odd = |byte: u8| (byte < 0x20) & (byte != b'\n') & (byte != b'\t') | (byte == 0x7f) | (byte == 0xc2);
    // Nearly all text is ASCII. Whole pieces without an early end, which the compiler makes SIMD of.
    let usual = |byte: u8| (byte.wrapping_sub(b' ') < 0x7f - b' ') | (byte == b'\n');
    let is_usual = |piece: &[u8]| piece.iter().fold(true, |all, &byte| all & usual(byte));
    let is_odd = |piece: &[u8]| piece.iter().fold(false, |any, &byte| any | odd(byte));
    let passes = |piece: &&[u8]| is_usual(piece) || !is_odd(piece);
    let whole = bytes.chunks(64).take_while(passes).map(<[u8]>::len).sum::<usize>();
    let more = bytes[whole..].iter().position(|&byte| odd(byte));
    more.map_or(bytes.len(), |more| whole + more)
}

/// A message as it may be shown.
pub fn plain(text: &str) -> String {
    let mut shown = Plain::new(Vec::new());
    // Writing to memory does not fail.
    let _ = shown.write_all(text.as_bytes()).and_then(|()| shown.flush());
    String::from_utf8_lossy(&shown.to).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_colours_pass() {
        assert_eq!(plain("\x1b[1;32mgreen\x1b[0m\n\tµ…"), "\x1b[1;32mgreen\x1b[0m\n\tµ…");
        assert_eq!(plain("a\x1b]0;title\x07b"), "a^[]0;title^Gb");
        assert_eq!(plain("\x1b[2J\x1b[H\x1bc"), "^[[2J^[[H^[c");
        assert_eq!(plain("\u{9b}2J\r\x08\x7f"), "<9b>2J^M^H^?");
        assert_eq!(plain("\x1b[1111111111111111m"), "^[[1111111111111111m");
        assert_eq!(plain("\x1b\x1b[\x1b"), "^[^[[^[");
    }

    /// Whatever is where in a long text.
    #[test]
    fn anywhere() {
        for odd in ["\x1b[2J", "\r", "\u{9b}", "\x7f", "\x1b[1m", "µ"] {
            for at in 0..200 {
                let text = format!("{}{odd}{}", "x".repeat(at), "é\n".repeat(at));
                let mut slow = Vec::new();
                let mut one = Plain::new(Vec::new());
                text.bytes().for_each(|byte| one.push(&mut slow, byte));
                assert_eq!(plain(&text).as_bytes(), slow);
            }
        }
    }

    /// However it is cut into pieces.
    #[test]
    fn piece_by_piece() {
        let text = "a\x1b[31mb\x1b[3Jc\u{9b}d\u{a0}\x1b";
        let mut one = Plain::new(Vec::new());
        text.bytes().for_each(|byte| one.write_all(&[byte]).unwrap());
        one.flush().unwrap();
        assert_eq!(String::from_utf8(one.to).unwrap(), plain(text));
    }
}
