//! A full-screen terminal: draws lines, reads keys, and restores the terminal however the process ends.
//!
//! `Screen::enter` starts a second process, the guard. Once the guard has saved the modes of the terminal, `Screen::enter` changes them.
//! `Drop` restores the terminal after a normal end, an error or a panic, and then sends the guard a byte that makes it exit. SIGTERM, SIGINT
//! and SIGHUP arrive as `Input::Signal`. When the process ends in any other way, for example by SIGKILL, the kernel closes its end of the
//! guard's pipe, and the guard, if it could be started, restores the terminal.
//!
//! The guard is this program, run as the hidden subcommand `terminal-guard`. It sets its process name to `terminal-guard`, so that
//! `pkill kube-proxy` does not end it. It runs in its own session, so that terminal keys do not end it, and it may change the terminal from
//! the background.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{execute, queue};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::output::Tone;

/// The hidden subcommand that runs the guard process.
pub const GUARD: &str = "terminal-guard";

/// The longest time between two checks for a signal in `Screen::wait`.
const SLICE: Duration = Duration::from_millis(100);

/// The keys that commands use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    /// Ctrl-C.
    Interrupt,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
}

/// The result of `Screen::wait`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Key(Key),
    /// The terminal was resized.
    Resized,
    /// A signal asks the process to end.
    Signal(i32),
    /// Nothing happened before the timeout.
    Nothing,
}

/// A line of the screen. Text in it that comes from the kernel or the API must be escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    text: String,
    tone: Tone,
    selected: bool,
}

impl Line {
    pub(crate) fn new(tone: Tone, text: impl Into<String>) -> Self {
        Self { text: text.into(), tone, selected: false }
    }

    pub(crate) fn selected(self, selected: bool) -> Self {
        Self { selected, ..self }
    }

    /// Cuts the line to `width` characters.
    pub(crate) fn cut(mut self, width: usize) -> Self {
        if let Some((end, _)) = self.text.char_indices().nth(width) {
            self.text.truncate(end);
        }
        self
    }

    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    #[cfg(test)]
    pub(crate) const fn is_selected(&self) -> bool {
        self.selected
    }
}

/// The terminal in full-screen mode. Dropping it restores the terminal.
struct Screen {
    guard: Option<Guard>,
    signal: Arc<AtomicUsize>,
}

impl Screen {
    /// Switches the terminal to full-screen mode.
    ///
    /// # Errors
    /// When standard input or output is no terminal, or the terminal cannot be changed.
    fn enter() -> Result<Self> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            bail!(
                "standard input and output must be a terminal for a screen; --once prints once, and -o json for programs"
            );
        }
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGTERM, SIGINT, SIGHUP] {
            let value = usize::try_from(number).unwrap_or_default();
            signal_hook::flag::register_usize(number, Arc::clone(&signal), value)?;
        }
        // Restore the terminal before the panic message is printed, which otherwise vanishes with the screen.
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            hook(info);
        }));
        let screen = Self { guard: Guard::start(), signal };
        terminal::enable_raw_mode().context("cannot change the modes of the terminal")?;
        execute!(io::stdout(), EnterAlternateScreen, Hide).context("cannot write to the terminal")?;
        Ok(screen)
    }

    /// Returns the columns and rows of the terminal.
    ///
    /// # Errors
    /// When the terminal does not report its size.
    fn size(&self) -> Result<(usize, usize)> {
        let (columns, rows) = terminal::size().context("cannot find out the size of the terminal")?;
        Ok((columns.into(), rows.into()))
    }

    /// Draws lines from the top and clears the rest of the screen.
    ///
    /// # Errors
    /// When the terminal cannot be written to.
    fn draw(&self, lines: &[Line]) -> Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        for (row, line) in (0..).zip(lines) {
            queue!(out, MoveTo(0, row))?;
            match line.tone {
                Tone::Strong => queue!(out, SetAttribute(Attribute::Bold))?,
                Tone::Faint => queue!(out, SetAttribute(Attribute::Dim))?,
                Tone::Good => queue!(out, SetForegroundColor(Color::Green))?,
                Tone::Warning => queue!(out, SetForegroundColor(Color::Yellow))?,
                Tone::Bad => queue!(out, SetForegroundColor(Color::Red))?,
                Tone::Plain => {}
            }
            if line.selected {
                queue!(out, SetAttribute(Attribute::Reverse))?;
            }
            queue!(out, Print(&line.text), SetAttribute(Attribute::Reset), ResetColor, Clear(ClearType::UntilNewLine))?;
        }
        let after = u16::try_from(lines.len()).unwrap_or(u16::MAX);
        if self.size().is_ok_and(|(_, rows)| usize::from(after) < rows) {
            queue!(out, MoveTo(0, after), Clear(ClearType::FromCursorDown))?;
        }
        out.flush().context("cannot write to the terminal")
    }

    /// Waits at most `time` for a key, a new size of the terminal, or a signal.
    ///
    /// # Errors
    /// When the terminal cannot be read.
    fn wait(&self, time: Duration) -> Result<Input> {
        let end = Instant::now() + time;
        loop {
            let signal = self.signal.load(Ordering::Acquire);
            if signal != 0 {
                return Ok(Input::Signal(i32::try_from(signal).unwrap_or_default()));
            }
            let left = end.saturating_duration_since(Instant::now());
            if event::poll(left.min(SLICE)).context("cannot read from the terminal")?
                && let Some(input) = input(&event::read()?)
            {
                return Ok(input);
            }
            if left.is_zero() {
                return Ok(Input::Nothing);
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
        if let Some(guard) = self.guard.take() {
            guard.dismiss();
        }
    }
}

/// The content that [`show`] draws, and its reaction to keys.
pub(crate) trait OnScreen {
    /// The lines, at most `height` of at most `width` characters.
    ///
    /// # Errors
    /// When they cannot be made.
    fn frame(&mut self, width: usize, height: usize) -> Result<Vec<Line>>;

    /// Handles a key. Returns whether the screen stays open.
    fn key(&mut self, key: Key) -> bool;

    /// Reads the shown data again.
    ///
    /// # Errors
    /// When it cannot be read.
    fn look(&mut self) -> Result<()>;
}

/// Shows something in full-screen mode until a key or a signal ends it, and calls [`OnScreen::look`] after each `interval`. After a signal,
/// the process ends by the default action of that signal.
///
/// # Errors
/// When the terminal cannot be used, or what is shown cannot be read.
pub(crate) fn show(shown: &mut impl OnScreen, interval: Duration) -> Result<()> {
    let screen = Screen::enter()?;
    let mut next = Instant::now() + interval;
    let signal = loop {
        let (width, height) = screen.size()?;
        screen.draw(&shown.frame(width, height)?)?;
        match screen.wait(next.saturating_duration_since(Instant::now()))? {
            Input::Key(key) if !shown.key(key) => break None,
            Input::Key(_) | Input::Resized => {}
            Input::Signal(signal) => break Some(signal),
            Input::Nothing => {
                shown.look()?;
                next = Instant::now() + interval;
            }
        }
    };
    drop(screen);
    signal.into_iter().for_each(end_by);
    Ok(())
}

/// Ends the process by the default action of a signal. To be called after the screen is dropped.
fn end_by(signal: i32) {
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}

/// Restores the terminal. Errors are ignored, because nothing more can be done then.
fn restore() {
    let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}

fn input(event: &Event) -> Option<Input> {
    let key = match event {
        Event::Resize(..) => return Some(Input::Resized),
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        _ => return None,
    };
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(Input::Key(match key.code {
        KeyCode::Char('c') if control => Key::Interrupt,
        KeyCode::Char(c) if !control => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    }))
}

/// The guard process, which restores the terminal if this process is killed.
struct Guard {
    child: Child,
}

impl Guard {
    /// Starts the guard and waits until it has saved the modes of the terminal. `None` when it does not start: the screen works without
    /// it, but SIGKILL then leaves the terminal in full-screen mode.
    fn start() -> Option<Self> {
        use std::os::fd::AsFd as _;
        use std::os::unix::process::CommandExt as _;
        let terminal = io::stdout().as_fd().try_clone_to_owned().ok()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(GUARD).arg(GUARD).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::from(terminal));
        let mut child = command.spawn().ok()?;
        let ready = child.stdout.take().is_some_and(|mut stdout| stdout.read_exact(&mut [0]).is_ok());
        if !ready {
            let _ = child.kill();
            let _ = child.wait();
        }
        ready.then_some(Self { child })
    }

    /// Tells the guard that the terminal is restored, and waits until the guard exits.
    fn dismiss(mut self) {
        if let Some(mut stdin) = self.child.stdin.take() {
            let _ = stdin.write_all(&[1]);
        }
        let _ = self.child.wait();
    }
}

/// Runs the guard process. Standard error is the terminal, standard input is a pipe from the process with the screen. Returns when that
/// process sends a byte, or when it has died and the terminal is restored.
///
/// # Errors
/// When the terminal cannot be changed.
pub fn guard() -> Result<()> {
    let _ = rustix::thread::set_name(c"terminal-guard");
    // `setsid` fails only for the leader of a process group, which a child process is not when it starts.
    let _ = rustix::process::setsid();
    let terminal = io::stderr();
    let before = tcgetattr(&terminal).context("standard error is no terminal")?;
    let mut raw = before.clone();
    raw.make_raw();
    io::stdout().write_all(&[1])?;
    io::stdout().flush()?;
    if io::stdin().read(&mut [0])? > 0 {
        return Ok(());
    }
    execute!(io::stderr(), Show, LeaveAlternateScreen)?;
    // Restore the modes only while they are raw: a shell may have set its own modes already.
    if same_modes(&tcgetattr(&terminal)?, &raw) {
        tcsetattr(&terminal, OptionalActions::Now, &before)?;
    }
    Ok(())
}

fn same_modes(a: &Termios, b: &Termios) -> bool {
    let modes = |of: &Termios| (of.input_modes, of.output_modes, of.control_modes, of.local_modes);
    modes(a) == modes(b)
}
