// SPDX-License-Identifier: GPL-2.0-or-later
//! Kernel functions whose entry the observer hooks, and the layout of the kernel data that they handle. The lab derives
//! addresses from kallsyms and offsets from BTF, and passes them as `key=value` lines. If a key is missing, the record
//! that needs it is not written.

use std::collections::HashMap;

use kprism_image::is_kernel;
use kprism_kmem::modules::SymbolPlaces;

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
    /// `do_init_module(module)`.
    ModuleBegins,
    /// `do_free_init(work)`: the memory of inits that have ended is freed.
    InitsFreed,
    /// `free_module(module)`.
    ModuleFreed,
    /// `module_arch_cleanup(module)`: a part of freeing a module. Where the compiler has renamed `free_module`, this tells.
    ModuleCleanup,
}

/// The hooked functions by name.
const HOOKS: [(&str, Hook); 7] = [
    ("__switch_to", Hook::SwitchTo),
    ("perf_event_mmap", Hook::Mmap),
    ("__set_task_comm", Hook::SetComm),
    ("do_init_module", Hook::ModuleBegins),
    ("do_free_init", Hook::InitsFreed),
    ("free_module", Hook::ModuleFreed),
    ("module_arch_cleanup", Hook::ModuleCleanup),
];

/// Places of a module's names: offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// `name` in `struct module`.
    pub name: u64,
    /// Its table of symbols.
    pub symbols: SymbolPlaces,
}

/// Addresses and offsets.
#[derive(Debug, Default)]
pub struct Hooks {
    values: HashMap<String, u64>,
    by_address: HashMap<u64, Hook>,
    /// Places of modules' names, if the kernel tells when they come and go.
    pub modules: Option<Layout>,
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
        let at = |name: &str| values.get(&format!("sym.{name}")).copied();
        let by_address = HOOKS.iter().filter_map(|&(name, hook)| Some((at(name)?, hook))).collect();
        // A name that comes has to go.
        let is_seen_to_go = at("free_module").or(at("module_arch_cleanup")).is_some();
        let mut hooks = Hooks { values, by_address, modules: None };
        hooks.modules = hooks.layout_of_modules().filter(|_| is_seen_to_go);
        Ok(hooks)
    }

    fn layout_of_modules(&self) -> Option<Layout> {
        Some(Layout {
            name: self.off("module.name")?,
            symbols: SymbolPlaces {
                kallsyms: self.off("module.kallsyms")?,
                symtab: self.off("mod_kallsyms.symtab")?,
                num_symtab: self.off("mod_kallsyms.num_symtab")?,
                strtab: self.off("mod_kallsyms.strtab")?,
                typetab: self.off("mod_kallsyms.typetab"),
            },
        })
    }

    /// The hook at `va`, if there is one.
    pub fn at(&self, va: u64) -> Option<Hook> {
        self.by_address.get(&va).copied()
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

    /// `perf_event_mmap` was entered by `task`, whose `task_struct` is at `task_at`, if that is known.
    pub fn mmap(&self, task: Task, task_at: Option<u64>, cr3: u64) -> Option<What> {
        let vma = guest::register(Reg::RDI);
        let file = self.field(vma, "vm_area_struct.vm_file")?;
        let path = if file == 0 {
            self.special_name(vma).unwrap_or_else(|| "[anon]".into())
        } else {
            let root = task_at.and_then(|task| self.root(task));
            let place = self.place(file.checked_add(self.off("file.f_path")?)?)?;
            climb(place, |at| self.above(at, root), |dentry| self.name(dentry))?
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

    /// The root folder of the task whose `task_struct` is at `task`: what its paths begin at.
    fn root(&self, task: u64) -> Option<Place> {
        let fs = self.field(task, "task_struct.fs").filter(|&fs| is_kernel(fs))?;
        self.place(fs.checked_add(self.off("fs_struct.root")?)?)
    }

    /// What the `struct path` at `va` names.
    fn place(&self, va: u64) -> Option<Place> {
        Some(Place { mount: self.field(va, "path.mnt")?, dentry: self.field(va, "path.dentry")? })
    }

    /// The way from a place to the root folder, as `prepend_path` goes it (fs/d_path.c).
    fn above(&self, at: Place, root: Option<Place>) -> Option<Above> {
        if Some(at) == root {
            return Some(Above::Root);
        }
        let parent = self.field(at.dentry, "dentry.d_parent")?;
        let is_mounted = parent == at.dentry || self.field(at.mount, "vfsmount.mnt_root") == Some(at.dentry);
        if !is_mounted {
            return Some(Above::Folder(Place { dentry: parent, ..at }));
        }
        if self.off("mount.mnt").is_none() {
            let in_root = root.is_some_and(|root| root.mount == at.mount);
            return Some(if in_root { Above::Root } else { Above::Unknown });
        }
        Some(match self.mounted_on(at.mount)? {
            Some(place) => Above::Mounted(place),
            // The top of the task's own tree, or of one that it cannot reach: a mount that was taken out of the tree, one that
            // a file system made for itself, another namespace.
            None if root.is_none_or(|root| self.top(root.mount) == Some(at.mount)) => Above::Root,
            None => Above::Unknown,
        })
    }

    /// The place at which the mount whose `struct vfsmount` is at `mount` is mounted; `Some(None)` if it is the top of its tree.
    fn mounted_on(&self, mount: u64) -> Option<Option<Place>> {
        // A `struct vfsmount` is a part of its `struct mount`. That of the whole tree is mounted on itself.
        let of_mount = self.off("mount.mnt")?;
        let whole = mount.wrapping_sub(of_mount);
        let parent = self.field(whole, "mount.mnt_parent")?;
        if parent == whole {
            return Some(None);
        }
        let dentry = self.field(whole, "mount.mnt_mountpoint")?;
        Some(Some(Place { mount: parent.wrapping_add(of_mount), dentry }))
    }

    /// The mount at the top of the tree in which this one is.
    fn top(&self, mut mount: u64) -> Option<u64> {
        for _ in 0..MAX_DEPTH {
            match self.mounted_on(mount)? {
                Some(place) => mount = place.mount,
                None => return Some(mount),
            }
        }
        None
    }

    fn name(&self, dentry: u64) -> Option<String> {
        let qstr = dentry.checked_add(self.off("dentry.d_name")?)?;
        guest::string(self.field(qstr, "qstr.name")?, 256)
    }
}

/// A file or folder, and the mount in which it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    mount: u64,
    dentry: u64,
}

/// What is above a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Above {
    Folder(Place),
    /// The place is the root of a file system that is mounted there.
    Mounted(Place),
    Root,
    /// The place is the root of a file system, and it is not known where that is mounted.
    Unknown,
}

/// The path of a place. One that is deeper than [`MAX_DEPTH`] begins with `/…`, and one in a file system that is mounted nowhere
/// known with `…`, so that they name no other file.
fn climb(
    mut at: Place,
    above: impl Fn(Place) -> Option<Above>,
    name: impl Fn(u64) -> Option<String>,
) -> Option<String> {
    let mut parts = Vec::new();
    let mut steps = 0;
    loop {
        if steps == MAX_DEPTH {
            parts.push("…".to_owned());
            break;
        }
        steps += 1;
        match above(at)? {
            Above::Folder(folder) => {
                parts.push(name(at.dentry)?);
                at = folder;
            }
            Above::Mounted(place) => at = place,
            end @ (Above::Root | Above::Unknown) => {
                // A file that is in no folder (memfd_create) has the name that /proc/PID/maps shows.
                let alone = if parts.is_empty() { name(at.dentry).filter(|name| name != "/") } else { None };
                if let Some(alone) = alone {
                    return Some(format!("/{alone} (deleted)"));
                }
                if end == Above::Unknown {
                    parts.push("…".to_owned());
                    parts.reverse();
                    return Some(parts.join("/"));
                }
                break;
            }
        }
    }
    parts.reverse();
    Some(format!("/{}", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(mount: u64, dentry: usize) -> Place {
        Place { mount, dentry: dentry as u64 }
    }

    #[test]
    fn a_path_that_is_too_deep_is_marked() {
        let above = |at: Place| {
            Some(match at.dentry {
                0 => Above::Root,
                dentry => Above::Folder(Place { dentry: dentry - 1, ..at }),
            })
        };
        let name = |at: u64| Some(if at == 0 { "/".to_owned() } else { at.to_string() });
        let path = |depth: usize| climb(place(1, depth), above, name).unwrap();
        assert_eq!(path(0), "/");
        assert_eq!(path(3), "/1/2/3");
        assert!(path(MAX_DEPTH - 1).starts_with("/1/2/3/"));
        let deep = path(MAX_DEPTH);
        assert!(deep.starts_with("/…/1/2/3/") && deep.ends_with("/2048"), "{deep}");
    }

    #[test]
    fn a_path_in_a_mount_that_is_not_known_is_marked() {
        let above = |at: Place| {
            Some(match at.dentry {
                0 => Above::Unknown,
                dentry => Above::Folder(Place { dentry: dentry - 1, ..at }),
            })
        };
        let name = |at: u64| Some(["/", "x", "lib.so"][at as usize].to_owned());
        assert_eq!(climb(place(1, 2), above, name).as_deref(), Some("…/x/lib.so"));
        assert_eq!(climb(place(1, 0), above, name).as_deref(), Some("…"));
        let alone = climb(place(1, 7), |_| Some(Above::Unknown), |_| Some("memfd:jit-code".to_owned()));
        assert_eq!(alone.as_deref(), Some("/memfd:jit-code (deleted)"));
    }

    #[test]
    fn a_file_without_a_folder_has_its_name() {
        let path = climb(place(1, 7), |_| Some(Above::Root), |_| Some("memfd:jit-code".to_owned()));
        assert_eq!(path.as_deref(), Some("/memfd:jit-code (deleted)"));
    }

    /// /tmp is a file system of its own, in which x/p2 lies; another file is /x/p2.
    #[test]
    fn a_path_goes_through_mounts() {
        let above = |at: Place| {
            Some(match (at.mount, at.dentry) {
                (2, 22) => Above::Folder(place(2, 21)),
                (2, 21) => Above::Folder(place(2, 20)),
                (2, 20) => Above::Mounted(place(1, 11)),
                (1, 11) => Above::Folder(place(1, 10)),
                _ => Above::Root,
            })
        };
        let name = |dentry| {
            let names = [(22, "p2"), (21, "x"), (20, "/"), (11, "tmp"), (10, "/")];
            names.iter().find(|(at, _)| *at == dentry).map(|(_, name)| (*name).to_owned())
        };
        assert_eq!(climb(place(2, 22), above, name).as_deref(), Some("/tmp/x/p2"));
        assert_eq!(climb(place(2, 20), above, name).as_deref(), Some("/tmp"));
    }

    #[test]
    fn parses() {
        let h = Hooks::parse("# comment\nsym.__switch_to=0xffffffff81002000\noff.task_struct.pid=2504\n")
            .unwrap();
        assert_eq!(h.at(0xffff_ffff_8100_2000), Some(Hook::SwitchTo));
        assert_eq!(h.at(1), None);
        assert_eq!(h.off("task_struct.pid"), Some(2504));
        assert_eq!(h.modules, None);
        assert!(Hooks::parse("sym.x").is_err());
        assert!(Hooks::parse("sym.x=zz").is_err());
    }

    #[test]
    fn modules_have_names_if_they_are_seen_to_go() {
        let layout = "off.module.name=24\noff.module.kallsyms=500\noff.mod_kallsyms.symtab=0\n\
            off.mod_kallsyms.num_symtab=8\noff.mod_kallsyms.strtab=16\nsym.do_init_module=0xffffffff81000000\n";
        let with = |more: &str| Hooks::parse(&format!("{layout}{more}")).unwrap();
        assert_eq!(with("").modules, None);
        for (name, hook) in [("free_module", Hook::ModuleFreed), ("module_arch_cleanup", Hook::ModuleCleanup)]
        {
            let hooks = with(&format!("sym.{name}=0xffffffff81000100\n"));
            assert_eq!(hooks.modules.map(|layout| (layout.name, layout.symbols.typetab)), Some((24, None)));
            assert_eq!(hooks.at(0xffff_ffff_8100_0100), Some(hook));
            assert_eq!(hooks.at(0xffff_ffff_8100_0000), Some(Hook::ModuleBegins));
        }
    }
}
