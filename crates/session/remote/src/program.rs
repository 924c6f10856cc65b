// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a program can run on a machine that has none of its libraries: it must be static, and for the machine's processor.

use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{Endianness, elf};

/// Checks the bytes of a program for a machine whose `uname -sm` says `system` and `machine`.
///
/// # Errors
/// The machine is of another kind, or the program needs shared libraries there; with the remedy.
pub fn check(program: &[u8], system: &str, machine: &str) -> Result<(), String> {
    if system != "Linux" {
        return Err(format!("it runs {system}, and kprism records Linux kernels"));
    }
    let broken =
        |error: object::Error| format!("this program of kprism cannot be read as an ELF file: {error}");
    let header = elf::FileHeader64::<Endianness>::parse(program).map_err(broken)?;
    let endian = header.endian().map_err(broken)?;
    let built_for = match header.e_machine(endian) {
        elf::EM_X86_64 => "x86_64",
        elf::EM_AARCH64 => "aarch64",
        elf::EM_RISCV => "riscv64",
        _ => "another processor",
    };
    if machine != built_for {
        return Err(format!(
            "its processor is {machine}, and this kprism is built for {built_for}; kprism records x86_64 only"
        ));
    }
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
    use super::check;

    #[test]
    fn programs_that_the_target_could_not_run() {
        let cc = |arguments: &[&str]| {
            let folder = tempfile::tempdir().unwrap();
            let (source, program) = (folder.path().join("a.c"), folder.path().join("a"));
            std::fs::write(&source, "int main(void) { return 0; }").unwrap();
            let mut cc = std::process::Command::new("cc");
            let status = cc.args(arguments).arg(&source).arg("-o").arg(&program).status().unwrap();
            assert!(status.success());
            std::fs::read(program).unwrap()
        };
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
}
