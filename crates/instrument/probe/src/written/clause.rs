// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tokens of an entry → a variable, or a probe with its actions.

use kprism_expr::error::suggestion;

use super::token::{Sort, Token};
use super::{Text, Wanted, WrittenError, thread_variable, variable as parse_variable};
use crate::stream::RecordingEffect;
use crate::stream::aggregate::Function;

/// Words that begin a part of a probe.
pub const KEYWORDS: [&str; 17] = [
    "if", "collect", "by", "hist", "linear", "sum", "min", "max", "avg", "latest", "set", "printf", "skip",
    "pass", "start", "pause", "stop",
];

/// Keywords that stand alone.
const ALONE: [&str; 3] = ["start", "pause", "stop"];

type Result<T> = std::result::Result<T, WrittenError>;

/// The variable that an entry defines, if it does: `var $NAME`, `var $NAME = N`.
pub(super) fn variable(entry: &[Token<'_>]) -> Result<Option<Variable>> {
    let [kind, name, rest @ ..] = entry else { return Ok(None) };
    if !name.text.starts_with('$') {
        return Ok(None);
    }
    let text: String = entry[1..].iter().map(|token| token.text).collect();
    match (kind.text, rest.first().map(|token| token.text)) {
        ("var", next) => {
            let error = |what: String| name.error(format!("{what}: expected `var $NAME` or `var $NAME = N`"));
            match next {
                Some("=") | None => parse_variable(&text)
                    .map(|(name, value)| Some(Variable::Shared(name, value)))
                    .map_err(error),
                Some(_) => Err(error(format!("`{text}`"))),
            }
        }
        ("thread", None) => {
            let error = |what: String| name.error(format!("{what}: expected `thread $NAME`"));
            thread_variable(&text).map(|name| Some(Variable::OfThread(name))).map_err(error)
        }
        ("thread", Some(_)) => {
            Err(name.error(format!("`{text}`: expected `thread $NAME`, which is 0 at first in each thread")))
        }
        _ => Ok(None),
    }
}

/// A variable that a line defines.
pub(super) enum Variable {
    /// Its name and first value.
    Shared(String, i64),
    /// The name of one that each thread has for itself.
    OfThread(String),
}

/// A probe.
pub(super) fn probe(entry: &[Token<'_>]) -> Result<Wanted> {
    let [place, rest @ ..] = entry else { return Ok(Wanted::default()) };
    let text = match place.text.strip_prefix('"') {
        // In a place nothing but the quote itself can be escaped.
        Some(quoted) => quoted.strip_suffix('"').unwrap_or(quoted).replace("\\\"", "\""),
        None => place.text.to_owned(),
    };
    let mut wanted = Wanted { place: text, at: place.at, ..Wanted::default() };
    if wanted.place.is_empty() {
        return Err(place.error("expected a place: FUNC, FUNC%return, FILE:LINE, SYSTEM:EVENT"));
    }
    let mut parts = Parts { rest, is_first: true };
    while let Some((keyword, tokens)) = parts.next()? {
        add(&mut wanted, &keyword, tokens)?;
    }
    let has_action = !(wanted.collect.is_empty()
        && wanted.by.is_empty()
        && wanted.hist.is_empty()
        && wanted.linear.is_empty()
        && wanted.aggregates.is_empty()
        && wanted.set.is_empty()
        && wanted.printf.is_none()
        && wanted.skip == 0
        && wanted.pass.is_none());
    if has_action && !wanted.effect.is_record() {
        let what = "a probe that starts, pauses or stops the recording has a condition and nothing else: write two probes";
        return Err(place.error(what));
    }
    Ok(wanted)
}

/// The parts of a probe, each with its keyword.
struct Parts<'t, 'a> {
    rest: &'t [Token<'a>],
    is_first: bool,
}

impl<'t, 'a> Parts<'t, 'a> {
    fn next(&mut self) -> Result<Option<(Token<'a>, &'t [Token<'a>])>> {
        let Some((keyword, rest)) = self.rest.split_first() else { return Ok(None) };
        let word = keyword.text;
        if keyword.sort != Sort::Word || !KEYWORDS.contains(&word) {
            return Err(unexpected(keyword, if self.is_first { "" } else { "an operator, or " }));
        }
        if word == "if" && !self.is_first {
            return Err(keyword.error("`if` comes first, after the place"));
        }
        self.is_first = false;
        if ALONE.contains(&word) {
            self.rest = rest;
            return Ok(Some((*keyword, &[])));
        }
        let end = (0..rest.len()).find(|at| *at > 0 && begins_part(rest, *at)).unwrap_or(rest.len());
        let (tokens, after) = rest.split_at(end);
        self.rest = after;
        if tokens.is_empty() {
            return Err(keyword.error(format!("expected {} after `{word}`", operand(word))));
        }
        Ok(Some((*keyword, tokens)))
    }
}

/// Text for what follows a keyword.
fn operand(keyword: &str) -> &'static str {
    match keyword {
        "skip" | "pass" => "a number",
        "printf" => "\"FORMAT\", EXPR, …",
        "set" => "`$name = EXPR` or `$name += EXPR`",
        "linear" => "EXPR,MIN,MAX,STEP",
        _ => "an expression",
    }
}

fn unexpected(token: &Token<'_>, or: &str) -> WrittenError {
    let near =
        suggestion(token.text, KEYWORDS.into_iter()).map(|text| format!("; {text}")).unwrap_or_default();
    token.error(format!(
        "expected {or}one of {}; found `{}`{near}",
        KEYWORDS.join(", "),
        token.text.escape_debug()
    ))
}

/// Returns true if a word that is no part of the expression before it is here: two operands never stand side by side in
/// C, but for a cast before the second.
fn begins_part(tokens: &[Token<'_>], at: usize) -> bool {
    let (token, before) = (&tokens[at], &tokens[at - 1]);
    if token.sort != Sort::Word || token.depth > 0 {
        return false;
    }
    match before.sort {
        Sort::Word => before.text != "sizeof",
        Sort::Quoted => true,
        Sort::Sign(']') => true,
        // `(int) max` may be a cast: then `max` is an operand, and an operator follows, or the end.
        Sort::Sign(')') => {
            KEYWORDS.contains(&token.text)
                && (ALONE.contains(&token.text)
                    || tokens.get(at + 1).is_some_and(|next| match next.sort {
                        Sort::Sign(c) => matches!(c, '(' | '*' | '&' | '-' | '!' | '~'),
                        _ => true,
                    }))
        }
        // `n++`
        Sort::Sign(sign @ ('+' | '-')) => {
            KEYWORDS.contains(&token.text)
                && at > 1
                && tokens[at - 2].sort == Sort::Sign(sign)
                && before.before.is_empty()
        }
        Sort::Sign(_) | Sort::Place => false,
    }
}

/// The text of tokens, on one line.
fn text(tokens: &[Token<'_>]) -> Text {
    let mut all = Text::default();
    for (n, token) in tokens.iter().enumerate() {
        if n > 0 {
            all.text += token.before;
        }
        all.places.push((all.text.len(), token.at));
        all.text += token.text;
    }
    all
}

/// The texts between commas.
fn list(tokens: &[Token<'_>]) -> Result<Vec<Text>> {
    let comma = |token: &Token<'_>| token.sort == Sort::Sign(',') && token.depth == 0;
    let mut all = Vec::new();
    for part in tokens.split(comma) {
        if part.is_empty() {
            let at = tokens.iter().find(|token| comma(token)).unwrap_or(&tokens[0]);
            return Err(at.error("expected an expression on both sides of `,`"));
        }
        all.push(text(part));
    }
    Ok(all)
}

/// Adds a part to a probe.
fn add(wanted: &mut Wanted, keyword: &Token<'_>, tokens: &[Token<'_>]) -> Result<()> {
    let twice = || keyword.error(format!("`{}` is there twice", keyword.text));
    let whole = text(tokens);
    let words = |texts: &[Text]| texts.iter().map(|text| text.text.clone()).collect::<Vec<_>>();
    match keyword.text {
        "if" => wanted.condition = Some(whole.text.clone()),
        "set" => wanted.set.push(whole.text.clone()),
        "linear" => {
            wanted.linear.push(whole.text.clone());
            // Errors point into the expression alone.
            wanted.texts.extend(list(tokens)?);
        }
        "printf" => {
            if wanted.printf.replace(whole.text.clone()).is_some() {
                return Err(twice());
            }
            if tokens[0].sort != Sort::Quoted || !tokens[0].text.starts_with('"') {
                return Err(
                    tokens[0].error("expected a format in double quotes: printf \"%d %s\\n\", count, $comm")
                );
            }
            wanted.texts.extend(list(tokens)?);
        }
        "skip" | "pass" => {
            let number = whole.text.parse::<u64>().ok().filter(|n| *n < 1 << 62);
            let least = u64::from(keyword.text == "pass");
            let Some(number) = number.filter(|n| *n >= least) else {
                return Err(
                    tokens[0].error(format!("expected a number from {least} on after `{}`", keyword.text))
                );
            };
            match keyword.text {
                "skip" => wanted.skip = number,
                _ if wanted.pass.replace(number).is_some() => return Err(twice()),
                _ => {}
            }
        }
        "start" | "pause" | "stop" => {
            if !wanted.effect.is_record() {
                return Err(keyword.error("a probe has one effect on the recording: start, pause or stop"));
            }
            wanted.effect = match keyword.text {
                "start" => RecordingEffect::Start,
                "pause" => RecordingEffect::Pause,
                _ => RecordingEffect::Stop,
            };
            return Ok(());
        }
        name => {
            let texts = list(tokens)?;
            let list = words(&texts);
            wanted.texts.extend(texts);
            match Function::ALL.into_iter().find(|function| function.name() == name) {
                Some(function) => {
                    wanted.aggregates.extend(list.into_iter().map(|text| (function, text)));
                }
                None => match name {
                    "collect" => wanted.collect.extend(list),
                    "by" => wanted.by.extend(list),
                    _ => wanted.hist.extend(list),
                },
            }
            return Ok(());
        }
    }
    wanted.texts.push(whole);
    Ok(())
}
