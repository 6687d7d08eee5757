//! Makes an [`Invocation`] of a command line and the file that it names.
//!
//! Takes the arguments of this process, of a command about a proxy, or of a running proxy; reads the configuration file, and gives what the
//! arguments ask for, with a validated [`Config`].

use std::ffi::OsString;
use std::path::PathBuf;
use std::{fs, io};

use super::file::{self, Decoded, KubeProxyConfiguration};
use super::{Config, Context, Error, Invocation, ManifestArgs, ProxyArgs, cli, output, validate};

/// Reads the command line of the proxy (the first argument is the program's name) and the file that it names.
///
/// # Errors
/// Fails when flags, file or values are wrong; see [`Error`].
pub fn load(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, Error> {
    load_with(args, |line| line)
}

/// Does the same as [`load`], for a command line to which `commands` adds subcommands.
///
/// # Errors
/// Fails for the same reasons as [`load`].
pub fn load_with(
    args: impl IntoIterator<Item = OsString>,
    commands: fn(clap::Command) -> clap::Command,
) -> Result<Invocation, Error> {
    let request = cli::parse(args, commands).map_err(|error| match error {
        cli::ParseError::OfProxy(text) => Error::Usage(text),
        cli::ParseError::OfCommand(text) => Error::CommandUsage(text),
    })?;
    match request {
        cli::Request::Command(matches) => Ok(Invocation::Command(matches)),
        cli::Request::Print(text) => Ok(Invocation::Print(text)),
        cli::Request::Run(flags) => invocation(flags),
        cli::Request::Render(flags, _) if flags.option("manifests").is_none() => Err(Error::Usage(
            "kube-proxy render needs --manifests with a directory, a file, or - for standard input\n".to_owned(),
        )),
        cli::Request::Render(flags, args) => {
            let (config, is_named) = render(flags.clone())?;
            let manifests = flags.values("manifests").iter().map(PathBuf::from).collect();
            Ok(Invocation::Render { config, manifests, is_named, args })
        }
    }
}

/// The configuration of `render`, and whether it has the node's name.
fn render(flags: cli::Flags) -> Result<(Config, bool), Error> {
    let (config, file) = CommandLine::new(flags, read)?.config(|| Ok("unknown".to_owned()))?;
    Ok((config, !file.hostname_override.is_empty()))
}

impl ManifestArgs {
    /// Returns the configuration of a proxy with these flags, and whether it has the node's name (see [`Invocation::Render`]).
    ///
    /// # Errors
    /// When the file or values are wrong; see [`Error`].
    pub fn config(&self) -> Result<(Config, bool), Error> {
        render(self.flags().map_err(Error::Usage)?)
    }
}

impl ProxyArgs {
    /// Returns the configuration of a proxy with these flags and no others.
    ///
    /// # Errors
    /// Fails when the file or values are wrong; see [`Error`].
    pub fn config(&self) -> Result<Config, Error> {
        one_directory(&self.0)?;
        Ok(CommandLine::new(self.0.clone(), read)?.config(hostname)?.0)
    }

    /// Returns the flags that were given, as arguments of another command line.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        self.0.arguments()
    }

    /// Returns the configuration of the running proxy that was started with the command line `running`, changed by these flags: each wins
    /// over the flags and the file of the running proxy.
    ///
    /// # Errors
    /// Fails when values are wrong; see [`Error`].
    pub fn config_beside(&self, running: &CommandLine) -> Result<Config, Error> {
        one_directory(&self.0)?;
        Ok(running.clone().with(&self.0)?.config(hostname)?.0)
    }
}

/// A command line of the proxy with the content of the configuration file that it names.
#[derive(Clone, Debug)]
pub struct CommandLine {
    flags: cli::Flags,
    /// The fields of the file with the flags applied.
    file: KubeProxyConfiguration,
    /// The text of the file; empty without a file.
    content: String,
    warnings: Vec<String>,
}

impl CommandLine {
    /// Parses the arguments of a running proxy, the first of which is the program's name. `read` reads the configuration file.
    ///
    /// # Errors
    /// Fails when the arguments are not those of a running proxy, or the file is wrong; see [`Error`].
    pub fn of_running(
        args: impl IntoIterator<Item = OsString>,
        read: impl FnOnce(&str) -> io::Result<String>,
    ) -> Result<Self, Error> {
        match cli::parse(args, |line| line) {
            Ok(cli::Request::Run(flags)) => {
                Self::new(flags, |path| read(path).map_err(|source| Error::Read { path: path.to_owned(), source }))
            }
            Ok(_) => Err(Error::Usage("the arguments are not those of a proxy that runs\n".to_owned())),
            Err(cli::ParseError::OfProxy(text) | cli::ParseError::OfCommand(text)) => Err(Error::Usage(text)),
        }
    }

    /// Reads and decodes the file that the flags name, and applies the flags.
    fn new(flags: cli::Flags, read: impl FnOnce(&str) -> Result<String, Error>) -> Result<Self, Error> {
        let content = flags.config_file().map(read).transpose()?.unwrap_or_default();
        let Decoded { config: mut file, mut warnings } = match flags.config_file() {
            Some(path) => decode(path, &content)?,
            None => Decoded { config: KubeProxyConfiguration::default(), warnings: Vec::new() },
        };
        warnings.extend(flags.warnings(|path| file.path_in_mode(path)));
        flags.apply(&mut file).map_err(Error::Usage)?;
        Ok(Self { flags, file, content, warnings })
    }

    /// Returns this command line with the flags that are in `flags` replaced.
    fn with(mut self, flags: &cli::Flags) -> Result<Self, Error> {
        self.warnings.extend(flags.warnings(|path| self.file.path_in_mode(path)));
        flags.overrule(&mut self.file).map_err(Error::Usage)?;
        self.flags.replace_by(flags);
        Ok(self)
    }

    /// Returns the validated configuration, and the file's fields with the flags applied. Calls `hostname` only if no node name is
    /// configured.
    fn config(self, hostname: impl FnOnce() -> io::Result<String>) -> Result<(Config, KubeProxyConfiguration), Error> {
        let Self { flags, mut file, content, warnings } = self;
        if flags.is_on("cleanup") {
            // Clean-up removes the rules of every mode, so the configured mode must cause no error and no warning.
            file.mode = "nftables".to_owned();
        }
        let context = Context {
            manifests: flags.option("manifests").map(PathBuf::from),
            master: flags.option("master").map(str::to_owned),
            version: flags.version().to_owned(),
            config_file: flags.config_file().map(|path| (PathBuf::from(path), content.into_bytes())),
            configz: output::configz(&file).map_err(Error::Usage)?,
            flags: flags.shown(),
        };
        let config = validate::validate(&file, context, warnings, hostname).map_err(Error::Invalid)?;
        Ok((config, file))
    }
}

/// Refuses several values of `--manifests`: a proxy follows one directory. Only `render` and `explain` take several.
fn one_directory(flags: &cli::Flags) -> Result<(), Error> {
    match flags.values("manifests") {
        [] | [_] => Ok(()),
        several => Err(Error::Usage(format!(
            "--manifests is given {} times, and a proxy follows one directory: put all manifests below one\n",
            several.len()
        ))),
    }
}

/// Returns the action that the flags request. If several flags request different actions, the first one in upstream's order counts:
/// `--write-config-to`, `--cleanup`, `--init-only`.
fn invocation(flags: cli::Flags) -> Result<Invocation, Error> {
    let (cleanup, init_only) = (flags.is_on("cleanup"), flags.is_on("init-only"));
    let write_to = flags.option("write-config-to").map(PathBuf::from);
    let force = flags.is_on("cleanup-force");
    if force && !cleanup {
        return Err(Error::Usage("--cleanup-force is for --cleanup, which is not given\n".to_owned()));
    }
    one_directory(&flags)?;
    let (config, file) = CommandLine::new(flags, read)?.config(hostname)?;
    if let Some(path) = write_to {
        let text = output::yaml(&file).map_err(Error::Usage)?;
        return Ok(Invocation::WriteConfig { path, text, warnings: config.warnings });
    }
    Ok(if cleanup {
        Invocation::Cleanup { config, force }
    } else if init_only {
        Invocation::InitOnly(config)
    } else {
        Invocation::Run(config)
    })
}

/// Checks the new content of a configuration file in the same way as at startup.
///
/// The flags of the process are not applied: a file has to be valid by itself, except that it may lack the node's name.
///
/// # Errors
/// Returns, as text for the log, why the content cannot be decoded or, if it can, all errors in it.
pub fn check_content(content: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(content).map_err(|error| error.to_string())?;
    let decoded = file::decode(text).map_err(|error| error.to_string())?;
    let name = || Ok("node".to_owned());
    let checked = validate::validate(&decoded.config, Context::default(), Vec::new(), name);
    checked.map(drop).map_err(|errors| Error::Invalid(errors).to_string())
}

fn read(path: &str) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

fn decode(path: &str, text: &str) -> Result<Decoded, Error> {
    file::decode(text).map_err(|source| Error::Decode { path: path.to_owned(), source })
}

/// Returns the host name of the kernel, with a newline at its end.
fn hostname() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/hostname")
}
