// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames between the two sides: a byte for the kind, four for the length of the contents (little-endian), the contents.

use std::io::{self, Read, Write};

/// Bytes of a frame's contents, at most. The other side may be hostile: no more memory is taken for a frame.
pub const LIMIT: usize = 1 << 20;

/// Bytes of contents that a sender puts into a frame of data.
pub const CHUNK: usize = 1 << 16;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// To the target: the next word of the command line.
    Word(Vec<u8>),
    /// To the target: a file of this side that the command line names; its contents follow as [`Frame::Data`] and `End`.
    Given,
    /// To the target: the command line is complete.
    Start,
    /// To the target: this side lives.
    Ping,
    /// To the target: Ctrl-C.
    Interrupt,
    /// To the target: standard input; empty at its end.
    Input(Vec<u8>),
    /// From the target: the [`Machine`](crate::Machine), as JSON.
    Machine(Vec<u8>),
    /// From the target: standard output of the command line.
    Output(Vec<u8>),
    /// From the target: standard error of the command line.
    Error(Vec<u8>),
    /// From the target: more standard input can be taken.
    WantInput,
    /// From the target: the exit code of the command line.
    Ended(u8),
    /// From the target: a folder of the run, relative to it.
    Folder(Vec<u8>),
    /// From the target: a file of the run with this many bytes, which follow as [`Frame::Data`].
    File {
        /// Bytes.
        size: u64,
        /// Path relative to the run.
        path: Vec<u8>,
    },
    /// Contents of a file.
    Data(Vec<u8>),
    /// The run, or the given file, is complete.
    End,
    /// From the target: why the run could not be read there.
    Unreadable(Vec<u8>),
    /// From the target: all is removed, or (with contents) what could not be.
    Removed(Vec<u8>),
}

impl Frame {
    fn kind(&self) -> u8 {
        match self {
            Frame::Word(_) => b'w',
            Frame::Given => b'g',
            Frame::Start => b's',
            Frame::Ping => b'p',
            Frame::Interrupt => b'c',
            Frame::Input(_) => b'i',
            Frame::Machine(_) => b'm',
            Frame::Output(_) => b'o',
            Frame::Error(_) => b'e',
            Frame::WantInput => b'I',
            Frame::Ended(_) => b'x',
            Frame::Folder(_) => b'd',
            Frame::File { .. } => b'f',
            Frame::Data(_) => b'D',
            Frame::End => b'E',
            Frame::Unreadable(_) => b'u',
            Frame::Removed(_) => b'r',
        }
    }

    /// Writes the frame, and flushes.
    ///
    /// # Errors
    /// The writer's, or the contents are longer than [`LIMIT`].
    pub fn write(&self, to: &mut dyn Write) -> io::Result<()> {
        let (code, file);
        let contents: &[u8] = match self {
            Frame::Word(bytes)
            | Frame::Input(bytes)
            | Frame::Machine(bytes)
            | Frame::Output(bytes)
            | Frame::Error(bytes)
            | Frame::Folder(bytes)
            | Frame::Data(bytes)
            | Frame::Unreadable(bytes)
            | Frame::Removed(bytes) => bytes,
            Frame::Ended(number) => {
                code = [*number];
                &code
            }
            Frame::File { size, path } => {
                file = [&size.to_le_bytes()[..], path].concat();
                &file
            }
            Frame::Given | Frame::Start | Frame::Ping | Frame::Interrupt | Frame::WantInput | Frame::End => {
                &[]
            }
        };
        if contents.len() > LIMIT {
            return Err(io::Error::other(format!("{} bytes in a piece; at most {LIMIT}", contents.len())));
        }
        let mut bytes = Vec::with_capacity(5 + contents.len());
        bytes.push(self.kind());
        bytes.extend((contents.len() as u32).to_le_bytes());
        bytes.extend(contents);
        to.write_all(&bytes)?;
        to.flush()
    }

    /// Reads the next frame; `None` at the end of the stream between two frames.
    ///
    /// # Errors
    /// The reader's, the stream ends within a frame, or the bytes are no frame.
    pub fn read(from: &mut dyn Read) -> io::Result<Option<Frame>> {
        let mut head = [0; 5];
        loop {
            match from.read(&mut head[..1]) {
                Ok(0) => return Ok(None),
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        from.read_exact(&mut head[1..])?;
        let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if len > LIMIT {
            return Err(invalid(format!("a piece of {len} bytes; at most {LIMIT} were expected")));
        }
        let mut contents = vec![0; len];
        from.read_exact(&mut contents)?;
        Ok(Some(match head[0] {
            b'w' => Frame::Word(contents),
            b'i' => Frame::Input(contents),
            b'm' => Frame::Machine(contents),
            b'o' => Frame::Output(contents),
            b'e' => Frame::Error(contents),
            b'd' => Frame::Folder(contents),
            b'D' => Frame::Data(contents),
            b'u' => Frame::Unreadable(contents),
            b'r' => Frame::Removed(contents),
            b'x' if len == 1 => Frame::Ended(contents[0]),
            b'f' if len >= 8 => {
                let path = contents.split_off(8);
                Frame::File { size: u64::from_le_bytes(contents.try_into().unwrap_or_default()), path }
            }
            b'g' if len == 0 => Frame::Given,
            b's' if len == 0 => Frame::Start,
            b'p' if len == 0 => Frame::Ping,
            b'c' if len == 0 => Frame::Interrupt,
            b'I' if len == 0 => Frame::WantInput,
            b'E' if len == 0 => Frame::End,
            kind => return Err(invalid(format!("a piece of kind {kind:#x} with {len} bytes is not known"))),
        }))
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_frame() -> impl Strategy<Value = Frame> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..300);
        prop_oneof![
            bytes().prop_map(Frame::Word),
            bytes().prop_map(Frame::Input),
            bytes().prop_map(Frame::Machine),
            bytes().prop_map(Frame::Output),
            bytes().prop_map(Frame::Error),
            bytes().prop_map(Frame::Folder),
            bytes().prop_map(Frame::Data),
            bytes().prop_map(Frame::Unreadable),
            bytes().prop_map(Frame::Removed),
            any::<u8>().prop_map(Frame::Ended),
            (any::<u64>(), bytes()).prop_map(|(size, path)| Frame::File { size, path }),
            proptest::sample::select(vec![
                Frame::Given,
                Frame::Start,
                Frame::Ping,
                Frame::Interrupt,
                Frame::WantInput,
                Frame::End,
            ]),
        ]
    }

    proptest! {
        #[test]
        fn frames_come_as_they_went(frames in proptest::collection::vec(any_frame(), 0..8), cut in any::<usize>()) {
            let mut bytes = Vec::new();
            frames.iter().for_each(|frame| frame.write(&mut bytes).unwrap());
            let mut from = &bytes[..];
            for frame in &frames {
                let read = Frame::read(&mut from).unwrap();
                prop_assert_eq!(read.as_ref(), Some(frame));
            }
            let end = Frame::read(&mut from).unwrap();
            prop_assert_eq!(end, None);
            // Cut anywhere: whole frames, then an end or an error, never another frame.
            let mut from = &bytes[..cut % (bytes.len() + 1)];
            for frame in &frames {
                match Frame::read(&mut from) {
                    Ok(Some(read)) => prop_assert_eq!(&read, frame),
                    Ok(None) | Err(_) => break,
                }
            }
        }

        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut from = &bytes[..];
            while let Ok(Some(_)) = Frame::read(&mut from) {}
        }
    }

    #[test]
    fn a_long_frame_takes_no_memory() {
        let error = Frame::read(&mut &b"D\xff\xff\xff\xff"[..]).unwrap_err();
        assert!(error.to_string().contains("4294967295 bytes"), "{error}");
        assert!(Frame::Data(vec![0; LIMIT + 1]).write(&mut Vec::new()).is_err());
    }
}
