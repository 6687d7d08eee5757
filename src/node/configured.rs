//! Finds the configuration of the proxy that runs in this network namespace, for the commands that look at a node.
//!
//! The process that holds the writer lock is the running proxy, whatever addresses it listens on. A proxy that waits for its first objects
//! does not hold the lock yet: it is found in /proc. The command line and the configuration file of the proxy are read from /proc, which
//! also works if the proxy has another mount namespace or does not answer. A flag of the command wins over the proxy's configuration.
//! Without a running proxy the flags of the command and defaults apply. When /proc does not show the process of the proxy, its
//! configuration is unknown.
//!
//! Invariants: only a process with CAP_NET_ADMIN counts as the proxy; the lock needs this capability too. The reason is that a
//! configuration can name a kubeconfig, and a kubeconfig can run a program, so the configuration of a process or a server that an
//! unprivileged user started must not be used. For this reason `/configz` is not asked either. Reading the file does not wait for another
//! program, and takes at most `MOST` bytes.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nft::ReadError;
use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::kernel::{Holder, process};
use component::config::{CommandLine, Config, ProxyArgs};

/// The most bytes of a configuration file; a ConfigMap has no more.
const MOST: u64 = 1 << 20;
/// What to do when the configuration of the running proxy cannot be read.
const REMEDY: &str =
    "run this in the container of the proxy (kubectl exec), or as root on the node, or give --config FILE";

/// The configuration that a command uses.
#[derive(Debug)]
pub struct Settings {
    /// The configuration.
    pub config: Config,
    /// Where the configuration is from.
    pub origin: Origin,
    /// Why this command cannot read the source of objects of the running proxy, with the remedy; `None` if it can, or does not need to.
    pub elsewhere: Option<String>,
}

/// Where a configuration is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The flags of the command, and defaults.
    Flags,
    /// The file of `--config`.
    File(String),
    /// The running proxy, which has this name.
    Running(String),
    /// The running proxy, with the flags of the command in place of its own.
    Changed(String),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Flags => f.write_str("the flags"),
            Self::File(file) => f.write_str(file),
            Self::Running(name) => write!(f, "that of the running kube-proxy ({name})"),
            Self::Changed(name) => write!(f, "that of the running kube-proxy ({name}), with the flags given here"),
        }
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum NoSettings {
    /// The configuration is not valid.
    #[error("{0}: {1:#}")]
    Invalid(Origin, anyhow::Error),
    /// The configuration of the running proxy cannot be read.
    #[error("{0:#}")]
    Unseen(anyhow::Error),
}

impl Settings {
    /// The configuration for a command with these flags: the file of `--config`, if it is given; else the configuration of the running
    /// proxy, over which each given flag wins; else, when no running proxy is found, the flags.
    ///
    /// # Errors
    /// See [`NoSettings`].
    pub fn of(args: &ProxyArgs) -> Result<Self, NoSettings> {
        let alone = |origin: Origin| match args.config() {
            Ok(config) => Ok(Self { config, origin, elsewhere: None }),
            Err(error) => Err(NoSettings::Invalid(origin, error.into())),
        };
        if let Some(file) = args.file() {
            return alone(Origin::File(file.to_owned()));
        }
        let Some(proxy) = RunningProxy::find().ok().flatten() else { return alone(Origin::Flags) };
        let origin =
            if args.are_given() { Origin::Changed(proxy.name.clone()) } else { Origin::Running(proxy.name.clone()) };
        let line = proxy.command_line().map_err(NoSettings::Unseen)?;
        match args.config_beside(&line) {
            Ok(mut config) => {
                let names_source = ["kubeconfig", "manifests"].into_iter().any(|flag| args.has(flag));
                if !names_source {
                    proxy.make_absolute(&mut config);
                }
                let elsewhere = if names_source { None } else { proxy.source_elsewhere(&config) };
                Ok(Self { config, origin, elsewhere })
            }
            Err(error) => Err(NoSettings::Invalid(origin, error.into())),
        }
    }
}

/// Parses `IP[:PORT]`, with this port when the text has none.
///
/// # Errors
/// A text that says what is expected.
pub fn address(text: &str, port: u16) -> Result<SocketAddr, String> {
    let with_port = |_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, port));
    text.parse().or_else(with_port).map_err(|_| "expected IP or IP:PORT ([IP]:PORT for IPv6)".to_owned())
}

/// The kube-proxy of this program that runs in this network namespace.
#[derive(Debug)]
pub struct RunningProxy {
    /// Its process id and its command line: `pid 4711: kube-proxy --config ...`.
    name: String,
    /// Its directory in /proc; `None` when this process does not see it.
    process: Option<PathBuf>,
    has_lock: bool,
}

impl std::fmt::Display for RunningProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl RunningProxy {
    /// Finds the running proxy: the process that holds the writer lock, else one that has not taken it yet, if this process sees it.
    ///
    /// # Errors
    /// When the lock cannot be read.
    pub fn find() -> Result<Option<Self>, ReadError> {
        Ok(match Holder::find()? {
            Some(holder) => Some(Self { name: holder.to_string(), process: holder.process(), has_lock: true }),
            None => process::running_proxy(Path::new("/proc")).and_then(Self::without_lock),
        })
    }

    /// The running proxy of this directory in /proc, which does not hold the lock.
    fn without_lock(directory: PathBuf) -> Option<Self> {
        let pid = directory.file_name()?.to_str()?;
        let line = process::command_line(&directory)?;
        Some(Self { name: format!("pid {pid}: {line}"), process: Some(directory), has_lock: false })
    }

    /// The directory in /proc of its process; `None` when this process does not see it.
    #[must_use]
    pub fn process(&self) -> Option<&Path> {
        self.process.as_deref()
    }

    /// A sentence which says that the proxy has written no rules yet, because it waits for its first objects; `None` once it has taken the
    /// writer lock.
    #[must_use]
    pub fn waits(&self) -> Option<String> {
        (!self.has_lock)
            .then(|| format!("kube-proxy ({self}) has not written its rules yet: it waits for its first objects"))
    }

    /// Its configuration; `None` when it cannot be read.
    #[must_use]
    pub fn config(&self) -> Option<Config> {
        let mut config = ProxyArgs::default().config_beside(&self.command_line().ok()?).ok()?;
        self.make_absolute(&mut config);
        Some(config)
    }

    /// The command line with which it was started, and the content of its configuration file.
    fn command_line(&self) -> Result<CommandLine> {
        let unknown = || format!("cannot read how the running kube-proxy ({}) is configured: {REMEDY}", self.name);
        let process = self.process.as_deref().context("/proc does not show its process here").with_context(unknown)?;
        let line = fs::read(process.join("cmdline")).with_context(unknown)?;
        let line = line.strip_suffix(&[0]).unwrap_or(&line);
        let words = line.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec()));
        CommandLine::of_running(words, |path| read(process, path)).with_context(unknown)
    }

    /// Makes the paths of the proxy's kubeconfig and manifests absolute: they may be relative to its working directory.
    fn make_absolute(&self, config: &mut Config) {
        let Some(directory) = self.process.as_ref().and_then(|process| fs::read_link(process.join("cwd")).ok()) else {
            return;
        };
        for path in [&mut config.manifests, &mut config.client.kubeconfig].into_iter().flatten() {
            *path = directory.join(&*path);
        }
    }

    /// Why the path of the proxy's kubeconfig or manifests is not the same file for this process; `None` if it is, and if the file of the
    /// proxy cannot be looked at.
    fn source_elsewhere(&self, config: &Config) -> Option<String> {
        let path = config.manifests.as_ref().or(config.client.kubeconfig.as_ref())?;
        let there = open(self.process.as_deref()?, path, OFlags::PATH).and_then(|file| file.metadata()).ok()?;
        let is_same = |here: fs::Metadata| (here.dev(), here.ino()) == (there.dev(), there.ino());
        (!fs::metadata(path).is_ok_and(is_same)).then(|| {
            format!(
                "{} is in the file system of the running kube-proxy ({}), and not in that of this command: run this in the container of \
                 the proxy (kubectl exec), or give --kubeconfig FILE or --manifests DIR",
                path.display(),
                self.name
            )
        })
    }
}

/// The text of a file, as a process sees it.
fn read(process: &Path, path: &str) -> io::Result<String> {
    // Opening a pipe must not wait for a writer.
    let file = open(process, Path::new(path), OFlags::RDONLY | OFlags::NONBLOCK)?;
    let mut text = String::new();
    if file.take(MOST).read_to_string(&mut text)? as u64 == MOST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than a ConfigMap can be"));
    }
    Ok(text)
}

/// Opens a file as a process sees it: an absolute path in its root directory, which symbolic links do not leave, and a relative path in its
/// working directory.
fn open(process: &Path, path: &Path, flags: OFlags) -> io::Result<File> {
    let (place, resolve) =
        if path.is_absolute() { ("root", ResolveFlags::IN_ROOT) } else { ("cwd", ResolveFlags::empty()) };
    let base = rustix::fs::open(process.join(place), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    Ok(rustix::fs::openat2(base, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A directory that stands for the directory of a process in /proc, with a root and a working directory.
    fn process() -> tempfile::TempDir {
        let process = tempfile::tempdir().unwrap();
        fs::create_dir_all(process.path().join("root/etc/..data")).unwrap();
        fs::create_dir(process.path().join("cwd")).unwrap();
        process
    }

    #[test]
    fn a_file_is_read_as_the_process_sees_it() {
        let process = process();
        let root = process.path().join("root");
        fs::write(root.join("etc/..data/config"), "kind: A").unwrap();
        fs::write(process.path().join("cwd/config"), "kind: B").unwrap();
        symlink("..data/config", root.join("etc/relative")).unwrap();
        symlink("/etc/relative", root.join("etc/absolute")).unwrap();
        symlink("/etc/hostname", root.join("etc/hostname")).unwrap();
        let read = |path: &str| read(process.path(), path).ok();
        assert_eq!(read("/etc/relative").as_deref(), Some("kind: A"));
        assert_eq!(read("/etc/absolute").as_deref(), Some("kind: A"));
        assert_eq!(read("config").as_deref(), Some("kind: B"));
        assert_eq!(read("/etc/hostname"), None, "a link does not lead to a file of this root");
        fs::write(root.join("large"), vec![b' '; 2 << 20]).unwrap();
        assert_eq!(read("/large"), None);
    }

    #[test]
    fn a_kubeconfig_with_the_same_path_is_used_only_when_it_is_the_same_file() {
        let (process, here) = (process(), tempfile::tempdir().unwrap());
        let kubeconfig = here.path().join("kubeconfig");
        let there = process.path().join("root").join(kubeconfig.strip_prefix("/").unwrap());
        fs::create_dir_all(there.parent().unwrap()).unwrap();
        let proxy = RunningProxy {
            name: "pid 7: kube-proxy".to_owned(),
            process: Some(process.path().to_owned()),
            has_lock: true,
        };
        let flags = ["kube-proxy".to_owned(), format!("--kubeconfig={}", kubeconfig.display())];
        let line = CommandLine::of_running(flags.map(OsString::from), |_| unreachable!()).unwrap();
        let config = ProxyArgs::default().config_beside(&line).unwrap();
        assert_eq!(proxy.source_elsewhere(&config), None, "there is none: the error of reading it says so");
        fs::write(&there, "").unwrap();
        let text = proxy.source_elsewhere(&config).unwrap();
        assert!(text.contains("in the file system of the running kube-proxy (pid 7: kube-proxy)"), "{text}");
        fs::write(&kubeconfig, "").unwrap();
        assert!(proxy.source_elsewhere(&config).is_some(), "another file of this path");
        fs::remove_file(&kubeconfig).unwrap();
        fs::hard_link(&there, &kubeconfig).unwrap();
        assert_eq!(proxy.source_elsewhere(&config), None);
    }

    #[test]
    fn an_address_may_be_without_a_port() {
        assert_eq!(address("192.0.2.1", 7), Ok("192.0.2.1:7".parse().unwrap()));
        assert_eq!(address("[::1]:8", 7), Ok("[::1]:8".parse().unwrap()));
        assert!(address("here", 7).unwrap_err().contains("expected IP"));
    }
}
