// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the layers of a container image within its archive.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::Path;

use serde::Deserialize;

use super::{Layer, bad, part_of, plan};
use crate::error::{Context, Result};
use crate::packed::{MAGIC, is_packed};

/// Maximum size of a file that describes an image, bytes.
const MOST_DESCRIPTION: u64 = 4 << 20;

/// Annotations with an image's name: those of the OCI image specification, and of containerd.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// The layers, lowest first, and true if they are those of a container image: one layer for a plain archive.
///
/// # Errors
/// The image is damaged, for another processor, or one of several in the archive.
pub(super) fn layers(path: &Path) -> Result<(Vec<Layer>, bool)> {
    let mut file = File::open(path).at("open", path)?;
    let whole = Layer { at: 0, bytes: file.metadata().at("read", path)?.len() };
    let mut start = Vec::new();
    (&mut file).take(MAGIC as u64).read_to_end(&mut start).at("read", path)?;
    if is_packed(&start) {
        return Ok((vec![whole], false));
    }
    // Where the files of an image are, if it is one: its layers are read in place.
    let mut archive = tar::Archive::new(BufReader::new(part_of(path, whole)?.into_inner()));
    let mut parts = HashMap::new();
    for entry in archive.entries_with_seek().at("read", path)? {
        let entry = entry.map_err(|error| bad(path, format!("not a good tar archive: {error}")))?;
        let name = plan::plain(&entry.path_bytes()).map_err(|reason| bad(path, reason))?;
        let layer = Layer { at: entry.raw_file_position(), bytes: entry.size() };
        if !entry.header().entry_type().is_dir() {
            parts.insert(name, layer);
        }
    }
    let part = |name: &str| {
        let missing = || bad(path, format!("a container image without its layer or description {name}"));
        parts.get(name).copied().ok_or_else(missing)
    };
    let found = |name: &str| parts.get(name).copied();
    let names = match (found("oci-layout"), found("index.json"), found("manifest.json")) {
        (Some(_), Some(index), _) => of_oci(path, index, &part)?,
        (None, None, Some(manifest)) => of_docker(path, manifest, &part)?,
        _ => return Ok((vec![whole], false)),
    };
    Ok((names.iter().map(|name| part(name)).collect::<Result<_>>()?, true))
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct ImageManifest {
    config: Option<Descriptor>,
    layers: Vec<Descriptor>,
}

/// The processor that an image is for, in its configuration.
#[derive(Deserialize)]
struct Config {
    architecture: Option<String>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    #[serde(rename = "mediaType", default)]
    media_type: String,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
    variant: Option<String>,
}

/// The file of a blob in an image (OCI image specification, "Image Layout").
pub(crate) fn blob_name(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}

impl Descriptor {
    /// Its name for people: the one that it was saved under, or its digest.
    fn name(&self) -> &str {
        NAMES.iter().find_map(|name| self.annotations.get(*name)).unwrap_or(&self.digest)
    }

    fn processor(&self) -> Option<&str> {
        self.platform.as_ref().map(|platform| platform.architecture.as_str())
    }

    /// Its file in the image.
    fn blob(&self) -> String {
        blob_name(&self.digest)
    }

    fn fits(&self) -> bool {
        self.platform
            .as_ref()
            .is_none_or(|platform| platform.architecture == "amd64" && platform.os == "linux")
    }
}

/// Names of the layers of an OCI image (OCI image specification, "Image Layout"). An index may name further indexes, one
/// image for each processor.
fn of_oci(path: &Path, index: Layer, part: &impl Fn(&str) -> Result<Layer>) -> Result<Vec<String>> {
    let mut at = index;
    for _ in 0..4 {
        let index: Index = description(path, at)?;
        let image = the_one(path, &index.manifests)?;
        at = part(&image.blob())?;
        if !image.media_type.contains("index") && !image.media_type.contains("manifest.list") {
            let manifest: ImageManifest = description(path, at)?;
            if let Some(config) = manifest.config.filter(|_| image.platform.is_none()) {
                require_processor(path, part(&config.blob())?)?;
            }
            return Ok(manifest.layers.iter().map(Descriptor::blob).collect());
        }
    }
    Err(bad(path, "indexes that name indexes without end"))
}

/// The image for x86-64: of several for its variants, the one for every x86-64.
fn the_one<'i>(path: &Path, images: &'i [Descriptor]) -> Result<&'i Descriptor> {
    let mut fitting: Vec<&Descriptor> = images.iter().filter(|image| image.fits()).collect();
    let variant = |image: &Descriptor| image.platform.as_ref().and_then(|platform| platform.variant.clone());
    if let Some(least) = fitting.iter().map(|image| variant(image)).min() {
        fitting.retain(|image| variant(image) == least);
    }
    // One image may have several names.
    let mut distinct: Vec<&Descriptor> = Vec::new();
    for image in fitting {
        if !distinct.iter().any(|other| other.digest == image.digest) {
            distinct.push(image);
        }
    }
    match distinct[..] {
        [image] => Ok(image),
        [] => {
            let others: Vec<&str> = images.iter().filter_map(Descriptor::processor).collect();
            Err(bad(
                path,
                format!(
                    "a container image, but none for x86-64 Linux in it, only for {}: get it with --platform linux/amd64 \
                     (docker, podman) or --override-arch amd64 (skopeo)",
                    if others.is_empty() { "none at all".to_owned() } else { others.join(", ") }
                ),
            ))
        }
        _ => {
            let names: Vec<&str> = distinct.iter().map(|image| image.name()).collect();
            Err(several(path, &names))
        }
    }
}

fn several(path: &Path, names: &[&str]) -> crate::error::Error {
    bad(
        path,
        format!(
            "{} container images in it, and one is expected: {}. Save one alone (`podman save`, `docker save`, or `skopeo \
             copy` from oci-archive:{}:NAME)",
            names.len(),
            names.join(", "),
            path.display()
        ),
    )
}

fn require_processor(path: &Path, config: Layer) -> Result<()> {
    let config: Config = description(path, config)?;
    match config.architecture.as_deref() {
        None | Some("" | "amd64" | "386") => Ok(()),
        Some(other) => Err(bad(
            path,
            format!(
                "a container image for {other}, and the guest is an x86-64: get it with --platform linux/amd64 (docker, \
                 podman) or --override-arch amd64 (skopeo)"
            ),
        )),
    }
}

#[derive(Deserialize)]
struct DockerImage {
    #[serde(rename = "Config")]
    config: String,
    #[serde(rename = "RepoTags")]
    tags: Option<Vec<String>>,
    #[serde(rename = "Layers")]
    layers: Vec<String>,
}

/// Names of the layers of an image as `docker save` wrote it before it wrote OCI images.
fn of_docker(path: &Path, manifest: Layer, part: &impl Fn(&str) -> Result<Layer>) -> Result<Vec<String>> {
    let images: Vec<DockerImage> = description(path, manifest)?;
    match <[DockerImage; 1]>::try_from(images) {
        Ok([image]) => {
            require_processor(path, part(&image.config)?)?;
            Ok(image.layers)
        }
        Err(images) => {
            let name = |image: &DockerImage| image.tags.iter().flatten().next().cloned();
            let names: Vec<String> =
                images.iter().map(|image| name(image).unwrap_or_else(|| image.config.clone())).collect();
            Err(several(path, &names.iter().map(String::as_str).collect::<Vec<_>>()))
        }
    }
}

fn description<T: for<'de> Deserialize<'de>>(path: &Path, at: Layer) -> Result<T> {
    let mut text = Vec::new();
    part_of(path, at)?.take(MOST_DESCRIPTION).read_to_end(&mut text).at("read", path)?;
    serde_json::from_slice(&text).map_err(|error| bad(path, format!("the image's description: {error}")))
}
