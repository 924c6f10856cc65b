// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parser: builds an expression from tokens by C's precedence.
//!
//! `(name)` before an operand is a cast if `name` is a type. The caller supplies that decision.

use crate::ast::{After, Base, Binary, Expr, Kind, Tag, TypeName, Unary};
use crate::ctype::Int;
use crate::error::{Error, Result, Span};
use crate::lex::{Number, Token, lex};

/// Limit of nesting. It keeps the recursion from overflowing the stack.
const DEPTH: usize = 200;

/// Length limit of an expression, in bytes.
pub const LONGEST: usize = 16 * 1024;

/// Parses an expression. `is_type` returns true if a name is a type's.
pub fn parse(source: &str, is_type: &dyn Fn(&str) -> bool) -> Result<Expr> {
    if source.len() > LONGEST {
        let span = Span { start: LONGEST, end: source.len() };
        return Err(Error::new(span, format!("an expression has at most {LONGEST} bytes")));
    }
    let mut parser = Parser { tokens: qualified(lex(source)?), at: 0, depth: 0, is_type };
    let expr = parser.comma()?;
    match parser.peek() {
        Token::End => Ok(expr),
        _ => Err(parser.unexpected("an operator or the end")),
    }
}

/// Joins names that are connected by `::` into one.
fn qualified(tokens: Vec<(Token, Span)>) -> Vec<(Token, Span)> {
    let mut out: Vec<(Token, Span)> = Vec::with_capacity(tokens.len());
    // True after `::`: the next name belongs to the last token.
    let mut open = false;
    for (token, span) in tokens {
        match (&token, out.last_mut()) {
            (Token::Name(name), Some((Token::Name(whole), all))) if open => {
                whole.push_str(name);
                *all = all.to(span);
                open = false;
                continue;
            }
            (Token::Sign("::"), Some((Token::Name(whole), all))) if !open => {
                whole.push_str("::");
                *all = all.to(span);
                open = true;
                continue;
            }
            (Token::Sign("::"), _) if !open => {
                out.push((Token::Name("::".to_owned()), span));
                open = true;
                continue;
            }
            _ => open = false,
        }
        out.push((token, span));
    }
    out
}

struct Parser<'t> {
    tokens: Vec<(Token, Span)>,
    at: usize,
    depth: usize,
    is_type: &'t dyn Fn(&str) -> bool,
}

const WORDS: [&str; 15] = [
    "void",
    "char",
    "short",
    "int",
    "long",
    "signed",
    "unsigned",
    "_Bool",
    "bool",
    "float",
    "double",
    "const",
    "volatile",
    "__signed__",
    "restrict",
];

impl Parser<'_> {
    fn peek(&self) -> &Token {
        &self.tokens[self.at.min(self.tokens.len() - 1)].0
    }

    fn ahead(&self, n: usize) -> &Token {
        &self.tokens[(self.at + n).min(self.tokens.len() - 1)].0
    }

    fn span(&self) -> Span {
        self.tokens[self.at.min(self.tokens.len() - 1)].1
    }

    fn last(&self) -> Span {
        self.tokens[self.at.saturating_sub(1)].1
    }

    fn eat(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Token::Sign(s) if *s == sign);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<()> {
        if self.eat(sign) { Ok(()) } else { Err(self.unexpected(&format!("`{sign}`"))) }
    }

    fn unexpected(&self, wanted: &str) -> Error {
        let what = match self.peek() {
            Token::End => "the expression ends".to_owned(),
            Token::Name(n) => format!("`{n}`"),
            Token::Dollar(n) => format!("`${n}`"),
            Token::Sign(s) => format!("`{s}`"),
            Token::Number(_) => "a number".to_owned(),
            Token::Char(_) => "a character".to_owned(),
            Token::Text(_) => "a string".to_owned(),
        };
        Error::new(self.span(), format!("{what} where {wanted} is expected"))
    }

    fn deeper<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= DEPTH {
            return Err(Error::new(self.span(), format!("nested deeper than {DEPTH}")));
        }
        self.depth += 1;
        let result = f(self);
        self.depth -= 1;
        result
    }

    fn comma(&mut self) -> Result<Expr> {
        let mut left = self.assign()?;
        let mut links = 0;
        while self.eat(",") {
            let right = self.assign()?;
            left = node(left.span.to(right.span), |l| Kind::Comma(l, Box::new(right)), left);
            self.chain(&mut links)?;
        }
        Ok(left)
    }

    /// Counts an operator of a chain. A chain's tree nests to the left, one level for each operator, so its length is
    /// limited too.
    fn chain(&self, links: &mut usize) -> Result<()> {
        *links += 1;
        if *links > DEPTH {
            return Err(Error::new(
                self.last(),
                format!("more than {DEPTH} operators in a row; use parentheses"),
            ));
        }
        Ok(())
    }

    fn assign(&mut self) -> Result<Expr> {
        self.deeper(|p| {
            let left = p.choice()?;
            let op = match p.peek() {
                Token::Sign("=") => None,
                Token::Sign(s) if s.len() >= 2 && s.ends_with('=') => match operator(&s[..s.len() - 1]) {
                    Some((op, _)) if !matches!(*s, "<=" | ">=" | "==" | "!=") => Some(op),
                    _ => return Ok(left),
                },
                _ => return Ok(left),
            };
            p.at += 1;
            let right = p.assign()?;
            let span = left.span.to(right.span);
            Ok(node(span, |l| Kind::Assign(l, op, Box::new(right), After::New), left))
        })
    }

    fn choice(&mut self) -> Result<Expr> {
        let cond = self.binary(0)?;
        if !self.eat("?") {
            return Ok(cond);
        }
        let then = self.deeper(Self::comma)?;
        self.expect(":")?;
        let other = self.deeper(Self::choice)?;
        let span = cond.span.to(other.span);
        Ok(node(span, |c| Kind::Choice(c, Box::new(then), Box::new(other)), cond))
    }

    fn binary(&mut self, least: u8) -> Result<Expr> {
        let mut left = self.unary()?;
        let mut links = 0;
        loop {
            let Token::Sign(sign) = *self.peek() else { return Ok(left) };
            let logic = match sign {
                "||" => Some((false, 1)),
                "&&" => Some((true, 2)),
                _ => None,
            };
            let op = operator(sign);
            let Some(strength) = logic.map(|l| l.1).or(op.map(|o| o.1)).filter(|s| *s > least) else {
                return Ok(left);
            };
            self.at += 1;
            let right = self.deeper(|p| p.binary(strength))?;
            let span = left.span.to(right.span);
            left = match (logic, op) {
                (Some((and, _)), _) => node(span, |l| Kind::Logic(and, l, Box::new(right)), left),
                (None, Some((op, _))) => node(span, |l| Kind::Binary(op, l, Box::new(right)), left),
                (None, None) => return Ok(left),
            };
            self.chain(&mut links)?;
        }
    }

    fn unary(&mut self) -> Result<Expr> {
        self.deeper(|p| {
            let start = p.span();
            let op = match p.peek() {
                Token::Sign("+") => Unary::Plus,
                Token::Sign("-") => Unary::Minus,
                Token::Sign("!") => Unary::Not,
                Token::Sign("~") => Unary::Invert,
                Token::Sign("*") => Unary::Deref,
                Token::Sign("&") => Unary::Address,
                Token::Sign(s @ ("++" | "--")) => {
                    let op = if *s == "++" { Binary::Add } else { Binary::Sub };
                    p.at += 1;
                    let of = p.unary()?;
                    let span = start.to(of.span);
                    return Ok(node(
                        span,
                        |o| Kind::Assign(o, Some(op), Box::new(one(span)), After::New),
                        of,
                    ));
                }
                Token::Sign("(") if p.is_type_at(1) => {
                    p.at += 1;
                    let ty = p.type_name()?;
                    p.expect(")")?;
                    let of = p.unary()?;
                    let span = start.to(of.span);
                    return Ok(node(span, |o| Kind::Cast(ty, o), of));
                }
                Token::Name(n) if n == "sizeof" => {
                    p.at += 1;
                    if matches!(p.peek(), Token::Sign("(")) && p.is_type_at(1) {
                        p.at += 1;
                        let ty = p.type_name()?;
                        p.expect(")")?;
                        return Ok(Expr { span: start.to(p.last()), kind: Kind::SizeOfType(ty) });
                    }
                    let of = p.unary()?;
                    return Ok(node(start.to(of.span), Kind::SizeOf, of));
                }
                _ => return p.postfix(),
            };
            p.at += 1;
            let of = p.unary()?;
            Ok(node(start.to(of.span), |o| Kind::Unary(op, o), of))
        })
    }

    fn postfix(&mut self) -> Result<Expr> {
        let mut left = self.primary()?;
        let mut links = 0;
        loop {
            let arrow = matches!(self.peek(), Token::Sign("->"));
            if arrow || matches!(self.peek(), Token::Sign(".")) {
                self.at += 1;
                let Token::Name(name) = self.peek().clone() else { return Err(self.unexpected("a member")) };
                let at = self.span();
                self.at += 1;
                left = node(left.span.to(at), |l| Kind::Member(l, arrow, name, at), left);
            } else if self.eat("[") {
                let index = self.deeper(Self::comma)?;
                self.expect("]")?;
                let span = left.span.to(self.last());
                left = node(span, |l| Kind::Index(l, Box::new(index)), left);
            } else if matches!(&left.kind, Kind::Name(name) if name == "called_by") && self.eat("(") {
                left = self.called_by(left.span)?;
            } else if self.eat("(") {
                return Err(Error::new(left.span, "functions cannot be called in a probe")
                    .help("an expression reads variables, members, registers and memory"));
            } else if let Token::Sign(s @ ("++" | "--")) = *self.peek() {
                self.at += 1;
                let op = if s == "++" { Binary::Add } else { Binary::Sub };
                let span = left.span.to(self.last());
                left = node(span, |l| Kind::Assign(l, Some(op), Box::new(one(span)), After::Old), left);
            } else {
                return Ok(left);
            }
            self.chain(&mut links)?;
        }
    }

    /// The rest of `called_by("f")` or `called_by("f", 3)`, behind the parenthesis.
    fn called_by(&mut self, start: Span) -> Result<Expr> {
        let Token::Text(function) = self.peek().clone() else {
            return Err(self.unexpected("a function's name in double quotes"));
        };
        let at = self.span();
        self.at += 1;
        let function = String::from_utf8(function).ok().filter(|name| !name.is_empty());
        let function = function.ok_or_else(|| Error::new(at, "this is no function's name"))?;
        let mut most = None;
        if self.eat(",") {
            let Token::Number(number) = self.peek().clone() else {
                return Err(self.unexpected("how many callers are looked at, a number"));
            };
            self.at += 1;
            most = Some(number.value);
        }
        self.expect(")")?;
        Ok(Expr { span: start.to(self.last()), kind: Kind::CalledBy(function, most) })
    }

    fn primary(&mut self) -> Result<Expr> {
        let span = self.span();
        let kind = match self.peek().clone() {
            Token::Number(n) => Kind::Number(n),
            Token::Char(c) => Kind::Char(c),
            Token::Text(mut text) => {
                // Adjacent string literals are concatenated.
                while let Token::Text(more) = self.ahead(1).clone() {
                    text.extend(more);
                    self.at += 1;
                }
                Kind::Text(text)
            }
            Token::Dollar(n) if n.is_empty() => {
                return Err(Error::new(span, "`$` needs a name after it"));
            }
            Token::Dollar(n) => Kind::Dollar(n),
            Token::Name(n) if n == "true" || n == "false" => {
                let value = u64::from(n == "true");
                Kind::Number(Number { value, decimal: true, unsigned: false, long: 0 })
            }
            Token::Name(n) if WORDS.contains(&n.as_str()) || (self.is_type)(&n) => {
                return Err(Error::new(span, format!("the type `{n}` is no value"))
                    .help(format!("a cast is written `({n})value`")));
            }
            Token::Name(n) if n.ends_with("::") => {
                return Err(Error::new(span, "`::` needs a name after it"));
            }
            Token::Name(n) => Kind::Name(n),
            Token::Sign("(") => {
                self.at += 1;
                let inner = self.deeper(Self::comma)?;
                self.expect(")")?;
                return Ok(Expr { span: span.to(self.last()), kind: inner.kind });
            }
            _ => return Err(self.unexpected("a value")),
        };
        self.at += 1;
        Ok(Expr { span: span.to(self.last()), kind })
    }

    fn is_type_at(&self, ahead: usize) -> bool {
        match self.ahead(ahead) {
            Token::Name(n) if matches!(n.as_str(), "struct" | "union" | "enum") => true,
            Token::Name(n) => WORDS.contains(&n.as_str()) || (self.is_type)(n),
            _ => false,
        }
    }

    fn type_name(&mut self) -> Result<TypeName> {
        let start = self.span();
        let mut words: Vec<String> = Vec::new();
        let mut named = None;
        while let Token::Name(n) = self.peek().clone() {
            if matches!(n.as_str(), "const" | "volatile" | "restrict") {
            } else if let tag @ ("struct" | "union" | "enum") = n.as_str() {
                self.at += 1;
                let Token::Name(name) = self.peek().clone() else { return Err(self.unexpected("a tag")) };
                let tag = match tag {
                    "struct" => Tag::Struct,
                    "union" => Tag::Union,
                    _ => Tag::Enum,
                };
                named = Some(Base::Tagged(tag, name));
            } else if WORDS.contains(&n.as_str()) {
                words.push(n);
            } else if words.is_empty() && named.is_none() && (self.is_type)(&n) {
                named = Some(Base::Named(n));
            } else {
                break;
            }
            self.at += 1;
        }
        let span = start.to(self.last());
        let base = match named {
            Some(base) if words.is_empty() => base,
            _ => base(&words).ok_or_else(|| Error::new(span, "this is no type of C"))?,
        };
        let mut ty = TypeName { span, base, pointers: 0, arrays: Vec::new(), to_arrays: 0 };
        loop {
            if self.eat("*") {
                ty.pointers += 1;
            } else if matches!(self.peek(), Token::Name(n) if matches!(n.as_str(), "const" | "volatile" | "restrict"))
            {
                self.at += 1;
            } else {
                break;
            }
        }
        if matches!(self.peek(), Token::Sign("(")) && matches!(self.ahead(1), Token::Sign("*")) {
            self.at += 1;
            while self.eat("*") {
                ty.to_arrays += 1;
            }
            self.expect(")")?;
            if !matches!(self.peek(), Token::Sign("[")) {
                return Err(self.unexpected("`[` and a length"));
            }
        }
        while self.eat("[") {
            let Token::Number(n) = *self.peek() else { return Err(self.unexpected("a number")) };
            self.at += 1;
            self.expect("]")?;
            ty.arrays.push(n.value);
        }
        ty.span = start.to(self.last());
        Ok(ty)
    }
}

fn node(span: Span, kind: impl FnOnce(Box<Expr>) -> Kind, of: Expr) -> Expr {
    Expr { span, kind: kind(Box::new(of)) }
}

fn one(span: Span) -> Expr {
    Expr { span, kind: Kind::Number(Number { value: 1, decimal: true, unsigned: false, long: 0 }) }
}

/// Returns the operator and its precedence; a higher number binds tighter.
fn operator(sign: &str) -> Option<(Binary, u8)> {
    Some(match sign {
        "|" => (Binary::Or, 3),
        "^" => (Binary::Xor, 4),
        "&" => (Binary::And, 5),
        "==" => (Binary::Eq, 6),
        "!=" => (Binary::Ne, 6),
        "<" => (Binary::Lt, 7),
        ">" => (Binary::Gt, 7),
        "<=" => (Binary::Le, 7),
        ">=" => (Binary::Ge, 7),
        "<<" => (Binary::Shl, 8),
        ">>" => (Binary::Shr, 8),
        "+" => (Binary::Add, 9),
        "-" => (Binary::Sub, 9),
        "*" => (Binary::Mul, 10),
        "/" => (Binary::Div, 10),
        "%" => (Binary::Rem, 10),
        _ => return None,
    })
}

/// Combines the words of an arithmetic type, which may stand in any order.
fn base(words: &[String]) -> Option<Base> {
    let count = |w: &str| words.iter().filter(|x| *x == w).count();
    if count("void") == 1 && words.len() == 1 {
        return Some(Base::Void);
    }
    if count("float") + count("double") > 0 {
        return Some(Base::Float);
    }
    let unsigned = count("unsigned") == 1;
    let signed = count("signed") + count("__signed__");
    let sizes = (count("char"), count("short"), count("long"), count("_Bool") + count("bool"), count("int"));
    if words.is_empty() || (unsigned && signed > 0) {
        return None;
    }
    let int = match sizes {
        (1, 0, 0, 0, 0) if unsigned => Int::UCHAR,
        (1, 0, 0, 0, 0) if signed == 1 => Int::SCHAR,
        (1, 0, 0, 0, 0) => Int::CHAR,
        (0, 0, 0, 1, 0) => Int::BOOL,
        (0, 1, 0, 0, 0 | 1) => Int::of(2, !unsigned),
        (0, 0, 0, 0, 0 | 1) => Int::of(4, !unsigned),
        (0, 0, 1, 0, 0 | 1) => Int::of(8, !unsigned),
        (0, 0, 2, 0, 0 | 1) => Int { rank: 6, ..Int::of(8, !unsigned) },
        _ => return None,
    };
    Some(Base::Int(int))
}
