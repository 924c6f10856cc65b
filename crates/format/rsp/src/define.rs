// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses tracepoints as `QTDP`, `QTDPsrc` and `QTDV` define them, and stores them so that they can be sent back.

use std::collections::BTreeMap;

use crate::Error;
use crate::hex::{self, Cursor};

/// Limit of a tracepoint's actions.
const MOST_ACTIONS: usize = 1024;
/// Limit of tracepoints that GDB may define.
pub const MOST_POINTS: usize = 256;
/// Limit of a tracepoint's pieces of source text.
const MOST_SOURCES: usize = 1024;

/// Identifies a tracepoint. GDB uses the same number for all addresses of a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// GDB's number of the tracepoint.
    pub number: u32,
    /// Address of the instruction.
    pub address: u64,
}

/// Kind of a tracepoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `trace`.
    Plain,
    /// `ftrace`, with the length of the instruction in bytes.
    Fast(u32),
    /// `strace`.
    Static,
}

/// Data to collect at a hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// The registers of this mask, the lowest byte first.
    Registers(Vec<u8>),
    /// Memory, optionally relative to a base register.
    Memory {
        /// Base register, by GDB's number.
        base: Option<u16>,
        /// Address, or offset from the base register.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// Agent bytecode to run.
    Expression(Vec<u8>),
    /// `$_sdata`: the record of a static tracepoint.
    Static,
}

/// A tracepoint, as GDB defined it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracepoint {
    /// Number and address.
    pub key: Key,
    /// False if hits are ignored.
    pub enabled: bool,
    /// Number of steps to collect after a hit.
    pub step: u64,
    /// Number of hits after which tracing stops; 0 for never.
    pub pass: u64,
    /// Kind of tracepoint.
    pub kind: Kind,
    /// Condition as agent bytecode.
    pub condition: Option<Vec<u8>>,
    /// Actions at a hit.
    pub actions: Vec<Action>,
    /// Actions at the steps after a hit.
    pub step_actions: Vec<Action>,
    /// Source text of the user: kind, start, total length, and text in hexadecimal.
    pub sources: Vec<(String, u32, u32, String)>,
}

/// A trace state variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Value at `tstart`.
    pub initial: u64,
    /// Name without `$`.
    pub name: String,
}

/// All tracepoints and variables that GDB has defined.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Definitions {
    /// Tracepoints, sorted by number and address.
    pub points: BTreeMap<Key, Tracepoint>,
    /// Variables, by number.
    pub variables: BTreeMap<u16, Variable>,
}

impl Definitions {
    /// Parses the rest of a `QTDP:` packet: a new tracepoint, or more actions of one.
    pub fn define(&mut self, packet: &[u8], at: usize) -> Result<Key, Error> {
        let mut c = Cursor::new(packet, at);
        if c.eat("-") {
            let key = key(&mut c)?;
            c.need(":")?;
            let point =
                self.points.get_mut(&key).ok_or_else(|| c.expected("a tracepoint that was defined"))?;
            actions(&mut c, point)?;
            return Ok(key);
        }
        let key = key(&mut c)?;
        let enabled = match c.until(b':') {
            b"" if c.eat("E") => true,
            b"" if c.eat("D") => false,
            _ => return Err(c.expected("E or D")),
        };
        c.need(":")?;
        let step = c.number()?;
        c.need(":")?;
        let pass = c.number()?;
        let (mut kind, mut condition) = (Kind::Plain, None);
        while c.eat(":") {
            if c.eat("F") {
                kind = Kind::Fast(c.small()?);
            } else if c.eat("S") {
                kind = Kind::Static;
            } else if c.eat("X") {
                condition = Some(expression(&mut c)?);
            } else {
                return Err(c.expected("F, S or X"));
            }
        }
        if !(c.eat("-") || c.done()) {
            return Err(c.expected("the end, or -"));
        }
        if self.points.len() >= MOST_POINTS && !self.points.contains_key(&key) {
            return Err(c.expected("at most 256 tracepoints"));
        }
        let point = Tracepoint {
            key,
            enabled,
            step,
            pass,
            kind,
            condition,
            actions: Vec::new(),
            step_actions: Vec::new(),
            sources: Vec::new(),
        };
        self.points.insert(key, point);
        Ok(key)
    }

    /// Parses the rest of a `QTDPsrc:` packet.
    pub fn source(&mut self, packet: &[u8], at: usize) -> Result<(), Error> {
        let mut c = Cursor::new(packet, at);
        let key = key(&mut c)?;
        c.need(":")?;
        let kind = String::from_utf8_lossy(c.until(b':')).into_owned();
        let start = c.small()?;
        c.need(":")?;
        let length = c.small()?;
        c.need(":")?;
        let text = String::from_utf8_lossy(c.digits()).into_owned();
        let point = self.points.get_mut(&key).ok_or_else(|| c.expected("a tracepoint that was defined"))?;
        if point.sources.len() < MOST_SOURCES {
            point.sources.push((kind, start, length, text));
        }
        Ok(())
    }

    /// Parses the rest of a `QTDV:` packet.
    pub fn variable(&mut self, packet: &[u8], at: usize) -> Result<(), Error> {
        let mut c = Cursor::new(packet, at);
        let here = c.clone();
        let number = u16::try_from(c.number()?).map_err(|_| here.expected("a variable's number"))?;
        c.need(":")?;
        let initial = c.number()?;
        c.need(":")?;
        let builtin = c.number()?;
        c.need(":")?;
        let name = hex::unhex(c.rest()).ok_or_else(|| c.expected("a name in hexadecimal"))?;
        let name = String::from_utf8_lossy(&name).into_owned();
        if self.variables.len() >= MOST_POINTS && !self.variables.contains_key(&number) {
            return Err(c.expected("at most 256 variables"));
        }
        // The server defines built-in variables; GDB only repeats them.
        if builtin == 0 {
            self.variables.insert(number, Variable { initial, name });
        }
        Ok(())
    }
}

/// Parses `NUMBER:ADDRESS`.
pub fn key(c: &mut Cursor<'_>) -> Result<Key, Error> {
    let number = c.small()?;
    c.need(":")?;
    Ok(Key { number, address: c.number()? })
}

fn expression(c: &mut Cursor<'_>) -> Result<Vec<u8>, Error> {
    let length = c.small()?;
    c.need(",")?;
    c.bytes(length as usize)
}

fn actions(c: &mut Cursor<'_>, point: &mut Tracepoint) -> Result<(), Error> {
    let mut stepping = false;
    while !c.done() {
        if c.eat("-") && c.done() {
            break;
        }
        // All actions after `S` belong to the steps.
        stepping |= c.eat("S");
        let all = if stepping { &mut point.step_actions } else { &mut point.actions };
        if all.len() >= MOST_ACTIONS {
            return Err(c.expected("at most 1024 actions"));
        }
        all.push(action(c)?);
    }
    Ok(())
}

fn action(c: &mut Cursor<'_>) -> Result<Action, Error> {
    if c.eat("R") {
        let digits = c.digits();
        let even = [&b"0"[..usize::from(!digits.len().is_multiple_of(2))], digits].concat();
        let mut mask = hex::unhex(&even).unwrap_or_default();
        mask.reverse();
        Ok(Action::Registers(mask))
    } else if c.eat("M") {
        let base = if c.eat("-1") {
            None
        } else {
            let here = c.clone();
            match c.number()? {
                // Older versions of GDB write -1 this way.
                0xffff_ffff | u64::MAX => None,
                n => Some(u16::try_from(n).map_err(|_| here.expected("a register's number"))?),
            }
        };
        c.need(",")?;
        let offset = c.number()?;
        c.need(",")?;
        Ok(Action::Memory { base, offset, length: c.number()? })
    } else if c.eat("X") {
        Ok(Action::Expression(expression(c)?))
    } else if c.eat("L") {
        Ok(Action::Static)
    } else {
        Err(c.expected("an action: R, M, X, L or S"))
    }
}

impl Tracepoint {
    /// Describes the tracepoint to a GDB that connects later, one reply packet for each piece.
    pub fn pieces(&self) -> Vec<String> {
        let Key { number, address } = self.key;
        let place = format!("{number:x}:{address:x}");
        let mut first =
            format!("T{place}:{}:{:x}:{:x}", if self.enabled { 'E' } else { 'D' }, self.step, self.pass);
        match self.kind {
            Kind::Plain => {}
            Kind::Fast(length) => first += &format!(":F{length:x}"),
            Kind::Static => first += ":S",
        }
        if let Some(condition) = &self.condition {
            first += &format!(":X{:x},{}", condition.len(), hex::bytes(condition));
        }
        let mut all = vec![first];
        all.extend(self.actions.iter().map(|a| format!("A{place}:{}", a.text())));
        all.extend(self.step_actions.iter().map(|a| format!("S{place}:{}", a.text())));
        let source = |(kind, start, length, text): &(String, u32, u32, String)| {
            format!("Z{place}:{kind}:{start:x}:{length:x}:{text}")
        };
        all.extend(self.sources.iter().map(source));
        all
    }
}

impl Action {
    fn text(&self) -> String {
        match self {
            Action::Registers(mask) => {
                format!("R{}", hex::bytes(&mask.iter().rev().copied().collect::<Vec<_>>()))
            }
            Action::Memory { base, offset, length } => {
                let base = base.map_or_else(|| "-1".to_owned(), |b| format!("{b:x}"));
                format!("M{base},{offset:x},{length:x}")
            }
            Action::Expression(code) => format!("X{:x},{}", code.len(), hex::bytes(code)),
            Action::Static => "L".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn defined(packets: &[&str]) -> Result<Definitions, Error> {
        let mut all = Definitions::default();
        for packet in packets {
            all.define(packet.as_bytes(), 5)?;
        }
        Ok(all)
    }

    #[test]
    fn as_gdb_sends_them() {
        let all = defined(&[
            "QTDP:2:40115f:E:0:5:X2,2227-",
            "QTDP:-2:40115f:R0fff-",
            "QTDP:-2:40115f:M-1,40405c,4X0000000F,220202020202020202020202020227M6,8,4",
            "QTDP:3:401170:D:3:0-",
            "QTDP:-3:401170:SR010040-",
            "QTDP:4:401180:E:0:0:F5",
            "QTDP:5:401190:E:0:0:S",
            "QTDP:-5:401190:L",
        ])
        .unwrap();
        let point = |number, address| &all.points[&Key { number, address }];
        let two = point(2, 0x40115f);
        assert_eq!((two.enabled, two.pass, two.condition.as_deref()), (true, 5, Some(&[0x22, 0x27][..])));
        assert_eq!(two.actions[0], Action::Registers(vec![0xff, 0x0f]));
        assert_eq!(two.actions[1], Action::Memory { base: None, offset: 0x40405c, length: 4 });
        assert!(matches!(&two.actions[2], Action::Expression(code) if code.len() == 15));
        assert_eq!(two.actions[3], Action::Memory { base: Some(6), offset: 8, length: 4 });
        let three = point(3, 0x401170);
        assert_eq!((three.enabled, three.step, three.step_actions.len()), (false, 3, 1));
        assert_eq!(point(4, 0x401180).kind, Kind::Fast(5));
        assert_eq!(
            (point(5, 0x401190).kind, &point(5, 0x401190).actions[..]),
            (Kind::Static, &[Action::Static][..])
        );
        assert_eq!(
            two.pieces(),
            [
                "T2:40115f:E:0:5:X2,2227",
                "A2:40115f:R0fff",
                "A2:40115f:M-1,40405c,4",
                "A2:40115f:Xf,220202020202020202020202020227",
                "A2:40115f:M6,8,4"
            ]
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        let why = |packets: &[&str]| defined(packets).unwrap_err().to_string();
        assert_eq!(why(&["QTDP:1:10:Q:0:0"]), "packet, offset 10: expected E or D");
        assert_eq!(why(&["QTDP:-1:10:R0"]), "packet, offset 11: expected a tracepoint that was defined");
        assert_eq!(
            why(&["QTDP:1:10:E:0:0", "QTDP:-1:10:X5,00"]),
            "packet, offset 14: expected as many bytes as announced"
        );
    }

    #[test]
    fn variables_and_sources() {
        let mut all = defined(&["QTDP:1:10:E:0:0"]).unwrap();
        all.variable(b"QTDV:2:5:0:68697473", 5).unwrap();
        assert_eq!(all.variables[&2], Variable { initial: 5, name: "hits".into() });
        all.source(b"QTDPsrc:1:10:cond:0:4:61203e20", 8).unwrap();
        let pieces = all.points[&Key { number: 1, address: 0x10 }].pieces();
        assert_eq!(pieces, ["T1:10:E:0:0", "Z1:10:cond:0:4:61203e20"]);
    }

    proptest! {
        #[test]
        fn any_bytes(text in "[-0-9a-fEDRMXLS:,]{0,60}") {
            let mut all = Definitions::default();
            let _ = all.define(b"QTDP:1:10:E:0:0", 5);
            for prefix in ["QTDP:-1:10:", "QTDP:", "QTDP:2:", "QTDP:2:3:E:"] {
                let _ = all.define(format!("{prefix}{text}").as_bytes(), 5);
            }
            let _ = all.variable(text.as_bytes(), 0);
            let _ = all.source(text.as_bytes(), 0);
        }
    }
}
