// SPDX-License-Identifier: MIT OR Apache-2.0
//! Archives and container images made here, and what becomes of them.

use super::*;

#[path = "../../../../../fuzz/src/layered.rs"]
mod layered;

/// A tar archive of files; `dir/` is a folder, `name -> target` a symbolic and `name = target` a hard link.
fn tar_of(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, contents) in entries {
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o4755);
        header.set_uid(7);
        header.set_gid(8);
        header.set_size(0);
        if let Some((name, target)) = name.split_once(" = ") {
            header.set_entry_type(EntryType::Link);
            builder.append_link(&mut header, name, target).unwrap();
        } else if let Some((name, target)) = name.split_once(" -> ") {
            header.set_entry_type(EntryType::Symlink);
            builder.append_link(&mut header, name, target).unwrap();
        } else {
            let is_folder = name.ends_with('/');
            header.set_entry_type(if is_folder { EntryType::Directory } else { EntryType::Regular });
            header.set_size(contents.len() as u64);
            builder.append_data(&mut header, name, contents.as_bytes()).unwrap();
        }
    }
    builder.into_inner().unwrap()
}

fn written(bytes: &[u8]) -> Result<Vec<u8>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let mut archive = Archive::new(Vec::new());
    write(file.path(), &mut archive)?;
    archive.finish().at("write", file.path())
}

/// Name, contents, mode, owner, inode of each file of an initramfs.
fn listed(archive: &[u8]) -> Vec<(String, String, u32, u32, u32)> {
    let mut input = io::Cursor::new(archive.to_vec());
    let mut all = Vec::new();
    loop {
        let mut reader = cpio::newc::Reader::new(input).unwrap();
        let entry = reader.entry().clone();
        if entry.is_trailer() {
            return all;
        }
        let mut contents = String::new();
        reader.read_to_string(&mut contents).unwrap();
        all.push((entry.name().to_owned(), contents, entry.mode(), entry.uid(), entry.ino()));
        input = reader.finish().unwrap();
    }
}

/// The files as they are after the kernel unpacked them: later ones replace earlier ones.
fn unpacked(bytes: &[u8]) -> Vec<(String, String)> {
    let all = listed(&written(bytes).unwrap());
    let all: std::collections::BTreeMap<_, _> = all.into_iter().map(|file| (file.0, file.1)).collect();
    all.into_iter().collect()
}

#[test]
fn an_archive_keeps_owners_modes_and_links() {
    let plain =
        tar_of(&[("./", ""), ("./etc/", ""), ("./etc/a", "one"), ("l -> etc/a", ""), ("b = ./etc/a", "")]);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&plain).unwrap();
    for bytes in [plain, packed.finish().unwrap()] {
        let files = listed(&written(&bytes).unwrap());
        let names: Vec<_> =
            files.iter().map(|(name, contents, ..)| (name.as_str(), contents.as_str())).collect();
        assert_eq!(names, [("etc", ""), ("b", "one"), ("etc/a", ""), ("l", "etc/a")]);
        let modes: Vec<u32> = files.iter().map(|file| file.2).collect();
        assert_eq!(modes, [0o044_755, 0o104_755, 0o104_755, 0o120_777]);
        assert_eq!((files[1].3, files[1].4), (7, files[2].4), "two names of one file");
        assert_ne!(files[0].4, files[1].4);
    }
}

#[test]
fn folders_that_are_not_named_are_made_first() {
    let files = listed(&written(&tar_of(&[("a/b/c", "x")])).unwrap());
    assert_eq!(files.iter().map(|file| file.0.as_str()).collect::<Vec<_>>(), ["a", "a/b", "a/b/c"]);
}

/// An OCI image, with an index for two processors, and the same as Docker once wrote it.
#[test]
fn layers_replace_and_remove() {
    let lower = tar_of(&[
        ("a/", ""),
        ("a/gone", "1"),
        ("a/old", "1"),
        ("o/", ""),
        ("o/hidden", "1"),
        ("d/", ""),
        ("d/below", "1"),
        ("f", "1"),
        ("stays", "1"),
    ]);
    let upper = tar_of(&[
        ("a/.wh.gone", ""),
        ("a/old", "2"),
        ("o/", ""),
        ("o/.wh..wh..opq", ""),
        ("o/new", "2"),
        ("d", "a file now"),
        ("f/", ""),
        ("f/in", "2"),
    ]);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (lower, upper) = (text(&lower), text(&upper));
    let expected: Vec<(String, String)> = [
        ("a", ""),
        ("a/old", "2"),
        ("d", "a file now"),
        ("f", ""),
        ("f/in", "2"),
        ("o", ""),
        ("o/new", "2"),
        ("stays", "1"),
    ]
    .map(|(name, contents)| (name.to_owned(), contents.to_owned()))
    .into();
    let oci = tar_of(&[
        ("oci-layout", "{}"),
        (
            "index.json",
            r#"{"manifests":[{"digest":"sha256:1","mediaType":"application/vnd.oci.image.index.v1+json"}]}"#,
        ),
        (
            "blobs/sha256/1",
            r#"{"manifests":[{"digest":"sha256:0","platform":{"architecture":"arm64","os":"linux"}},
                {"digest":"sha256:2","platform":{"architecture":"amd64","os":"linux"}}]}"#,
        ),
        ("blobs/sha256/2", r#"{"layers":[{"digest":"sha256:3"},{"digest":"sha256:4"}]}"#),
        ("blobs/sha256/3", &lower),
        ("blobs/sha256/4", &upper),
    ]);
    assert_eq!(without_mark(&oci), expected);
    let docker = tar_of(&[
        ("x/layer.tar", &lower),
        ("y/layer.tar", &upper),
        ("c", r#"{"architecture":"amd64"}"#),
        ("manifest.json", r#"[{"Config":"c","RepoTags":null,"Layers":["x/layer.tar","y/layer.tar"]}]"#),
    ]);
    assert_eq!(without_mark(&docker), expected);
}

/// The files, without the mark by which the agent knows a container image.
fn without_mark(bytes: &[u8]) -> Vec<(String, String)> {
    let mut files = unpacked(bytes);
    assert!(files.iter().any(|(name, _)| name == ".kprism/container"));
    files.retain(|(name, _)| !name.starts_with(".kprism"));
    files
}

/// A container image of these layers, as Docker once wrote it.
fn docker(layers: &[Vec<u8>]) -> Vec<u8> {
    let names: Vec<String> = (0..layers.len()).map(|i| format!("{i}/layer.tar")).collect();
    let manifest = format!(r#"[{{"Config":"c","RepoTags":null,"Layers":{}}}]"#, serde_json::json!(names));
    let texts: Vec<String> = layers.iter().map(|layer| String::from_utf8(layer.clone()).unwrap()).collect();
    let mut files: Vec<(&str, &str)> =
        names.iter().zip(&texts).map(|(name, text)| (name.as_str(), text.as_str())).collect();
    files.extend([("c", "{}"), ("manifest.json", manifest.as_str())]);
    tar_of(&files)
}

/// The files of a container image of these layers, without kprism's mark.
fn merged(layers: &[Vec<u8>]) -> Vec<(String, String)> {
    without_mark(&docker(layers))
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|&(name, contents)| (name.to_owned(), contents.to_owned())).collect()
}

#[test]
fn a_hard_link_outlives_the_name_that_a_higher_layer_hides() {
    let lower = tar_of(&[("a", "one"), ("b = a", ""), ("c = a", "")]);
    for upper in [tar_of(&[("a", "two")]), tar_of(&[(".wh.a", "")])] {
        let files = merged(&[lower.clone(), upper]);
        let b = files.iter().position(|(name, _)| name == "b").unwrap();
        // The first name comes with the contents, the second has none.
        assert_eq!(files[b..], pairs(&[("b", "one"), ("c", "")]));
    }
    // Into a lower layer, and from a name that is replaced in the same layer.
    let upper = tar_of(&[("d = a", ""), ("a", "two"), ("e = a", "")]);
    let archive = written(&docker(&[lower, upper])).unwrap();
    let files: Vec<_> = listed(&archive).into_iter().filter(|file| file.0.len() == 1).collect();
    let inode = |name: &str| files.iter().find(|file| file.0 == name).unwrap().4;
    assert_eq!((inode("b"), inode("a")), (inode("d"), inode("e")));
    assert_ne!(inode("a"), inode("b"));
    let contents: String = files.iter().map(|file| file.1.as_str()).collect();
    assert_eq!(contents, "onetwo");
}

#[test]
fn a_folder_that_is_a_link_stays_one() {
    let lower =
        tar_of(&[("usr/lib/old", "1"), ("lib -> usr/lib", ""), ("abs -> /usr", ""), ("up -> ../../usr", "")]);
    let upper = tar_of(&[
        ("lib/old", "2"),
        ("abs/lib/new", "2"),
        ("up/share/x", "2"),
        ("lib/.wh.gone", ""),
        ("h = lib/old", ""),
    ]);
    let expected = pairs(&[
        ("abs", "/usr"),
        ("h", "2"),
        ("lib", "usr/lib"),
        ("up", "../../usr"),
        ("usr", ""),
        ("usr/lib", ""),
        ("usr/lib/new", "2"),
        ("usr/lib/old", ""),
        ("usr/share", ""),
        ("usr/share/x", "2"),
    ]);
    assert_eq!(merged(&[lower, upper]), expected);
    // In one archive as well.
    assert_eq!(
        unpacked(&tar_of(&[("usr/lib/", ""), ("lib -> usr/lib", ""), ("lib/x", "1")])),
        pairs(&[("lib", "usr/lib"), ("usr", ""), ("usr/lib", ""), ("usr/lib/x", "1")])
    );
    let round = tar_of(&[("a -> b", ""), ("b -> a", ""), ("a/x", "1")]);
    assert!(written(&round).unwrap_err().to_string().contains("without end"));
}

#[test]
fn of_several_images_none_is_chosen() {
    let said = |bytes: &[u8]| written(bytes).unwrap_err().to_string();
    let layer = String::from_utf8(tar_of(&[("a", "1")])).unwrap();
    let image = |digest: u32, name: &str| {
        format!(
            r#"{{"digest":"sha256:{digest}","annotations":{{"org.opencontainers.image.ref.name":"{name}"}}}}"#
        )
    };
    let oci = |images: &[String], processor: &str| {
        let index = format!(r#"{{"manifests":[{}]}}"#, images.join(","));
        let config = format!(r#"{{"architecture":"{processor}"}}"#);
        let manifest = r#"{"config":{"digest":"sha256:8"},"layers":[{"digest":"sha256:9"}]}"#;
        tar_of(&[
            ("oci-layout", "{}"),
            ("index.json", &index),
            ("blobs/sha256/1", manifest),
            ("blobs/sha256/8", &config),
            ("blobs/sha256/9", &layer),
        ])
    };
    let text = said(&oci(&[image(1, "one:1"), image(2, "two:2")], "amd64"));
    assert!(text.contains("2 container images") && text.contains("one:1, two:2"), "{text}");
    // One image with two names is one.
    written(&oci(&[image(1, "one:1"), image(1, "one:latest")], "amd64")).unwrap();
    assert!(said(&oci(&[image(1, "one")], "arm64")).contains("for arm64, and the guest is an x86-64"));
    let packed = |bytes: &[u8]| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    };
    assert!(said(&packed(&oci(&[image(1, "one")], "amd64"))).contains("unpack it first"));
}

#[test]
fn what_is_damaged_is_an_error() {
    let said = |bytes: &[u8]| written(bytes).unwrap_err().to_string();
    assert!(said(&tar_of(&[("oci-layout", "{}"), ("index.json", "[]")])).contains("description"));
    let arm = r#"{"manifests":[{"digest":"sha256:0","platform":{"architecture":"arm64","os":"linux"}}]}"#;
    assert!(said(&tar_of(&[("oci-layout", "{}"), ("index.json", arm)])).contains("none for x86-64"));
    let without = r#"[{"Config":"c","Layers":["x"]}]"#;
    assert!(
        said(&tar_of(&[("manifest.json", without), ("c", "{}")]))
            .contains("without its layer or description x")
    );
    assert!(said(&tar_of(&[("a = nothing", "")])).contains("not before it"));
    assert!(said(&tar_of(&[])).contains("no file in it"));
    let whole = tar_of(&[("a/", ""), ("a/b", "text"), ("c = a/b", "")]);
    for end in 6..whole.len() {
        written(&whole[..end]).ok();
    }
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xff;
        written(&damaged).ok();
    }
}

/// Layers of entries that fall on each other, from the fuzzer's corpus and made up.
#[test]
fn any_layers_unpack_to_one_tree() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/corpus/layers");
    let mut inputs: Vec<Vec<u8>> = std::fs::read_dir(corpus)
        .unwrap()
        .map(|entry| std::fs::read(entry.unwrap().path()).unwrap())
        .collect();
    assert!(inputs.len() >= 4);
    // A linear congruential generator, the same in every run.
    let mut state = 1u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    for length in 0..600 {
        inputs.push((0..length % 60 * 2).map(|_| if byte() < 12 { 255 } else { byte() }).collect());
    }
    let mut good = 0;
    for input in &inputs {
        if let Ok(archive) = written(&layered::image(input)) {
            layered::check(&archive);
            good += 1;
        }
    }
    // A link to a name that is not there makes most of them errors.
    assert!(good > 50, "{good} images");
}
