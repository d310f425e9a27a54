//! The root that a function sees: /usr of the host or of an installed system, read-only, and its own code, or
//! an image. An empty /tmp, and little else.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_change, move_mount, unmount,
};
use rustix::process::pivot_root;

use super::proc::Proc;
use super::rights::worker_is_root;
use super::{Bind, INSIDE_USER, Spec, syscalls};

const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
/// The files of the host's /etc that a function sees, if they exist.
const ETC: [&str; 6] = ["ld.so.cache", "ssl/certs", "ca-certificates", "alternatives", "mime.types", "fonts"];
/// The files of /etc that are each instance's own.
const OWN_ETC: [&str; 5] = ["group", "hosts", "nsswitch.conf", "passwd", "resolv.conf"];
/// The files that are mounted over those of an image.
const MASK: &str = ".mask";
/// The entries of a root that are not the image's.
const OWN: [&str; 4] = ["dev", "proc", "tmp", MASK];
/// Top folders that are links into /usr on most systems, folders on others.
const USR_LINKS: [&str; 5] = ["bin", "sbin", "lib", "lib32", "lib64"];

/// Assembles the root on `root`, with this /proc and the disk as its /tmp, and changes into it. Runs as
/// process 1 of the new namespaces.
///
/// # Errors
/// What could not be mounted, and why.
pub fn enter(root: &Path, spec: &Spec, proc: Proc, disk: Option<OwnedFd>) -> Result<()> {
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .context("cannot make the mounts private")?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("none", root, "tmpfs", flags, c"size=1m,nr_inodes=1k,mode=755")
        .with_context(|| format!("cannot mount a root on {}", root.display()))?;
    match &spec.image {
        Some(image) => show_image(image, root)?,
        None => show_system(spec.system.as_deref().unwrap_or(Path::new("/")), root)?,
    }
    fs::create_dir(root.join("dev"))?;
    for name in DEVICES {
        fs::File::create(root.join("dev").join(name))?;
    }
    symlink("/proc/self/fd", root.join("dev/fd"))?;
    for (number, name) in ["stdin", "stdout", "stderr"].iter().enumerate() {
        symlink(format!("/proc/self/fd/{number}"), root.join("dev").join(name))?;
    }
    for folder in ["tmp", "proc"] {
        fs::create_dir(root.join(folder))?;
    }
    match &spec.image {
        Some(image) => image_etc(root, spec, image)?,
        None => system_etc(root, spec)?,
    }
    for Bind { source, target } in &spec.binds {
        bind(source, &root.join(target.strip_prefix("/").unwrap_or(target)))?;
    }
    // Everything so far may be read and executed, not written, and is no device.
    let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    syscalls::restrict_mount(root, attributes).context("cannot make the root read-only")?;
    for name in DEVICES {
        mount_at(&Path::new("/dev").join(name), &root.join("dev").join(name))?;
    }
    for folder in &spec.hidden {
        let inside = root.join(folder.strip_prefix("/").unwrap_or(folder));
        if inside.is_dir() {
            mount("none", &inside, "tmpfs", flags | MountFlags::RDONLY, c"size=4k,nr_inodes=1,mode=755")?;
        }
    }
    let tmp = root.join("tmp");
    match disk {
        Some(disk) => move_mount(disk, "", CWD, &tmp, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .context("cannot mount the disk on /tmp")?,
        None => {
            // Inodes are limited too: each costs memory that the size does not count.
            let inodes = u64::from(spec.tmp_mib) * 64;
            let options = CString::new(format!("size={}m,nr_inodes={inodes},mode=1777", spec.tmp_mib))?;
            mount("none", &tmp, "tmpfs", flags, &*options).context("cannot mount /tmp")?;
        }
    }
    proc.show(&root.join("proc"), spec.memory_mib)?;
    std::env::set_current_dir(root)?;
    // The old root is stacked upon the new one, where the second call finds it (pivot_root(2)).
    pivot_root(".", ".")
        .and_then(|()| unmount(".", UnmountFlags::DETACH))
        .context("cannot change the root")?;
    Ok(std::env::set_current_dir("/")?)
}

/// Shows the programs and libraries of a system: the host's, or one that is installed beside it.
fn show_system(system: &Path, root: &Path) -> Result<()> {
    bind_system(&system.join("usr"), &root.join("usr"))?;
    for name in USR_LINKS {
        let host = system.join(name);
        match fs::read_link(&host) {
            Ok(target) => symlink(target, root.join(name))?,
            Err(_) if host.is_dir() => bind_system(&host, &root.join(name))?,
            Err(_) => {}
        }
    }
    Ok(())
}

/// Shows the files of /etc that programs need, and writes the function's own user into others.
fn system_etc(root: &Path, spec: &Spec) -> Result<()> {
    let shown: Vec<(PathBuf, PathBuf)> = match &spec.system {
        None => ETC.iter().map(|name| (Path::new("/etc").join(name), root.join("etc").join(name))).collect(),
        Some(system) => fs::read_dir(system.join("etc"))?
            .flatten()
            .filter(|entry| !OWN_ETC.iter().any(|own| entry.file_name() == *own))
            .map(|entry| (entry.path(), root.join("etc").join(entry.file_name())))
            .collect(),
    };
    for (source, target) in shown {
        match fs::read_link(&source) {
            // It leads to the same place of the instance's own root.
            Ok(link) if spec.system.is_some() => {
                fs::create_dir_all(root.join("etc"))?;
                symlink(link, target)?;
            }
            _ if source.exists() => bind_system(&source, &target)?,
            _ => {}
        }
    }
    let user = if worker_is_root() { spec.user } else { INSIDE_USER };
    fs::write(root.join("etc/passwd"), format!("function:x:{user}:{user}:function:/tmp:/bin/sh\n"))?;
    fs::write(root.join("etc/group"), format!("function:x:{user}:\n"))?;
    fs::write(root.join("etc/hosts"), hosts(spec))?;
    let hosts = if spec.resolvers.is_some() { "files dns" } else { "files" };
    fs::write(root.join("etc/nsswitch.conf"), format!("passwd: files\ngroup: files\nhosts: {hosts}\n"))?;
    if let Some(resolvers) = &spec.resolvers {
        fs::write(root.join("etc/resolv.conf"), resolvers)?;
    }
    for folder in ["opt", "var/task", "var/runtime"] {
        fs::create_dir_all(root.join(folder))?;
    }
    Ok(())
}

/// The contents of /etc/hosts.
fn hosts(spec: &Spec) -> String {
    let names = spec.loopback_names.iter().map(|name| format!(" {name}"));
    format!("127.0.0.1 localhost sandbox.localdomain sandbox{}\n", names.collect::<String>())
}

/// Shows an image's entries one by one: nothing is ever written through one of its links, nor mounted
/// there.
fn show_image(image: &Path, root: &Path) -> Result<()> {
    for entry in fs::read_dir(image).with_context(|| format!("cannot read {}", image.display()))? {
        let entry = entry?;
        let (name, target) = (entry.file_name(), root.join(entry.file_name()));
        if OWN.iter().any(|own| name == *own) {
            continue;
        }
        match entry.file_type()? {
            kind if kind.is_symlink() => symlink(fs::read_link(entry.path())?, &target)?,
            _ => bind(&entry.path(), &target)?,
        }
    }
    Ok(())
}

/// Mounts the instance's own hosts and resolv.conf over the image's files, which unpacking has made.
fn image_etc(root: &Path, spec: &Spec, image: &Path) -> Result<()> {
    let mask = root.join(MASK);
    fs::create_dir(&mask)?;
    let etc = image.join("etc");
    let is =
        |path: &Path, what: fn(&fs::Metadata) -> bool| fs::symlink_metadata(path).is_ok_and(|it| what(&it));
    let files = [("hosts", hosts(spec)), ("resolv.conf", spec.resolvers.clone().unwrap_or_default())];
    for (name, text) in files {
        if is(&etc, fs::Metadata::is_dir) && is(&etc.join(name), fs::Metadata::is_file) {
            fs::write(mask.join(name), text)?;
            mount_at(&mask.join(name), &root.join("etc").join(name))?;
        }
    }
    Ok(())
}

/// Shows a part of the host's system, with the mounts below it.
fn bind_system(source: &Path, target: &Path) -> Result<()> {
    make_place(source, target)?;
    mount_bind_recursive(source, target).with_context(|| cannot_show(source))
}

/// Makes `target`, which may not exist yet, show `source`, and nothing that is mounted below it.
fn bind(source: &Path, target: &Path) -> Result<()> {
    make_place(source, target)?;
    mount_at(source, target)
}

fn make_place(source: &Path, target: &Path) -> Result<()> {
    let made = || -> io::Result<()> {
        if source.is_dir() {
            fs::create_dir_all(target)
        } else {
            fs::create_dir_all(target.parent().unwrap_or(target))?;
            fs::File::create(target).map(drop)
        }
    };
    made().with_context(|| cannot_show(source))
}

fn mount_at(source: &Path, target: &Path) -> Result<()> {
    mount_bind(source, target).with_context(|| cannot_show(source))
}

fn cannot_show(source: &Path) -> String {
    format!("cannot show {} inside the sandbox", source.display())
}
