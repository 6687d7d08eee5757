//! A connection that is opened again after it failed.
//!
//! When an error shows that the connection is broken, the connection is closed. The next use opens a new connection, or fails if that is
//! impossible.

use std::io;

/// A socket, or a value that has one.
pub(super) struct Reconnecting<T> {
    open: fn() -> io::Result<T>,
    present: Option<T>,
}

impl<T> Reconnecting<T> {
    /// Returns a connection that is not open yet. `open` opens it when it is used.
    pub(super) fn new(open: fn() -> io::Result<T>) -> Self {
        Self { open, present: None }
    }

    /// Returns the connection if it is open.
    pub(super) fn present(&mut self) -> Option<&mut T> {
        self.present.as_mut()
    }

    /// Opens the connection unless it is open already. Returns whether this call opened it.
    ///
    /// # Errors
    /// Fails when the socket cannot be opened.
    pub(super) fn ensure(&mut self) -> io::Result<bool> {
        if self.present.is_some() {
            return Ok(false);
        }
        self.present = Some((self.open)()?);
        Ok(true)
    }

    /// Calls `using` with the connection. Closes the connection after an error for which `is_broken` is true.
    ///
    /// # Errors
    /// Fails when the socket cannot be opened, and returns any error of `using`.
    pub(super) fn with<R, E: From<io::Error>>(
        &mut self,
        is_broken: impl FnOnce(&E) -> bool,
        using: impl FnOnce(&mut T) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut connection = match self.present.take() {
            Some(connection) => connection,
            None => (self.open)()?,
        };
        let result = using(&mut connection);
        if result.as_ref().err().is_none_or(|error| !is_broken(error)) {
            self.present = Some(connection);
        }
        result
    }
}

/// Returns whether a new socket may help after this error.
pub(super) fn is_broken(error: &nft::ReadError) -> bool {
    matches!(error, nft::ReadError::Socket(_))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// How often [`open`] was called.
    static OPENED: AtomicUsize = AtomicUsize::new(0);

    fn open() -> io::Result<usize> {
        match OPENED.fetch_add(1, Ordering::Relaxed) {
            2 => Err(io::Error::other("no more sockets")),
            number => Ok(number),
        }
    }

    fn number(connection: &mut Reconnecting<usize>, failure: Option<&str>) -> Result<usize, String> {
        let using = |number: &mut usize| failure.map_or(Ok(*number), |text| Err(io::Error::other(text.to_owned())));
        connection.with(|error| error.to_string() == "dead", using).map_err(|error: io::Error| error.to_string())
    }

    #[test]
    fn a_broken_connection_is_opened_again() {
        let mut connection = Reconnecting::new(open);
        assert_eq!((connection.ensure().ok(), connection.ensure().ok()), (Some(true), Some(false)));
        assert_eq!(number(&mut connection, None), Ok(0));
        assert_eq!(number(&mut connection, Some("refused")), Err("refused".to_owned()));
        assert_eq!(number(&mut connection, None), Ok(0), "it is not broken by a refusal");
        assert_eq!(number(&mut connection, Some("dead")), Err("dead".to_owned()));
        assert_eq!(number(&mut connection, None), Ok(1));
        assert_eq!(number(&mut connection, Some("dead")), Err("dead".to_owned()));
        assert_eq!(number(&mut connection, None), Err("no more sockets".to_owned()));
        assert_eq!(number(&mut connection, None), Ok(3));
    }
}
