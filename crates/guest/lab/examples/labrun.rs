// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs one command in the guest lab, for work on the observer and on the lab itself.
//!
//! `labrun [--plugin PATH [--arg KEY=VALUE]...] [--out DIR] [--smp N] [--mem MIB] [--fast] [--boot]
//! [--module NAME] [--with-module NAME] [--package NAME] [--share DIR[:/PLACE]] [--before CMD] [--append WORD]
//! [--kernel FILE] [--initrd FILE] [--timeout SECONDS] -- COMMAND...`

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use kprism_lab::{Ended, Full, Job, KernelSource, ObserverOptions, Options, Pace, Progress, Share, Span};

fn main() -> ExitCode {
    kprism_signals::catch(kprism_signals::Second::EndsProcess).expect("signals");
    match work() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("labrun: {error}");
            ExitCode::from(125)
        }
    }
}

fn work() -> Result<u8, Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let mut options = Options::default();
    let mut job = Job::new(Vec::<String>::new());
    let mut out = PathBuf::from("kprism.data");
    let mut plugin = None;
    let mut arguments = Vec::new();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} wants a value"));
        match word.as_str() {
            "--plugin" => plugin = Some(PathBuf::from(value()?)),
            "--arg" => {
                let text = value()?;
                let (key, value) = text.split_once('=').ok_or("--arg wants KEY=VALUE")?;
                arguments.push((key.to_owned(), value.to_owned()));
            }
            "--out" => out = value()?.into(),
            "--smp" => options.smp = value()?.parse()?,
            "--mem" => options.mem_mib = value()?.parse()?,
            "--fast" => options.pace = Pace::Fast,
            "--boot" => job.span = Span::Boot,
            "--module" => options.modules.push(value()?),
            "--with-module" => options.with_modules.push(value()?),
            "--package" => options.packages.push(value()?),
            "--append" => options.append.push(value()?),
            "--kernel" => options.kernel = KernelSource::named(value()?.as_ref()),
            "--initrd" => options.initrd = Some(value()?.into()),
            "--share" => job.shares.push(Share::parse(&value()?)),
            "--before" => job.before.push(value()?),
            "--timeout" => job.timeout = Some(Duration::from_secs_f64(value()?.parse()?)),
            "--" => break,
            _ => return Err(format!("{word}: no such option").into()),
        }
    }
    job.argv = words.collect();
    let observer = plugin.map(|plugin| ObserverOptions { plugin, arguments });
    let mut report = |progress: Progress<'_>| match progress {
        Progress::Step(text) => eprintln!("labrun: {text}"),
        Progress::Console(_) | Progress::Written(_) => {}
        Progress::Stdout(bytes) => drop(std::io::stdout().write_all(bytes)),
        Progress::Stderr(bytes) => drop(std::io::stderr().write_all(bytes)),
    };
    let start = Instant::now();
    let prepared = kprism_lab::prepare(&options, &mut report)?;
    let prepare = start.elapsed();
    let outcome = kprism_lab::run(&prepared, &job, &out, observer.as_ref(), &mut report)?;
    std::io::stdout().flush()?;
    eprintln!(
        "labrun: {:?}, exit code {:?}; prepared in {prepare:.1?}, started in {:.1?}, ran {:.1?}",
        outcome.ended, outcome.exit_code, outcome.start, outcome.wall
    );
    if !outcome.missing_files.is_empty() {
        eprintln!("labrun: no copy of {:?}", outcome.missing_files);
    }
    if outcome.ended != Ended::Normal {
        eprintln!("{}", outcome.console_tail);
    }
    Ok(match outcome.ended {
        Ended::Normal => outcome.exit_code.unwrap_or(0),
        Ended::Timeout | Ended::Full(Full::Size(_)) => 124,
        Ended::Interrupted => 130,
        Ended::Full(Full::Disk(_)) | Ended::Panic(_) | Ended::Failed(_) => 125,
    })
}
