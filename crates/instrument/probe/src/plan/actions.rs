// SPDX-License-Identifier: MIT OR Apache-2.0
//! Effects of a hit besides a record: skipped hits, trace state variables, counts by keys, histograms.
//!
//! They apply in this order, after the condition: skip and pass limits, variables, counts, the record.

use kprism_expr::ir::{Func, Kept, Op};
use kprism_expr::lower::{self, Env, What};
use kprism_expr::opt;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::plan::layout::{Fill, Fix, Limits, Segment, Slot, Wanted, laid, lowered};
use crate::program::segment::STACK;
use crate::stream::HEADER;
use crate::stream::tally::{Histogram, LONGEST_KEY, MOST_HISTOGRAMS, Scale, Tally};
use crate::stream::{Item, Part};

/// Number of return addresses in a stack that is a key.
pub(crate) const KEY_FRAMES: u32 = 24;

/// The requested actions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Actions<'a> {
    /// Assignments to trace state variables.
    pub set: &'a [String],
    /// Keys by which hits are counted.
    pub by: &'a [String],
    /// Values counted by powers of two.
    pub hist: &'a [String],
    /// Values counted in equal steps: `EXPR,MIN,MAX,STEP`.
    pub linear: &'a [String],
    /// Number of first hits to skip.
    pub skip: u64,
    /// Number of hits after which all further ones are skipped.
    pub pass: Option<u64>,
    /// Effect on the recording.
    pub part: Part,
}

impl Actions<'_> {
    /// Returns true if the kernel counts something.
    pub fn counts(&self) -> bool {
        !(self.by.is_empty() && self.hist.is_empty() && self.linear.is_empty())
    }
}

/// The compiled actions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompiledActions {
    /// Number of first hits to skip.
    #[serde(default, skip_serializing_if = "is_none")]
    pub skip: u64,
    /// Number of hits after which all further ones are skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<u64>,
    /// Assignments to trace state variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<Segment>,
    /// The keys, at offsets from [`HEADER`] on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<Slot>,
    /// Size of all keys, bytes.
    #[serde(default, skip_serializing_if = "is_none_32")]
    pub key_bytes: u32,
    /// The values of the histograms.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Segment>,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_none(n: &u64) -> bool {
    *n == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_none_32(n: &u32) -> bool {
    *n == 0
}

impl CompiledActions {
    /// Returns true if some hits are skipped.
    pub fn leaves_out(&self) -> bool {
        self.skip > 0 || self.pass.is_some()
    }

    /// All expressions.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.set.iter().chain(&self.values)
    }
}

/// The actions, lowered but not compiled yet.
pub(crate) struct Lowered {
    set: Vec<(String, Func)>,
    keys: Vec<Wanted>,
    values: Vec<(Histogram, Func)>,
}

/// Lowers the actions from their text.
pub(crate) fn lower(actions: &Actions<'_>, env: Env<'_>, fix: &mut Fix<'_>) -> Result<Lowered, Error> {
    let mut value = |text: &str| {
        let mut found = lower::value(text, env).map_err(|e| Error::Expression(e.render(text)))?;
        fix(&mut found.func)?;
        opt::optimise(&mut found.func);
        Ok::<_, Error>(found)
    };
    let mut set = Vec::new();
    for text in actions.set {
        let func = value(text)?.func;
        if !func.ops().any(|op| matches!(op, Op::SetVar(..) | Op::AddVar(..))) {
            return Err(Error::Cannot(format!("`{text}` sets nothing: write `$name = …` or `$name += …`")));
        }
        set.push((text.clone(), func));
    }
    let mut scales: Vec<(&str, Scale)> =
        actions.hist.iter().map(|text| (text.as_str(), Scale::Log2)).collect();
    for text in actions.linear {
        scales.push(Scale::linear(text)?);
    }
    if scales.len() > MOST_HISTOGRAMS {
        let what = format!("{} histograms, a probe has up to {MOST_HISTOGRAMS}", scales.len());
        return Err(Error::Cannot(what));
    }
    let mut values = Vec::new();
    for (text, scale) in scales {
        let found = value(text)?;
        if matches!(scale, Scale::Linear { min, .. } if min < 0 && !found.signed) {
            return Err(Error::Cannot(format!("`{text}` is unsigned ({}): MIN is 0 or more", found.ty)));
        }
        let histogram = Histogram { name: text.to_owned(), ty: found.ty, signed: found.signed, scale };
        values.push((histogram, found.func));
    }
    let mut keys = Vec::new();
    for text in actions.by {
        let mut wanted = lowered(text, env)?;
        if let Wanted::Expression(_, collected) = &mut wanted {
            fix(&mut collected.func)?;
            opt::optimise(&mut collected.func);
            if matches!(collected.what, What::Parts(_)) {
                return Err(Error::Cannot(format!(
                    "`{text}` is not in memory as a whole: name a member of it"
                )));
            }
            if matches!(collected.what, What::Memory(size) if size > u64::from(LONGEST_KEY)) {
                return Err(Error::Cannot(format!("`{text}` is too large to count by: name a member of it")));
            }
        }
        keys.push(wanted);
    }
    Ok(Lowered { set, keys, values })
}

impl Lowered {
    /// Values that the program at the function's entry must keep.
    pub fn kept(&self) -> impl Iterator<Item = Kept> {
        let keys = self.keys.iter().filter_map(|key| match key {
            Wanted::Expression(_, collected) => Some(collected),
            _ => None,
        });
        let keys = keys.flat_map(|c| c.parts.iter().filter_map(|part| part.func.as_ref()).chain([&c.func]));
        let all = self.set.iter().map(|s| &s.1).chain(self.values.iter().map(|v| &v.1)).chain(keys);
        all.flat_map(|func| func.kept())
    }

    /// Compiles the actions to segments.
    pub fn compiled(
        self,
        actions: &Actions<'_>,
        env: Env<'_>,
        text: u32,
        compile: &dyn Fn(&str, &Func) -> Result<Segment, Error>,
    ) -> Result<(CompiledActions, Option<Tally>), Error> {
        let set = self.set.iter().map(|(text, func)| compile(text, func)).collect::<Result<_, _>>()?;
        let (mut items, mut keys): (Vec<Item>, Vec<Slot>) = (Vec::new(), Vec::new());
        // A name used as a key needs no more room than most names have.
        let end = laid(
            self.keys,
            env.scope,
            Limits::key(text.min(64), KEY_FRAMES),
            compile,
            &mut items,
            &mut keys,
        )?;
        let key_bytes = end - HEADER as u32;
        if key_bytes > LONGEST_KEY {
            let what =
                format!("the keys have {key_bytes} bytes, {LONGEST_KEY} can be counted by: name fewer");
            return Err(Error::Cannot(what));
        }
        for slot in &keys {
            let segments = match &slot.fill {
                Fill::Value(s) | Fill::Text(s, ..) | Fill::Memory(s, _) => [Some(s), None],
                Fill::Elements { address, count, .. } => [Some(address), Some(count)],
                _ => continue,
            };
            for segment in segments.into_iter().flatten() {
                if segment.program.stack > key_stack(key_bytes) {
                    return Err(Error::Cannot(format!("`{}`: too large to count by", segment.text)));
                }
            }
        }
        let mut values = Vec::new();
        for (histogram, func) in &self.values {
            values.push(compile(&histogram.name, func)?);
        }
        let histograms = self.values.into_iter().map(|v| v.0).collect();
        let tally = actions.counts().then_some(Tally { keys: items, histograms });
        let Actions { skip, pass, .. } = *actions;
        Ok((CompiledActions { skip, pass, set, keys, key_bytes, values }, tally))
    }
}

/// Bytes of stack left to segments beside the keys and one word.
pub(crate) fn key_stack(key_bytes: u32) -> u32 {
    STACK - 8 - key_bytes.min(LONGEST_KEY)
}
