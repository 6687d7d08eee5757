//! Questions to the sync thread: why a Service has its endpoints. Only that thread knows the cluster's state.
//!
//! A page asks through an [`Asker`], which wakes the sync thread; the sync thread answers from its [`Questions`] between two waits for
//! events. The answer is a value, which the page formats.
//!
//! Invariants: nothing is kept for a Service that nobody asks about. At most [`QUEUE`] questions wait, further ones are refused at once.
//! Answers take at most a tenth of the sync thread's time, however many clients ask, and none is made for a client that has gone.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::timeout;

use rules::endpoints::causes::Causes;
use rules::model::ObjectName;

/// The most questions that wait for the sync thread.
const QUEUE: usize = 4;
/// How long a page waits for the answer: less than the commands of this program wait for the page, which is 3 s (`inspect`).
const PATIENCE: Duration = Duration::from_secs(2);
/// After an answer, the sync thread answers nothing for this many times as long as the answer took.
const PAUSE: u32 = 9;

/// The answer to a question about a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Objects of the first lists are missing, so nothing can be said yet.
    NotYet,
    /// There is no such Service, or it has no cluster IP, or another proxy serves it.
    Unknown,
    /// Why its ports have their endpoints.
    Known(Causes),
}

struct Question {
    service: ObjectName,
    answer: oneshot::Sender<Answer>,
}

/// Wakes the sync thread.
type Wake = Arc<dyn Fn() + Send + Sync>;

/// Asks the sync thread.
#[derive(Clone)]
pub(crate) struct Asker {
    questions: SyncSender<Question>,
    wake: Wake,
}

/// The questions that wait for the sync thread.
pub(crate) struct Questions {
    waiting: Receiver<Question>,
    /// When the next question may be answered; `None`: at once, and none waited when the thread last looked.
    next: Option<Instant>,
}

/// Makes the queue between the pages, which ask, and the sync thread, which answers; `wake` wakes that thread.
pub(crate) fn queue(wake: impl Fn() + Send + Sync + 'static) -> (Asker, Questions) {
    let (questions, waiting) = sync_channel(QUEUE);
    (Asker { questions, wake: Arc::new(wake) }, Questions { waiting, next: None })
}

impl Asker {
    /// Asks about a Service; `None` when too many questions wait, or when the sync thread does not answer in time.
    pub(super) async fn ask(&self, service: ObjectName) -> Option<Answer> {
        let (sender, answer) = oneshot::channel();
        self.questions.try_send(Question { service, answer: sender }).ok()?;
        (self.wake)();
        timeout(PATIENCE, answer).await.ok()?.ok()
    }
}

impl Questions {
    /// Answers one question, if one waits and the last answer is long enough ago.
    pub(crate) fn answer_one(&mut self, answer: impl FnOnce(&ObjectName) -> Answer) {
        let start = Instant::now();
        if self.next.is_some_and(|next| start < next) {
            return;
        }
        self.next = None;
        let Some(question) = self.waiting.try_iter().find(|question| !question.answer.is_closed()) else { return };
        // Fails only if the client has gone meanwhile.
        let _ = question.answer.send(answer(&question.service));
        let end = Instant::now();
        self.next = Some(end + (end - start) * PAUSE);
    }

    /// Returns when to look for the next question; `None`: when [`Asker`] wakes the thread.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web() -> ObjectName {
        ObjectName::new("shop", "web")
    }

    #[tokio::test]
    async fn a_question_is_answered_for_its_service() {
        let (asker, mut questions) = queue(|| ());
        let asked = tokio::spawn(async move { asker.ask(web()).await });
        tokio::task::yield_now().await;
        questions.answer_one(|service| if *service == web() { Answer::NotYet } else { Answer::Unknown });
        assert_eq!(asked.await.unwrap(), Some(Answer::NotYet));
    }

    #[tokio::test]
    async fn more_questions_than_fit_are_refused_at_once_and_the_others_after_a_while() {
        let (asker, mut questions) = queue(|| ());
        let start = Instant::now();
        let waiting: Vec<_> = (0..QUEUE)
            .map(|_| {
                let asker = asker.clone();
                tokio::spawn(async move { asker.ask(web()).await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(asker.ask(web()).await, None);
        assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
        for asked in waiting {
            assert_eq!(asked.await.unwrap(), None);
        }
        assert!(start.elapsed() >= PATIENCE, "{:?}", start.elapsed());
        questions.answer_one(|_| panic!("nobody waits for an answer"));
    }

    #[tokio::test]
    async fn answers_take_a_tenth_of_the_time_at_most() {
        let (asker, mut questions) = queue(|| ());
        let ask = || {
            let asker = asker.clone();
            tokio::spawn(async move { asker.ask(web()).await })
        };
        let (first, second) = (ask(), ask());
        tokio::task::yield_now().await;
        let took = Duration::from_millis(20);
        let start = Instant::now();
        questions.answer_one(|_| {
            std::thread::sleep(took);
            Answer::Unknown
        });
        assert_eq!(first.await.unwrap(), Some(Answer::Unknown));
        let mut answered = false;
        while !answered {
            questions.answer_one(|_| {
                answered = true;
                Answer::NotYet
            });
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(start.elapsed() >= took * 10, "{:?}", start.elapsed());
        assert_eq!(second.await.unwrap(), Some(Answer::NotYet));
    }
}
