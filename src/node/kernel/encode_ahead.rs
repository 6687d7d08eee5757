//! Commits the transactions of a large sync while a second thread encodes the next one, so that the kernel does not wait for the encoder.
//!
//! Takes transactions, and a function that commits one of them; gives what the kernel answered, in their order. Memory: at most two encoded
//! transactions exist beside the one that is being committed.

use std::sync::mpsc::sync_channel;
use std::thread;

use component::supervise;
use nft::{Batch, Command, CommitError, Committed};

/// Commits transactions one after the other until one fails. Returns the results of those that were committed, and the error of the one after
/// them, if there is one.
pub(super) fn commit_each(
    transactions: &[Vec<Command>],
    mut commit: impl FnMut(&Batch, &[Command]) -> Result<Committed, CommitError>,
) -> (Vec<Committed>, Option<CommitError>) {
    // Most syncs are one transaction, which the caller commits itself: no thread is started for them.
    if transactions.is_empty() {
        return (Vec::new(), None);
    }
    thread::scope(|scope| {
        let (sender, encoded) = sync_channel(1);
        // After an error nobody receives, and the thread ends.
        let encoder =
            move || transactions.iter().map(|commands| Batch::encode(commands)).try_for_each(|b| sender.send(b));
        // If the thread cannot be started, the sender is dropped, and each transaction is encoded here.
        let _ = supervise::scoped(scope, "encoder", encoder);
        let results = transactions.iter().map(|commands| {
            let batch = encoded.recv().unwrap_or_else(|_| Batch::encode(commands));
            commit(&batch?, commands)
        });
        until_error(results)
    })
}

/// Takes results up to the first error. Returns those before the error, and the error.
pub(super) fn until_error<T, E>(results: impl Iterator<Item = Result<T, E>>) -> (Vec<T>, Option<E>) {
    let mut error = None;
    let done = results.map_while(|result| result.map_err(|failed| error = Some(failed)).ok()).collect();
    (done, error)
}

#[cfg(test)]
mod tests {
    use nft::{Chain, Family, Table, TableName};

    use super::*;

    /// A transaction for each name.
    fn transactions(names: &[&str]) -> Vec<Vec<Command>> {
        let table =
            |name: &&str| vec![Command::AddTable(Table { name: TableName::new(Family::Ip, name), comment: None })];
        names.iter().map(table).collect()
    }

    #[test]
    fn each_transaction_is_committed_with_its_own_bytes_in_order() {
        let names: Vec<String> = (0..20).map(|number| format!("t{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut seen = Vec::new();
        let (committed, failed) = commit_each(&transactions(&names), |batch, commands| {
            let own: Vec<u8> = Batch::encode(commands).unwrap().pages().flatten().copied().collect();
            assert_eq!(batch.pages().flatten().copied().collect::<Vec<u8>>(), own);
            seen.push(commands[0].table().name.to_string());
            Ok(Committed { messages: seen.len(), bytes: 0 })
        });
        assert_eq!(seen, names);
        assert_eq!(committed.iter().map(|done| done.messages).collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>());
        assert!(failed.is_none());
    }

    #[test]
    fn nothing_is_committed_after_an_error() {
        let mut tried = 0;
        let (committed, failed) = commit_each(&transactions(&["a", "b", "c", "d", "e"]), |_, _| {
            tried += 1;
            if tried == 3 { Err(CommitError::Unconfirmed) } else { Ok(Committed::default()) }
        });
        assert_eq!((tried, committed.len()), (3, 2));
        assert!(matches!(failed, Some(CommitError::Unconfirmed)));
    }

    #[test]
    fn a_transaction_that_cannot_be_encoded_is_an_error_of_that_transaction() {
        let mut all = transactions(&["a", "b", "c"]);
        let name = all[1][0].table().clone();
        all[1].push(Command::AddChain(name, Chain { name: "a\0b".into(), base: None, comment: None }));
        let (committed, failed) = commit_each(&all, |_, _| Ok(Committed::default()));
        assert_eq!(committed.len(), 1);
        assert!(matches!(failed, Some(CommitError::Encode(_))));
    }
}
