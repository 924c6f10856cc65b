// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which program can run on a machine that has none of its libraries: it must be static, and for the machine's processor.

use std::fs;

use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{Endianness, elf};

use crate::run::Recorder;

/// The program that was copied to a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// This program.
    Kprism,
    /// `kprism-recorder`, built for the machine's processor. It knows other words, and analyses nothing.
    Recorder,
}

/// Chooses the program for a machine whose `uname -sm` says `system` and `machine`: this one, whose bytes are `own`, or the recorder.
///
/// # Errors
/// The machine is of a kind that none is built for, what was asked for cannot be recorded there, or the program needs shared
/// libraries; with the remedy.
pub fn choose(
    own: Vec<u8>,
    system: &str,
    machine: &str,
    recorder: &Recorder,
) -> Result<(Copied, Vec<u8>), String> {
    if system != "Linux" || machine == processor(&own)? {
        return check(&own, system, machine).map(|()| (Copied::Kprism, own));
    }
    let script = "a shell script collects ftrace's data on any machine: docs/board.md";
    if machine != "aarch64" {
        return Err(format!(
            "its processor is {machine}; kprism records on {}, and its recorder on aarch64: {script}",
            processor(&own)?
        ));
    }
    let other = format!("its processor is {machine}, and this kprism is built for {}", processor(&own)?);
    if let Err(why) = &recorder.words {
        return Err(format!("{other}: {why}"));
    }
    let path = (recorder.find)(machine).map_err(|why| {
        format!("{other}: {why:#}. `make recorder-arm64` builds that recorder from the source; without it, {script}")
    })?;
    let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    check(&bytes, system, machine).map_err(|why| format!("{}: {why}", path.display()))?;
    Ok((Copied::Recorder, bytes))
}

/// The processor that a program is built for, as `uname -m` names it.
fn processor(program: &[u8]) -> Result<&'static str, String> {
    let header = elf::FileHeader64::<Endianness>::parse(program).map_err(broken)?;
    Ok(match header.e_machine(header.endian().map_err(broken)?) {
        elf::EM_X86_64 => "x86_64",
        elf::EM_AARCH64 => "aarch64",
        _ => "another processor",
    })
}

fn broken(error: object::Error) -> String {
    format!("this program of kprism cannot be read as an ELF file: {error}")
}

/// Checks the bytes of a program for a machine whose `uname -sm` says `system` and `machine`.
///
/// # Errors
/// The machine is of another kind, or the program needs shared libraries there; with the remedy.
pub fn check(program: &[u8], system: &str, machine: &str) -> Result<(), String> {
    if system != "Linux" {
        return Err(format!("it runs {system}, and kprism records Linux kernels"));
    }
    let built_for = processor(program)?;
    if machine != built_for {
        return Err(format!("its processor is {machine}, and this program is built for {built_for}"));
    }
    let header = elf::FileHeader64::<Endianness>::parse(program).map_err(broken)?;
    let endian = header.endian().map_err(broken)?;
    for segment in header.program_headers(endian, program).map_err(broken)? {
        if let Some(interpreter) = segment.interpreter(endian, program).map_err(broken)? {
            return Err(format!(
                "this kprism is not static: it needs {} and shared libraries, which the other machine may not have. \
                 Build it on Debian with libc6-dev, whose libc.a makes it static",
                String::from_utf8_lossy(interpreter)
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cc(arguments: &[&str]) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("a.c"), folder.path().join("a"));
        std::fs::write(&source, "int main(void) { return 0; }").unwrap();
        let mut cc = std::process::Command::new("cc");
        let status = cc.args(arguments).arg(&source).arg("-o").arg(&program).status().unwrap();
        assert!(status.success());
        std::fs::read(program).unwrap()
    }

    #[test]
    fn programs_that_the_target_could_not_run() {
        for how in ["-static", "-static-pie"] {
            assert_eq!(check(&cc(&[how]), "Linux", "x86_64"), Ok(()), "{how}");
        }
        let shared = check(&cc(&[]), "Linux", "x86_64").unwrap_err();
        assert!(shared.contains("/lib64/ld-linux-x86-64.so.2") && shared.contains("libc6-dev"), "{shared}");
        let program = cc(&["-static"]);
        assert!(check(&program, "Linux", "aarch64").unwrap_err().contains("its processor is aarch64"));
        assert!(check(&program, "FreeBSD", "amd64").unwrap_err().contains("it runs FreeBSD"));
        assert!(check(b"#!/bin/sh", "Linux", "x86_64").unwrap_err().contains("ELF"));
    }

    #[test]
    fn another_processor_gets_its_recorder_or_a_remedy() {
        let own = cc(&["-static"]);
        let chosen = |machine: &str, words: Result<Vec<std::ffi::OsString>, String>, find| {
            choose(own.clone(), "Linux", machine, &Recorder { words, find })
        };
        let none: fn(&str) -> anyhow::Result<std::path::PathBuf> =
            |machine| anyhow::bail!("no recorder for {machine}");
        assert_eq!(
            chosen("x86_64", Err("not asked for".into()), none).unwrap(),
            (Copied::Kprism, own.clone())
        );
        let why = chosen("aarch64", Err("it knows no probes".into()), none).unwrap_err();
        assert_eq!(why, "its processor is aarch64, and this kprism is built for x86_64: it knows no probes");
        let why = chosen("aarch64", Ok(vec![]), none).unwrap_err();
        for part in ["no recorder for aarch64", "make recorder-arm64", "docs/board.md"] {
            assert!(why.contains(part), "{why}");
        }
        let why = chosen("armv7l", Ok(vec![]), none).unwrap_err();
        assert!(why.contains("its processor is armv7l") && why.contains("docs/board.md"), "{why}");
        // A file of that name that is for something else.
        let why = chosen("aarch64", Ok(vec![]), |_| Ok("/proc/self/exe".into())).unwrap_err();
        assert!(
            why.contains("/proc/self/exe: its processor is aarch64, and this program is built for x86_64"),
            "{why}"
        );
    }
}
