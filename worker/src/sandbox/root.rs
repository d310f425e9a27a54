//! The root that a function sees: the host's /usr read-only, its own code, an empty /tmp, and little else.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};

use super::{Bind, INSIDE_USER, Spec, system};

const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
/// Of the host's /etc; those that exist.
const ETC: [&str; 6] = ["ld.so.cache", "ssl/certs", "ca-certificates", "alternatives", "mime.types", "fonts"];
/// Top folders that are links into /usr on most systems, folders on others.
const USR_LINKS: [&str; 5] = ["bin", "sbin", "lib", "lib32", "lib64"];

/// Assembles the root on `spec.mount_point` and changes into it. Runs as process 1 of the new namespaces.
///
/// # Errors
/// What could not be mounted, and why.
pub fn enter(spec: &Spec) -> Result<()> {
    let none = Path::new("none");
    let root = &spec.mount_point;
    system::mount(none, Path::new("/"), "", libc::MS_REC | libc::MS_PRIVATE, "")
        .context("cannot make the mounts private")?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    system::mount(none, root, "tmpfs", flags, "size=1m,nr_inodes=1k,mode=755")
        .with_context(|| format!("cannot mount a root on {}", root.display()))?;
    bind(Path::new("/usr"), &root.join("usr"))?;
    for name in USR_LINKS {
        let host = Path::new("/").join(name);
        match fs::read_link(&host) {
            Ok(target) => symlink(target, root.join(name))?,
            Err(_) if host.is_dir() => bind(&host, &root.join(name))?,
            Err(_) => {}
        }
    }
    for name in DEVICES {
        bind(&Path::new("/dev").join(name), &root.join("dev").join(name))?;
    }
    symlink("/proc/self/fd", root.join("dev/fd"))?;
    for (number, name) in ["stdin", "stdout", "stderr"].iter().enumerate() {
        symlink(format!("/proc/self/fd/{number}"), root.join("dev").join(name))?;
    }
    for name in ETC {
        let host = Path::new("/etc").join(name);
        if host.exists() {
            bind(&host, &root.join("etc").join(name))?;
        }
    }
    let user = if system::effective_user() == 0 { spec.user } else { INSIDE_USER };
    fs::write(root.join("etc/passwd"), format!("function:x:{user}:{user}:function:/tmp:/bin/sh\n"))?;
    fs::write(root.join("etc/group"), format!("function:x:{user}:\n"))?;
    fs::write(root.join("etc/hosts"), "127.0.0.1 localhost\n")?;
    fs::write(root.join("etc/nsswitch.conf"), "passwd: files\ngroup: files\nhosts: files\n")?;
    for folder in ["opt", "var/task", "var/runtime", "tmp", "proc"] {
        fs::create_dir_all(root.join(folder))?;
    }
    for Bind { source, target } in &spec.binds {
        bind(source, &root.join(target.strip_prefix("/").unwrap_or(target)))?;
    }
    // Everything so far may be read and executed, not written.
    let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID;
    system::restrict_mount(root, attributes).context("cannot make the root read-only")?;
    for folder in &spec.hidden {
        let inside = root.join(folder.strip_prefix("/").unwrap_or(folder));
        if inside.is_dir() {
            let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_RDONLY;
            system::mount(none, &inside, "tmpfs", flags, "size=4k,nr_inodes=1,mode=755")?;
        }
    }
    // Inodes are limited too: each costs memory that the size does not count.
    let inodes = u64::from(spec.tmp_mib) * 64;
    let options = format!("size={}m,nr_inodes={inodes},mode=1777", spec.tmp_mib);
    system::mount(none, &root.join("tmp"), "tmpfs", flags, &options).context("cannot mount /tmp")?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    system::mount(none, &root.join("proc"), "proc", flags, "").context("cannot mount /proc")?;
    std::env::set_current_dir(root)?;
    system::change_root_to_current_folder().context("cannot change the root")
}

/// Makes `target`, which may not exist yet, show `source`.
fn bind(source: &Path, target: &Path) -> Result<()> {
    let what = || format!("cannot show {} inside the sandbox", source.display());
    let made = || -> io::Result<()> {
        if source.is_dir() {
            fs::create_dir_all(target)
        } else {
            fs::create_dir_all(target.parent().unwrap_or(target))?;
            fs::File::create(target).map(drop)
        }
    };
    made().with_context(what)?;
    system::mount(source, target, "", libc::MS_BIND | libc::MS_REC, "").with_context(what)
}
