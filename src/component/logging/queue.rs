//! The queue between the threads that log and an output stream of the log, whose reader may be slow or may not read at all.
//!
//! "Line" means a formatted record, even if it has several lines of text. The queue takes lines from any thread and never makes the thread
//! wait for the reader: it drops and counts lines that do not fit. One thread, the writer, writes the lines ([`Queue::write_to`]) and waits
//! for the reader.
//!
//! Invariants: lines are written in the order of their arrival, each within one call of `write_all`, so that a pipe does not mix what one
//! call writes, if it is up to 4,096 bytes (`PIPE_BUF`), with the output of other processes. After a line was dropped, all further lines
//! are dropped until the queue is empty: so the log has one gap instead of many, and a line in the gap tells the number of dropped lines.
//! The queue keeps at most [`BYTES`] bytes and [`LINES`] lines, except for a single line that is larger. The writer's buffer is flushed
//! when it is full, when its flush time has passed, and at the end of the process.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::buffer::Buffer;

/// The largest number of bytes that the queue keeps for a slow reader: enough for many seconds of a busy log.
pub(super) const BYTES: usize = 4 << 20;
/// The largest number of lines that the queue keeps. The limit bounds the memory that each line needs in addition to its text.
pub(super) const LINES: usize = 16_384;

/// A function that receives the number of lines that were dropped since its last call. It is called with the queue locked, so it must
/// neither block nor log.
pub(super) type OnDrop = Box<dyn Fn(u64) + Send>;

pub(super) struct Queue {
    state: Mutex<State>,
    /// Notified when the writer has something to write.
    filled: Condvar,
    /// Notified when everything is written.
    drained: Condvar,
}

struct State {
    lines: VecDeque<String>,
    bytes: usize,
    /// Whether the writer has taken a line or a number of dropped lines from the queue, and has not written it yet.
    writing: bool,
    /// The number of lines dropped since the last log line about dropped lines.
    unreported: u64,
    /// The number of lines dropped before `on_drop` was set.
    uncounted: u64,
    on_drop: Option<OnDrop>,
    /// When the writer's buffer has to be flushed; `None` if it is empty.
    flush_at: Option<Instant>,
    /// Whether the process is about to end, so that the writer's buffer is flushed at once.
    ending: bool,
}

impl State {
    /// Returns whether everything is written.
    fn is_drained(&self) -> bool {
        self.lines.is_empty() && self.unreported == 0 && !self.writing && self.flush_at.is_none()
    }

    fn count_dropped(&mut self) {
        match &self.on_drop {
            Some(count) => count(1),
            None => self.uncounted += 1,
        }
    }
}

/// What the writer does next.
enum Work {
    Write(String),
    ReportDropped(u64),
    Flush,
}

impl Queue {
    pub(super) const fn new() -> Self {
        let state = State {
            lines: VecDeque::new(),
            bytes: 0,
            writing: false,
            unreported: 0,
            uncounted: 0,
            on_drop: None,
            flush_at: None,
            ending: false,
        };
        Self { state: Mutex::new(state), filled: Condvar::new(), drained: Condvar::new() }
    }

    /// Locks the state. Uses it even after another thread panicked with the lock held: at worst a line is missing.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a line, or drops it when the queue is full.
    pub(super) fn push(&self, line: String) {
        let mut state = self.lock();
        let fits = state.lines.is_empty() || (state.lines.len() < LINES && state.bytes + line.len() <= BYTES);
        if fits && state.unreported == 0 {
            state.bytes += line.len();
            state.lines.push_back(line);
            self.filled.notify_one();
        } else {
            state.unreported += 1;
            state.count_dropped();
        }
    }

    /// Sets the function that counts dropped lines, and calls it with the number of lines dropped so far.
    pub(super) fn on_drop(&self, count: OnDrop) {
        let mut state = self.lock();
        count(std::mem::take(&mut state.uncounted));
        state.on_drop = Some(count);
    }

    /// Writes lines for ever. `report` logs the number of dropped lines. A write that fails counts as one dropped line, but `report` is not
    /// called for it, because its record could not be written either.
    pub(super) fn write_to(&self, mut out: Buffer<impl Write>, report: impl Fn(u64)) -> ! {
        loop {
            let written = match self.next() {
                Work::Write(line) => out.write(line.as_bytes()).is_ok(),
                Work::ReportDropped(lines) => {
                    report(lines);
                    true
                }
                Work::Flush => out.flush().is_ok(),
            };
            self.written(written, out.flush_within());
        }
    }

    /// Removes the waiting lines from the queue and returns them.
    pub(super) fn take_all(&self) -> String {
        self.lock().lines.drain(..).collect()
    }

    fn next(&self) -> Work {
        let mut state = self.lock();
        loop {
            let work = match state.lines.pop_front() {
                Some(line) => {
                    state.bytes -= line.len();
                    Some(Work::Write(line))
                }
                None if state.unreported > 0 => Some(Work::ReportDropped(std::mem::take(&mut state.unreported))),
                None => None,
            };
            let left = state.flush_at.map(|at| at.saturating_duration_since(Instant::now()));
            let is_due = left.is_some_and(|left| state.ending || left.is_zero());
            if let Some(work) = work.or(is_due.then_some(Work::Flush)) {
                state.writing = true;
                return work;
            }
            state = match left {
                None => self.filled.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) => self.filled.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// Notes that the writer has written what it took from the queue. `flush_within` is the longest time until the writer's buffer has to
    /// be flushed; `None` if it is empty.
    fn written(&self, ok: bool, flush_within: Option<Duration>) {
        let mut state = self.lock();
        state.writing = false;
        if !ok {
            state.count_dropped();
        }
        state.flush_at = flush_within.map(|within| {
            let at = Instant::now() + within;
            state.flush_at.map_or(at, |before| before.min(at))
        });
        if state.is_drained() {
            self.drained.notify_all();
        }
    }

    /// Waits until all lines are written, but not longer than `at_most`. Call this at the end of the process: from now on the writer's
    /// buffer is flushed at once.
    pub(super) fn drain(&self, at_most: Duration) {
        self.drain_from(self.lock(), at_most);
    }

    /// Does the same as [`Self::drain`], but nothing if the state is locked: this thread may hold the lock itself, if it ran out of memory
    /// in `push`.
    pub(super) fn drain_if_free(&self, at_most: Duration) {
        if let Ok(state) = self.state.try_lock() {
            self.drain_from(state, at_most);
        }
    }

    fn drain_from(&self, mut state: MutexGuard<'_, State>, at_most: Duration) {
        state.ending = true;
        self.filled.notify_one();
        // Ignore whether the wait timed out, because the process ends in either case.
        let _ = self.drained.wait_timeout_while(state, at_most, |state| !state.is_drained());
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, BufRead, BufReader, PipeReader};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Returns a queue and the counter of its dropped lines.
    fn counting() -> (&'static Queue, Arc<AtomicU64>) {
        let (queue, dropped) = (Box::leak(Box::new(Queue::new())), Arc::new(AtomicU64::new(0)));
        let counter = Arc::clone(&dropped);
        queue.on_drop(Box::new(move |lines| _ = counter.fetch_add(lines, Ordering::Relaxed)));
        (queue, dropped)
    }

    /// Writes a queue's lines to `out` until the test process ends.
    fn write(queue: &'static Queue, out: impl Write + Send + 'static) {
        write_buffered(queue, Buffer::none(out));
    }

    fn write_buffered(queue: &'static Queue, out: Buffer<impl Write + Send + 'static>) {
        thread::spawn(move || queue.write_to(out, |lines| queue.push(format!("dropped {lines}\n"))));
    }

    fn piped(queue: &'static Queue) -> impl Iterator<Item = String> {
        let (reader, writer): (PipeReader, _) = io::pipe().unwrap();
        write(queue, writer);
        BufReader::new(reader).lines().map(Result::unwrap)
    }

    #[test]
    fn lines_beyond_the_bound_are_dropped_counted_and_reported_where_they_are_missing() {
        let (queue, dropped) = counting();
        (0..LINES + 3).for_each(|n| queue.push(format!("{n}\n")));
        assert_eq!(dropped.load(Ordering::Relaxed), 3);
        let mut lines = piped(queue);
        (0..LINES).for_each(|n| assert_eq!(lines.next().unwrap(), n.to_string()));
        assert_eq!(lines.next().unwrap(), "dropped 3");
        queue.drain(LONG);
        queue.push("after\n".to_owned());
        assert_eq!(lines.next().unwrap(), "after");
    }

    #[test]
    fn there_is_one_gap_until_the_queue_is_empty() {
        let (queue, dropped) = counting();
        let half = "x".repeat(BYTES / 2 + 1);
        for line in [&half, &half, "small"] {
            queue.push(format!("{line}\n"));
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 2, "the second half, and the line after it");
        let mut lines = piped(queue);
        assert_eq!(lines.next().unwrap(), half);
        assert_eq!(lines.next().unwrap(), "dropped 2");
    }

    #[test]
    fn a_single_line_that_is_larger_than_the_bound_is_kept() {
        let (queue, dropped) = counting();
        queue.push("x".repeat(BYTES + 1) + "\n");
        assert_eq!(piped(queue).next().unwrap().len(), BYTES + 1);
        assert_eq!(dropped.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn lines_that_were_dropped_before_there_was_a_counter_are_counted() {
        let queue = Queue::new();
        (0..LINES + 2).for_each(|_| queue.push("\n".to_owned()));
        let dropped = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&dropped);
        queue.on_drop(Box::new(move |lines| _ = counter.fetch_add(lines, Ordering::Relaxed)));
        assert_eq!(dropped.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn the_end_does_not_wait_for_ever_for_a_reader() {
        let (queue, _) = counting();
        let (_unread, writer) = io::pipe().unwrap();
        write(queue, writer);
        queue.push("x".repeat(1 << 20));
        queue.drain(Duration::from_millis(10));
        assert!(!queue.lock().is_drained());
    }

    #[test]
    fn a_line_that_cannot_be_written_is_counted_and_not_reported() {
        let (queue, dropped) = counting();
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        write(queue, writer);
        queue.push("lost\n".to_owned());
        queue.drain(LONG);
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_is_buffered_is_written_when_its_time_is_up() {
        let (queue, _) = counting();
        let (reader, writer) = io::pipe().unwrap();
        write_buffered(queue, Buffer::new(writer, 1 << 20, Duration::from_millis(20)));
        let mut lines = BufReader::new(reader).lines().map(Result::unwrap);
        for line in ["one", "two"] {
            queue.push(format!("{line}\n"));
            assert_eq!(lines.next().unwrap(), line);
        }
    }

    #[test]
    fn what_is_buffered_is_written_at_the_end() {
        let (queue, _) = counting();
        let (reader, writer) = io::pipe().unwrap();
        write_buffered(queue, Buffer::new(writer, 1 << 20, LONG));
        queue.push("last\n".to_owned());
        queue.drain(LONG);
        assert!(queue.lock().is_drained());
        assert_eq!(BufReader::new(reader).lines().next().unwrap().unwrap(), "last");
    }
}
