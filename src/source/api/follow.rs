//! The conversation of a [`Watcher`] with the server: a page after the other, or a watch line by line.
//!
//! Takes answers, calls the watcher's methods. Every wait has an end: a server that falls silent, drips or floods ends
//! the conversation, not the watcher.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, warn};

use super::Observer;
use super::connection::{Answer, Ask, Chunk};
use super::failure::Failure;
use super::frame::{self, Frame};
use super::lines::{Lines, TooLong};
use super::listing::{Listing, is_refusal};
use super::watcher::Watcher;

/// The longest line of a watch, in bytes: an object has 3 MiB at most, which JSON may double.
const MAX_LINE: usize = 16 << 20;
/// The largest page, in bytes, for servers that know no pages.
const MAX_PAGE: usize = 256 << 20;
/// A watch that goes on where it was is one that works after so long without a failure; it may have nothing to say for a minute.
const SETTLED: Duration = Duration::from_millis(200);

impl<O: Observer> Watcher<'_, O> {
    /// Lists or watches, whichever comes next, until the server has said all.
    pub(super) async fn step(&mut self) -> Result<(), Failure> {
        if let Err(error) = self.connection.refresh().await {
            let (kind, url) = (self.resource.kind(), self.connection.url());
            warn!(kind, "{url}: the credentials changed and cannot be used: {error:#}; going on with those of before");
        }
        let listing = self.choice.next(Instant::now().into_std());
        match (self.version.clone(), listing) {
            (Some(version), _) => self.follow(version, false).await,
            (None, Listing::Streaming) => self.follow(String::new(), true).await,
            (None, Listing::Paged) => self.list().await,
        }
    }

    /// Lists page by page. A server that is changed in between gives an error, not a mixture.
    async fn list(&mut self) -> Result<(), Failure> {
        self.known.begin();
        let timing = self.around.timing;
        let mut next = None;
        loop {
            let ask = Ask::List(self.list_params(next));
            let mut answer = self.connection.ask(self.resource.path(), &ask, timing.answer).await?;
            let body = answer.all(MAX_PAGE, timing.stall, timing.page).await?;
            self.heard();
            let page = frame::page(&body, self.resource.kind()).map_err(Failure::Garbage)?;
            for object in page.items {
                self.applied(object).await?;
            }
            next = page.next;
            if next.is_none() {
                return self.complete(page.version).await;
            }
        }
    }

    /// Watches from a version, or streams a list and watches from there.
    async fn follow(&mut self, version: String, mut listing: bool) -> Result<(), Failure> {
        if listing {
            self.known.begin();
        }
        let timing = self.around.timing;
        let life = timing.watch.mul_f64(1.0 + rand::random::<f64>() / 10.0);
        // What a float cannot hold exactly does not matter here; a life has minutes.
        let seconds = u32::try_from(life.as_secs()).unwrap_or(u32::MAX).max(1);
        let end = Instant::now() + life + timing.grace;
        let ask = Ask::Watch(self.watch_params(seconds, listing), version);
        let mut answer = match self.connection.ask(self.resource.path(), &ask, timing.accept).await {
            Err(failure) if listing && failure.code().is_some_and(is_refusal) => return self.refused(&failure),
            answer => answer?,
        };
        if !listing {
            self.heard();
        }
        let mut last = Instant::now();
        self.up_since = Some(last);
        let settled = last + SETTLED;
        let mut lines = Lines::new(MAX_LINE);
        loop {
            while let Some(line) = lines.next().map_err(too_long)? {
                listing = self.line(line, listing).await?;
                last = Instant::now();
            }
            let patience = if listing { timing.initial } else { timing.idle };
            let deadline = (last + patience).min(end);
            let is_settling = !listing && self.outage.is_on() && settled < deadline;
            match read(&mut answer, &mut lines, if is_settling { settled } else { deadline }).await? {
                Read::More => self.heard(),
                Read::Late if is_settling => self.is_well(),
                Read::Late if listing => return self.unfinished(),
                Read::Late => {
                    return Err(Failure::Broken(format!("the watch was silent for {} s", patience.as_secs())));
                }
                Read::End => return self.ended(listing, &lines),
            }
        }
    }

    /// The server ended a watch.
    fn ended(&self, listing: bool, lines: &Lines) -> Result<(), Failure> {
        let lived = self.up_since.map_or(Duration::ZERO, |since| since.elapsed());
        if listing || lines.pending() > 0 {
            return Err(Failure::Broken("the server closed the connection".into()));
        }
        if lived < self.around.timing.steady { Err(Failure::Short) } else { Ok(()) }
    }

    /// Takes a line. Gives whether a listing is still under way.
    async fn line(&mut self, line: &[u8], listing: bool) -> Result<bool, Failure> {
        if line.trim_ascii().is_empty() {
            return Ok(listing);
        }
        let version = match frame::watch_line(line).map_err(Failure::Garbage)? {
            Frame::Applied(object) => self.applied(object).await?,
            Frame::Deleted(object) => match self.resource.identify(object) {
                Some((key, version)) => {
                    self.deleted(key).await?;
                    version.map(Into::into)
                }
                None => {
                    return Err(Failure::Garbage("a deletion of an object without a name, or of another kind".into()));
                }
            },
            Frame::Bookmark { version, initial_end: true } if listing => {
                self.complete(version).await?;
                return Ok(false);
            }
            // Versions between the objects of a streaming list mean nothing: this server does not do such lists.
            Frame::Bookmark { .. } if listing => return self.unfinished(),
            Frame::Bookmark { version, .. } => Some(version),
            Frame::Error(status) if listing && is_refusal(status.code) => {
                return self.refused(&Failure::of_status(status, None));
            }
            Frame::Error(status) => return Err(Failure::of_status(status, None)),
        };
        if !listing {
            self.version = version.or_else(|| self.version.take());
            self.is_well();
        }
        Ok(listing)
    }

    /// The server refused a streaming list: the next try is a paged one.
    fn refused<T>(&mut self, failure: &Failure) -> Result<T, Failure> {
        debug!(kind = self.resource.kind(), "no streaming list: {failure}");
        self.choice.refused();
        Err(Failure::NotStreaming)
    }

    /// A streaming list does not come to its end: the next try is a paged one.
    fn unfinished<T>(&mut self) -> Result<T, Failure> {
        debug!(kind = self.resource.kind(), "no streaming list: no end of the initial objects");
        self.choice.ignored(Instant::now().into_std());
        Err(Failure::NotStreaming)
    }
}

/// What became of waiting for bytes.
enum Read {
    More,
    End,
    Late,
}

async fn read(answer: &mut Answer, lines: &mut Lines, until: Instant) -> Result<Read, Failure> {
    Ok(match answer.chunk(until).await? {
        Chunk::Bytes(bytes) => {
            lines.push(bytes.as_ref());
            Read::More
        }
        Chunk::End => Read::End,
        Chunk::Late => Read::Late,
    })
}

fn too_long(TooLong: TooLong) -> Failure {
    Failure::Garbage(format!("a line of more than {MAX_LINE} bytes"))
}
