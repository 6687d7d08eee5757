//! The terminal as a screen: lines out, keys in, and the terminal as it was before whatever ends the process.
//!
//! `Screen::enter` changes the terminal and starts a second process, the guard, which knows the modes from before. An end in order, an
//! error and a panic restore the terminal in `Drop`; after that a byte tells the guard to go. SIGTERM, SIGINT and SIGHUP come as
//! `Input::Signal`. When the process ends in any other way, as by SIGKILL, the kernel closes its end of the guard's pipe, and
//! the guard restores the terminal. The guard is this program once more, under the name `terminal-guard`, in a session of its own:
//! so neither the keys of the terminal nor a signal to this program's name end it, and it may change the terminal from the background.

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

/// The hidden command that is the guard.
pub const GUARD: &str = "terminal-guard";

/// How often a waiting screen looks whether a signal came.
const SLICE: Duration = Duration::from_millis(100);

/// A key, as far as commands use keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// A character.
    Char(char),
    /// Control and C.
    Interrupt,
    /// The named keys.
    Up,
    /// Down.
    Down,
    /// Page up.
    PageUp,
    /// Page down.
    PageDown,
    /// Home.
    Home,
    /// End.
    End,
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Backspace.
    Backspace,
}

/// What happened while the screen waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// A key.
    Key(Key),
    /// The terminal has another size.
    Resized,
    /// A signal asks the process to end.
    Signal(i32),
    /// Nothing in this time.
    Nothing,
}

/// A line of the screen. Its text must not have unescaped text of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    text: String,
    tone: Tone,
    selected: bool,
}

impl Line {
    /// A line in a tone.
    pub(crate) fn new(tone: Tone, text: impl Into<String>) -> Self {
        Self { text: text.into(), tone, selected: false }
    }

    /// The line, marked as the selected one or not.
    pub(crate) fn selected(self, selected: bool) -> Self {
        Self { selected, ..self }
    }

    /// Its first characters, so that it fits.
    pub(crate) fn cut(mut self, width: usize) -> Self {
        if let Some((end, _)) = self.text.char_indices().nth(width) {
            self.text.truncate(end);
        }
        self
    }

    /// Its text.
    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether it is marked.
    #[cfg(test)]
    pub(crate) const fn is_selected(&self) -> bool {
        self.selected
    }
}

/// The terminal while it is a screen.
pub(crate) struct Screen {
    guard: Option<Guard>,
    signal: Arc<AtomicUsize>,
}

impl Screen {
    /// Makes the terminal a screen.
    ///
    /// # Errors
    /// When standard input or output is no terminal, or the terminal cannot be changed.
    pub(crate) fn enter() -> Result<Self> {
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
        // A panic's message would go to the screen that is about to vanish.
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

    /// Columns and rows.
    ///
    /// # Errors
    /// When the terminal does not tell.
    pub(crate) fn size(&self) -> Result<(usize, usize)> {
        let (columns, rows) = terminal::size().context("cannot find out the size of the terminal")?;
        Ok((columns.into(), rows.into()))
    }

    /// Draws lines from the top; what is below them is empty.
    ///
    /// # Errors
    /// When the terminal cannot be written to.
    pub(crate) fn draw(&self, lines: &[Line]) -> Result<()> {
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

    /// Waits at most this long for something to happen.
    ///
    /// # Errors
    /// When the terminal cannot be read.
    pub(crate) fn wait(&self, time: Duration) -> Result<Input> {
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

/// Ends the process as a signal does by default, once the screen is gone.
pub(crate) fn end_by(signal: i32) {
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}

/// Gives the terminal back. A failure cannot be helped: the terminal is gone.
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

/// The other process.
struct Guard {
    child: Child,
}

impl Guard {
    /// Starts it, and waits until it knows the modes of the terminal. `None` when it does not start: then only SIGKILL leaves the terminal
    /// as a screen, which is no reason to show nothing.
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

    /// Tells it that the terminal is as it was, and waits for its end.
    fn dismiss(mut self) {
        if let Some(mut stdin) = self.child.stdin.take() {
            let _ = stdin.write_all(&[1]);
        }
        let _ = self.child.wait();
    }
}

/// The guard: standard error is the terminal, standard input the pipe from the process that has the screen. Returns when that says so, or
/// when it ended and the terminal is restored.
///
/// # Errors
/// When the terminal cannot be changed.
pub fn guard() -> Result<()> {
    let _ = rustix::thread::set_name(c"terminal-guard");
    // Fails only where this process leads a group, which a child does not.
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
    // A shell that has the terminal back already may have set modes of its own.
    if same_modes(&tcgetattr(&terminal)?, &raw) {
        tcsetattr(&terminal, OptionalActions::Now, &before)?;
    }
    Ok(())
}

fn same_modes(a: &Termios, b: &Termios) -> bool {
    let modes = |of: &Termios| (of.input_modes, of.output_modes, of.control_modes, of.local_modes);
    modes(a) == modes(b)
}
