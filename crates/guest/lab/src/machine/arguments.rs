// SPDX-License-Identifier: MIT OR Apache-2.0
//! A QEMU command line, made fit for the observer.
//!
//! Input: the words of the command line. Output: [`Arguments`]: the words to run, a note for each change, and what the recording
//! has to know. What cannot be observed is refused, with the reason. Everything else is passed on as it is.

use std::path::Path;

use crate::error::{Error, Result};

/// A command line for the observer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arguments {
    /// The program.
    pub program: String,
    /// Its arguments.
    pub rest: Vec<String>,
    /// What was changed, in sentences.
    pub notes: Vec<String>,
    /// One instruction is one nanosecond of guest time (`-icount shift=0`).
    pub icount: bool,
    /// QEMU is to wait at the guest's shutdown, so that its kernel can be read once more. It is not if the user said what is to
    /// happen then.
    pub waits: bool,
}

/// The processor that stands for the host's: everything that QEMU can do, but five-level page tables, which few machines use.
const CPU: &str = "max,-la57";

/// Accelerators in which nothing can be observed.
const OTHERS: [&str; 6] = ["kvm", "xen", "hvf", "nvmm", "whpx", "mshv"];

/// QEMU's options with a value that are passed on as they are. The word behind one of these is never taken for an option; an
/// option that is in neither list, of a version to come, is taken for one without a value.
const WITH_VALUE: &[&str] = &[
    "D",
    "L",
    "acpitable",
    "add-fd",
    "append",
    "audio",
    "audiodev",
    "bios",
    "blockdev",
    "boot",
    "cdrom",
    "chardev",
    "compat",
    "d",
    "debugcon",
    "dfilter",
    "display",
    "drive",
    "dtb",
    "dump-vmstate",
    "echr",
    "fda",
    "fdb",
    "fsdev",
    "fw_cfg",
    "g",
    "gdb",
    "global",
    "hda",
    "hdb",
    "hdc",
    "hdd",
    "incoming",
    "initrd",
    "iscsi",
    "k",
    "kernel",
    "loadvm",
    "m",
    "mem-path",
    "mon",
    "monitor",
    "msg",
    "mtdblock",
    "name",
    "net",
    "netdev",
    "nic",
    "numa",
    "option-rom",
    "overcommit",
    "parallel",
    "pflash",
    "pidfile",
    "plugin",
    "prom-env",
    "qmp",
    "qmp-pretty",
    "rotate",
    "rtc",
    "run-with",
    "runas",
    "sandbox",
    "sd",
    "seed",
    "semihosting-config",
    "serial",
    "set",
    "shim",
    "smbios",
    "smp",
    "soundhw",
    "spice",
    "tb-size",
    "tpmdev",
    "trace",
    "uuid",
    "vga",
    "virtfs",
    "vnc",
    "watchdog",
    "watchdog-action",
    "xen-domid",
    "chroot",
    "usbdevice",
];

/// Parts of a value that only KVM reads, with what is missing without it.
const ONLY_KVM: [(&str, &str); 6] = [
    ("kernel-irqchip=", "interrupt controllers are QEMU's own"),
    ("kernel_irqchip=", "interrupt controllers are QEMU's own"),
    ("kvm-shadow-mem=", "there are no shadow page tables"),
    ("kvm_shadow_mem=", "there are no shadow page tables"),
    ("hv_", "the guest sees no interfaces of Hyper-V"),
    ("hv-", "the guest sees no interfaces of Hyper-V"),
];

/// Devices and objects that need the host's processor, with the reason.
const REFUSED: [(&str, &str); 10] = [
    ("vfio-", "a device of the host needs KVM"),
    ("sev-", "memory encrypted by the processor needs KVM, and cannot be read"),
    ("tdx-", "memory encrypted by the processor needs KVM, and cannot be read"),
    ("kvm-", "it is a part of KVM"),
    ("kvmclock", "it is a part of KVM"),
    ("iommufd", "a device of the host needs KVM"),
    ("memory-backend-epc", "enclaves (SGX) need KVM, and cannot be read"),
    ("nitro-enclave", "memory that the processor protects needs KVM, and cannot be read"),
    ("xen-", "it is a part of Xen, whose guests are not translated"),
    ("igb_uio", "a device of the host needs KVM"),
];

impl Arguments {
    /// Makes the command line `words` fit for the observer.
    ///
    /// # Errors
    /// It is not a QEMU that can be observed, or uses what only a processor can do.
    pub fn fit(words: &[String]) -> Result<Self> {
        let refused = |text: String| Err(Error::Option(text));
        let Some((program, words)) = words.split_first() else {
            return refused("no command: kprism observe -- qemu-system-x86_64 …".into());
        };
        let name = Path::new(program).file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        if let Some(machine) = name.strip_prefix("qemu-system-").filter(|machine| *machine != "x86_64") {
            return refused(format!("{program}: the observer knows x86_64 machines, not {machine}"));
        }
        let mut fit = Self { program: program.clone(), waits: true, ..Self::default() };
        let (mut has_accelerator, mut single) = (false, false);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-')).unwrap_or_default();
            let mut value = || {
                words
                    .next()
                    .cloned()
                    .ok_or_else(|| Error::Option(format!("{word}: expected a value after it")))
            };
            match name {
                "enable-kvm" => fit.no_kvm(word),
                "readconfig" => {
                    return refused(format!(
                        "{word}: options of a file are not seen; give them on the command line"
                    ));
                }
                "daemonize" => return refused(format!("{word}: QEMU must stay a child of kprism")),
                "accel" => {
                    let value = value()?;
                    let (accelerator, _) = value.split_once(',').unwrap_or((&value, ""));
                    match accelerator {
                        "tcg" => {
                            has_accelerator = true;
                            single |= value.split(',').any(|part| part == "thread=single");
                            fit.rest.extend([word.clone(), value]);
                        }
                        other if OTHERS.contains(&other) => fit.no_kvm(&format!("{word} {value}")),
                        _ => return refused(format!("{word} {value}: the observer needs QEMU's tcg")),
                    }
                }
                "machine" | "M" => {
                    let value = value()?;
                    let has = |name: &str| value.split(',').any(|part| part.starts_with(name));
                    if has("confidential-guest-support=") || has("memory-encryption=") {
                        return refused(format!(
                            "{word} {value}: memory encrypted by the processor needs KVM, and cannot be read"
                        ));
                    }
                    if has("sgx-epc.") || has("nitro-enclave") || value == "type=nitro-enclave" {
                        return refused(format!(
                            "{word} {value}: memory that the processor protects needs KVM, and cannot be read"
                        ));
                    }
                    if ["xenfv", "xenpv", "xenpvh", "type=xenfv", "type=xenpv"]
                        .iter()
                        .any(|name| value.split(',').any(|part| part == *name))
                    {
                        return refused(format!("{word} {value}: a guest of Xen is not translated"));
                    }
                    fit.note_only_kvm(word, &value);
                    // `-accel` and `accel=` exclude each other.
                    let kept: Vec<&str> =
                        value.split(',').filter(|part| !part.starts_with("accel=")).collect();
                    let kept = kept.join(",");
                    if kept != value && !value.split(',').any(|part| part == "accel=tcg") {
                        fit.no_kvm(&format!("{word} {value}"));
                    }
                    if !kept.is_empty() {
                        fit.rest.extend([word.clone(), kept]);
                    }
                }
                "cpu" => {
                    let value = value()?;
                    fit.note_only_kvm(word, &value);
                    let (model, features) = match value.split_once(',') {
                        Some((model, features)) => (model, format!(",{features}")),
                        None => (value.as_str(), String::new()),
                    };
                    let value = match model {
                        "host" => {
                            fit.notes.push(format!(
                                "{word} {value}: the processor is QEMU's `{CPU}`, not the host's, which needs KVM"
                            ));
                            format!("{CPU}{features}")
                        }
                        _ => value,
                    };
                    fit.rest.extend([word.clone(), value]);
                }
                "icount" => {
                    let value = value()?;
                    let mut parts = value.split(',');
                    if !matches!(parts.next(), Some("shift=0" | "0"))
                        || parts.any(|part| part.starts_with("rr="))
                    {
                        return refused(format!(
                            "{word} {value}: the observer counts one instruction as one nanosecond: -icount shift=0, \
                             without rr="
                        ));
                    }
                    fit.icount = true;
                    fit.rest.extend([word.clone(), value]);
                }
                "no-shutdown" => {
                    fit.waits = false;
                    fit.rest.push(word.clone());
                }
                "action" => {
                    let value = value()?;
                    // How the guest ended is QEMU's exit code then.
                    let says = |name: &str| value.split(',').any(|part| part.starts_with(name));
                    fit.waits &= !says("shutdown=") && !says("panic=");
                    fit.rest.extend([word.clone(), value]);
                }
                "device" | "object" => {
                    let value = value()?;
                    let kind = kind_of(&value);
                    if let Some((_, why)) = REFUSED.iter().find(|(start, _)| kind.starts_with(start)) {
                        return refused(format!("{word} {value}: {why}"));
                    }
                    fit.rest.extend([word.clone(), value]);
                }
                name if word.starts_with('-') && WITH_VALUE.contains(&name) => {
                    let value = value()?;
                    fit.rest.extend([word.clone(), value]);
                }
                _ => fit.rest.push(word.clone()),
            }
        }
        if single && !fit.icount {
            return refused(
                "-accel tcg,thread=single: CPUs that take turns are told apart only with -icount shift=0"
                    .into(),
            );
        }
        if !has_accelerator {
            fit.rest.extend(["-accel".into(), "tcg".into()]);
        }
        Ok(fit)
    }

    /// QEMU is silent about these.
    fn note_only_kvm(&mut self, word: &str, value: &str) {
        for part in value.split(',') {
            if let Some((_, missing)) = ONLY_KVM.iter().find(|(start, _)| part.starts_with(start)) {
                self.notes.push(format!("{word} …{part}: without effect, as it is KVM's: {missing}"));
            }
        }
    }

    fn no_kvm(&mut self, words: &str) {
        self.notes.push(format!(
            "{words}: the guest is translated (tcg), as the observer needs, and is slower than with the host's processor"
        ));
    }
}

/// Name of a device or object: `NAME,…`, `driver=NAME`, `qom-type=NAME`, or the same in JSON.
fn kind_of(value: &str) -> String {
    if let Ok(serde_json::Value::Object(parts)) = serde_json::from_str(value) {
        let name = ["driver", "qom-type"].iter().find_map(|key| parts.get(*key)?.as_str());
        return name.unwrap_or_default().to_owned();
    }
    let parts = || value.split(',');
    let named = parts().find_map(|part| part.strip_prefix("driver=").or(part.strip_prefix("qom-type=")));
    named.or(parts().next()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(line: &str) -> Result<Arguments> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Arguments::fit(&words)
    }

    #[test]
    fn kvm_becomes_tcg() {
        for (line, rest, notes) in [
            ("qemu-system-x86_64 -m 2G", "-m 2G -accel tcg", 0),
            ("qemu-system-x86_64 -enable-kvm -m 2G", "-m 2G -accel tcg", 1),
            ("/usr/bin/kvm --accel kvm -cpu host,+x", "-cpu max,-la57,+x -accel tcg", 2),
            ("qemu-system-x86_64 -M q35,accel=kvm:tcg,smm=off", "-M q35,smm=off -accel tcg", 1),
            ("qemu-system-x86_64 -machine accel=kvm", "-accel tcg", 1),
            (
                "qemu-system-x86_64 -accel tcg,thread=multi -cpu qemu64",
                "-accel tcg,thread=multi -cpu qemu64",
                0,
            ),
        ] {
            let found = fit(line).unwrap();
            assert_eq!((found.rest.join(" ").as_str(), found.notes.len()), (rest, notes), "{line}");
        }
    }

    #[test]
    fn a_value_is_not_taken_for_an_option() {
        for (line, rest) in [
            ("qemu-system-x86_64 -name -daemonize", "-name -daemonize -accel tcg"),
            ("qemu-system-x86_64 -append -enable-kvm -S", "-append -enable-kvm -S -accel tcg"),
            (
                "qemu-system-x86_64 -chardev file,id=a,path=accel=kvm -action panic=none",
                "-chardev file,id=a,path=accel=kvm -action panic=none -accel tcg",
            ),
            // A disk's file.
            ("qemu-system-x86_64 disk.img", "disk.img -accel tcg"),
        ] {
            let found = fit(line).unwrap();
            assert_eq!((found.rest.join(" ").as_str(), found.notes.len()), (rest, 0), "{line}");
        }
        assert!(
            fit("qemu-system-x86_64 -M q35,x-action=no-shutdown= -action reboot=shutdown").unwrap().waits
        );
    }

    #[test]
    fn options_that_only_kvm_reads_are_named() {
        let found =
            fit("qemu-system-x86_64 -M q35,kernel-irqchip=split -cpu qemu64,hv_relaxed,+x2apic").unwrap();
        assert_eq!(found.notes.len(), 2, "{:?}", found.notes);
        assert!(found.notes[0].contains("kernel-irqchip=split: without effect"), "{:?}", found.notes);
        assert!(found.notes[1].contains("Hyper-V"), "{:?}", found.notes);
    }

    #[test]
    fn what_cannot_be_observed_is_refused() {
        for (line, word) in [
            ("qemu-system-aarch64 -M virt", "not aarch64"),
            ("qemu-system-x86_64 -device vfio-pci,host=01:00.0", "a device of the host"),
            ("qemu-system-x86_64 -device driver=vfio-pci,host=01:00.0", "a device of the host"),
            (r#"qemu-system-x86_64 -device {"driver":"vfio-pci","host":"01:00.0"}"#, "a device of the host"),
            ("qemu-system-x86_64 -device kvmclock", "a part of KVM"),
            ("qemu-system-x86_64 -object memory-backend-epc,id=e,size=64M", "SGX"),
            ("qemu-system-x86_64 -M xenfv", "Xen"),
            ("qemu-system-x86_64 -object sev-guest,id=sev0", "encrypted"),
            ("qemu-system-x86_64 -object qom-type=tdx-guest,id=tdx0", "encrypted"),
            ("qemu-system-x86_64 -M q35,confidential-guest-support=sev0", "encrypted"),
            ("qemu-system-x86_64 -icount auto", "shift=0"),
            ("qemu-system-x86_64 -icount shift=0,rr=record,rrfile=x", "without rr="),
            ("qemu-system-x86_64 -daemonize", "child"),
            ("qemu-system-x86_64 -accel tcg,thread=single -smp 2", "take turns"),
            ("qemu-system-x86_64 -readconfig file", "not seen"),
            ("qemu-system-x86_64 -accel qtest", "tcg"),
            ("qemu-system-x86_64 -cpu", "a value"),
        ] {
            let error = fit(line).unwrap_err().to_string();
            assert!(error.contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn what_the_recording_needs_to_know() {
        assert!(fit("qemu-system-x86_64 -icount shift=0,sleep=off").unwrap().icount);
        assert!(fit("qemu-system-x86_64").unwrap().waits);
        assert!(!fit("qemu-system-x86_64 -no-shutdown").unwrap().waits);
        assert!(!fit("qemu-system-x86_64 -action reboot=reset,shutdown=poweroff").unwrap().waits);
    }
}
