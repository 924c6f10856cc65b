// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel modules: finds them by name, unpacks them with their dependencies, and orders them for loading.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSection};

use kprism_image::BuildId;
use kprism_layout::KernelBuild;

use crate::error::{Context, Error, Result};
use crate::kernel::Kernel;
use crate::packed::unpacked;

/// Maximum size of a module, bytes. A file that claims to be larger is invalid.
const LARGEST: u64 = 256 << 20;

/// A module to put into the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Module {
    /// Path in the guest, without a leading slash.
    pub guest: String,
    /// The unpacked .ko.
    pub contents: Vec<u8>,
    /// True if it is loaded at boot.
    pub load: bool,
    /// Its file on the host, if a rebuild may change that: one of the user's.
    pub users: Option<PathBuf>,
    /// True if the others only recommend it (`softdep=pre:`). They are loaded even if the kernel refuses it.
    pub optional: bool,
}

/// A kernel's modules.
#[derive(Debug, Clone)]
pub(crate) enum ModuleFolder {
    /// `lib/modules/RELEASE`, as installed: modules are below `kernel`.
    Installed(PathBuf),
    /// The folder in which the kernel was built: each module is beside its source.
    Built(KernelBuild),
}

impl ModuleFolder {
    fn folder(&self) -> &Path {
        match self {
            Self::Installed(folder) => folder,
            Self::Built(build) => build.folder(),
        }
    }

    /// The folder with the modules of a folder of the source, such as `crypto`.
    fn below(&self, source: &str) -> PathBuf {
        match self {
            Self::Installed(folder) => folder.join("kernel").join(source),
            Self::Built(build) => build.folder().join(source),
        }
    }

    /// All modules, by plain name.
    fn index(&self) -> Result<BTreeMap<String, PathBuf>> {
        match self {
            Self::Installed(folder) => index(folder),
            Self::Built(build) => {
                let paths = build.modules().at("read", build.folder())?;
                Ok(paths.into_iter().map(|path| (plain(&stem(&path)), path)).collect())
            }
        }
    }

    /// Folder of a module below `lib/modules/RELEASE`. `None` for a file from elsewhere.
    fn installed_in(&self, module: &Path) -> Option<PathBuf> {
        let inside = module.strip_prefix(self.folder()).ok()?.with_file_name("");
        match self {
            Self::Installed(_) => Some(inside),
            Self::Built(_) => Some(Path::new("kernel").join(inside)),
        }
    }
}

/// A module in the guest that somebody built: it may be built again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleFile {
    /// Its name, as in `/proc/modules`.
    pub name: String,
    /// Its file on the host, absolute.
    pub file: PathBuf,
    /// GNU build ID, lower-case hex; empty if it has none.
    pub build_id: String,
}

impl ModuleFile {
    /// The module, unpacked.
    ///
    /// # Errors
    /// The file cannot be read or unpacked.
    pub fn contents(&self) -> Result<Vec<u8>> {
        unpack(&self.file)
    }
}

/// The name that the kernel gives to the module in a file: that of the file up to `.ko`, with `_` for `-`.
pub fn name_of(path: &Path) -> String {
    plain(&stem(path))
}

impl Module {
    /// Its name, as in `/proc/modules`.
    pub fn name(&self) -> String {
        plain(&stem(Path::new(&self.guest)))
    }

    /// The module as the user's file, if it is one.
    pub fn file(&self) -> Option<ModuleFile> {
        let path = self.users.as_ref()?;
        let file = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let build_id = BuildId::of_elf(&self.contents).map(|id| id.to_string()).unwrap_or_default();
        Some(ModuleFile { name: plain(&stem(path)), file, build_id })
    }
}

/// The modules in `load` and `present` and their dependencies, in an order in which they can be loaded.
pub(crate) fn collect(kernel: &Kernel, load: &[String], present: &[String]) -> Result<Vec<Module>> {
    if load.is_empty() && present.is_empty() {
        return Ok(Vec::new());
    }
    let mut index = match &kernel.modules {
        Some(folder) => folder.index()?,
        None => BTreeMap::new(),
    };
    // A user's module may depend on another of the user's.
    for path in load.iter().chain(present).filter(|name| is_path(name)).map(PathBuf::from) {
        index.insert(plain(&stem(&path)), path);
    }
    let mut collector = Collector {
        kernel,
        index,
        built_in: built_in(kernel.modules.as_ref())?,
        aliases: None,
        seen: BTreeSet::new(),
        modules: Vec::new(),
    };
    for name in load {
        collector.add(name, true, false)?;
    }
    for name in present {
        collector.add(name, false, false)?;
    }
    Ok(collector.modules)
}

/// The module `name` and its dependencies, in an order in which they can be loaded: none if it is built into the kernel,
/// or if the kernel comes without its modules. `None` if the kernel does not have it.
pub(crate) fn of(kernel: &Kernel, name: &str) -> Result<Option<Vec<Module>>> {
    if kernel.modules.is_none() || built_in(kernel.modules.as_ref())?.contains(&plain(name)) {
        return Ok(Some(Vec::new()));
    }
    match collect(kernel, &[name.to_owned()], &[]) {
        Err(Error::NoModule { name: missing, .. }) if missing == name => Ok(None),
        other => other.map(Some),
    }
}

struct Collector<'a> {
    kernel: &'a Kernel,
    index: BTreeMap<String, PathBuf>,
    /// Names and aliases of modules built into the kernel.
    built_in: BTreeSet<String>,
    /// Modules by their aliases; read at first use.
    aliases: Option<BTreeMap<String, PathBuf>>,
    seen: BTreeSet<String>,
    modules: Vec<Module>,
}

impl Collector<'_> {
    fn add(&mut self, name: &str, load: bool, optional: bool) -> Result<()> {
        let path = if is_path(name) {
            PathBuf::from(name)
        } else {
            let missing = || Error::NoModule { name: name.to_owned(), kernel: self.kernel.name() };
            self.index.get(&plain(name)).ok_or_else(missing)?.clone()
        };
        if !self.seen.insert(plain(&stem(&path))) {
            return Ok(());
        }
        let contents = unpack(&path)?;
        let needs = needs(&contents).map_err(|reason| Error::BadFile { path: path.clone(), reason })?;
        for need in needs.depends {
            if !self.seen.contains(&plain(&need)) {
                self.add(&need, load, optional)?;
            }
        }
        for wish in needs.before {
            // As in modprobe, a missing one is ignored.
            if let Some(found) = self.called(&wish)?
                && !self.seen.contains(&found)
            {
                self.add(&found, load, true)?;
            }
        }
        let release = match self.kernel.release.as_str() {
            "" => "unknown",
            release => release,
        };
        let inside = self.kernel.modules.as_ref().and_then(|folder| folder.installed_in(&path));
        let folder = inside.unwrap_or_else(|| "updates/".into());
        let guest = format!("usr/lib/modules/{release}/{}{}.ko", folder.display(), stem(&path));
        let is_built = matches!(self.kernel.modules, Some(ModuleFolder::Built(_)));
        let users = (is_built || is_path(name)).then(|| path.clone());
        self.modules.push(Module { guest, contents, users, load, optional });
        Ok(())
    }

    /// The module with this name or alias, unless it is built into the kernel.
    fn called(&mut self, name: &str) -> Result<Option<String>> {
        let name = plain(name);
        if self.built_in.contains(&name) {
            return Ok(None);
        }
        if self.index.contains_key(&name) {
            return Ok(Some(name));
        }
        let aliases = match self.aliases.take() {
            Some(aliases) => aliases,
            None => aliases(self.kernel.modules.as_ref(), &self.index)?,
        };
        let found = self.aliases.insert(aliases).get(&name);
        Ok(found.map(|path| plain(&stem(path))))
    }
}

/// Returns true if a module is given by its file.
pub fn is_path(name: &str) -> bool {
    name.contains('/') || name.ends_with(".ko")
}

/// All modules below `folder`, by plain name.
fn index(folder: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).at("read", &folder)? {
            let entry = entry.at("read", &folder)?;
            let path = entry.path();
            if entry.file_type().at("read", &path)?.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().contains(".ko") {
                found.insert(plain(&stem(&path)), path);
            }
        }
    }
    Ok(found)
}

/// Folders of modules that others request by function instead of by name, best first: modules in `crypto` run on every
/// processor, those in `arch` on some.
const ALIASED: [&str; 3] = ["crypto", "lib", "arch"];

/// Modules of [`ALIASED`] by their aliases.
fn aliases(
    folder: Option<&ModuleFolder>,
    index: &BTreeMap<String, PathBuf>,
) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let Some(folder) = folder else { return Ok(found) };
    for place in ALIASED.map(|place| folder.below(place)) {
        // Of two in one folder, the one that runs on every processor is preferred.
        let mut paths: Vec<&PathBuf> = index.values().filter(|path| path.starts_with(&place)).collect();
        paths.sort_by_key(|path| !stem(path).ends_with("generic"));
        for path in paths {
            let contents = unpack(path)?;
            let info = info(&contents).map_err(|reason| Error::BadFile { path: path.clone(), reason })?;
            for alias in values(info, "alias") {
                found.entry(plain(&alias)).or_insert_with(|| path.clone());
            }
        }
    }
    Ok(found)
}

/// Names and aliases of modules built into the kernel, as listed beside its modules. Empty for a kernel without any.
fn built_in(folder: Option<&ModuleFolder>) -> Result<BTreeSet<String>> {
    let Some(folder) = folder.map(ModuleFolder::folder) else { return Ok(BTreeSet::new()) };
    let read = |name: &str| match fs::read(folder.join(name)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.at("read", &folder.join(name)),
    };
    let list = read("modules.builtin")?;
    let names = String::from_utf8_lossy(&list).lines().map(|line| plain(&stem(Path::new(line)))).collect();
    let info = read("modules.builtin.modinfo")?;
    // `MODULE.alias=ALIAS`, each ended by a NUL.
    let lines = info.split(|&byte| byte == 0).map(String::from_utf8_lossy);
    let aliases: Vec<String> = lines.filter_map(|line| Some(plain(line.split_once(".alias=")?.1))).collect();
    let mut all: BTreeSet<String> = names;
    all.extend(aliases);
    Ok(all)
}

/// The file name up to `.ko`.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split(".ko").next().unwrap_or_default().to_owned()
}

/// The kernel treats `-` and `_` in names as equal.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

/// Reads a .ko, .ko.xz or .ko.zst.
fn unpack(path: &Path) -> Result<Vec<u8>> {
    let packed = fs::read(path).at("read", path)?;
    let bad = |reason: String| Error::BadFile { path: path.to_owned(), reason };
    let mut contents = Vec::new();
    let mut reader = unpacked(&packed, &packed[..]).map_err(&bad)?.take(LARGEST + 1);
    reader.read_to_end(&mut contents).map_err(|error| bad(format!("it cannot be unpacked: {error}")))?;
    drop(reader);
    if contents.len() as u64 > LARGEST {
        return Err(bad("too large for a module".into()));
    }
    Ok(contents)
}

/// The dependencies in a module's `.modinfo`.
#[derive(Debug, PartialEq, Eq)]
struct Needs {
    /// Modules whose symbols it uses (`depends=`).
    depends: Vec<String>,
    /// Modules or aliases that should be loaded first (`softdep=pre:`). The module requests them from the kernel by a
    /// name that is no symbol, such as that of a checksum.
    before: Vec<String>,
}

fn needs(contents: &[u8]) -> std::result::Result<Needs, String> {
    let info = info(contents)?;
    let depends = values(info, "depends").next().unwrap_or_default();
    let depends = depends.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let mut before = Vec::new();
    for value in values(info, "softdep") {
        let words = value.split_ascii_whitespace().scan(false, |is_before, word| {
            match word {
                "pre:" => *is_before = true,
                "post:" => *is_before = false,
                _ => return Some(is_before.then(|| word.to_owned())),
            }
            Some(None)
        });
        before.extend(words.flatten());
    }
    Ok(Needs { depends, before })
}

/// A module's `.modinfo`: words `KEY=VALUE`, each ended by a NUL.
fn info(contents: &[u8]) -> std::result::Result<&[u8], String> {
    let file = object::File::parse(contents).map_err(|error| format!("not a kernel module: {error}"))?;
    let section = file.section_by_name(".modinfo").ok_or("not a kernel module: it has no .modinfo")?;
    section.data().map_err(|error| format!("its .modinfo cannot be read: {error}"))
}

/// The values of a key of `.modinfo`.
fn values<'a>(info: &'a [u8], key: &str) -> impl Iterator<Item = String> + use<'a> {
    let begin = format!("{key}=").into_bytes();
    let words = info.split(|&byte| byte == 0);
    words.filter_map(move |word| Some(String::from_utf8_lossy(word.strip_prefix(&begin[..])?).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_as_the_kernel_does() {
        assert_eq!(plain(&stem(Path::new("/x/crc-ccitt.ko.xz"))), "crc_ccitt");
    }

    /// `xz --x86`: addresses of calls were made absolute before compression.
    #[test]
    fn xz_with_a_filter_for_x86() {
        const PACKED: [u8; 80] = [
            0xfd, 0x37, 0x7a, 0x58, 0x5a, 0, 0, 1, 0x69, 0x22, 0xde, 0x36, 2, 1, 4, 0, 0x21, 1, 0, 0, 0xda,
            0x33, 0xad, 3, 0xe0, 0, 0x23, 0, 0x15, 0x5d, 0, 0x48, 0x39, 0xfe, 0xc0, 0x0c, 0xb6, 0xc6, 0x3f,
            0xe3, 0x4b, 0x44, 0x33, 7, 0x96, 8, 0xff, 0x80, 0xe1, 0x0a, 0x63, 0, 0, 0, 0, 0, 0x28, 0x30,
            0xd4, 0x8e, 0, 1, 0x2d, 0x24, 0x15, 0x0b, 0xaf, 0x3c, 0x90, 0x42, 0x99, 0x0d, 1, 0, 0, 0, 0, 1,
            0x59, 0x5a,
        ];
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), PACKED).unwrap();
        assert_eq!(unpack(file.path()).unwrap(), [0x90, 0xe8, 0x10, 0, 0, 0].repeat(6));
    }

    #[test]
    fn garbage_is_no_module() {
        assert!(needs(b"garbage").unwrap_err().contains("not a kernel module"));
        let folder = std::env::temp_dir().join(format!("kprism-modules-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (name, bytes) in
            [("a.ko.xz", b"\xfd7zXZ\0garbage".as_slice()), ("b.ko.zst", b"\x28\xb5\x2f\xfdgarbage")]
        {
            fs::write(folder.join(name), bytes).unwrap();
            assert!(matches!(unpack(&folder.join(name)), Err(Error::BadFile { .. })));
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
