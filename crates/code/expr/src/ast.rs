// SPDX-License-Identifier: MIT OR Apache-2.0
//! An expression as it is written.

use crate::error::Span;
use crate::lex::Number;

/// A node and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expr {
    /// Where it stands.
    pub span: Span,
    /// What it is.
    pub kind: Kind,
}

/// What a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// An integer.
    Number(Number),
    /// A character.
    Char(i32),
    /// A string.
    Text(Vec<u8>),
    /// A variable or an enumerator.
    Name(String),
    /// `$name`.
    Dollar(String),
    /// A prefix operator.
    Unary(Unary, Box<Expr>),
    /// An infix operator.
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// `&&` (true) or `||`.
    Logic(bool, Box<Expr>, Box<Expr>),
    /// `a ? b : c`.
    Choice(Box<Expr>, Box<Expr>, Box<Expr>),
    /// `a, b`.
    Comma(Box<Expr>, Box<Expr>),
    /// `a.b`, or (true) `a->b`.
    Member(Box<Expr>, bool, String, Span),
    /// `a[b]`.
    Index(Box<Expr>, Box<Expr>),
    /// `(type)a`.
    Cast(TypeName, Box<Expr>),
    /// `sizeof a`.
    SizeOf(Box<Expr>),
    /// `sizeof(type)`.
    SizeOfType(TypeName),
    /// `$a = b`, `$a += b`, `$a++`: of a trace state variable. The operator is None for `=`.
    Assign(Box<Expr>, Option<Binary>, Box<Expr>, After),
    /// `f(…)`.
    Call(Box<Expr>),
}

/// Which value an assignment has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// The new one.
    New,
    /// The one before: `$a++`.
    Old,
}

/// A prefix operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Unary {
    Plus,
    Minus,
    Not,
    Invert,
    Deref,
    Address,
}

/// An infix operator that computes with both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Binary {
    Mul,
    Div,
    Rem,
    Add,
    Sub,
    Shl,
    Shr,
    Lt,
    Gt,
    Le,
    Ge,
    Eq,
    Ne,
    And,
    Xor,
    Or,
}

/// A type as it is written in a cast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeName {
    /// Where it stands.
    pub span: Span,
    /// Without its pointers.
    pub base: Base,
    /// Pointers to it.
    pub pointers: usize,
    /// Arrays of it, outermost first.
    pub arrays: Vec<u64>,
    /// Pointers to those: `int (*)[4]`.
    pub to_arrays: usize,
}

/// The start of a type's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// `unsigned long` and the like, sorted out.
    Int(crate::ctype::Int),
    /// `void`.
    Void,
    /// `float`, `double`.
    Float,
    /// `struct`, `union` or `enum` and a name.
    Tagged(Tag, String),
    /// Of a typedef.
    Named(String),
}

/// The word before a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Tag {
    Struct,
    Union,
    Enum,
    Typedef,
}

impl Tag {
    /// The word.
    pub fn word(self) -> &'static str {
        match self {
            Tag::Struct => "struct",
            Tag::Union => "union",
            Tag::Enum => "enum",
            Tag::Typedef => "typedef",
        }
    }
}
