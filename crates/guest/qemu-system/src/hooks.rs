// SPDX-License-Identifier: GPL-2.0-or-later
//! Kernel functions whose entry the observer hooks, and the layout of the kernel data that they handle. The lab derives
//! addresses from kallsyms and offsets from BTF, and passes them as `key=value` lines. If a key is missing, the record
//! that needs it is not written.

use std::collections::HashMap;

use kprism_image::is_kernel;

use crate::guest::{self, Reg};
use crate::side::{Task, What};

const VM_EXEC: u64 = 4;
/// Most folders of a path: those of the longest one that a program can name (PATH_MAX, 4096).
const MAX_DEPTH: usize = 2048;

/// The hooked functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// `__switch_to(prev, next)`.
    SwitchTo,
    /// `perf_event_mmap(vma)`: the kernel calls it for every new mapping, whether or not perf is active.
    Mmap,
    /// `__set_task_comm(task, name, exec)`.
    SetComm,
}

/// Addresses and offsets.
#[derive(Debug, Default)]
pub struct Hooks {
    values: HashMap<String, u64>,
}

impl Hooks {
    /// Parses `key=value` lines, values decimal or 0x-hexadecimal.
    ///
    /// # Errors
    /// The offending line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut values = HashMap::new();
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let parsed = line.split_once('=').and_then(|(key, value)| {
                let value = match value.strip_prefix("0x") {
                    Some(hex) => u64::from_str_radix(hex, 16),
                    None => value.parse(),
                };
                Some((key.to_string(), value.ok()?))
            });
            let (key, value) = parsed.ok_or_else(|| format!("hooks: '{line}': expected key=value"))?;
            values.insert(key, value);
        }
        Ok(Hooks { values })
    }

    /// The hook at `va`, if there is one.
    pub fn at(&self, va: u64) -> Option<Hook> {
        let is = |key| self.values.get(key) == Some(&va);
        if is("sym.__switch_to") {
            Some(Hook::SwitchTo)
        } else if is("sym.perf_event_mmap") {
            Some(Hook::Mmap)
        } else if is("sym.__set_task_comm") {
            Some(Hook::SetComm)
        } else {
            None
        }
    }

    fn off(&self, key: &str) -> Option<u64> {
        self.values.get(&format!("off.{key}")).copied()
    }

    fn field(&self, base: u64, key: &str) -> Option<u64> {
        guest::word(base.checked_add(self.off(key)?)?)
    }

    /// The task whose `task_struct` is at `va`.
    pub fn task(&self, va: u64) -> Option<Task> {
        Some(Task {
            pid: guest::dword(va.checked_add(self.off("task_struct.pid")?)?)?,
            tgid: guest::dword(va.checked_add(self.off("task_struct.tgid")?)?)?,
            comm: guest::string(va.checked_add(self.off("task_struct.comm")?)?, 16)?,
        })
    }

    /// The task that runs on a CPU, if the kernel's half of the address space is mapped: `current`, which is
    /// `pcpu_hot.current_task` in 6.2 to 6.14. Kernels number CPUs as QEMU does.
    pub fn current(&self, cpu: u32) -> Option<Task> {
        let symbol = |name: &str| self.values.get(&format!("sym.{name}")).copied();
        let variable = symbol("current_task")
            .or_else(|| symbol("pcpu_hot")?.checked_add(self.off("pcpu_hot.current_task")?))?;
        let offset = guest::word(symbol("__per_cpu_offset")?.checked_add(8 * u64::from(cpu))?)?;
        self.task(guest::word(variable.wrapping_add(offset))?)
    }

    /// `__switch_to` was entered at `ip`.
    pub fn switch(&self, ip: u64) -> Option<What> {
        let prev = self.task(guest::register(Reg::RDI))?;
        let next = self.task(guest::register(Reg::RSI))?;
        Some(What::Switch { ip, prev, next })
    }

    /// `__set_task_comm` was entered.
    pub fn comm(&self) -> Option<What> {
        let mut task = self.task(guest::register(Reg::RDI))?;
        task.comm = guest::string(guest::register(Reg::RSI), 16)?;
        task.comm.truncate(15);
        Some(What::Comm(task))
    }

    /// `perf_event_mmap` was entered by `task`.
    pub fn mmap(&self, task: Task, cr3: u64) -> Option<What> {
        let vma = guest::register(Reg::RDI);
        let file = self.field(vma, "vm_area_struct.vm_file")?;
        let path = if file == 0 {
            self.special_name(vma).unwrap_or_else(|| "[anon]".into())
        } else {
            self.path(self.field(file.checked_add(self.off("file.f_path")?)?, "path.dentry")?)?
        };
        Some(What::Mmap {
            task,
            asid: cr3 & !0xfff,
            start: self.field(vma, "vm_area_struct.vm_start")?,
            end: self.field(vma, "vm_area_struct.vm_end")?,
            pgoff: self.field(vma, "vm_area_struct.vm_pgoff")?.wrapping_mul(4096),
            exec: self.field(vma, "vm_area_struct.vm_flags")? & VM_EXEC != 0,
            path,
        })
    }

    /// Name of a special mapping (`[vdso]`): its `vm_special_mapping` begins with a name in brackets.
    fn special_name(&self, vma: u64) -> Option<String> {
        let special = self.field(vma, "vm_area_struct.vm_private_data").filter(|&p| is_kernel(p))?;
        let name = guest::string(guest::word(special)?, 32)?;
        (name.starts_with('[') && name.ends_with(']')).then_some(name)
    }

    /// Path of a dentry up to its file system's root.
    fn path(&self, dentry: u64) -> Option<String> {
        climb(
            dentry,
            |dentry| self.field(dentry, "dentry.d_parent"),
            |dentry| {
                let qstr = dentry.checked_add(self.off("dentry.d_name")?)?;
                guest::string(self.field(qstr, "qstr.name")?, 256)
            },
        )
    }
}

/// The path of a dentry that is its own parent at the root. One that is deeper than [`MAX_DEPTH`] begins with `…`, so that it
/// names no other file.
fn climb(
    mut dentry: u64,
    parent: impl Fn(u64) -> Option<u64>,
    name: impl Fn(u64) -> Option<String>,
) -> Option<String> {
    let mut parts = Vec::new();
    loop {
        let above = parent(dentry)?;
        if above == dentry {
            // A file that is in no folder (memfd_create) has the name that /proc/PID/maps shows.
            let alone = if parts.is_empty() { name(dentry).filter(|name| name != "/") } else { None };
            if let Some(alone) = alone {
                return Some(format!("/{alone} (deleted)"));
            }
            break;
        }
        if parts.len() == MAX_DEPTH {
            parts.push("…".to_owned());
            break;
        }
        parts.push(name(dentry)?);
        dentry = above;
    }
    parts.reverse();
    Some(format!("/{}", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_too_deep_is_marked() {
        let name = |at: u64| Some(if at == 0 { "/".to_owned() } else { at.to_string() });
        let path = |depth: usize| climb(depth as u64, |at| Some(at.saturating_sub(1)), name).unwrap();
        assert_eq!(path(0), "/");
        assert_eq!(path(3), "/1/2/3");
        assert!(path(MAX_DEPTH).starts_with("/1/2/3/"));
        let deep = path(MAX_DEPTH + 1);
        assert!(deep.starts_with("/…/2/3/") && deep.ends_with("/2049"), "{deep}");
    }

    #[test]
    fn a_file_without_a_folder_has_its_name() {
        let path = climb(7, Some, |_| Some("memfd:jit-code".to_owned()));
        assert_eq!(path.as_deref(), Some("/memfd:jit-code (deleted)"));
    }

    #[test]
    fn parses() {
        let h = Hooks::parse("# comment\nsym.__switch_to=0xffffffff81002000\noff.task_struct.pid=2504\n")
            .unwrap();
        assert_eq!(h.at(0xffff_ffff_8100_2000), Some(Hook::SwitchTo));
        assert_eq!(h.at(1), None);
        assert_eq!(h.off("task_struct.pid"), Some(2504));
        assert!(Hooks::parse("sym.x").is_err());
        assert!(Hooks::parse("sym.x=zz").is_err());
    }
}
