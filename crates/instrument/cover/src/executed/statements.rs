// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses the statements of a C source and their nesting: enough of the language to determine which lines are reached
//! from which, but not their meaning.
//!
//! Input: a source's text, and its lines with code. Text between `#if` and `#endif` without any such line is assumed to
//! be left out of the build, and becomes a [`Kind::Gap`]. Output: [`Function`]s. A name with arguments before a
//! statement is taken for a macro that loops. Functions that cannot be parsed are left out.

/// A function with its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The line of its name.
    pub name: u32,
    /// The line of the brace that ends it.
    pub close: u32,
    /// True if it returns no value.
    pub void: bool,
    /// Its statements.
    pub body: Vec<Stmt>,
}

/// A statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stmt {
    /// Its first line.
    pub first: u32,
    /// Its kind.
    pub kind: Kind,
}

/// Kind of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Text that was left out. It is unknown whether control passes through it.
    Gap,
    /// `case X:`, `default:`.
    Case,
    /// `name:`, to which a `goto` may jump.
    Label,
    /// An expression, a declaration, a jump.
    Simple(Simple),
    /// `{ … }`.
    Block(Vec<Stmt>),
    /// `if`.
    If(Simple, Box<Stmt>, Option<Box<Stmt>>),
    /// `for`, `while`, and macros that loop.
    Loop(Simple, Box<Stmt>),
    /// `switch`.
    Switch(Simple, Box<Stmt>),
    /// `do … while`.
    Do(Box<Stmt>, Simple),
}

/// A statement without nested statements, or the head of one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Simple {
    /// Its first line.
    pub first: u32,
    /// Its last line.
    pub last: u32,
    /// `return`, `goto`, `break` or `continue`.
    pub leaves: bool,
    /// `return`.
    pub returns: bool,
    /// `break`, which leaves the loop or `switch` around it.
    pub breaks: bool,
    /// `continue`.
    pub continues: bool,
    /// It leaves, is a call, or assigns something.
    pub acts: bool,
    /// It has statements inside an expression, so it is unknown which of it runs.
    pub nested: bool,
    /// Further lines on which something is computed.
    pub computes: Vec<u32>,
    /// The line of the first operator after which not all operands are evaluated.
    pub choice: Option<u32>,
    /// All of those operators are `&&`, or all are `||`.
    pub chain: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word<'t> {
    Name(&'t str),
    Mark(u8),
    /// `&&`, `||`.
    Choice(u8),
    /// `=`, `+=`, `++`, and so on.
    Sets,
    Literal,
    Gap,
}

#[derive(Debug, Clone, Copy)]
struct Token<'t> {
    word: Word<'t>,
    line: u32,
}

/// Maximum nesting of statements.
const DEEPEST: u32 = 100;

/// The functions of a source.
pub fn functions(text: &str, has_code: &dyn Fn(u32) -> bool) -> Vec<Function> {
    let tokens = tokens(text, has_code);
    let mut found = Vec::new();
    let (mut at, mut from) = (0, 0);
    let mut parens = 0u32;
    while let Some(token) = tokens.get(at) {
        match token.word {
            Word::Mark(b'(') => parens += 1,
            Word::Mark(b')') => parens = parens.saturating_sub(1),
            Word::Mark(b';') if parens == 0 => from = at + 1,
            Word::Mark(b'{') => {
                let head = &tokens[from.min(at)..at];
                let mut parser = Parser { tokens: &tokens, at };
                let name = named(head).filter(|_| parens == 0);
                if let Some((name, void)) = name
                    && let Some(body) = parser.braced(0)
                {
                    let close = tokens[parser.at - 1].line;
                    found.push(Function { name, close, void, body });
                    at = parser.at;
                } else {
                    at = skipped(&tokens, at);
                }
                (from, parens) = (at, 0);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// The line of the function's name, and whether it returns nothing, if this is a function's head.
fn named(head: &[Token<'_>]) -> Option<(u32, bool)> {
    let open = head.iter().position(|token| token.word == Word::Mark(b'('))?;
    if head.iter().any(|token| token.word == Word::Sets) {
        return None;
    }
    let before = &head[..open];
    let Word::Name(_) = before.last()?.word else { return None };
    let pointer = before.iter().any(|token| token.word == Word::Mark(b'*'));
    let void = before.iter().any(|token| token.word == Word::Name("void"));
    Some((before.last()?.line, void && !pointer))
}

/// The index after the brace that closes the one at `at`.
fn skipped(tokens: &[Token<'_>], mut at: usize) -> usize {
    let mut depth = 0u32;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token.word {
            Word::Mark(b'{') => depth += 1,
            Word::Mark(b'}') if depth <= 1 => return at,
            Word::Mark(b'}') => depth -= 1,
            _ => {}
        }
    }
    at
}

struct Parser<'t> {
    tokens: &'t [Token<'t>],
    at: usize,
}

impl<'t> Parser<'t> {
    fn word(&self, ahead: usize) -> Option<Word<'t>> {
        self.tokens.get(self.at + ahead).map(|token| token.word)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |token| token.line)
    }

    fn takes(&mut self, word: Word<'_>) -> bool {
        let takes = self.word(0) == Some(word);
        self.at += usize::from(takes);
        takes
    }

    fn braced(&mut self, depth: u32) -> Option<Vec<Stmt>> {
        if depth > DEEPEST || !self.takes(Word::Mark(b'{')) {
            return None;
        }
        let mut all = Vec::new();
        while !self.takes(Word::Mark(b'}')) {
            if !self.takes(Word::Mark(b';')) {
                all.push(self.statement(depth + 1)?);
            }
        }
        Some(all)
    }

    fn boxed(&mut self, depth: u32) -> Option<Box<Stmt>> {
        // An empty statement.
        if self.word(0) == Some(Word::Mark(b';')) {
            let first = self.line();
            self.at += 1;
            return Some(Box::new(Stmt { first, kind: Kind::Block(Vec::new()) }));
        }
        self.statement(depth + 1).map(Box::new)
    }

    fn statement(&mut self, depth: u32) -> Option<Stmt> {
        if depth > DEEPEST {
            return None;
        }
        let first = self.line();
        let kind = match self.word(0)? {
            Word::Gap => {
                self.at += 1;
                Kind::Gap
            }
            Word::Mark(b'{') => Kind::Block(self.braced(depth)?),
            Word::Name("if") => {
                self.at += 1;
                let head = self.head(first)?;
                let then = self.boxed(depth)?;
                let other = match self.takes(Word::Name("else")) {
                    true => Some(self.boxed(depth)?),
                    false => None,
                };
                Kind::If(head, then, other)
            }
            Word::Name("for" | "while") => {
                self.at += 1;
                Kind::Loop(self.head(first)?, self.boxed(depth)?)
            }
            Word::Name("switch") => {
                self.at += 1;
                Kind::Switch(self.head(first)?, self.boxed(depth)?)
            }
            Word::Name("do") => {
                self.at += 1;
                let body = self.boxed(depth)?;
                let line = self.line();
                if !self.takes(Word::Name("while")) {
                    return None;
                }
                let tail = self.head(line)?;
                self.takes(Word::Mark(b';'));
                Kind::Do(body, tail)
            }
            Word::Name("case") => {
                while !self.takes(Word::Mark(b':')) {
                    if let None | Some(Word::Mark(b';' | b'{' | b'}')) = self.word(0) {
                        return None;
                    }
                    self.at += 1;
                }
                Kind::Case
            }
            Word::Name("else") => return None,
            // Code of the next `case`, if any.
            Word::Name("fallthrough") if self.word(1) == Some(Word::Mark(b';')) => {
                self.at += 2;
                Kind::Gap
            }
            Word::Name(name) if self.word(1) == Some(Word::Mark(b':')) => {
                self.at += 2;
                if name == "default" { Kind::Case } else { Kind::Label }
            }
            Word::Name(name) if self.word(1) == Some(Word::Mark(b'(')) && !name.contains("typeof") => {
                let start = self.at;
                self.at += 1;
                let head = self.head(first);
                match (head, self.word(0)) {
                    (Some(head), Some(Word::Mark(b'{') | Word::Name(_))) => {
                        Kind::Loop(head, self.boxed(depth)?)
                    }
                    _ => {
                        self.at = start;
                        Kind::Simple(self.simple()?)
                    }
                }
            }
            _ => Kind::Simple(self.simple()?),
        };
        Some(Stmt { first, kind })
    }

    /// Parses the contents of parentheses.
    fn head(&mut self, first: u32) -> Option<Simple> {
        if self.word(0) != Some(Word::Mark(b'(')) {
            return None;
        }
        let start = self.at;
        let mut depth = 0u32;
        loop {
            match self.word(0)? {
                Word::Mark(b'(' | b'[' | b'{') => depth += 1,
                Word::Mark(b')' | b']' | b'}') => depth = depth.checked_sub(1)?,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(simple(first, &self.tokens[start..self.at]));
            }
        }
    }

    /// Parses up to the semicolon.
    fn simple(&mut self) -> Option<Simple> {
        let start = self.at;
        let mut depth = 0u32;
        loop {
            match self.word(0)? {
                Word::Mark(b';') if depth == 0 => break,
                // A macro that supplies its own semicolon.
                Word::Mark(b'}') if depth == 0 && self.at > start => {
                    return Some(simple(self.tokens[start].line, &self.tokens[start..self.at]));
                }
                Word::Mark(b'(' | b'[' | b'{') => depth += 1,
                Word::Mark(b')' | b']' | b'}') => depth = depth.checked_sub(1)?,
                _ => {}
            }
            self.at += 1;
        }
        self.at += 1;
        Some(simple(self.tokens[start].line, &self.tokens[start..self.at]))
    }
}

/// Derives a statement's properties from its words.
fn simple(first: u32, tokens: &[Token<'_>]) -> Simple {
    let mut simple = Simple { first, last: first, chain: true, ..Simple::default() };
    let mut last_choice = None;
    if let Some(Word::Name(name)) = tokens.first().map(|token| token.word) {
        simple.returns = name == "return";
        simple.breaks = name == "break";
        simple.continues = name == "continue";
        simple.leaves = simple.returns || simple.breaks || simple.continues || name == "goto";
        let calls = tokens.get(1).is_some_and(|next| next.word == Word::Mark(b'('));
        simple.acts = simple.leaves || calls;
    }
    for (i, token) in tokens.iter().enumerate() {
        simple.last = simple.last.max(token.line);
        let next = tokens.get(i + 1).map(|token| token.word);
        let computes = match token.word {
            Word::Name(name) => {
                simple.nested |=
                    i > 0 && matches!(name, "if" | "for" | "while" | "switch" | "do" | "return" | "goto");
                next == Some(Word::Mark(b'('))
            }
            Word::Sets => {
                simple.acts = true;
                true
            }
            Word::Choice(_) | Word::Mark(b'?') => {
                let mark = if let Word::Choice(mark) = token.word { mark } else { b'?' };
                simple.choice.get_or_insert(token.line);
                simple.chain &= mark != b'?' && last_choice.is_none_or(|last| last == mark);
                last_choice = Some(mark);
                true
            }
            Word::Mark(b'{') => {
                simple.nested |= i > 0 && tokens[i - 1].word == Word::Mark(b'(');
                false
            }
            Word::Mark(mark) => b"+-*/%&|^<>!~.[:".contains(&mark),
            Word::Literal | Word::Gap => false,
        };
        if computes && token.line != first && simple.computes.last() != Some(&token.line) {
            simple.computes.push(token.line);
        }
    }
    simple
}

/// The branch of `#if` of each line, and whether each branch has code.
fn branches(text: &str, has_code: &dyn Fn(u32) -> bool) -> (Vec<u32>, Vec<bool>) {
    let mut of_line = vec![0];
    let mut active = vec![true];
    let mut stack: Vec<u32> = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.trim_start();
        let directive = text.strip_prefix('#').map_or("", str::trim_start);
        let mut open = false;
        if directive.starts_with("if") {
            open = true;
        } else if directive.starts_with("el") {
            open = stack.pop().is_some();
        } else if directive.starts_with("endif") {
            stack.pop();
        }
        if open {
            stack.push(active.len() as u32);
            active.push(false);
        }
        of_line.push(stack.last().copied().unwrap_or(0));
        if has_code(line) {
            // The branches around it are in the build too.
            for &branch in stack.iter().rev() {
                if std::mem::replace(&mut active[branch as usize], true) {
                    break;
                }
            }
        }
    }
    (of_line, active)
}

fn tokens<'t>(text: &'t str, has_code: &dyn Fn(u32) -> bool) -> Vec<Token<'t>> {
    let (of_line, active) = branches(text, has_code);
    let bytes = text.as_bytes();
    let mut tokens: Vec<Token<'t>> = Vec::new();
    let (mut at, mut line, mut fresh) = (0, 1u32, true);
    while let Some(&byte) = bytes.get(at) {
        if fresh {
            fresh = false;
            let branch = of_line.get(line as usize).copied().unwrap_or(0);
            if !active[branch as usize] {
                if tokens.last().is_none_or(|last| last.word != Word::Gap) {
                    tokens.push(Token { word: Word::Gap, line });
                }
                at += bytes[at..].iter().position(|&b| b == b'\n').unwrap_or(bytes.len() - at);
                if at < bytes.len() {
                    (at, line, fresh) = (at + 1, line + 1, true);
                }
                continue;
            }
            let rest = text[at..].trim_start_matches([' ', '\t']);
            if rest.starts_with('#') {
                // Including continuation lines.
                while at < bytes.len() {
                    let end = bytes[at..].iter().position(|&b| b == b'\n').map_or(bytes.len(), |n| at + n);
                    let continued = bytes[at..end].last() == Some(&b'\\');
                    at = end;
                    if at < bytes.len() {
                        (at, line) = (at + 1, line + 1);
                    }
                    if !continued {
                        break;
                    }
                }
                fresh = true;
                continue;
            }
        }
        let start = at;
        let word = match byte {
            b'\n' => {
                (at, line, fresh) = (at + 1, line + 1, true);
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at += bytes[at..].iter().position(|&b| b == b'\n').unwrap_or(bytes.len() - at);
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let end = text[at + 2..].find("*/").map_or(bytes.len(), |n| at + 2 + n + 2);
                line += bytes[at..end].iter().filter(|&&b| b == b'\n').count() as u32;
                at = end;
                continue;
            }
            b'"' | b'\'' => {
                at += 1;
                while let Some(&b) = bytes.get(at) {
                    at += 1;
                    match b {
                        b'\\' => {
                            line += u32::from(bytes.get(at) == Some(&b'\n'));
                            at += 1;
                        }
                        b'\n' => {
                            at -= 1;
                            break;
                        }
                        b if b == byte => break,
                        _ => {}
                    }
                }
                Word::Literal
            }
            b if b.is_ascii_alphanumeric() || b == b'_' => {
                let length =
                    bytes[at..].iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
                at += length;
                if b.is_ascii_digit() { Word::Literal } else { Word::Name(&text[start..at]) }
            }
            b if b.is_ascii_whitespace() || b == b'\\' || !b.is_ascii() => {
                at += 1;
                continue;
            }
            b => {
                let next = bytes.get(at + 1).copied();
                at += 2;
                match (b, next) {
                    (b'&' | b'|', Some(n)) if n == b => Word::Choice(b),
                    (b'+' | b'-', Some(n)) if n == b => Word::Sets,
                    (b'+' | b'-' | b'*' | b'/' | b'%' | b'&' | b'|' | b'^', Some(b'=')) => Word::Sets,
                    (b'=' | b'!' | b'<' | b'>', Some(b'=')) => Word::Mark(b'<'),
                    (b'-', Some(b'>')) => Word::Mark(b'.'),
                    (b'<' | b'>', Some(n)) if n == b => {
                        let sets = bytes.get(at) == Some(&b'=');
                        at += usize::from(sets);
                        if sets { Word::Sets } else { Word::Mark(b) }
                    }
                    _ => {
                        at -= 1;
                        if b == b'=' { Word::Sets } else { Word::Mark(b) }
                    }
                }
            }
        };
        tokens.push(Token { word, line });
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<Function> {
        functions(text, &|_| true)
    }

    #[test]
    fn functions_are_told_from_other_braces() {
        let text = "struct s { int a; };\nint x[] = { 1, 2 };\n#define F() \\\n { }\nstatic void\nf(int a)\n{\n}\n\
                    SYSCALL_DEFINE1(read, int, a)\n{ return g((struct s){ 1 }); }\nvoid *p(void) { }\n";
        let found: Vec<_> = all(text).iter().map(|f| (f.name, f.close, f.void, f.body.len())).collect();
        assert_eq!(found, [(6, 8, true, 0), (9, 10, false, 1), (11, 11, false, 0)]);
    }

    #[test]
    fn statements_are_nested_as_written() {
        let text = "int f(void)\n{\n\tfor_each(a, b)\n\t\tif (a) { x = '}'; } else\n\t\t\tdo { b++; } while (b);\n\
                    \tlist_for_each(a) {\n\t}\nout: /* } */\n\treturn \"}\" ? 1 : 2;\n}\n";
        let body = &all(text)[0].body;
        let kinds: Vec<&str> = body
            .iter()
            .map(|stmt| match &stmt.kind {
                Kind::Loop(_, body) if matches!(body.kind, Kind::If(_, _, Some(_))) => "loop of if",
                Kind::Loop(..) => "loop",
                Kind::Label => "label",
                Kind::Simple(simple) if simple.returns && simple.choice == Some(9) => "return",
                _ => "other",
            })
            .collect();
        assert_eq!(kinds, ["loop of if", "loop", "label", "return"]);
    }

    #[test]
    fn what_is_not_understood_is_left_out() {
        let deep = format!("void f(void) {}{}", "{".repeat(100_000), "}".repeat(100_000));
        assert_eq!(all(&deep), []);
        for text in
            ["int f(void) { else x(); }", "int f(void) { x(", "int f(void) { \"\\", "int f(", "{", "/*"]
        {
            assert_eq!(all(text), [], "{text}");
        }
    }
}
