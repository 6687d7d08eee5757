//! Why a sync failed, as a sentence for the log and as one word for the metrics.

use std::collections::BTreeSet;

use nft::{Command, CommitError, ReadError};

use rules::model::Family;

/// Why a sync failed.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// A transaction was not committed, or the kernel did not confirm it.
    #[error("cannot commit: {error}")]
    Commit {
        /// Why it was not committed.
        error: CommitError,
        /// The families in which the kernel refused to delete a chain or set that is no longer needed.
        cleanup: BTreeSet<Family>,
    },
    /// The tables could not be read back.
    #[error("cannot read the tables: {0}")]
    Read(ReadError),
}

// This `impl` is written by hand, not derived with `#[from]`, because the message already contains the text of the cause: as `source` it
// would be printed twice.
impl From<ReadError> for SyncError {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

impl SyncError {
    /// Makes the error for a transaction with these commands that the kernel did not commit.
    pub(super) fn commit(error: CommitError, commands: &[Command]) -> Self {
        Self::Commit { cleanup: refused_deletions(&error, commands), error }
    }

    /// Returns the kind of failure in one word, for the metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Commit { error: CommitError::Encode(_), .. } => "encode",
            Self::Commit { error: CommitError::Refused(_), .. } => "refused",
            Self::Commit { error: CommitError::TooLarge { .. } | CommitError::OverLimit { .. }, .. } => "too_large",
            Self::Commit { error: CommitError::Unconfirmed, .. } => "unconfirmed",
            Self::Commit { error: CommitError::Socket(_), .. } | Self::Read(ReadError::Socket(_)) => "socket",
            Self::Read(ReadError::Decode(_)) => "decode",
            Self::Read(ReadError::Unstable) => "unstable",
        }
    }

    /// Returns the families in which the kernel refused to delete a chain or set that is no longer needed.
    pub fn cleanup(&self) -> impl Iterator<Item = Family> {
        let cleanup = match self {
            Self::Commit { cleanup, .. } => Some(cleanup),
            Self::Read(_) => None,
        };
        cleanup.into_iter().flatten().copied()
    }
}

/// Returns the families in which the kernel refused to delete a chain or a set.
fn refused_deletions(error: &CommitError, commands: &[Command]) -> BTreeSet<Family> {
    let CommitError::Refused(refusals) = error else { return BTreeSet::new() };
    let refused = refusals.iter().filter_map(|refusal| commands.get(refusal.command?));
    let deletions = refused.filter(|command| matches!(command, Command::DeleteChain(..) | Command::DeleteSet(..)));
    deletions.filter_map(|command| family(command.table().family)).collect()
}

const fn family(family: nft::Family) -> Option<Family> {
    match family {
        nft::Family::Ip => Some(Family::V4),
        nft::Family::Ip6 => Some(Family::V6),
        nft::Family::Inet => None,
    }
}

#[cfg(test)]
mod tests {
    use nft::{Refusal, TableName};

    use super::*;

    fn refusal(command: Option<usize>) -> Refusal {
        Refusal { command, element: None, object: "x".to_owned(), errno: 16, message: None }
    }

    // A deletion of a chain or set that the kernel refuses is counted as a failed clean-up (F8).
    #[test]
    fn only_refused_deletions_of_chains_and_sets_are_failures_to_clean_up() {
        let table = |family| TableName { family, name: "kube-proxy".into() };
        let commands = [
            Command::FlushChain(table(nft::Family::Ip), "a".into()),
            Command::DeleteChain(table(nft::Family::Ip), "a".into()),
            Command::DeleteChain(table(nft::Family::Ip6), "b".into()),
        ];
        let families = |refused: &[Option<usize>]| {
            let refusals = refused.iter().map(|command| refusal(*command)).collect();
            SyncError::commit(CommitError::Refused(refusals), &commands).cleanup().collect::<Vec<_>>()
        };
        assert_eq!(families(&[Some(1)]), [Family::V4]);
        assert_eq!(families(&[Some(2), Some(1)]), [Family::V4, Family::V6]);
        assert_eq!(families(&[Some(0), None, Some(9)]), []);
        assert_eq!(SyncError::commit(CommitError::Unconfirmed, &commands).cleanup().count(), 0);
        assert_eq!(SyncError::Read(ReadError::Unstable).cleanup().count(), 0);
    }

    #[test]
    fn each_failure_has_a_word() {
        let refused = SyncError::commit(CommitError::Refused(vec![refusal(None)]), &[]);
        let socket = || std::io::Error::other("gone");
        let words = [
            refused,
            SyncError::commit(CommitError::TooLarge { bytes: 1, error: socket() }, &[]),
            SyncError::commit(CommitError::OverLimit { bytes: 2, limit: 1 }, &[]),
            SyncError::commit(CommitError::Unconfirmed, &[]),
            SyncError::commit(CommitError::Socket(socket()), &[]),
            SyncError::Read(ReadError::Socket(socket())),
            SyncError::Read(ReadError::Unstable),
        ]
        .map(|error| error.kind());
        assert_eq!(words, ["refused", "too_large", "too_large", "unconfirmed", "socket", "socket", "unstable"]);
        let metrics = crate::metrics::Metrics::new().text();
        for word in words {
            let series = format!("kubeproxy_nft_errors_total{{kind=\"{word}\"}} 0\n");
            assert!(metrics.contains(&series), "{word} is not counted from the start");
        }
    }
}
