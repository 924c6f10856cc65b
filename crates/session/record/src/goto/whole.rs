// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line that records a run of snapshots once more, without the snapshots.
//!
//! In: the settings of the run. Out: a line for a shell. The guest does the same in both, so the whole run has the numbers that
//! the snapshots lack.

use std::ffi::OsString;
use std::path::Path;

use kprism_lab::{Job, KernelSource, Options};

use super::gdb::shell_word;
use crate::guest::Settings;

/// `kprism lab run -o OUTPUT …` with the guest and the command of `settings`, and with `timeout` in seconds.
pub(super) fn command_line(settings: &Settings, output: &Path, timeout: Option<u64>) -> String {
    // All fields are named, so that a new option of the guest is not forgotten here.
    let Options {
        smp,
        mem_mib,
        append,
        cpu_features,
        kernel,
        module_folder,
        guest_image,
        initrd,
        root,
        init,
        disks,
        storage,
        modules,
        with_modules,
        packages,
        // Other runs cannot be replayed.
        network: _,
        pace: _,
        // They change how the guest comes about, and not what it is.
        refresh: _,
        boot_timeout: _,
    } = &settings.guest;
    let Job {
        argv,
        env,
        cwd,
        before,
        like_host,
        warm,
        stdin,
        shares,
        // A run that is replayed states its own apart.
        timeout: _,
        // The whole run is larger than its snapshots: their limit says nothing of its size.
        max_bytes: _,
        // Of recorders in the guest, of counters, of boots, of the way in: a run of snapshots has none of them.
        begin: _,
        after: _,
        ports: _,
        collect: _,
        asks_first: _,
        counters: _,
        windows: _,
        marked_by_command: _,
        leaves_tracer: _,
        keeps_disks: _,
        gdb: _,
        span: _,
    } = &settings.job;
    let mut words: Vec<OsString> = ["kprism", "lab", "run", "-o"].into_iter().map(OsString::from).collect();
    words.push(output.into());
    // Joined by `=`, a value that begins with `-` is no option.
    let mut add = |option: &str, value: OsString| {
        let mut word = OsString::from(format!("--{option}="));
        word.push(value);
        words.push(word);
    };
    match kernel {
        KernelSource::Newest => {}
        KernelSource::Package(name) => add("kernel", name.into()),
        KernelSource::Image(file) => add("kernel", file.into()),
        KernelSource::Tree(folder) => add("tree", folder.into()),
    }
    let files = [
        ("modules", module_folder),
        ("guest-image", guest_image),
        ("initrd", initrd),
        ("root", root),
        ("stdin", stdin),
    ];
    for (option, file) in files {
        if let Some(file) = file {
            add(option, file.into());
        }
    }
    for (option, text) in [("init", init), ("cwd", cwd)] {
        if let Some(text) = text {
            add(option, text.into());
        }
    }
    disks.iter().for_each(|disk| add("disk", disk.into()));
    if storage.device().is_some() {
        add("storage", storage.to_string().into());
    }
    let lists = [
        ("module", modules),
        ("with-module", with_modules),
        ("package", packages),
        ("append", append),
        ("before", before),
    ];
    for (option, list) in lists {
        list.iter().for_each(|value| add(option, value.into()));
    }
    cpu_features.iter().for_each(|feature| add("cpu-features", feature.to_string().into()));
    shares.iter().for_each(|share| add("share", share.to_string().into()));
    env.iter().for_each(|(name, value)| add("env", format!("{name}={value}").into()));
    add("smp", smp.to_string().into());
    add("mem", format!("{}M", mem_mib).into());
    if like_host.is_some() {
        // This machine's values may be others today: the run has those that its guest took over.
        add("like-host", settings.output.clone().into());
    }
    if warm.turns > 0 {
        add("warm", warm.turns.to_string().into());
    }
    if let Some(seconds) = timeout {
        add("timeout", seconds.to_string().into());
    }
    if let Some(beside) = &settings.events {
        beside.events.iter().for_each(|event| add("event", event.into()));
        add("buffer-size", format!("{}K", beside.buffer_kib).into());
    }
    words.push("--".into());
    words.extend(argv.iter().map(OsString::from));
    words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use kprism_lab::Warm;

    use super::*;

    #[test]
    fn the_line_has_the_guest_and_the_command_and_no_snapshot() {
        let guest = Options {
            smp: 2,
            mem_mib: 512,
            append: vec!["-x".into(), "a b".into()],
            kernel: KernelSource::Image("/k".into()),
            module_folder: Some("/m".into()),
            packages: vec!["libc6-dbg".into()],
            storage: kprism_lab::Storage::preset("ssd").expect("a preset"),
            ..Options::default()
        };
        let job = Job {
            env: vec![("A".into(), "b c".into())],
            like_host: Some(kprism_lab::LikeHost::default()),
            warm: Warm { turns: 2, argv: Vec::new() },
            ..Job::new(["sh", "-c", "ls | wc"].map(str::to_owned))
        };
        let settings = Settings::new("run".into(), guest, job);
        assert_eq!(
            command_line(&settings, Path::new("run-whole"), Some(9)),
            "kprism lab run -o run-whole --kernel=/k --modules=/m --storage=ssd --package=libc6-dbg --append=-x '--append=a b' '--env=A=b c' --smp=2 --mem=512M \
             --like-host=run --warm=2 --timeout=9 -- sh -c 'ls | wc'"
        );
    }
}
