// SPDX-License-Identifier: MIT OR Apache-2.0
//! Infers counts of lines without instructions from neighbouring lines: labels, jumps that became part of a branch,
//! constants, arguments computed elsewhere.
//!
//! Input: a source's text, its lines with code and their counts, and lines with calls that did not return. Output:
//! counts of more lines, and of lines whose code was merged or moved: `settle`. Each follows from the nesting of statements, never from their appearance:
//! - if nothing of a function ran, none of its lines did;
//! - a statement has the next one's count if nothing else leads to the next one. It has the previous one's count if that one
//!   continues nowhere else. A label runs as often as its statement;
//! - statements inside a statement that was not reached are not reached, except for targets of a `goto`;
//! - a branch of an `if` has the `if`'s count minus that of the other branch; without an `else`, a branch that always
//!   leaves has the `if`'s count minus that of the statement behind;
//! - the brace that ends a function without a value runs as often as the function less its `return` statements, if the code
//!   of all of them ends on the brace;
//! - a statement's further lines run with it, up to the first `&&`, `||` or `?`, and as far as operands ran.
//!
//! If this does not determine a count, the line stays unknown.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::settle::settle;
use super::statements::{Function, Kind, Simple, Stmt, functions};

/// A count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Value {
    count: u64,
    /// True if the count is exact, false if it is only known whether it is 0.
    exact: bool,
}

/// Facts about the statements around a statement.
#[derive(Debug, Clone, Copy)]
struct Above {
    /// Nothing of the function ran.
    dead: bool,
    /// The surrounding `switch` did not run.
    cases: bool,
}

const NEVER: Value = Value { count: 0, exact: true };

/// Counts of lines without code, and of lines whose code says another count than the statements around. `counts` are those of
/// lines with code; `diverging` are the lines with a call that did not always return.
pub fn infer(text: &str, counts: &BTreeMap<u32, u64>, diverging: &HashSet<u32>) -> BTreeMap<u32, u64> {
    let mut found = BTreeMap::new();
    for function in functions(text, &|line| counts.contains_key(&line)) {
        let within = function.name..=function.close.max(function.name);
        let mut known = counts.range(within).peekable();
        if known.peek().is_none() {
            continue;
        }
        let dead = known.all(|(_, &count)| count == 0);
        let mut facts =
            Facts { counts, diverging, shared: HashMap::new(), found: &mut found, changed: false };
        function.body.iter().for_each(|stmt| facts.count(stmt));
        if !dead {
            let settled = settle(&function, counts, diverging, &facts.shared);
            facts.found.extend(settled);
        }
        // Each round propagates facts by at least one statement.
        for _ in 0..ROUNDS {
            facts.changed = false;
            facts.function(&function, dead);
            if !facts.changed {
                break;
            }
        }
    }
    found
}

const ROUNDS: u32 = 16;

struct Facts<'f> {
    counts: &'f BTreeMap<u32, u64>,
    diverging: &'f HashSet<u32>,
    /// Number of statements on a line.
    shared: HashMap<u32, u32>,
    found: &'f mut BTreeMap<u32, u64>,
    changed: bool,
}

impl Facts<'_> {
    /// Counts the statements on each line.
    fn count(&mut self, stmt: &Stmt) {
        match &stmt.kind {
            Kind::Gap => {}
            Kind::Case | Kind::Label => *self.shared.entry(stmt.first).or_default() += 1,
            Kind::Simple(simple) => self.count_simple(simple),
            Kind::Block(all) => all.iter().for_each(|stmt| self.count(stmt)),
            Kind::If(head, then, other) => {
                self.count_simple(head);
                self.count(then);
                if let Some(other) = other {
                    self.count(other);
                }
            }
            Kind::Loop(head, body) | Kind::Switch(head, body) | Kind::Do(body, head) => {
                self.count_simple(head);
                self.count(body);
            }
        }
    }

    fn count_simple(&mut self, simple: &Simple) {
        for line in simple.first..=simple.last {
            *self.shared.entry(line).or_default() += 1;
        }
    }

    fn is_shared(&self, line: u32) -> bool {
        self.shared.get(&line).is_some_and(|&n| n > 1)
    }

    /// The count of a line, if it determines one statement.
    fn line(&self, line: u32) -> Option<Value> {
        let count = *self.found.get(&line).or_else(|| self.counts.get(&line))?;
        (count == 0 || !self.is_shared(line)).then_some(Value { count, exact: true })
    }

    fn set(&mut self, line: u32, count: u64) {
        if !self.counts.contains_key(&line) && !self.found.contains_key(&line) {
            self.found.insert(line, count);
            self.changed = true;
        }
    }

    fn value(&self, simple: &Simple) -> Option<Value> {
        let own = (simple.first..=simple.last).filter_map(|line| self.line(line));
        own.max_by_key(|value| value.count)
    }

    fn diverges(&self, simple: &Simple) -> bool {
        (simple.first..=simple.last).any(|line| self.diverging.contains(&line))
    }

    /// Number of times that a statement begins.
    fn entry(&self, stmt: &Stmt) -> Option<Value> {
        let inexact = |value: Value| Value { exact: value.count == 0, ..value };
        match &stmt.kind {
            Kind::Gap => None,
            Kind::Case | Kind::Label => self.line(stmt.first),
            Kind::Simple(simple) => self.value(simple),
            Kind::Block(all) => self.entry(all.first()?).filter(|value| value.exact || value.count > 0),
            Kind::If(head, ..) | Kind::Switch(head, _) => self.value(head),
            Kind::Loop(head, _) => self.value(head).map(inexact),
            Kind::Do(body, _) => self.entry(body).map(inexact),
        }
    }

    fn function(&mut self, function: &Function, dead: bool) {
        let name = self.line(function.name);
        let enters = if dead { Some(NEVER) } else { name };
        self.sequence(&function.body, enters, Above { dead, cases: dead });
        let first = function.body.first().filter(|stmt| !is_target(stmt));
        if let Some(value) = first.and_then(|first| self.entry(first)) {
            self.set(function.name, value.count);
        }
        if dead {
            self.set(function.name, 0);
        }
        if !function.void || self.shared.contains_key(&function.close) {
            return;
        }
        self.close(function);
        // The end of a function without a return value.
        if dead {
            self.set(function.close, 0);
        } else if let Some(last) = function.body.last()
            && !function.body.iter().any(has_return)
        {
            let through = match &last.kind {
                Kind::Simple(simple) if !simple.leaves && !self.diverges(simple) => self.value(simple),
                Kind::If(..) if !leaves_somewhere(last) => self.entry(last),
                _ => None,
            };
            if let Some(value) = through {
                self.set(function.close, value.count);
            }
        }
    }

    /// The closing brace of a function without a value, all of whose calls came to its code, and some of them by a
    /// `return`: the rest came through the last statement.
    fn close(&mut self, function: &Function) {
        let mut returns = Vec::new();
        if !function.body.iter().all(|stmt| collect_returns(stmt, &mut returns)) || returns.is_empty() {
            return;
        }
        let ends = self.counts.get(&function.close).copied();
        if ends.is_none() || ends != self.counts.get(&function.name).copied() {
            return;
        }
        let returned: Option<u64> =
            returns.iter().map(|&line| self.line(line).map(|value| value.count)).sum();
        let through = ends.zip(returned).and_then(|(ends, returned)| ends.checked_sub(returned));
        if let Some(through) = through.filter(|through| Some(*through) != ends)
            && self.found.insert(function.close, through).is_none()
        {
            self.changed = true;
        }
    }

    /// Consecutive statements. `enters` is the number of times that the first one is entered, if it is no label.
    fn sequence(&mut self, all: &[Stmt], enters: Option<Value>, above: Above) {
        let dead = above.dead;
        let mut reached = enters;
        for (i, stmt) in all.iter().enumerate() {
            // Labels may be entered from elsewhere.
            match stmt.kind {
                Kind::Label if !dead => reached = None,
                Kind::Case => reached = above.cases.then_some(NEVER),
                _ => {}
            }
            let next = all.get(i + 1);
            let behind = next.filter(|next| !is_target(next) && next.kind != Kind::Gap);
            let behind = behind.and_then(|next| self.entry(next));
            let never = dead || reached == Some(NEVER);
            match &stmt.kind {
                Kind::Gap => {}
                Kind::Case | Kind::Label => {
                    // gcov counts only the first of several labels.
                    let other = i.checked_sub(1).is_some_and(|last| all[last].kind == Kind::Case);
                    let behind = all[i + 1..].iter().find(|stmt| stmt.kind != Kind::Case);
                    let value =
                        if never { Some(NEVER) } else { behind.and_then(|behind| self.entry(behind)) };
                    if let Some(value) = value.filter(|_| !(other && stmt.kind == Kind::Case)) {
                        self.set(stmt.first, value.count);
                    }
                }
                Kind::Simple(simple) => {
                    let told = match (never, reached, behind) {
                        (true, ..) => Some(NEVER),
                        (false, _, Some(behind)) if !simple.leaves => Some(behind),
                        (false, reached, _) => reached,
                    };
                    self.simple(simple, told);
                }
                _ => self.nested(stmt, reached, behind, above),
            }
            reached = match reached {
                // A statement that was not entered is not left either.
                Some(NEVER) if dead || !has_targets(stmt) => Some(NEVER),
                _ => self.through(stmt),
            };
        }
    }

    /// Number of times that a statement is executed to its end.
    fn through(&self, stmt: &Stmt) -> Option<Value> {
        match &stmt.kind {
            Kind::Case | Kind::Label => self.line(stmt.first),
            Kind::Simple(simple) if simple.leaves => Some(NEVER),
            Kind::Simple(simple) if !self.diverges(simple) => self.value(simple),
            Kind::Simple(simple) => self.value(simple).filter(|value| *value == NEVER),
            Kind::Block(all) if !leaves_somewhere(stmt) && !has_targets(stmt) => {
                self.through(all.last()?).or_else(|| self.entry(stmt).filter(|value| *value == NEVER))
            }
            Kind::If(head, ..) if !leaves_somewhere(stmt) && !has_targets(stmt) => {
                self.value(head).filter(|value| *value == NEVER || !self.diverges(head))
            }
            Kind::If(..) | Kind::Loop(..) | Kind::Switch(..) | Kind::Do(..) | Kind::Block(_)
                if !has_targets(stmt) =>
            {
                self.entry(stmt).filter(|value| *value == NEVER)
            }
            _ => None,
        }
    }

    fn nested(&mut self, stmt: &Stmt, reached: Option<Value>, behind: Option<Value>, above: Above) {
        let never = (above.dead || reached == Some(NEVER)).then_some(NEVER);
        match &stmt.kind {
            Kind::Block(all) => self.sequence(all, never.or(reached), above),
            Kind::If(head, then, other) => {
                self.simple(head, never.or(reached));
                let whole = never.or_else(|| self.value(head));
                let minus = |part: Option<Value>| {
                    let (whole, part) = (whole?, part?);
                    let count = whole.count.checked_sub(part.count)?;
                    (whole.exact && part.exact && whole.count > 0).then_some(Value { count, exact: true })
                };
                let settled = whole.filter(|whole| *whole == NEVER);
                let for_then = match other {
                    Some(other) => minus(self.plain_entry(other)),
                    None if always_leaves(then) => minus(behind),
                    None => None,
                };
                let for_other = match other {
                    Some(_) => minus(self.plain_entry(then)),
                    None => None,
                };
                self.one(then, settled.or(for_then), above);
                if let Some(other) = other {
                    self.one(other, settled.or(for_other), above);
                }
            }
            Kind::Loop(head, body) | Kind::Switch(head, body) => {
                let reached = reached.map(|value| Value { exact: value.count == 0, ..value });
                self.simple(head, never.or(reached));
                let settled = never.or_else(|| self.value(head).filter(|value| *value == NEVER));
                let cases = match stmt.kind {
                    Kind::Switch(..) => settled.is_some(),
                    _ => above.cases,
                };
                self.one(body, settled, Above { cases, ..above });
            }
            Kind::Do(body, tail) => {
                self.one(body, never, above);
                self.simple(tail, never);
            }
            Kind::Gap | Kind::Case | Kind::Label | Kind::Simple(_) => {}
        }
    }

    /// The count of a statement that can be entered only at its head.
    fn plain_entry(&self, stmt: &Stmt) -> Option<Value> {
        self.entry(stmt).filter(|_| !is_target(stmt))
    }

    fn one(&mut self, stmt: &Stmt, enters: Option<Value>, above: Above) {
        match &stmt.kind {
            Kind::Block(all) => self.sequence(all, enters, above),
            _ => self.sequence(std::slice::from_ref(stmt), enters, above),
        }
    }

    /// A statement without nested ones; `reached` is its count, if known.
    fn simple(&mut self, simple: &Simple, reached: Option<Value>) {
        let own = self.value(simple);
        let Some(value) = own.or(reached) else { return };
        if own.is_none() && simple.acts && !self.is_shared(simple.first) {
            self.set(simple.first, value.count);
        }
        if simple.nested && value.count > 0 {
            return;
        }
        // Operands that are certainly evaluated: the first, and those before one that ran.
        let certain = match simple.choice {
            None => simple.last,
            Some(choice) => {
                let ran =
                    |line: &u32| self.counts.get(line).is_some_and(|&n| n > 0) && !self.is_shared(*line);
                let last = (simple.first..=simple.last).rev().find(ran);
                last.filter(|_| simple.chain).unwrap_or(choice).max(choice)
            }
        };
        if own.is_some() || simple.acts {
            for &line in simple.computes.iter().filter(|&&line| value.count == 0 || line <= certain) {
                if !self.is_shared(line) {
                    self.set(line, value.count);
                }
            }
        }
    }
}

/// Returns true if it can be entered from elsewhere.
fn is_target(stmt: &Stmt) -> bool {
    match &stmt.kind {
        Kind::Case | Kind::Label => true,
        Kind::Block(all) => all.first().is_some_and(is_target),
        _ => false,
    }
}

fn any(stmt: &Stmt, is: &dyn Fn(&Stmt) -> bool) -> bool {
    is(stmt)
        || match &stmt.kind {
            Kind::Block(all) => all.iter().any(|stmt| any(stmt, is)),
            Kind::If(_, then, other) => any(then, is) || other.as_ref().is_some_and(|other| any(other, is)),
            Kind::Loop(_, body) | Kind::Switch(_, body) | Kind::Do(body, _) => any(body, is),
            _ => false,
        }
}

/// Returns true if it, or a statement in it, can be entered without its beginning.
fn has_targets(stmt: &Stmt) -> bool {
    match &stmt.kind {
        Kind::Label => true,
        Kind::Case => false,
        // Cases of a `switch` inside are entered through its head.
        Kind::Switch(_, body) => any(body, &|stmt| stmt.kind == Kind::Label),
        _ => any(stmt, &|stmt| matches!(stmt.kind, Kind::Label | Kind::Case)),
    }
}

fn has_return(stmt: &Stmt) -> bool {
    any(stmt, &|stmt| matches!(&stmt.kind, Kind::Simple(simple) if simple.returns) || stmt.kind == Kind::Gap)
}

/// Collects the lines of `return` statements; false if there may be others.
fn collect_returns(stmt: &Stmt, lines: &mut Vec<u32>) -> bool {
    match &stmt.kind {
        Kind::Gap => false,
        Kind::Case | Kind::Label => true,
        Kind::Simple(simple) => {
            lines.extend(simple.returns.then_some(simple.first));
            !simple.nested
        }
        Kind::Block(all) => all.iter().all(|stmt| collect_returns(stmt, lines)),
        Kind::If(head, then, other) => {
            !head.nested
                && collect_returns(then, lines)
                && other.as_ref().is_none_or(|other| collect_returns(other, lines))
        }
        Kind::Loop(head, body) | Kind::Switch(head, body) | Kind::Do(body, head) => {
            !head.nested && collect_returns(body, lines)
        }
    }
}

/// Returns true if it may be left other than at its end. Text that was left out may do so.
fn leaves_somewhere(stmt: &Stmt) -> bool {
    let leaves = |stmt: &Stmt| match &stmt.kind {
        Kind::Simple(simple) => simple.leaves || simple.nested,
        kind => matches!(kind, Kind::Gap | Kind::Loop(..) | Kind::Do(..)),
    };
    any(stmt, &leaves)
}

/// Returns true if it is never left at its end.
fn always_leaves(stmt: &Stmt) -> bool {
    match &stmt.kind {
        Kind::Simple(simple) => simple.leaves,
        Kind::Block(all) => all.last().is_some_and(always_leaves),
        Kind::If(_, then, Some(other)) => always_leaves(then) && always_leaves(other),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The inferred counts, given lines `line:count`.
    fn of(text: &str, known: &[(u32, u64)]) -> Vec<(u32, u64)> {
        infer(text, &known.iter().copied().collect(), &HashSet::new()).into_iter().collect()
    }

    #[test]
    fn what_did_not_run_has_no_line_that_did() {
        let text = "static int f(int a)\n{\n\tint b = 1;\n\tswitch (a) {\n\tcase 1:\n\t\tgoto out;\n\t}\nout:\n\treturn b;\n}\n";
        let never = [(1, 0), (3, 0), (5, 0), (6, 0), (8, 0), (9, 0)];
        assert_eq!(of(text, &[(4, 0)]), never);
        // Nothing is known: it may not be part of the build.
        assert_eq!(of(text, &[]), []);
    }

    #[test]
    fn statements_run_with_those_beside_them() {
        let text = "void f(int a)\n{\n\tint b = 1;\n\tg(a);\n\ta = 2;\n}\n";
        assert_eq!(of(text, &[(1, 7), (4, 7)]), [(3, 7), (5, 7), (6, 7)]);
        // A call that did not return.
        let counts = [(1, 7), (4, 7)].into();
        assert_eq!(infer(text, &counts, &HashSet::from([4])).into_iter().collect::<Vec<_>>(), [(3, 7)]);
    }

    #[test]
    fn rows_of_statements_have_what_most_of_them_have() {
        // The end of a path was merged with that of another one, and a call counted twice.
        let text =
            "int f(int a)\n{\n\tint b = g(a);\n\th(b);\n\tif (b)\n\t\ta = 1;\n\tk(a);\n\treturn b;\n}\n";
        let counts = [(1, 5), (3, 5), (4, 10), (5, 5), (6, 2), (7, 0), (8, 3)];
        assert_eq!(of(text, &counts), [(4, 5), (7, 5), (8, 5)]);
        // A call that did not return ends the row.
        let counts = counts.into();
        let found = infer(text, &counts, &HashSet::from([5]));
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [(4, 5)]);
        // So does a way out, and a way in.
        let out = text.replace("a = 1", "return 1");
        assert_eq!(infer(&out, &counts, &HashSet::new()).into_iter().collect::<Vec<_>>(), [(4, 5)]);
        let label = text.replace("\tk(a)", "x:\tk(a)");
        assert_eq!(infer(&label, &counts, &HashSet::new()).into_iter().collect::<Vec<_>>(), [(4, 5)]);
    }

    #[test]
    fn rows_go_on_behind_loops_that_end() {
        let text =
            "void f(int a)\n{\n\tg(a);\n\twhile (a)\n\t\tif (h(a--))\n\t\t\tbreak;\n\tg(1);\n\tk(a);\n}\n";
        let counts = [(1, 5), (3, 5), (4, 20), (5, 16), (6, 4), (7, 0), (8, 5), (9, 8)];
        assert_eq!(of(text, &counts), [(7, 5), (9, 5)]);
        let text = text.replace("break", "return");
        assert_eq!(of(&text, &counts), [], "one line of two says nothing");
    }

    #[test]
    fn one_line_that_did_not_run_says_nothing() {
        let text = "int f(int a)\n{\n\tif (a) {\n\t\ta = 2;\n\t\treturn 1;\n\t}\n\treturn 0;\n}\n";
        assert_eq!(of(text, &[(1, 5), (3, 5), (4, 0), (5, 2), (7, 3)]), []);
        assert_eq!(of(text, &[(1, 5), (3, 5), (4, 3), (5, 0), (7, 2)]), [(5, 3)]);
    }

    #[test]
    fn a_brace_is_come_to_by_those_who_do_not_return_before() {
        let text = "void f(int a)\n{\n\tif (a)\n\t\treturn;\n\tg();\n}\n";
        assert_eq!(of(text, &[(1, 9), (3, 9), (4, 2), (5, 7), (6, 9)]), [(6, 7)]);
        assert_eq!(of(text, &[(1, 9), (3, 9), (4, 2), (5, 7), (6, 7)]), [], "one end for each");
    }

    #[test]
    fn labels_have_what_they_stand_before() {
        let text = "int f(int a)\n{\n\tif (a)\n\t\tgoto out;\n\tg();\nout:\n\th();\n}\n";
        assert_eq!(of(text, &[(1, 9), (3, 9), (5, 7), (7, 9)]), [(4, 2), (6, 9)]);
        // A label after a jump is not reached from before, but may be from elsewhere.
        let text = "int f(int a)\n{\n\tg();\n\treturn 1;\nout:\n\ta = 0;\n\treturn 2;\n}\n";
        assert_eq!(of(text, &[(1, 3), (3, 3)]), [(4, 3)]);
        let several = "int f(int a)\n{\n\tswitch (a) {\n\tcase 1:\n\tcase 2:\n\t\tg();\n\t}\n}\n";
        assert_eq!(of(several, &[(1, 4), (3, 4), (6, 3)]), [(4, 3)]);
        let cases = "int f(int a)\n{\n\tswitch (a) {\n\tcase 1:\n\t\tg();\n\t\tbreak;\n\tcase 2:\n\t\ta = 3;\n\t}\n}\n";
        assert_eq!(of(cases, &[(1, 4), (3, 4), (5, 4)]), [(4, 4), (6, 4)]);
    }

    #[test]
    fn branches_share_what_comes_to_an_if() {
        let text = "int f(int a)\n{\n\tif (a)\n\t\ta = 1;\n\telse\n\t\tg();\n}\n";
        assert_eq!(of(text, &[(1, 9), (3, 9), (6, 4)]), [(4, 5)]);
        assert_eq!(of(text, &[(1, 9), (3, 0), (6, 0)]), [(4, 0)]);
        // The statement after it may be reached either way.
        let open = "int f(int a)\n{\n\tif (a)\n\t\ta = 1;\n\tg();\n}\n";
        assert_eq!(of(open, &[(1, 9), (3, 9), (5, 9)]), []);
    }

    #[test]
    fn operands_run_as_far_as_is_certain() {
        let text = "int f(int a)\n{\n\tif (p(a) &&\n\t    a->b &&\n\t    q(a) &&\n\t    a->c)\n\t\tg(1,\n\t\t  a->d);\n}\n";
        assert_eq!(of(text, &[(1, 1), (3, 1), (5, 1), (7, 0)]), [(4, 1), (8, 0)]);
        // Different operators: an operand of one says nothing about those of another.
        let mixed = text.replace("q(a) &&", "q(a) ||");
        assert_eq!(of(&mixed, &[(1, 1), (3, 1), (5, 1), (7, 0)]), [(8, 0)]);
    }

    #[test]
    fn text_that_is_not_built_tells_nothing() {
        let text = "int f(int a)\n{\n\ta = 1;\n#ifdef X\n\tif (a)\n\t\treturn 0;\n#else\n\tb = 2;\n#endif\n\tg();\n}\n";
        assert_eq!(
            of(text, &[(1, 2), (10, 2)]),
            [(3, 2)],
            "by the function's entry, and none of lines 5, 6, 8"
        );
    }

    #[test]
    fn lines_of_several_statements_tell_nothing_but_that_none_ran() {
        let text = "int f(int a)\n{\nx:\tif (a) g();\n\ta = 1;\n}\n";
        assert_eq!(of(text, &[(1, 2), (3, 9)]), []);
        // Without the label, the function's entry tells.
        assert_eq!(of(&text.replace("x:", ""), &[(1, 2), (3, 9)]), [(4, 2)]);
    }
}
