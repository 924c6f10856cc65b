// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--root` and `--disk` with files that are damaged, foreign, in use or made to do harm: each gives an early error with a
//! remedy, and nothing of the user's is changed.

mod guest;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use guest::{alone, kprism, ok, text};
use kprism_test::{APT, QEMU, cache, needs, skip, test, turn};

/// A folder with the user's files.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A folder with a shell: a root file system.
    fn root(&self, name: &str) -> PathBuf {
        ok(&["lab", "prepare", "-q"]);
        let mut roots = fs::read_dir(cache().join("rootfs")).unwrap().map(|entry| entry.unwrap().path());
        let busybox =
            roots.find_map(|root| Some(root.join("root/usr/bin/busybox")).filter(|file| file.is_file()));
        let root = self.path(name);
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::copy(busybox.unwrap(), root.join("bin/busybox")).unwrap();
        symlink("busybox", root.join("bin/sh")).unwrap();
        root
    }

    /// Runs a command without recording it: exit code, standard output and error.
    fn run(&self, options: &[&str], script: &str) -> (Option<i32>, String, String) {
        let run = self.path("run");
        let line = [&["lab", "run", "--unobserved", "-o", text(&run)], options, &["--", "sh", "-c", script]];
        let output = kprism(&line.concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    /// The error of options that are refused before a guest is booted.
    fn refused(&self, options: &[&str]) -> String {
        let (code, _, said) = self.run(options, "true");
        assert_eq!(code, Some(125), "{said}");
        assert!(!said.contains("booting the guest"), "refused too late: {said}");
        said
    }
}

/// An ELF file's header, for a processor.
fn elf(machine: u8) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(64, 0);
    (bytes[16], bytes[18]) = (2, machine);
    bytes
}

fn qemu_img(arguments: &[&str]) {
    assert!(Command::new("qemu-img").args(arguments).status().unwrap().success());
}

/// A QEMU that has a disk, and does nothing. It answers once it has opened the disk.
fn holding(drive: &str) -> Child {
    let mut command = Command::new("qemu-system-x86_64");
    command.args([
        "-accel",
        "tcg",
        "-display",
        "none",
        "-nodefaults",
        "-S",
        "-qmp",
        "stdio",
        "-drive",
        drive,
    ]);
    let mut qemu = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    qemu.stdin.as_mut().unwrap().write_all(b"{\"execute\": \"qmp_capabilities\"}\n").unwrap();
    let answers = BufReader::new(qemu.stdout.as_mut().unwrap());
    assert!(answers.lines().any(|line| line.unwrap().contains("return")), "QEMU ended");
    qemu
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn foreign_images_are_refused_before_a_boot() {
    needs(&[QEMU, APT]);
    let place = Place::new();
    let path = place.path("image");
    for (at, magic, words) in [
        (3, &b"NTFS    "[..], "NTFS"),
        (3, b"-FVE-FS-", "BitLocker"),
        (0, b"LUKS\xba\xbe", "encrypted (LUKS)"),
        (0x218, b"LVM2 001", "a volume of LVM"),
        (0x20000, b"\x0c\xb1\xba\0\0\0\0\0", "ZFS"),
        (0x8001, b"CD001", "a CD (ISO 9660)"),
        (0xff6, b"SWAPSPACE2", "swap space"),
        (0, b"", "nothing but zeros"),
    ] {
        let file = fs::File::create(&path).unwrap();
        file.set_len(4 << 20).unwrap();
        file.write_all_at(magic, at).unwrap();
        let said = place.refused(&["--root", text(&path)]);
        assert!(
            said.contains("no root file system on the disk:\n  disk0: ") && said.contains(words),
            "{said}"
        );
    }
    fs::write(&path, "").unwrap();
    assert!(place.refused(&["--root", text(&path)]).contains("an empty disk image"));

    let folder = place.path("folder");
    fs::create_dir_all(folder.join("usr/bin")).unwrap();
    fs::write(folder.join("usr/file"), "no program").unwrap();
    assert!(place.refused(&["--root", text(&folder)]).contains("no program in it"));
    fs::write(folder.join("usr/bin/env"), elf(183)).unwrap();
    assert!(place.refused(&["--root", text(&folder)]).contains("its programs are for arm64"));
    let tar = place.path("arm.tar");
    assert!(
        Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(&folder).arg(".").status().unwrap().success()
    );
    assert!(place.refused(&["--root", text(&tar)]).contains("its programs are for arm64"));
    let kernel = place.path("Image");
    let mut image = vec![0; 1024];
    image[56..60].copy_from_slice(b"ARM\x64");
    fs::write(&kernel, image).unwrap();
    assert!(place.refused(&["--kernel", text(&kernel)]).contains("a kernel for arm64"));
}

/// An image can name any file as the one that it is a change of.
#[test]
fn an_image_does_not_make_us_read_other_files() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let place = Place::new();
    let (near, far) = (place.path("near"), place.path("far"));
    for folder in [&near, &far] {
        fs::create_dir(folder).unwrap();
    }
    let mut contents = vec![0; 4 << 20];
    contents[..6].copy_from_slice(b"secret");
    fs::write(far.join("base"), &contents).unwrap();
    fs::write(near.join("base"), &contents).unwrap();
    let image = near.join("image");
    qemu_img(&["create", "-q", "-f", "qcow2", "-b", text(&far.join("base")), "-F", "raw", text(&image)]);
    let said = place.refused(&["--disk", text(&image)]);
    assert!(said.contains("which is not in its folder") && said.contains("qemu-img convert"), "{said}");
    // What a guest has written to a disk that was kept.
    let raw = near.join("image.raw");
    fs::copy(&image, &raw).unwrap();
    let (_, said, error) = place.run(&["--disk", text(&raw)], "head -c 3 /dev/disk0");
    assert_eq!(said, "QFI", "{error}");
    // In its own folder a base is read, by the format that the image states.
    let change = near.join("change");
    qemu_img(&["create", "-q", "-f", "qcow2", "-b", "base", "-F", "raw", text(&change)]);
    let keeps = ["--disk", text(&change), "--keep-disks"];
    let script = "head -c 6 /dev/disk0; printf 'QFI\\373' | dd of=/dev/disk0 conv=notrunc 2>/dev/null";
    let (_, said, error) = place.run(&keeps, script);
    assert_eq!(said, "secret", "{error}");
    let kept = place.path("kept.raw");
    fs::copy(place.path("run/disks/disk0.raw"), &kept).unwrap();
    let (_, said, error) = place.run(&["--disk", text(&kept)], "head -c 6 /dev/disk0");
    assert_eq!(said.as_bytes(), "QFI\u{fffd}et".as_bytes(), "{error}");
}

#[test]
fn an_image_that_a_running_qemu_may_write_to_is_refused() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let place = Place::new();
    let (raw, qcow2) = (place.path("disk.img"), place.path("disk.qcow2"));
    fs::write(&raw, vec![1; 4 << 20]).unwrap();
    qemu_img(&["convert", "-O", "qcow2", text(&raw), text(&qcow2)]);
    for (path, format) in [(&raw, "raw"), (&qcow2, "qcow2")] {
        let drive = format!("file={},format={format},if=virtio", text(path));
        let qemu = holding(&drive);
        let said = place.refused(&["--disk", text(path)]);
        assert!(said.contains("in use by another QEMU") && said.contains("end that first"), "{said}");
        end(qemu);
        // One that only reads is in nobody's way, and we are not in its way.
        let reader = holding(&format!("{drive},readonly=on"));
        let (code, _, said) = place.run(&["--disk", text(path)], "true");
        assert_eq!(code, Some(0), "{said}");
        end(reader);
    }
}

#[test]
fn nothing_of_the_users_is_changed() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let place = Place::new();
    let root = place.root("root");
    let file = root.join("file");
    fs::write(&file, "x").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o200)).unwrap();
    let may_read = fs::read(&file).is_ok();
    let (code, _, said) = place.run(&["--root", text(&root)], "cat /file");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o200);
    match may_read {
        true => assert_eq!(code, Some(0), "{said}"),
        false => assert!(said.contains("you may not read it"), "{said}"),
    }
}

/// The init of a root in memory may be /init; one that powers the guest off, and one that ends, are told.
#[test]
fn inits_of_a_root_in_memory() {
    needs(&[QEMU, APT]);
    turn(2, 0);
    let _alone = alone();
    let place = Place::new();
    let root = place.root("root");
    let with_init = |script: &str| {
        fs::write(root.join("init"), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
        place.run(&["--root", text(&root), "--init", "/init"], "busybox cat /run/was")
    };
    let (_, said, error) = with_init("echo mine > /run/was; while :; do busybox sleep 1000; done");
    assert_eq!(said, "mine\n", "{error}");
    let (code, _, said) = with_init("busybox poweroff -f");
    assert_eq!(code, Some(125));
    assert!(said.contains("powered off or restarted before it was ready"), "{said}");
    let (code, _, said) = with_init("echo last words > /dev/console; exit 3");
    assert_eq!(code, Some(125));
    assert!(said.contains("Attempted to kill init") && said.contains("last lines of its console"), "{said}");
    // Of a boot that takes too long the console is shown.
    let slow = ["--root", text(&root), "--init", "none", "--boot-timeout", "0"];
    let (code, _, said) = place.run(&slow, "true");
    assert_eq!(code, Some(125));
    assert!(said.contains("not ready after 0 s") && said.contains("--boot-timeout"), "{said}");
    // A kernel that panics at once, as it finds no initramfs.
    let (code, _, said) = place.run(&["--append", "rdinit=/none root=/dev/none"], "true");
    assert_eq!(code, Some(125));
    assert!(said.contains("Kernel panic") && said.contains("CONFIG_BLK_DEV_INITRD"), "{said}");
}

/// The init of an initrd stays in its place. It is started if the user says so, and otherwise it is told that it was not.
#[test]
fn the_init_of_an_initrd() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let place = Place::new();
    let root = place.root("root");
    let initrd = place.path("initrd");
    let mut archive = fs::File::create(&initrd).unwrap();
    let mut add = |name: &str, mode: u32, bytes: &[u8]| {
        let entry = cpio::newc::Builder::new(name).mode(mode);
        let mut writer = entry.write(&mut archive, bytes.len() as u32);
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap();
    };
    add("bin", 0o040_755, b"");
    add("bin/busybox", 0o100_755, &fs::read(root.join("bin/busybox")).unwrap());
    add("bin/sh", 0o120_777, b"busybox");
    add("init", 0o100_755, b"#!/bin/sh\necho mine > /was; while :; do busybox sleep 1000; done\n");
    cpio::newc::trailer(&mut archive).unwrap();
    let script = "busybox cat /was; busybox head -n 1 /init";
    let (code, said, error) = place.run(&["--initrd", text(&initrd)], script);
    assert_eq!((code, said.as_str()), (Some(0), "#!/bin/sh\n"), "{error}");
    assert!(error.contains("/init of the initrd was not started; `--init /init` starts it"), "{error}");
    let (_, said, error) = place.run(&["--initrd", text(&initrd), "--init", "/init"], script);
    assert_eq!(said, "mine\n#!/bin/sh\n", "{error}");
    assert!(!error.contains("was not started"), "{error}");
}

/// A module of the user's with the name of a disk's driver, told apart by its build ID.
#[test]
fn a_driver_of_the_users_is_loaded() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let place = Place::new();
    ok(&["lab", "prepare", "-q"]);
    let kernels = cache().join("kernel");
    let newest = fs::read_to_string(kernels.join("debian.current")).unwrap();
    let mut found = Command::new("find");
    found.arg(kernels.join(newest.trim())).args(["-name", "nd_pmem.ko*"]);
    let packed = String::from_utf8(found.output().unwrap().stdout).unwrap();
    if !packed.trim().ends_with(".xz") {
        skip("the kernel's modules are not packed by xz");
    }
    let contents = Command::new("xz").args(["-dc", packed.trim()]).output();
    let Ok(contents) = contents.map(|output| output.stdout) else { skip("install xz-utils") };
    let name = b"GNU\0";
    // A note: sizes of its name and of its contents, its type 3, its name, and 20 bytes.
    let at = contents
        .windows(12 + name.len())
        .position(|bytes| bytes[4..12] == [20, 0, 0, 0, 3, 0, 0, 0] && bytes.ends_with(name))
        .expect("a build ID");
    let mut mine = contents.clone();
    mine[at + 16..at + 36].copy_from_slice(b"a module of the user");
    // A signature that does not fit is refused, none is not: it is at the end, before its length and a line of text.
    const SIGNED: &[u8] = b"~Module signature appended~\n";
    if let Some(rest) = mine.strip_suffix(SIGNED) {
        let length: [u8; 4] = rest[rest.len() - 4..].try_into().unwrap();
        mine.truncate(rest.len() - 12 - u32::from_be_bytes(length) as usize);
    }
    fs::write(place.path("nd_pmem.ko"), mine).unwrap();
    let disk = place.path("disk");
    fs::write(&disk, vec![1; 4 << 20]).unwrap();
    let module = place.path("nd_pmem.ko");
    let options = ["--disk", text(&disk), "--module", text(&module)];
    let script =
        "tail -c 20 /sys/module/nd_pmem/notes/.note.gnu.build-id; test -b /dev/disk0 && echo , a disk";
    let (_, said, error) = place.run(&options, script);
    assert_eq!(said, "a module of the user, a disk\n", "{error}");
}

/// Images of ext4, made here: one with modules of the guest's own kernel, and one for another processor.
#[test]
fn images_made_of_folders() {
    needs(&[QEMU, APT]);
    turn(2, 1);
    let _alone = alone();
    if Command::new("mke2fs").arg("-V").stderr(Stdio::null()).status().is_err() {
        skip("install e2fsprogs");
    }
    let place = Place::new();
    let (_, release, error) = place.run(&[], "uname -r");
    let release = release.trim();
    assert!(!release.is_empty(), "{error}");
    let root = place.root("root");
    for folder in ["etc", "usr", "proc", "sys", "dev", "run", "tmp", "root"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let modules = root.join("lib/modules").join(release);
    fs::create_dir_all(&modules).unwrap();
    fs::write(modules.join("modules.dep"), "").unwrap();
    let image = |name: &str| {
        let path = place.path(name);
        let made =
            Command::new("mke2fs").args(["-q", "-t", "ext4", "-d"]).arg(&root).arg(&path).arg("32M").status();
        assert!(made.unwrap().success());
        path
    };
    let disk = image("own.raw");
    // At hand though the image has modules of this kernel, which stay visible.
    let script =
        format!("cd /lib/modules/{release}; find . -name 'dummy.ko'; ls modules.dep; mount | grep -c ext4");
    let (_, said, error) = place.run(&["--root", text(&disk), "--with-module", "dummy"], &script);
    assert_eq!(said, "./kernel/drivers/net/dummy.ko\nmodules.dep\n1\n", "{error}");

    fs::remove_file(root.join("bin/sh")).unwrap();
    fs::write(root.join("bin/sh"), elf(183)).unwrap();
    let (code, _, said) = place.run(&["--root", text(&image("arm.raw"))], "true");
    assert_eq!(code, Some(125));
    assert!(said.contains("its /bin/sh is for arm64, and the guest is an x86-64"), "{said}");
}

/// A container image is not booted, though one may have an init.
#[test]
fn a_container_image_is_not_booted() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let place = Place::new();
    let root = place.root("root");
    fs::create_dir(root.join("sbin")).unwrap();
    symlink("../bin/busybox", root.join("sbin/init")).unwrap();
    let archived = |from: &Path, to: &Path| {
        assert!(
            Command::new("tar").arg("-cf").arg(to).arg("-C").arg(from).arg(".").status().unwrap().success()
        );
    };
    let image = place.path("image");
    fs::create_dir(&image).unwrap();
    archived(&root, &image.join("layer.tar"));
    fs::write(image.join("config"), r#"{"architecture":"amd64"}"#).unwrap();
    let manifest =
        |layers: &str| format!(r#"[{{"Config":"config","RepoTags":["a:1"],"Layers":[{layers}]}}]"#);
    fs::write(image.join("manifest.json"), manifest(r#""layer.tar""#)).unwrap();
    let archive = place.path("image.tar");
    archived(&image, &archive);
    let (_, said, error) = place.run(&["--root", text(&archive)], "busybox cat /proc/1/comm");
    assert_eq!(said, "init\n", "the agent's file: {error}");
    let (_, said, error) = place.run(&["--root", text(&archive)], "busybox readlink /proc/1/exe");
    assert_eq!(said, "/.kprism/init\n", "{error}");
    let two = manifest("").replace("[{", "[{\"Config\":\"c\",\"RepoTags\":[\"b:2\"],\"Layers\":[]},{");
    fs::write(image.join("manifest.json"), two).unwrap();
    archived(&image, &archive);
    let said = place.refused(&["--root", text(&archive)]);
    assert!(said.contains("2 container images") && said.contains("b:2, a:1"), "{said}");
}

/// A Ctrl-C, which a terminal sends to the whole group, during a copy; and a run that is killed.
#[test]
fn an_end_in_the_middle() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let place = Place::new();
    let disk = place.path("large");
    fs::write(&disk, vec![7; 600 << 20]).unwrap();
    let run = place.path("run");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
    command.args(["lab", "run", "--unobserved", "--disk", text(&disk), "-o", text(&run), "--", "true"]);
    let log = place.path("log");
    let child = command.stderr(fs::File::create(&log).unwrap()).process_group(0).spawn().unwrap();
    let said = || fs::read_to_string(&log).unwrap();
    let start = Instant::now();
    while !said().contains("copying the disk image") {
        assert!(start.elapsed() < Duration::from_secs(60), "{}", said());
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: a signal to the group of a child that nobody has waited for.
    assert_eq!(unsafe { libc::kill(-(child.id() as i32), libc::SIGINT) }, 0);
    let status = child.wait_with_output().unwrap().status;
    assert_eq!(status.code(), Some(130), "{}", said());

    let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
    command.args(["lab", "run", "--unobserved", "-o", text(&run), "--", "sleep", "1000"]);
    let mut child = command.spawn().unwrap();
    let left = |run: &Path| {
        let entries = fs::read_dir(run).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(".lab.")).count()
    };
    let start = Instant::now();
    while left(&run) == 0 || !run.join("console.log").exists() {
        assert!(start.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(left(&run), 1, "a killed process removes nothing");
    ok(&["lab", "run", "-q", "--unobserved", "-o", text(&run), "--", "true"]);
    assert_eq!((left(&run), left(&place.path("run.old"))), (0, 0), "the next run removes it");
}

kprism_test::main!();
