// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes a flow to measure intervals between markers.
//!
//! In: a run with a flow, the markers. Out: a [`Profile`] with these intervals, and the counts of instructions.

use std::ops::Range;

use anyhow::{Result, bail};
use kprism_flow::delta::{Plan, Spec};
use kprism_image::symbols::{FunctionId, Symbols, kallsyms};
use kprism_profile::Profile;
use kprism_store::{Instrument, Manifest, Run};

use crate::files::read_if_there;
use crate::flow;
use crate::progress::Progress;

/// The locks that intervals of spinlocks lack on a kernel with `PREEMPT_RT` (kernel/locking/spinlock_rt.c).
const SLEEPING_LOCKS: &str = "this kernel's spinlocks sleep (PREEMPT_RT): only its raw ones are measured here; the others: kprism report delta --nested --from 'ret:rt_spin_lock | ret:rt_spin_trylock' --to func:rt_spin_unlock";

/// Decodes the run and measures `specs`; `count` are instructions whose executions are counted. All intervals that reach into the
/// time `kept` (ns) are in the result, otherwise the longest only.
///
/// # Errors
/// The run holds no flow or cannot be read, a marker is none, or it cannot be seen in this run.
pub fn measure(
    run: &Run,
    specs: &[Spec],
    count: &[String],
    kept: Option<Range<u64>>,
    progress: &Progress,
) -> Result<(Profile, Manifest)> {
    let loaded = flow::load(run, progress)?;
    let plan = Plan::new(specs, count, &|name| address_of(&loaded.symbols, name))?;
    let mut plan = plan.with_preemption(loaded.preemption);
    if let Some(time) = kept {
        plan = plan.keeping(time);
    }
    if let [name, ..] = plan.unmeasured()[..] {
        bail!("interval {name}: {}", flow::NO_PREEMPTION);
    }
    let profile = flow::profile(&loaded, plan, None, progress);
    // The run's account is of an earlier decode: a stream may have been damaged since.
    let account = flow::account_of(&loaded, &profile, run, progress);
    let mut manifest = loaded.manifest;
    manifest.accounts.insert(Instrument::Flow, account);
    Ok((profile, manifest))
}

/// The address of a kernel function: one of a program has as many as the program is mapped.
fn address_of(symbols: &Symbols, name: &str) -> Option<u64> {
    let of = |id| Some(symbols.function(id)).filter(|f| f.kernel);
    let shown = (0..symbols.len() as u32).filter_map(|id| of(FunctionId(id))).find(|f| f.name == name);
    let alias = || symbols.aliases().filter(|(alias, _)| *alias == name).find_map(|(_, id)| of(id));
    shown.or_else(alias).map(|f| f.start)
}

/// Remarks on what the intervals `name` lack on the kernel of this run, for people.
///
/// # Errors
/// The kernel's symbols cannot be read.
pub fn remark(run: &Run, manifest: &Manifest, name: &str) -> Result<Option<&'static str>> {
    if !["spinlock", "contention"].contains(&name) {
        return Ok(None);
    }
    let release = manifest.kernel.as_ref().map_or("", |kernel| kernel.release.as_str());
    let sleeps = spinlocks_sleep(&read_if_there(&run.kallsyms())?, release);
    Ok(sleeps.then_some(SLEEPING_LOCKS))
}

/// True of a kernel whose spinlocks are sleeping locks: its symbols say so, or its release where there are no symbols.
fn spinlocks_sleep(symbols: &[u8], release: &str) -> bool {
    if !symbols.is_empty() {
        return kallsyms::value_of(symbols, "rt_spin_lock").is_some();
    }
    // `6.12.1-rt5`, `6.12.117+deb12-rt-amd64`.
    let is_rt = |part: &str| {
        part.strip_prefix("rt").is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    release.split(['-', '+', '_']).any(is_rt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_spinlocks_are_known_by_symbols_or_the_release() {
        let plain = b"ffffffff81000000 T _raw_spin_lock\nffffffff81000010 t not_rt_spin_lock\n";
        let rt = b"ffffffff81000000 T _raw_spin_lock\nffffffff81000010 T rt_spin_lock\n";
        assert!(spinlocks_sleep(rt, "6.12.1") && !spinlocks_sleep(plain, "6.12.1-rt5"));
        for (release, sleeps) in [
            ("6.12.1-rt5", true),
            ("6.12.117+deb12-rt-amd64", true),
            ("6.12.117+deb12-amd64", false),
            ("6.12.1-rtl", false),
            ("", false),
        ] {
            assert_eq!(spinlocks_sleep(b"", release), sleeps, "{release}");
        }
    }
}
