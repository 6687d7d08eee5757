//! Writes changes to the API server at a fixed rate, over several connections.
//!
//! The writers start one after the other, spread over the time between two changes of one writer: if all wrote at once, the API server would
//! get bursts of 200 requests. Each Service belongs to one writer, which sends its whole objects and waits for each answer. A change that is refused or gets no answer
//! is sent again: while the API server is away, a writer waits for it and makes no other change.

use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use hyper::http::{Method, Request, StatusCode};
use kube::Client;
use kube::client::Body;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::super::control_plane::{client, path_of};
use super::SERVICES;
use super::cluster::{App, Change, path};
use crate::support::apiserver::protobuf::enveloped;

/// The number of writers; each sends one request at a time.
const WRITERS: u32 = 200;
/// The changes per second of the part `peer-changes`.
pub(super) const RATE: u32 = 1_000;
/// A writer that is late makes up for the missed changes of this time at most.
const BACKLOG: Duration = Duration::from_millis(200);
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// How long a change may take to be accepted: the API server may restart meanwhile.
const TAKEN_WITHIN: Duration = Duration::from_secs(150);
/// How many Services a writer updates at a time in the rolling update.
const ROLLED: usize = 10;
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The numbers and times of the writers' changes.
#[derive(Default)]
pub(super) struct Made {
    /// The number of random changes.
    pub(super) random: u64,
    /// How long a writer waited on average during the random changes because a change was not accepted at once.
    pub(super) waited: Duration,
    /// The number of changes of the rolling update.
    pub(super) rolling: u64,
    /// The time that the rolling update took.
    pub(super) rolling_time: Duration,
}

/// What the writers do.
#[derive(Clone, Copy)]
pub(super) struct Load {
    /// The changes per second of all writers together.
    pub(super) rate: u32,
    /// How long they change Services at random.
    pub(super) time: Duration,
    /// Whether each Service gets a rolling update after that.
    pub(super) rolls: bool,
    /// Begins the sequence of random numbers.
    pub(super) seed: u64,
}

impl Load {
    /// The time between two changes of one writer.
    fn interval(self) -> Duration {
        Duration::from_secs(1) * WRITERS / self.rate
    }
}

/// Changes Services at random for a time, and then gives each a rolling update. The calling thread must be in the API server's namespace.
pub(super) fn write(apps: Vec<App>, load: Load) -> Made {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    runtime.block_on(async {
        let client = client().await;
        let end = Instant::now() + load.time;
        let mut parts: Vec<Vec<App>> = (0..WRITERS).map(|_| Vec::new()).collect();
        for (n, app) in apps.into_iter().enumerate() {
            parts[n % WRITERS as usize].push(app);
        }
        let mut writers = JoinSet::new();
        for (number, apps) in (0..).zip(parts) {
            writers.spawn(Writer::new(number, client.clone(), apps, load).run(end));
        }
        let mut made = Made::default();
        while let Some(written) = writers.join_next().await {
            let (random, rolling, waited) =
                written.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
            made.random += random;
            made.rolling += rolling;
            made.waited += waited / WRITERS;
        }
        Made { rolling_time: end.elapsed(), ..made }
    })
}

/// A writer, with the Services that it changes.
struct Writer {
    number: u32,
    client: Client,
    load: Load,
    apps: Vec<App>,
    /// The transient Service while it exists: one that is created and deleted again and again.
    transient: Option<App>,
    /// How many transient Services were created so far.
    created: u32,
    random: StdRng,
    /// When the next change is due.
    due: Instant,
    /// The total time of changes that were not accepted at the first try.
    waited: Duration,
}

impl Writer {
    fn new(number: u32, client: Client, apps: Vec<App>, load: Load) -> Self {
        let random = StdRng::seed_from_u64(load.seed << 32 | u64::from(number));
        Self {
            number,
            client,
            load,
            apps,
            transient: None,
            created: 0,
            random,
            due: Instant::now() + load.interval() * number / WRITERS,
            waited: Duration::ZERO,
        }
    }

    /// Makes random changes until `end`, then updates each Service. Returns the numbers of both kinds of changes, and the time that the
    /// writer waited for the API server during the random ones.
    async fn run(mut self, end: Instant) -> (u64, u64, Duration) {
        let (mut random, mut rolling) = (0, 0);
        while Instant::now() < end {
            for change in self.changes() {
                self.make(change).await;
                random += 1;
            }
        }
        let (mut apps, waited) = (std::mem::take(&mut self.apps), self.waited);
        if !self.load.rolls {
            return (random, rolling, waited);
        }
        for some in apps.chunks_mut(ROLLED) {
            for step in 0..3 {
                for app in &mut *some {
                    self.make(app.roll(step)).await;
                    rolling += 1;
                }
            }
        }
        (random, rolling, waited)
    }

    /// Returns the next random change; two changes when a transient Service is created or deleted together with its slice.
    fn changes(&mut self) -> Vec<Change> {
        if !self.random.random_bool(0.03) {
            let app = self.random.random_range(0..self.apps.len());
            return vec![self.apps[app].change(&mut self.random)];
        }
        if let Some(app) = self.transient.take() {
            return app.delete();
        }
        let app = App::transient(format!("brief-{}-{}", self.number, self.created), SERVICES + self.number);
        self.created += 1;
        self.transient.insert(app).create().into_iter().map(Change::Create).collect()
    }

    /// Waits until a change is due, and sends it until the API server has accepted it.
    async fn make(&mut self, change: Change) {
        sleep(self.due.saturating_duration_since(Instant::now())).await;
        self.due = (self.due + self.load.interval()).max(Instant::now() - BACKLOG);
        let (method, path, object) = match change {
            Change::Create(object) => (Method::POST, path_of(&object), Some(object)),
            Change::Replace(object) => (Method::PUT, path(&object), Some(object)),
            Change::Delete(path) => (Method::DELETE, path, None),
        };
        let body = object.as_ref().map(enveloped).unwrap_or_default();
        // The status of a repeated request whose first answer was lost: the object exists already, or is gone already.
        let already = match method {
            Method::POST => Some(StatusCode::CONFLICT),
            Method::DELETE => Some(StatusCode::NOT_FOUND),
            _ => None,
        };
        let (begin, mut tries) = (Instant::now(), 0);
        loop {
            let answer = timeout(ANSWERED_WITHIN, exchange(&self.client, &method, &path, &body)).await;
            tries += 1;
            match &answer {
                Ok(Ok(status)) if status.is_success() && tries == 1 => return,
                Ok(Ok(status)) if status.is_success() || tries > 1 && Some(*status) == already => break,
                _ => assert!(begin.elapsed() < TAKEN_WITHIN, "{method} {path}: {answer:?}, {object:?}"),
            }
            sleep(AGAIN_AFTER).await;
        }
        self.waited += begin.elapsed();
    }
}

/// Sends a request, and reads the answer to its end, so that the connection can be used again.
async fn exchange(client: &Client, method: &Method, path: &str, body: &[u8]) -> Result<StatusCode, String> {
    let request = Request::builder().method(method).uri(path).header("accept", PROTOBUF);
    let request = request.header("content-type", PROTOBUF).body(Body::from(body.to_vec())).expect("a request");
    let answer = client.send(request).await.map_err(|error| error.to_string())?;
    let status = answer.status();
    answer.into_body().collect().await.map_err(|error| error.to_string())?;
    Ok(status)
}
