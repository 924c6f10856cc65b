// SPDX-License-Identifier: MIT OR Apache-2.0
//! Abstract syntax tree of an expression.

use crate::error::Span;
use crate::lex::Number;

/// A node and its range of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expr {
    /// Range of the text, including parentheses around it.
    pub span: Span,
    /// Operator or operand.
    pub kind: Kind,
}

/// Kind of a node, with its operands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// An integer constant.
    Number(Number),
    /// A character constant.
    Char(i32),
    /// A string literal's bytes, without a final zero byte.
    Text(Vec<u8>),
    /// A variable or an enumerator.
    Name(String),
    /// `$name`.
    Dollar(String),
    /// A prefix operator and its operand.
    Unary(Unary, Box<Expr>),
    /// An infix operator and its operands.
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
    /// Assignment to a trace state variable: `$a = b`, `$a += b`, `$a++`. The operator is None for `=`.
    Assign(Box<Expr>, Option<Binary>, Box<Expr>, After),
    /// `f(…)`.
    Call(Box<Expr>),
    /// `called_by("f")`, `called_by("f", 3)`: the function, and how many of the nearest callers are looked at.
    CalledBy(String, Option<u64>),
}

/// Selects the value of an assignment expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// The new value.
    New,
    /// The value before the assignment: `$a++`.
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

/// An infix operator that evaluates both operands.
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
    /// Range of the text.
    pub span: Span,
    /// The type without pointers and arrays.
    pub base: Base,
    /// Number of `*` after the base type.
    pub pointers: usize,
    /// Array lengths, outermost first.
    pub arrays: Vec<u64>,
    /// Number of `*` in parentheses, for pointers to arrays: `int (*)[4]`.
    pub to_arrays: usize,
}

/// The start of a type's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// An integer type. The words may stand in any order: `unsigned long`, `long unsigned int`.
    Int(crate::ctype::Int),
    /// `void`.
    Void,
    /// `float`, `double`.
    Float,
    /// `struct`, `union` or `enum` and a tag.
    Tagged(Tag, String),
    /// A typedef's name.
    Named(String),
}

/// The keyword before a tag. `Typedef` stands for names without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Tag {
    Struct,
    Union,
    Enum,
    Typedef,
}

impl Tag {
    /// The keyword in C.
    pub fn word(self) -> &'static str {
        match self {
            Tag::Struct => "struct",
            Tag::Union => "union",
            Tag::Enum => "enum",
            Tag::Typedef => "typedef",
        }
    }
}
