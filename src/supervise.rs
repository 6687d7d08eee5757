//! Tasks and threads that have to run as long as the process does.
//!
//! Takes their work and their names; gives the first failure of any of them, to end the process with. A panic is a failure like any
//! other, and its text begins with the name of who panicked. Work that ends well has done what it should, and is not told of.

use std::any::Any;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Starts work. Clones report to the same [`Failures`].
#[derive(Clone, Debug)]
pub struct Supervisor(UnboundedSender<anyhow::Error>);

/// How work failed.
#[derive(Debug)]
pub struct Failures {
    receiver: UnboundedReceiver<anyhow::Error>,
    /// Without it the failures would end when all work has ended.
    _supervisor: Supervisor,
}

/// The two ends.
#[must_use]
pub fn new() -> (Supervisor, Failures) {
    let (sender, receiver) = unbounded_channel();
    (Supervisor(sender.clone()), Failures { receiver, _supervisor: Supervisor(sender) })
}

impl Supervisor {
    /// Runs a task of the current runtime. `name` is what the text of a panic begins with, such as "the metrics server's task".
    pub fn task(&self, name: &'static str, work: impl Future<Output = Result<()>> + Send + 'static) {
        let (supervisor, task) = (self.clone(), tokio::spawn(work));
        tokio::spawn(async move {
            supervisor.tell(match task.await {
                Ok(outcome) => outcome,
                // Nobody aborts it, but the runtime, whose end nobody needs to be told of.
                Err(error) => error.try_into_panic().map_or(Ok(()), |panic| Err(panicked(name, &*panic))),
            });
        });
    }

    /// Runs a thread that the system calls `short`, in at most 15 bytes; `name` as for [`Self::task`].
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub fn thread(
        &self,
        short: &str,
        name: &'static str,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let supervisor = self.clone();
        thread::Builder::new().name(short.into()).spawn(move || supervisor.tell(guarded(name, work)))
    }

    fn tell(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            // Nobody listens any more when the process is ending.
            let _ = self.0.send(error);
        }
    }
}

impl Failures {
    /// Waits for the next failure.
    pub async fn next(&mut self) -> anyhow::Error {
        match self.receiver.recv().await {
            Some(error) => error,
            // There is always a sender.
            None => std::future::pending().await,
        }
    }
}

/// Does work of this thread, and makes an error of a panic: "`name` panicked: ...".
///
/// # Errors
/// Those of the work, and its panic. What the work used is not to be used after one.
pub fn guarded<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(name, &*panic)))
}

fn panicked(name: &str, panic: &(dyn Any + Send)) -> anyhow::Error {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    anyhow!("{name} panicked: {}", text.unwrap_or("it did not say why"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    async fn next(failures: &mut Failures) -> String {
        timeout(Duration::from_secs(20), failures.next()).await.expect("a failure").to_string()
    }

    #[tokio::test]
    async fn a_task_that_panics_is_a_failure_with_its_name() {
        let (supervisor, mut failures) = new();
        supervisor.task("the metrics server's task", async { panic!("no {}", "metrics") });
        assert_eq!(next(&mut failures).await, "the metrics server's task panicked: no metrics");
        supervisor.task("the health servers' task", async { panic!("plain") });
        assert_eq!(next(&mut failures).await, "the health servers' task panicked: plain");
    }

    #[tokio::test]
    async fn a_thread_that_panics_is_a_failure_with_its_name() {
        let (supervisor, mut failures) = new();
        let thread = supervisor.thread("config-watch", "the configuration watcher's thread", || panic!("out of files"));
        assert_eq!(next(&mut failures).await, "the configuration watcher's thread panicked: out of files");
        assert!(thread.unwrap().join().is_ok(), "the panic ended there");
        supervisor.thread("odd", "the odd thread", || std::panic::panic_any(7)).unwrap();
        assert_eq!(next(&mut failures).await, "the odd thread panicked: it did not say why");
    }

    #[tokio::test]
    async fn errors_are_failures_as_they_are_and_a_good_end_is_none() {
        let (supervisor, mut failures) = new();
        supervisor.task("a task", async { Ok(()) });
        supervisor.thread("thread", "a thread", || Ok(())).unwrap().join().unwrap();
        tokio::task::yield_now().await;
        supervisor.task("a task", async { Err(anyhow!("the address is in use")) });
        assert_eq!(next(&mut failures).await, "the address is in use");
        supervisor.thread("thread", "a thread", || Err(anyhow!("the file was updated"))).unwrap();
        assert_eq!(next(&mut failures).await, "the file was updated");
    }
}
