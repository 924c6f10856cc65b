// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses GDB's packets into commands.

use crate::Error;
use crate::define::{self, Key};
use crate::hex::{self, Cursor};

/// A thread, as in `Hg`, `T` and `vCont`: 0 is any, -1 all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread {
    /// Process ID.
    pub pid: i64,
    /// Thread ID.
    pub tid: i64,
}

/// Criterion of a search for a trace frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Find {
    /// By frame number; None returns to the live program.
    Number(Option<u32>),
    /// The next frame at this address.
    Pc(u64),
    /// The next frame of this tracepoint.
    Point(u32),
    /// The next frame in this range of addresses, both ends included.
    Inside(u64, u64),
    /// The next frame outside this range.
    Outside(u64, u64),
}

/// A request about files. Only reading is supported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum File {
    /// Selects the file system of this process.
    SetFs(u32),
    /// Opens a path with these flags.
    Open(Vec<u8>, u32),
    /// Reads from a descriptor: number of bytes, and offset.
    Read(u32, u64, u64),
    /// Queries the attributes of a descriptor.
    Stat(u32),
    /// Closes a descriptor.
    Close(u32),
    /// Reads a symbolic link.
    Link(Vec<u8>),
    /// Writing, or a request of a newer GDB.
    Other,
}

/// A request of GDB.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Command {
    Supported,
    NoAck,
    Halted,
    Registers,
    WriteRegisters,
    Memory {
        address: u64,
        length: u64,
    },
    WriteMemory,
    Continue,
    Step,
    CanContinue,
    Kill,
    Detach,
    Select(Thread),
    Alive(Thread),
    Threads {
        first: bool,
    },
    ThreadName(Thread),
    Current,
    Attached,
    Offsets,
    /// `qXfer:OBJECT:read:ANNEX:OFFSET,LENGTH`.
    Transfer {
        object: String,
        annex: String,
        offset: u64,
        length: u64,
    },
    Monitor(String),
    File(File),
    /// `Z0`, `Z1` (set) or `z0`, `z1` (remove). The address is None for watchpoints.
    Breakpoint {
        set: bool,
        address: Option<u64>,
    },

    /// Deletes all definitions.
    TraceInit,
    /// `QTDP`. The number is the offset of the text for [`define::Definitions::define`].
    Define(usize),
    Source(usize),
    Variable(usize),
    /// Ranges that do not change, so their memory need not be collected.
    ReadOnly,
    TraceStart,
    TraceStop,
    TraceStatus,
    Frame(Find),
    Enable(Key, bool),
    KeepRunning(bool),
    Circular(bool),
    BufferSize(Option<u64>),
    /// User, notes and stop reason, each if given.
    Notes {
        user: Option<String>,
        notes: Option<String>,
        stop: Option<String>,
    },
    PointStatus(Key),
    Points {
        first: bool,
    },
    Variables {
        first: bool,
    },
    VariableValue(u16),
    RawBuffer {
        offset: u64,
        length: u64,
    },
    Save(String),
    Markers {
        first: bool,
    },
    MarkersAt(u64),
    FastLength,

    Unknown,
}

/// Parses a packet.
pub fn parse(packet: &[u8]) -> Result<Command, Error> {
    let mut c = Cursor::new(packet, 0);
    let first = c.peek();
    Ok(match first {
        Some(b'?') if packet.len() == 1 => Command::Halted,
        Some(b'g') if packet.len() == 1 => Command::Registers,
        Some(b'G' | b'P') => Command::WriteRegisters,
        Some(b'm') => {
            c.need("m")?;
            let address = c.number()?;
            c.need(",")?;
            Command::Memory { address, length: c.number()? }
        }
        Some(b'M' | b'X') => Command::WriteMemory,
        Some(b'c' | b'C') => Command::Continue,
        Some(b's' | b'S') => Command::Step,
        Some(b'k') => Command::Kill,
        Some(b'D') => Command::Detach,
        Some(first @ (b'Z' | b'z')) => {
            let mut c = Cursor::new(packet, 1);
            let in_code = c.eat("0,") || c.eat("1,");
            let address = if in_code { Some(c.number()?) } else { None };
            Command::Breakpoint { set: first == b'Z', address }
        }
        Some(b'H') => {
            let mut c = Cursor::new(packet, 2);
            Command::Select(thread(&mut c)?)
        }
        Some(b'T') => {
            c.need("T")?;
            Command::Alive(thread(&mut c)?)
        }
        Some(b'v') => resume(&mut c)?,
        Some(b'q') if c.eat("qT") => trace_query(c)?,
        Some(b'q') => query(c)?,
        Some(b'Q') if c.eat("QT") => trace(c)?,
        Some(b'Q') if c.eat("QStartNoAckMode") => Command::NoAck,
        _ => Command::Unknown,
    })
}

/// Parses `pPID.TID`, `TID` or `-1`.
fn thread(c: &mut Cursor<'_>) -> Result<Thread, Error> {
    let number = |c: &mut Cursor<'_>| if c.eat("-1") { Ok(-1) } else { c.small().map(i64::from) };
    if !c.eat("p") {
        return Ok(Thread { pid: 0, tid: number(c)? });
    }
    let pid = number(c)?;
    let tid = if c.eat(".") { number(c)? } else { -1 };
    Ok(Thread { pid, tid })
}

fn resume(c: &mut Cursor<'_>) -> Result<Command, Error> {
    if c.eat("vCont?") {
        return Ok(Command::CanContinue);
    }
    if c.eat("vCont;") {
        // Of several threads' actions, the first is GDB's current thread and decides.
        return Ok(match c.peek() {
            Some(b's' | b'S' | b'r') => Command::Step,
            _ => Command::Continue,
        });
    }
    if c.eat("vKill") {
        return Ok(Command::Kill);
    }
    if !c.eat("vFile:") {
        return Ok(Command::Unknown);
    }
    let operation = c.until(b':');
    let file = match operation {
        b"setfs" => File::SetFs(c.small()?),
        b"open" => {
            let path = c.until(b',');
            let path = hex::unhex(path).ok_or_else(|| c.expected("a path in hexadecimal"))?;
            let flags = c.small()?;
            File::Open(path, flags)
        }
        b"pread" => {
            let file = c.small()?;
            c.need(",")?;
            let count = c.number()?;
            c.need(",")?;
            File::Read(file, count, c.number()?)
        }
        b"fstat" => File::Stat(c.small()?),
        b"close" => File::Close(c.small()?),
        b"readlink" => File::Link(hex::unhex(c.rest()).ok_or_else(|| c.expected("a path in hexadecimal"))?),
        _ => File::Other,
    };
    Ok(Command::File(file))
}

fn query(mut c: Cursor<'_>) -> Result<Command, Error> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(if c.eat("qSupported") {
        Command::Supported
    } else if c.eat("qXfer:") {
        let object = text(c.until(b':'));
        if c.until(b':') != b"read" {
            return Ok(Command::Unknown);
        }
        let annex = text(c.until(b':'));
        let offset = c.number()?;
        c.need(",")?;
        Command::Transfer { object, annex, offset, length: c.number()? }
    } else if c.eat("qRcmd,") {
        Command::Monitor(text(&hex::unhex(c.rest()).ok_or_else(|| c.expected("text in hexadecimal"))?))
    } else if c.eat("qfThreadInfo") {
        Command::Threads { first: true }
    } else if c.eat("qsThreadInfo") {
        Command::Threads { first: false }
    } else if c.eat("qThreadExtraInfo,") {
        Command::ThreadName(thread(&mut c)?)
    } else if c.eat("qAttached") {
        Command::Attached
    } else if c.eat("qOffsets") {
        Command::Offsets
    } else if c.eat("qC") && c.done() {
        Command::Current
    } else {
        Command::Unknown
    })
}

/// Parses a packet after `qT`.
fn trace_query(mut c: Cursor<'_>) -> Result<Command, Error> {
    Ok(if c.eat("Status") {
        Command::TraceStatus
    } else if c.eat("P:") {
        Command::PointStatus(define::key(&mut c)?)
    } else if c.eat("V:") {
        let here = c.clone();
        let number = u16::try_from(c.number()?).map_err(|_| here.expected("a variable's number"))?;
        Command::VariableValue(number)
    } else if c.eat("Buffer:") {
        let offset = c.number()?;
        c.need(",")?;
        Command::RawBuffer { offset, length: c.number()? }
    } else if c.eat("fSTM") {
        Command::Markers { first: true }
    } else if c.eat("sSTM") {
        Command::Markers { first: false }
    } else if c.eat("STMat:") {
        Command::MarkersAt(c.number()?)
    } else if c.eat("MinFTPILen") {
        Command::FastLength
    } else if c.eat("fP") {
        Command::Points { first: true }
    } else if c.eat("sP") {
        Command::Points { first: false }
    } else if c.eat("fV") {
        Command::Variables { first: true }
    } else if c.eat("sV") {
        Command::Variables { first: false }
    } else {
        Command::Unknown
    })
}

/// Parses a packet after `QT`.
fn trace(mut c: Cursor<'_>) -> Result<Command, Error> {
    Ok(if c.eat("init") {
        Command::TraceInit
    } else if c.eat("DPsrc:") {
        Command::Source(c.at())
    } else if c.eat("DP:") {
        Command::Define(c.at())
    } else if c.eat("DV:") {
        Command::Variable(c.at())
    } else if c.eat("ro") {
        Command::ReadOnly
    } else if c.eat("Start") {
        Command::TraceStart
    } else if c.eat("Stop") {
        Command::TraceStop
    } else if c.eat("Frame:") {
        Command::Frame(find(&mut c)?)
    } else if c.eat("Enable:") {
        Command::Enable(define::key(&mut c)?, true)
    } else if c.eat("Disable:") {
        Command::Enable(define::key(&mut c)?, false)
    } else if c.eat("Disconnected:") {
        Command::KeepRunning(c.number()? != 0)
    } else if c.eat("Buffer:circular:") {
        Command::Circular(c.number()? != 0)
    } else if c.eat("Buffer:size:") {
        let size = if c.eat("-1") { None } else { Some(c.number()?).filter(|n| *n != u64::MAX) };
        Command::BufferSize(size)
    } else if c.eat("Notes:") {
        let (mut user, mut notes, mut stop) = (None, None, None);
        while !c.done() {
            let name = c.until(b':');
            let text = hex::unhex(c.until(b';')).ok_or_else(|| c.expected("text in hexadecimal"))?;
            let text = Some(String::from_utf8_lossy(&text).into_owned());
            match name {
                b"user" => user = text,
                b"notes" => notes = text,
                b"tstop" => stop = text,
                _ => {}
            }
        }
        Command::Notes { user, notes, stop }
    } else if c.eat("Save:") {
        let name = hex::unhex(c.rest()).ok_or_else(|| c.expected("a file name in hexadecimal"))?;
        Command::Save(String::from_utf8_lossy(&name).into_owned())
    } else {
        Command::Unknown
    })
}

fn find(c: &mut Cursor<'_>) -> Result<Find, Error> {
    Ok(if c.eat("pc:") {
        Find::Pc(c.number()?)
    } else if c.eat("tdp:") {
        Find::Point(c.small()?)
    } else if c.eat("range:") {
        let (from, to) = range(c)?;
        Find::Inside(from, to)
    } else if c.eat("outside:") {
        let (from, to) = range(c)?;
        Find::Outside(from, to)
    } else if c.eat("-1") {
        Find::Number(None)
    } else {
        Find::Number(Some(c.small()?).filter(|n| *n != u32::MAX))
    })
}

fn range(c: &mut Cursor<'_>) -> Result<(u64, u64), Error> {
    let from = c.number()?;
    c.need(":")?;
    Ok((from, c.number()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(packet: &str) -> Command {
        parse(packet.as_bytes()).unwrap()
    }

    #[test]
    fn as_gdb_sends_them() {
        assert_eq!(one("qSupported:multiprocess+;swbreak+"), Command::Supported);
        assert_eq!(one("m40115f,4"), Command::Memory { address: 0x40115f, length: 4 });
        assert_eq!(one("Hgp1f.20"), Command::Select(Thread { pid: 0x1f, tid: 0x20 }));
        assert_eq!(one("Hc-1"), Command::Select(Thread { pid: 0, tid: -1 }));
        assert_eq!(one("vCont;c:p1.-1"), Command::Continue);
        assert_eq!(one("vCont;s:p1.1;c:p1.-1"), Command::Step);
        let transfer = Command::Transfer {
            object: "features".into(),
            annex: "target.xml".into(),
            offset: 0,
            length: 0xffb,
        };
        assert_eq!(one("qXfer:features:read:target.xml:0,ffb"), transfer);
        assert_eq!(one("QTFrame:0"), Command::Frame(Find::Number(Some(0))));
        assert_eq!(one("QTFrame:ffffffff"), Command::Frame(Find::Number(None)));
        assert_eq!(one("QTFrame:tdp:3"), Command::Frame(Find::Point(3)));
        assert_eq!(one("QTFrame:range:10:20"), Command::Frame(Find::Inside(0x10, 0x20)));
        assert_eq!(one("QTFrame:outside:10:20"), Command::Frame(Find::Outside(0x10, 0x20)));
        assert_eq!(one("QTDP:2:40115f:E:0:5"), Command::Define(5));
        assert_eq!(one("QTBuffer:size:-1"), Command::BufferSize(None));
        assert_eq!(one("QTBuffer:size:4000"), Command::BufferSize(Some(0x4000)));
        let notes = Command::Notes { user: Some("me".into()), notes: None, stop: Some("".into()) };
        assert_eq!(one("QTNotes:user:6d65;tstop:;"), notes);
        assert_eq!(one("vFile:pread:5,1000,200"), Command::File(File::Read(5, 0x1000, 0x200)));
        assert_eq!(one("vFile:open:2f78,0,0"), Command::File(File::Open(b"/x".to_vec(), 0)));
        assert_eq!(one("qRcmd,676f"), Command::Monitor("go".into()));
        assert_eq!(one("vMustReplyEmpty"), Command::Unknown);
        assert_eq!(parse(b"m12"), Err(Error { at: 3, expected: "," }));
    }

    proptest! {
        #[test]
        fn any_bytes(bytes: Vec<u8>, tail in "[-0-9a-f:;,]{0,20}") {
            let _ = parse(&bytes);
            for head in ["m", "H", "T", "vCont;", "vFile:open:", "vFile:pread:", "qXfer:", "qTP:", "QTFrame:",
                "QTFrame:range:", "QTNotes:", "QTBuffer:size:", "qTBuffer:", "QTEnable:"] {
                let _ = parse(format!("{head}{tail}").as_bytes());
            }
        }
    }
}
