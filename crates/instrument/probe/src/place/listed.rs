// SPDX-License-Identifier: MIT OR Apache-2.0
//! A static tracepoint as it is listed.

/// A static tracepoint of a kernel or a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// `SYSTEM:NAME`.
    pub name: String,
    /// Its fields, or its arguments.
    pub fields: Vec<Field>,
    /// The format that the kernel prints it in.
    pub print: Option<String>,
    /// The places in the code where it is, as far as they are known.
    pub places: Vec<String>,
}

/// A field of a tracepoint's record, or an argument.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its type in C; for an argument, where it is.
    pub kind: String,
    /// Offset and size in the record, in bytes.
    pub place: Option<(u32, u32)>,
}
