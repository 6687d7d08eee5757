//! Something that is opened again after it failed.
//!
//! Takes a way to open it; gives it to whoever uses it, and throws it away when the use shows that it is broken. The next use opens
//! a new one, and fails if that fails.

use std::io;

/// A socket, or what is built on one.
pub(super) struct Link<T> {
    open: fn() -> io::Result<T>,
    present: Option<T>,
}

impl<T> Link<T> {
    /// Not open yet.
    pub(super) fn new(open: fn() -> io::Result<T>) -> Self {
        Self { open, present: None }
    }

    /// Opens it unless it is open. Says whether it was not.
    ///
    /// # Errors
    /// What opening gives.
    pub(super) fn ensure(&mut self) -> io::Result<bool> {
        if self.present.is_some() {
            return Ok(false);
        }
        self.present = Some((self.open)()?);
        Ok(true)
    }

    /// Uses it. An error of which `is_broken` holds closes it.
    ///
    /// # Errors
    /// Those of the use, and those of opening.
    pub(super) fn with<R, E: From<io::Error>>(
        &mut self,
        is_broken: impl FnOnce(&E) -> bool,
        using: impl FnOnce(&mut T) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut link = match self.present.take() {
            Some(link) => link,
            None => (self.open)()?,
        };
        let result = using(&mut link);
        if result.as_ref().err().is_none_or(|error| !is_broken(error)) {
            self.present = Some(link);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// How often something was opened.
    static OPENED: AtomicUsize = AtomicUsize::new(0);

    fn open() -> io::Result<usize> {
        match OPENED.fetch_add(1, Ordering::Relaxed) {
            2 => Err(io::Error::other("no more sockets")),
            number => Ok(number),
        }
    }

    fn number(link: &mut Link<usize>, failure: Option<&str>) -> Result<usize, String> {
        let using = |number: &mut usize| failure.map_or(Ok(*number), |text| Err(io::Error::other(text.to_owned())));
        link.with(|error| error.to_string() == "dead", using).map_err(|error: io::Error| error.to_string())
    }

    #[test]
    fn what_is_broken_is_opened_again() {
        let mut link = Link::new(open);
        assert_eq!((link.ensure().ok(), link.ensure().ok()), (Some(true), Some(false)));
        assert_eq!(number(&mut link, None), Ok(0));
        assert_eq!(number(&mut link, Some("refused")), Err("refused".to_owned()));
        assert_eq!(number(&mut link, None), Ok(0), "a refusal breaks nothing");
        assert_eq!(number(&mut link, Some("dead")), Err("dead".to_owned()));
        assert_eq!(number(&mut link, None), Ok(1));
        assert_eq!(number(&mut link, Some("dead")), Err("dead".to_owned()));
        assert_eq!(number(&mut link, None), Err("no more sockets".to_owned()));
        assert_eq!(number(&mut link, None), Ok(3));
    }
}
