// SPDX-License-Identifier: MIT OR Apache-2.0
//! The settings of a run, read back from its manifest.

use anyhow::{Context, Error, Result, bail, ensure};
use kprism_lab::{
    CpuFeature, Job, KernelSource, LikeHost, Network, Options, Pace, Share, Span, Storage, Warm,
};
use kprism_store::{Manifest, OptionKey, Run, RunKind};
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
    let facts = manifest.option_facts();
    if let Some(name) = facts.misread.first() {
        refuse(&format!("its option `{name}` is not understood"))?;
    }
    let options = Given(manifest);
    if options.text(OptionKey::Pace).as_deref() == Some("fast") {
        refuse("it was recorded with --fast, so no two runs are the same: record it without")?;
    }
    // Whatever it is: only none is none.
    if manifest.option(OptionKey::Net).is_some_and(|net| !net.is_null()) {
        refuse("its guest had a network (--net), so no two runs are the same: record it without")?;
    }
    if manifest.environment.is_none() {
        refuse("it does not state its environment: record it again with this version")?;
    }
    if options.text(OptionKey::Stdin).as_deref() == Some(OWN_STDIN) {
        refuse("its standard input was kprism's own, which is gone: give --stdin a file")?;
    }
    let turns = u32::try_from(facts.warm.unwrap_or_default()).context("`warm`")?;
    let job = Job {
        env: options.pairs(OptionKey::Env),
        cwd: options.text(OptionKey::Cwd),
        before: options.list(OptionKey::Before),
        like_host: like_host(manifest)?,
        warm: Warm { turns, argv: manifest.command.clone() },
        stdin: options.text(OptionKey::Stdin).map(Into::into),
        shares: options.list(OptionKey::Share).iter().map(|text| Share::parse(text)).collect(),
        // What the disks hold at the end is of no use before.
        keeps_disks: false,
        span: if options.flag(OptionKey::Boot) { Span::Boot } else { Span::Command },
        ..Job::new(manifest.command.iter().cloned())
    };
    let observe = match (
        options.text(OptionKey::SnapshotWhen),
        options.text(OptionKey::From),
        options.text(OptionKey::Until),
    ) {
        (Some(when), ..) => Observe::Snapshot { when, bytes: 4 << 20 },
        (None, None, None) => Observe::Everything,
        (None, from, until) => Observe::Window { from, until },
    };
    ensure!(!manifest.command.is_empty(), "{place}: cannot be replayed: it states no command");
    let guest = guest(manifest, &options).with_context(|| run.manifest_path().display().to_string())?;
    let events = options.0.option(OptionKey::Events).filter(|events| !events.is_null()).cloned();
    let events = events.map(serde_json::from_value).transpose().context("`events`")?;
    Ok(Settings { observe, events, ..Settings::new(run.dir().to_owned(), guest, job) })
}

/// The values that the guest of a run took over from its recording machine, whatever this machine has today; `None` if it took none.
///
/// # Errors
/// The manifest has values that no guest can take over.
pub(crate) fn like_host(manifest: &Manifest) -> Result<Option<LikeHost>> {
    let recorded = manifest.option(OptionKey::LikeHost).filter(|value| !value.is_null());
    recorded.map(LikeHost::recorded).transpose().map_err(Error::msg).context("`like_host`")
}

/// The storage of a run's guest, whatever the presets are today.
fn storage(manifest: &Manifest) -> Result<Storage> {
    let recorded = manifest.option(OptionKey::Storage).filter(|value| !value.is_null());
    let device =
        recorded.map(|value| serde_json::from_value(value.clone())).transpose().context("`storage`")?;
    Ok(device.map_or(Storage::Memory, Storage::Device))
}

fn guest(manifest: &Manifest, options: &Given<'_>) -> Result<Options> {
    let tree = manifest.kernel.as_ref().and_then(|kernel| kernel.tree.as_ref());
    let paths = |key: OptionKey| options.list(key).into_iter().map(Into::into).collect();
    let features = options.list(OptionKey::CpuFeatures);
    let features = features.iter().map(|text| CpuFeature::parse(text)).collect::<Result<_, _>>();
    Ok(Options {
        smp: manifest.vcpus,
        mem_mib: options.number(OptionKey::MemMib)?,
        append: appended(&options.text(OptionKey::KernelCommandLine).context("no `kernel_command_line`")?),
        cpu_features: features.map_err(Error::msg).context("`cpu_features`")?,
        kernel: match (tree, options.text(OptionKey::Kernel)) {
            (Some(tree), _) => KernelSource::Tree(tree.folder.clone()),
            (None, Some(kernel)) => KernelSource::named(kernel.as_ref()),
            (None, None) => KernelSource::Newest,
        },
        module_folder: options.text(OptionKey::ModuleFolder).map(Into::into),
        guest_image: options.text(OptionKey::GuestImage).map(Into::into),
        initrd: options.text(OptionKey::Initrd).map(Into::into),
        root: options.text(OptionKey::Root).map(Into::into),
        init: options.text(OptionKey::Init),
        disks: paths(OptionKey::Disk),
        storage: storage(manifest)?,
        modules: options.list(OptionKey::Module),
        with_modules: options.list(OptionKey::WithModule),
        packages: options.list(OptionKey::Package),
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
    fn text(&self, key: OptionKey) -> Option<String> {
        self.0.option(key)?.as_str().map(str::to_owned)
    }

    fn flag(&self, key: OptionKey) -> bool {
        self.0.option(key).and_then(Value::as_bool) == Some(true)
    }

    fn number(&self, key: OptionKey) -> Result<u64> {
        let value = self.0.option(key).and_then(Value::as_u64);
        value.with_context(|| format!("`{}` is no number", key.name()))
    }

    fn list(&self, key: OptionKey) -> Vec<String> {
        let items = self.0.option(key).and_then(Value::as_array);
        items.into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
    }

    fn pairs(&self, key: OptionKey) -> Vec<(String, String)> {
        let pair =
            |text: String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.list(key).into_iter().filter_map(pair).collect()
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

    /// A replay without the turns would be of other instructions.
    #[test]
    fn warm_up_turns_are_run_again() {
        let dir = tempfile::tempdir().unwrap();
        let run = Run::create(&dir.path().join("run")).unwrap();
        let mut manifest = Manifest::new(RunKind::Lab, 1);
        manifest.command = vec!["cat".into(), "a b".into()];
        manifest.environment = Some(kprism_store::Environment::new(Vec::new()));
        manifest.set(OptionKey::MemMib, 512);
        manifest.set(OptionKey::KernelCommandLine, kprism_lab::command_line(&[]));
        let warm = |manifest: &Manifest| of(&run, manifest).map(|settings| settings.job.warm);
        assert_eq!(warm(&manifest).unwrap().turns, 0, "a run of an older version does not state it");
        manifest.set(OptionKey::Warm, 2);
        assert_eq!(warm(&manifest).unwrap(), Warm { turns: 2, argv: manifest.command.clone() });
        manifest.set(OptionKey::Warm, "2");
        let refused = warm(&manifest).expect_err("refused").to_string();
        assert!(refused.contains("its option `warm` is not understood"), "{refused}");
    }

    /// A replay with this machine's values of today would be of another guest.
    #[test]
    fn values_of_the_recording_machine_are_those_of_the_run() {
        let mut manifest = Manifest::new(RunKind::Lab, 1);
        assert_eq!(like_host(&manifest).unwrap(), None);
        manifest.set(OptionKey::LikeHost, Value::Null);
        assert_eq!(like_host(&manifest).unwrap(), None);
        let value = serde_json::json!({
            "huge_pages": {"enabled": "never"}, "limits": {"nofile": "77:78"}, "variables": {"LANG": "xx_XX.UTF-8"},
        });
        manifest.set(OptionKey::LikeHost, value);
        let like = like_host(&manifest).unwrap().expect("values");
        assert_eq!((like.huge_pages["enabled"].as_str(), like.limits["nofile"].as_str()), ("never", "77:78"));
        assert_eq!(like.variables["LANG"], "xx_XX.UTF-8");
        let foreign = serde_json::json!({"huge_pages": {"enabled": "x; y"}, "limits": {}, "variables": {}});
        manifest.set(OptionKey::LikeHost, foreign);
        let refused = format!("{:#}", like_host(&manifest).expect_err("refused"));
        assert!(refused.contains("`like_host`: huge_pages"), "{refused}");
    }

    #[test]
    fn an_option_that_is_not_understood_is_not_taken_for_none() {
        let dir = tempfile::tempdir().unwrap();
        let run = Run::create(&dir.path().join("run")).unwrap();
        let refused = |key: OptionKey| {
            let mut manifest = Manifest::new(RunKind::Lab, 1);
            manifest.set(key, 1);
            of(&run, &manifest).map(drop).expect_err("refused").to_string()
        };
        assert!(refused(OptionKey::From).contains("its option `from` is not understood"));
        assert!(refused(OptionKey::Net).contains("a network"));
    }
}
