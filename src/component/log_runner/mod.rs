//! Does the work of `kube-log-runner` of component-base, which Kubernetes' images have as `/go-runner`: runs a program and writes its output
//! to a file.
//!
//! Takes flags, then the program and its arguments. If the output goes to one place only, this process becomes the program. Otherwise the
//! program is a child process: the runner reads its output from a pipe and passes on signals.
//!
//! Differences from upstream's runner: it ends with the exit code of the program, it passes on every signal instead of only the first one,
//! and it goes on when it cannot write to the file, so that a full disk does not end the program.

mod file;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, PipeReader, Read as _, Write as _, pipe};
use std::os::fd::AsFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::{GoDuration, go_bool, quantity};
use crate::supervise;
use file::LogFile;

const NAMES: [&str; 2] = ["go-runner", "kube-log-runner"];
const FLAGS: &str = "--log-file FILE, --also-stdout, --redirect-stderr=false, --log-file-size QUANTITY, --log-file-age DURATION, \
                     --flush-interval DURATION";
/// The exit code for wrong flags, as of Go's package `flag`.
const WRONG_FLAGS: u8 = 2;
/// How long the runner goes on copying after the end of the program: another process may have the pipe open, or the reader may hang.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// Runs the program in the arguments if the first argument, the name of this program, is a name of the runner. Returns the exit code; `None`
/// under any other name.
pub fn run(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut args = args.into_iter();
    let own = args.next()?;
    let name = Path::new(&own).file_name().and_then(OsStr::to_str).filter(|name| NAMES.contains(name))?;
    // An attempt to become the program replaces standard error even if it fails.
    let stderr = io::stderr().as_fd().try_clone_to_owned().map(File::from);
    let (error, code) = match Options::read(args) {
        Ok((options, program)) => match options.run(&program) {
            Ok(code) => return Some(code),
            Err(error) => (error, 1),
        },
        Err(error) => (format!("{error}; the flags are {FLAGS}"), WRONG_FLAGS),
    };
    // Ignore the error: it cannot be reported anywhere else.
    let _ = stderr.and_then(|mut stderr| writeln!(stderr, "{name}: {error}"));
    Some(ExitCode::from(code))
}

struct Options {
    log_file: Option<PathBuf>,
    /// Whether the output goes to standard output too.
    also_stdout: bool,
    /// Whether standard error goes where standard output goes.
    redirect_stderr: bool,
    /// The size in bytes at which the file is renamed; 0 for never.
    size: i64,
    /// The age at which renamed files are deleted; zero for never.
    age: GoDuration,
    /// The interval at which the file is written to the disk; zero for never.
    flush: GoDuration,
}

impl Options {
    /// Reads the flags by the rules of Go's package `flag`: they begin with one dash or two, and end before the first other argument.
    fn read(mut args: impl Iterator<Item = OsString>) -> Result<(Self, Vec<OsString>), String> {
        let none = GoDuration::default();
        let (mut options, mut program) = (
            Self { log_file: None, also_stdout: false, redirect_stderr: true, size: 0, age: none, flush: none },
            Vec::new(),
        );
        while let Some(arg) = args.next().filter(|arg| arg != "--") {
            let text = arg.to_string_lossy();
            let flag = text.strip_prefix("--").or_else(|| text.strip_prefix('-')).filter(|flag| !flag.is_empty());
            let Some(flag) = flag else {
                program.push(arg);
                break;
            };
            let (name, value) =
                flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value.to_owned())));
            let is_switch = matches!(name, "also-stdout" | "redirect-stderr");
            let value = value.or_else(|| match is_switch {
                true => Some("true".to_owned()),
                false => args.next().map(|value| value.to_string_lossy().into_owned()),
            });
            options.set(name, &value.unwrap_or_default()).map_err(|error| format!("--{name}: {error}"))?;
        }
        program.extend(args);
        Ok((options, program))
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{value:?}: {error}");
        let duration = || value.parse::<GoDuration>().map_err(|error| error.to_string());
        match name {
            "log-file" => self.log_file = Some(value).filter(|path| !path.is_empty()).map(PathBuf::from),
            "also-stdout" => self.also_stdout = go_bool(value).map_err(|error| wrong(&error))?,
            "redirect-stderr" => self.redirect_stderr = go_bool(value).map_err(|error| wrong(&error))?,
            "log-file-size" => self.size = quantity(value).ok_or_else(|| wrong(&"expected a quantity such as 10M"))?,
            "log-file-age" => self.age = duration()?,
            "flush-interval" => self.flush = duration()?,
            _ => return Err("there is no such flag".to_owned()),
        }
        Ok(())
    }

    fn run(self, program: &[OsString]) -> Result<ExitCode, String> {
        let Some((program, arguments)) = program.split_first() else {
            return Err("no program is given to run".to_owned());
        };
        let size =
            u64::try_from(self.size).map_err(|_| "--log-file-size is negative: give 0 or a positive quantity")?;
        let age = self.age.to_std().ok_or("--log-file-age is negative: give 0 or a positive duration")?;
        let flush = self.flush.to_std().unwrap_or_default();
        let mut command = Command::new(program);
        command.args(arguments);
        let unable = |error: io::Error| format!("cannot run {}: {error}", program.display());
        let Some(path) = self.log_file else {
            let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(unable)?;
            let command = if self.redirect_stderr { command.stderr(stdout) } else { &mut command };
            return Err(unable(command.exec()));
        };
        let file = LogFile::open(path, size, age, flush)?;
        if !self.also_stdout && size == 0 && flush.is_zero() {
            return Err(unable(
                redirect(&mut command, file.into_inner(), self.redirect_stderr).map_err(unable)?.exec(),
            ));
        }
        let (output, writer) = pipe().map_err(unable)?;
        redirect(&mut command, writer, self.redirect_stderr).map_err(unable)?;
        run_child(command, Copy { output, file, also_stdout: self.also_stdout }).map_err(unable)
    }
}

/// Sets where the program's standard output goes and, if that is asked for, its standard error.
fn redirect(
    command: &mut Command,
    to: impl Into<std::os::fd::OwnedFd>,
    redirect_stderr: bool,
) -> io::Result<&mut Command> {
    let to = to.into();
    if redirect_stderr {
        command.stderr(Stdio::from(to.try_clone()?));
    }
    Ok(command.stdout(Stdio::from(to)))
}

/// What becomes of a child's output.
struct Copy {
    output: PipeReader,
    file: LogFile,
    also_stdout: bool,
}

impl Copy {
    /// Copies until the output ends.
    fn run(mut self) {
        // Unlike `io::Stdout`, a `File` buffers nothing.
        let stdout = io::stdout().as_fd().try_clone_to_owned().ok().filter(|_| self.also_stdout);
        let mut stdout = stdout.map(File::from);
        let mut bytes = vec![0; 1 << 16];
        loop {
            match self.output.read(&mut bytes) {
                Ok(0) => return,
                Ok(length) => {
                    self.file.write(&bytes[..length]);
                    // Ignore the error: standard output may have no reader any more.
                    let _ = stdout.as_mut().map(|stdout| stdout.write_all(&bytes[..length]));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

/// Runs a child to its end and passes on signals. Returns its exit code; as in a shell, 128 and the signal if one killed it.
fn run_child(command: Command, copy: Copy) -> io::Result<ExitCode> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (done, copied) = channel::<()>();
    let status = runtime.block_on(async {
        let (mut hangup, mut interrupt) = (signal(SignalKind::hangup())?, signal(SignalKind::interrupt())?);
        let (mut terminate, mut quit) = (signal(SignalKind::terminate())?, signal(SignalKind::quit())?);
        let mut child = tokio::process::Command::from(command).spawn()?;
        supervise::thread("copy", move || {
            copy.run();
            drop(done);
        })?;
        loop {
            let signal = tokio::select! {
                status = child.wait() => return status,
                _ = hangup.recv() => Signal::HUP,
                _ = interrupt.recv() => Signal::INT,
                _ = terminate.recv() => Signal::TERM,
                _ = quit.recv() => Signal::QUIT,
            };
            let child = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
            // An error means that the child has ended already.
            let _ = child.map(|child| kill_process(child, signal));
        }
    })?;
    // An error means that the output has ended, or not in time.
    let _ = copied.recv_timeout(LAST_OUTPUT);
    Ok(exit_code(status))
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
