//! What a part of the program logs in a test, as text.

use std::io;
use std::sync::{Arc, Mutex};

use tracing::Level;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panicked").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What this thread logs while the action runs, up to a level.
pub(crate) fn logged(up_to: Level, action: impl FnOnce()) -> String {
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(up_to).with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, action);
    let bytes = log.0.lock().expect("no writer panicked").clone();
    String::from_utf8(bytes).expect("text")
}
