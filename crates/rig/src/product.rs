//! Hotbay in the pods of its chart, on a cluster of the rig. The images are made here and imported into the nodes:
//! Hotbay's own, as deploy/Containerfile says and of the same tree of files, and one for each sidecar.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::chart;
use crate::cluster::Cluster;
use crate::components::{Component, PROVISIONER, RESIZER, SIDECARS};
use crate::error::RigError;
use crate::image::Image;
use crate::programs::image_tree;

/// What pods call Hotbay's image.
pub const HOTBAY: &str = "docker.io/local/hotbay:1";

/// The name in the chart's values, of the image and of what it runs; and which program that is.
const SIDECAR_IMAGES: [(&str, &Component, &str); 5] = [
    ("provisioner", &PROVISIONER, "csi-provisioner"),
    ("attacher", &SIDECARS, "attacher"),
    ("resizer", &RESIZER, "csi-resizer"),
    ("registrar", &SIDECARS, "registrar"),
    ("livenessprobe", &SIDECARS, "livenessprobe"),
];

/// Installs Hotbay as an administrator does, with images on every node and a Service whose address needs no DNS. A
/// Service that is there already must have that address. `hotbay` is the program, as cargo built it; `more` are values
/// of the chart beside `image`, `sidecars` and `service`, as YAML. Returns when the API server has taken it all.
pub fn install(cluster: &Cluster, hotbay: &Path, more: &str) -> Result<(), RigError> {
    let plane = cluster.plane();
    let images = plane.folder().subfolder("images")?;
    let archives = write_images(&images, hotbay)?;
    cluster.nodes().iter().try_for_each(|node| node.import(&archives))?;
    plane.kubectl().apply_strictly(&chart::before()?)?;
    let values = values(cluster, more);
    plane.kubectl().apply_strictly(&chart::render(plane.folder(), &values)?)?;
    Ok(())
}

/// Writes the archives of all images that the chart's pods run into this folder. `hotbay` is the program, as cargo
/// built it.
fn write_images(folder: &Path, hotbay: &Path) -> Result<Vec<PathBuf>, RigError> {
    let mut archives = vec![write_hotbay(folder, hotbay)?];
    for (name, component, program) in SIDECAR_IMAGES {
        let mut image = Image::new(&sidecar(name), &[&format!("/{name}")]);
        // The kubelet puts files there.
        for place in ["etc", "proc", "sys", "dev", "run", "var"] {
            image.folder(place)?;
        }
        image.program(name, &component.program(program)?)?;
        let archive = folder.join(format!("{name}.tar"));
        image.write(&archive)?;
        archives.push(archive);
    }
    Ok(archives)
}

/// Values of the chart that name these images and that address, as YAML; `more` is added to them. `install` has them
/// from here, and so has who calls Helm itself, when the images are there.
pub fn values(cluster: &Cluster, more: &str) -> String {
    let mut values = format!("image: {{{}, pullPolicy: Never}}\n", named(HOTBAY));
    values += "sidecars:\n  pullPolicy: Never\n";
    for (name, ..) in SIDECAR_IMAGES {
        values += &format!("  {name}: {{{}}}\n", named(&sidecar(name)));
    }
    let address = cluster.service_address();
    values + &format!("service: {{clusterIP: {address}}}\n{more}")
}

fn named(image: &str) -> String {
    let (repository, tag) = image.rsplit_once(':').unwrap_or((image, "latest"));
    format!("repository: {repository}, tag: '{tag}'")
}

fn sidecar(name: &str) -> String {
    format!("docker.io/local/{name}:1")
}

fn write_hotbay(folder: &Path, hotbay: &Path) -> Result<PathBuf, RigError> {
    // What a debugger needs is most of a program that is not built for release.
    let stripped = folder.join("hotbay");
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&stripped).arg(hotbay);
    let failed = |source| RigError::Start { program: "strip".to_owned(), source };
    let output = strip.output().map_err(failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        return Err(RigError::Command { command: format!("strip {}", hotbay.display()), said });
    }
    let mut image = Image::as_in(HOTBAY, &chart::deploy().join("Containerfile"))?;
    image.tree(&image_tree()?)?;
    image.program("usr/bin/hotbay", &stripped)?;
    let archive = folder.join("hotbay.tar");
    image.write(&archive)?;
    Ok(archive)
}
