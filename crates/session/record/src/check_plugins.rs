// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each plugin in its QEMU, really loaded: a QEMU may be there, and new enough, and yet refuse it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The result of loading a plugin.
pub(crate) struct Tried {
    /// The plugin was loaded and did its first work.
    pub ok: bool,
    /// The files, or QEMU's error.
    pub found: String,
    /// The remedy.
    pub remedy: String,
}

/// The observer, in an empty machine.
pub(crate) fn observer() -> Tried {
    let remedy = "take plugin and program of one build, and QEMU 9.2 to 11.0; $KPRISM_QEMU names another";
    let plugin = match kprism_lab::find_observer() {
        Ok(plugin) => plugin,
        Err(e) => return refused("not found", &e.to_string()),
    };
    let qemu = match kprism_lab::Qemu::find() {
        Ok(qemu) => qemu,
        Err(_) => return refused("not tried: no QEMU fits", "see QEMU above"),
    };
    tried(&plugin, remedy, |folder| {
        let mut qemu = Command::new(&qemu.program);
        qemu.args([
            "-accel",
            "tcg",
            "-machine",
            "none",
            "-nodefaults",
            "-display",
            "none",
            "-serial",
            "none",
        ]);
        // Its monitor ends it with its input.
        qemu.args(["-monitor", "none", "-S", "-qmp", "stdio"]);
        qemu.arg("-plugin").arg(argument(&plugin, &format!(",out={folder},start=mark,icount=off")));
        (qemu, "{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"quit\"}\n", "counts.json")
    })
}

/// The plugin for one program, which is `true`.
pub(crate) fn user() -> Tried {
    let remedy = "kprism record tlb --method user: scripts/qemu-user.sh gets a QEMU that takes plugins";
    let plugin = match kprism_lab::find_user_plugin() {
        Ok(plugin) => plugin,
        Err(e) => return refused("not found", &e.to_string()),
    };
    let program = match kprism_lab::find_qemu_user() {
        Ok(program) => program,
        Err(e) => return refused("no QEMU for it", &e.to_string()),
    };
    tried(&plugin, remedy, |folder| {
        let mut qemu = Command::new(&program);
        qemu.arg("-plugin")
            .arg(argument(&plugin, &format!(",out={folder},tlb=ivybridge-ep")))
            .arg("/bin/true");
        (qemu, "", "tlb/counts.json")
    })
}

fn refused(found: &str, remedy: &str) -> Tried {
    Tried { ok: false, found: found.into(), remedy: remedy.into() }
}

fn argument(plugin: &Path, options: &str) -> std::ffi::OsString {
    let mut argument = plugin.as_os_str().to_owned();
    argument.push(options);
    argument
}

/// Runs the QEMU that `make` gives, with its input; the plugin must have written a file.
fn tried<'a>(plugin: &Path, remedy: &str, make: impl FnOnce(&str) -> (Command, &'a str, &'a str)) -> Tried {
    let folder = match tempfile::Builder::new().prefix("kprism-check-").tempdir() {
        Ok(folder) => folder,
        Err(e) => return refused(&format!("not tried: {e}"), "set TMPDIR to a folder that can be written"),
    };
    let place = folder.path().display().to_string();
    if let Some(path) = [plugin.display().to_string(), place.clone()].iter().find(|path| path.contains(',')) {
        return refused(path, "no `,` may be in this path, as QEMU's options are separated by it");
    }
    let (mut qemu, input, left) = make(&place);
    let name = qemu.get_program().to_string_lossy().into_owned();
    let output = fed(&mut qemu, input);
    let loaded = folder.path().join(left).is_file();
    match output {
        Ok(output) if output.status.success() && loaded => {
            Tried { ok: true, found: format!("{} loads in {name}", plugin.display()), remedy: String::new() }
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            refused(&format!("{name} refuses {}: {said}", plugin.display()), remedy)
        }
        Err(e) => refused(&format!("{name}: {e}"), remedy),
    }
}

fn fed(command: &mut Command, input: &str) -> std::io::Result<Output> {
    use std::io::Write as _;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // One that ended at once does not read it, which is told by its exit code.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
    child.wait_with_output()
}
