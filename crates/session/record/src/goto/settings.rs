// SPDX-License-Identifier: MIT OR Apache-2.0
//! The settings of a run, read back from its manifest.

use anyhow::{Context, Error, Result, bail, ensure};
use kprism_lab::{CpuFeature, Job, KernelSource, Network, Options, Pace, Share, Span};
use kprism_store::{Manifest, Run, RunKind};
use serde_json::Value;

use crate::guest::{Observe, Settings};
use crate::here::OWN_STDIN;

/// The settings with which `run` was recorded.
///
/// # Errors
/// The run cannot be replayed; the text says why, and the remedy.
pub(super) fn of(run: &Run, manifest: &Manifest) -> Result<Settings> {
    let place = run.dir().display();
    let refuse = |why: &str| -> Result<()> { bail!("{place}: cannot be replayed: {why}") };
    if manifest.kind != RunKind::Lab {
        refuse("it was not recorded in the guest: only runs of `kprism lab run` are the same each time")?;
    }
    if manifest.tests.is_some() {
        refuse("it is of the kernel's own tests: record one of them with `kprism lab run`")?;
    }
    let options = Given(manifest);
    if options.text("pace").as_deref() == Some("fast") {
        refuse("it was recorded with --fast, so no two runs are the same: record it without")?;
    }
    if options.text("net").is_some() {
        refuse("its guest had a network (--net), so no two runs are the same: record it without")?;
    }
    if manifest.environment.is_none() {
        refuse("it does not state its environment: record it again with this version")?;
    }
    if options.text("stdin").as_deref() == Some(OWN_STDIN) {
        refuse("its standard input was kprism's own, which is gone: give --stdin a file")?;
    }
    let job = Job {
        env: options.pairs("env"),
        cwd: options.text("cwd"),
        before: options.list("before"),
        stdin: options.text("stdin").map(Into::into),
        shares: options.list("share").iter().map(|text| Share::parse(text)).collect(),
        // What the disks hold at the end is of no use before.
        keeps_disks: false,
        span: if options.flag("boot") { Span::Boot } else { Span::Command },
        ..Job::new(manifest.command.iter().cloned())
    };
    let observe = match (options.text("snapshot_when"), options.text("from"), options.text("until")) {
        (Some(when), ..) => Observe::Snapshot { when, bytes: 4 << 20 },
        (None, None, None) => Observe::Everything,
        (None, from, until) => Observe::Window { from, until },
    };
    ensure!(!manifest.command.is_empty(), "{place}: cannot be replayed: it states no command");
    let guest = guest(manifest, &options).with_context(|| run.manifest_path().display().to_string())?;
    let events = options.0.options.get("events").filter(|events| !events.is_null()).cloned();
    let events = events.map(serde_json::from_value).transpose().context("`events`")?;
    Ok(Settings { observe, events, ..Settings::new(run.dir().to_owned(), guest, job) })
}

fn guest(manifest: &Manifest, options: &Given<'_>) -> Result<Options> {
    let tree = manifest.kernel.as_ref().and_then(|kernel| kernel.tree.as_ref());
    let paths = |name: &str| options.list(name).into_iter().map(Into::into).collect();
    let features = options.list("cpu_features");
    let features = features.iter().map(|text| CpuFeature::parse(text)).collect::<Result<_, _>>();
    Ok(Options {
        smp: manifest.vcpus,
        mem_mib: options.number("mem_mib")?,
        append: appended(&options.text("kernel_command_line").context("no `kernel_command_line`")?),
        cpu_features: features.map_err(Error::msg).context("`cpu_features`")?,
        kernel: match (tree, options.text("kernel")) {
            (Some(tree), _) => KernelSource::Tree(tree.folder.clone()),
            (None, Some(kernel)) => KernelSource::named(kernel.as_ref()),
            (None, None) => KernelSource::Newest,
        },
        guest_image: options.text("guest_image").map(Into::into),
        initrd: options.text("initrd").map(Into::into),
        root: options.text("root").map(Into::into),
        init: options.text("init"),
        disks: paths("disk"),
        modules: options.list("module"),
        with_modules: options.list("with_module"),
        packages: options.list("package"),
        network: Network::None,
        pace: Pace::Exact,
        ..Options::default()
    })
}

/// The words that the user added to the kernel's command line: all but those that kprism gives, in their order.
fn appended(line: &str) -> Vec<String> {
    let own = kprism_lab::command_line(&[]);
    let more = line.strip_prefix(own.as_str()).unwrap_or(line);
    let is_own = |word: &&str| !word.starts_with("rdinit=");
    more.split_whitespace().filter(is_own).map(str::to_owned).collect()
}

/// The options of a manifest.
struct Given<'a>(&'a Manifest);

impl Given<'_> {
    fn text(&self, name: &str) -> Option<String> {
        self.0.options.get(name)?.as_str().map(str::to_owned)
    }

    fn flag(&self, name: &str) -> bool {
        self.0.options.get(name).and_then(Value::as_bool) == Some(true)
    }

    fn number(&self, name: &str) -> Result<u64> {
        let value = self.0.options.get(name).and_then(Value::as_u64);
        value.with_context(|| format!("`{name}` is no number"))
    }

    fn list(&self, name: &str) -> Vec<String> {
        let items = self.0.options.get(name).and_then(Value::as_array);
        items.into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
    }

    fn pairs(&self, name: &str) -> Vec<(String, String)> {
        let pair =
            |text: String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.list(name).into_iter().filter_map(pair).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_words_are_told_from_kprisms() {
        let words = ["quiet".to_owned(), "a=b c".to_owned()];
        let line = kprism_lab::command_line(&words) + " rdinit=/x";
        assert_eq!(appended(&line), ["quiet", "a=b", "c"]);
        assert_eq!(kprism_lab::command_line(&appended(&line)) + " rdinit=/x", line);
    }
}
