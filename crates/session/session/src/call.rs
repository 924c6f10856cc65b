// SPDX-License-Identifier: MIT OR Apache-2.0
//! One system call instead of the whole run: `--syscall NAME --call WHICH`.

use std::str::FromStr;

use anyhow::{Result, bail};
use kprism_flow::delta::Plan;
use kprism_flow::window::Window;
use kprism_profile::Filter;
use kprism_profile::units::{duration, syscall_name};
use kprism_profile::{Profile, Syscall};
use kprism_store::Run;

use crate::flow;
use crate::progress::Progress;

/// Which of the calls of a system call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Which {
    /// The longest by wall clock.
    #[default]
    Slowest,
    /// The middle one by wall clock.
    Median,
    /// The shortest by wall clock.
    Fastest,
    /// By number, from 1, in order of time.
    Nth(usize),
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "slowest" => Ok(Which::Slowest),
            "median" => Ok(Which::Median),
            "fastest" => Ok(Which::Fastest),
            _ => match text.parse() {
                Ok(n) if n > 0 => Ok(Which::Nth(n)),
                _ => Err("expected slowest, median, fastest, or a number from 1 on".to_owned()),
            },
        }
    }
}

/// A choice of one system call. The default chooses none: the whole run.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// The system call's name, as in its man page.
    pub syscall: Option<String>,
    /// One of its calls.
    pub which: Which,
}

impl Call {
    /// The run's profile, reduced to that call if one is asked for.
    pub fn narrow(
        &self,
        run: &Run,
        profile: Profile,
        filter: &Filter,
        progress: &Progress,
    ) -> Result<Profile> {
        let Some(window) = self.window(&profile, filter, progress)? else { return Ok(profile) };
        let loaded = flow::load(run, progress)?;
        let one = flow::profile(&loaded, Plan::nothing(), Some(window), progress);
        progress.clear();
        Ok(one)
    }

    /// When that call was, if one is asked for.
    pub fn window(&self, profile: &Profile, filter: &Filter, progress: &Progress) -> Result<Option<Window>> {
        let Some(name) = &self.syscall else { return Ok(None) };
        let taken = filter.tasks(profile);
        let mut calls: Vec<&Syscall> = profile
            .syscalls
            .iter()
            .filter(|s| taken[s.task as usize])
            .filter(|s| syscall_name(&profile.funcs[s.func as usize].name) == *name)
            .collect();
        if calls.is_empty() {
            bail!("no call of {name} in this run; `kprism report syscalls` lists those there are");
        }
        let count = calls.len();
        if !matches!(self.which, Which::Nth(_)) {
            calls.sort_by_key(|s| (s.wall_ns, s.start_ns));
        }
        let index = match self.which {
            Which::Fastest => 0,
            Which::Median => count / 2,
            Which::Slowest => count - 1,
            Which::Nth(n) => n - 1,
        };
        let Some(call) = calls.get(index) else { bail!("{name} was called {count} times, no more") };
        let task = &profile.tasks[call.task as usize];
        progress.say(&format!(
            "one {name} of {count}: {} [{}], CPU {}, from {} ns, {}",
            task.comm,
            task.pid,
            call.cpu,
            call.start_ns,
            duration(call.wall_ns)
        ));
        let to_ns = call.start_ns.saturating_add(call.wall_ns.max(1));
        Ok(Some(Window { pid: task.pid, tgid: task.tgid, from_ns: call.start_ns, to_ns }))
    }
}
