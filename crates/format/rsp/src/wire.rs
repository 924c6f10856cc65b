// SPDX-License-Identifier: MIT OR Apache-2.0
//! Framing: `$text#checksum`, the acknowledgements `+` and `-`, and byte 3 as an interrupt.

/// Limit of a packet's length in bytes. The server announces it to GDB as `PacketSize`.
pub const LONGEST: usize = 0x4000;

/// A unit received from the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Text of a packet, unescaped.
    Packet(Vec<u8>),
    /// GDB received the last packet.
    Ack,
    /// GDB did not receive the last packet; it must be sent again.
    Nack,
    /// Ctrl-C was pressed.
    Interrupt,
    /// A packet with a wrong checksum, or one that is too long.
    Bad,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Between,
    Text,
    Sum1,
    Sum2(u8),
}

/// Decoder of the framing.
#[derive(Debug, Default)]
pub struct Decoder {
    state: State,
    text: Vec<u8>,
    sum: u8,
    escaped: bool,
    too_long: bool,
}

impl Decoder {
    /// Returns true if GDB may send this byte next. Between packets it sends only acknowledgements and interrupts.
    pub fn may_come(&self, byte: u8) -> bool {
        self.state != State::Between || matches!(byte, b'$' | b'+' | b'-' | 3)
    }

    /// Consumes a byte. Returns an event if the byte completes one.
    pub fn push(&mut self, byte: u8) -> Option<Event> {
        match (self.state, byte) {
            (State::Between, b'+') => return Some(Event::Ack),
            (State::Between, b'-') => return Some(Event::Nack),
            (State::Between, 3) => return Some(Event::Interrupt),
            // A new packet. Inside a packet, it means that the previous one was truncated.
            (State::Between | State::Text, b'$') => {
                *self = Self { state: State::Text, ..Self::default() };
            }
            (State::Between, _) => {}
            (State::Text, b'#') => self.state = State::Sum1,
            (State::Text, byte) => {
                self.sum = self.sum.wrapping_add(byte);
                if self.text.len() >= LONGEST {
                    self.too_long = true;
                } else if std::mem::take(&mut self.escaped) {
                    self.text.push(byte ^ 0x20);
                } else if byte == b'}' {
                    self.escaped = true;
                } else {
                    self.text.push(byte);
                }
            }
            (State::Sum1, high) => self.state = State::Sum2(high),
            (State::Sum2(high), low) => {
                let sum = crate::hex::unhex(&[high, low]).map(|s| s[0]);
                let good = sum == Some(self.sum) && !self.too_long && !self.escaped;
                let text = std::mem::take(self).text;
                return Some(if good { Event::Packet(text) } else { Event::Bad });
            }
        }
        None
    }
}

/// Frames a text as a packet.
pub fn packet(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 8);
    out.push(b'$');
    for &byte in text {
        if matches!(byte, b'$' | b'#' | b'}' | b'*') {
            out.extend([b'}', byte ^ 0x20]);
        } else {
            out.push(byte);
        }
    }
    let sum = out[1..].iter().fold(0u8, |sum, b| sum.wrapping_add(*b));
    out.push(b'#');
    out.extend(crate::hex::bytes(&[sum]).into_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn events(bytes: &[u8]) -> Vec<Event> {
        let mut decoder = Decoder::default();
        bytes.iter().filter_map(|b| decoder.push(*b)).collect()
    }

    #[test]
    fn as_gdb_sends_them() {
        let sent = b"+$qC#b4-\x03$g#68$g#67$bad$?#3f";
        let packet = |text: &[u8]| Event::Packet(text.to_vec());
        assert_eq!(
            events(sent),
            [
                Event::Ack,
                packet(b"qC"),
                Event::Nack,
                Event::Interrupt,
                Event::Bad,
                packet(b"g"),
                packet(b"?")
            ]
        );
    }

    #[test]
    fn others_do_not_begin_so() {
        let good = |sent: &[u8]| {
            let mut decoder = Decoder::default();
            sent.iter().all(|byte| {
                let may = decoder.may_come(*byte);
                decoder.push(*byte);
                may
            })
        };
        assert!(good(b"+$qC#b4-\x03+$g#67+"));
        assert!(!good(b"POST / HTTP/1.1\r\n\r\n$g#67"));
        assert!(!good(b"$g#67\n"));
    }

    #[test]
    fn too_long() {
        let long = packet(&vec![b'a'; LONGEST + 1]);
        assert_eq!(events(&long), [Event::Bad]);
        assert_eq!(events(&packet(&vec![b'a'; LONGEST])).len(), 1);
    }

    proptest! {
        #[test]
        fn there_and_back(text: Vec<u8>) {
            prop_assert_eq!(events(&packet(&text)), [Event::Packet(text)]);
        }

        #[test]
        fn any_bytes(bytes: Vec<u8>) {
            events(&bytes);
        }
    }
}
