// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lowers `called_by("f")`: who called the place is asked of its scope, where the function's code is of the scope's file.

use crate::ctype::{Int, Ty};
use crate::error::{Error, Result, Span};
use crate::ir::{CalledBy, MOST_CALLERS, Op, Width};
use crate::scope::Callers;

use super::{Lower, Operand};

impl Lower<'_> {
    /// `most`: only so many of the nearest callers are meant.
    pub(super) fn called_by(&mut self, function: &str, most: Option<u64>, span: Span) -> Result<Operand> {
        let fail = |e: String| Error::new(span, e);
        let scope = self.env.scope;
        let Callers { skip, direct, counted } = scope.callers().map_err(fail)?;
        if most.is_some() && !counted {
            return Err(fail(
                "callers of a tracepoint cannot be counted: functions of the kernel lie between".to_owned(),
            )
            .help(format!("leave the number out: `called_by(\"{function}\")`")));
        }
        let limit = u64::from(MOST_CALLERS);
        if most.is_some_and(|most| !(1..=limit).contains(&most)) {
            return Err(fail(format!("of the nearest 1 to {MOST_CALLERS} callers")));
        }
        let code = scope.code_of(function).map_err(fail)?;
        let place = match &code {
            None => "callers, by the kernel's symbols".to_owned(),
            Some(parts) => {
                let each =
                    |(start, length): &(u64, u32)| format!("{start:#x} to {:#x}", start + u64::from(*length));
                format!("callers in {}", parts.iter().map(each).collect::<Vec<_>>().join(", "))
            }
        };
        self.note(&format!("called_by(\"{function}\")"), "built in", &Ty::Int(Int::INT), place);
        let mut address = |(start, length): (u64, u32)| (self.b.push(Op::Address(start), Width::W64), length);
        let code = code.map(|parts| parts.into_iter().map(&mut address).collect());
        let direct = direct.map(|sym| self.sym(&sym, span)).transpose()?;
        let asked = CalledBy {
            function: function.into(),
            code,
            space: scope.space(),
            skip,
            direct,
            most: most.unwrap_or(limit) as u8,
            all: most.is_none(),
        };
        let v = self.b.push(Op::CalledBy(Box::new(asked)), Width::W32);
        Ok(self.int(v, Int::INT))
    }
}
