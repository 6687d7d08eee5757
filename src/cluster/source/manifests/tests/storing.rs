//! Tests of the store: the events that follow from a change of a file.

use std::collections::BTreeMap;

use super::super::store::{Changes, Store};
use super::*;

/// A store, and the text of each file, because a file may have to be read again.
#[derive(Default)]
struct Files {
    store: Store,
    texts: BTreeMap<Arc<Path>, String>,
}

impl Files {
    fn write(&mut self, file: &str, text: &str) -> Changes {
        let file: Arc<Path> = Path::new(file).into();
        self.texts.insert(Arc::clone(&file), text.to_owned());
        let changes = self.read(&file);
        self.read_again(changes)
    }

    fn remove(&mut self, file: &str) -> Vec<String> {
        let file: Arc<Path> = Path::new(file).into();
        self.texts.remove(&file);
        let changes = self.store.remove(&file);
        words(&self.read_again(changes).events)
    }

    fn read(&mut self, file: &Arc<Path>) -> Changes {
        let content = content(file.to_str().unwrap(), &self.texts[file]);
        let mut load = self.store.begin(file);
        let at_once: Vec<Event> =
            content.objects.into_iter().filter_map(|object| self.store.add(&mut load, object)).collect();
        let mut changes = self.store.finish(load, content.broken);
        changes.events.splice(0..0, at_once);
        changes
    }

    fn read_again(&mut self, mut changes: Changes) -> Changes {
        for file in std::mem::take(&mut changes.again) {
            let again = self.read(&file);
            assert!(again.duplicates.is_empty() && again.again.is_empty(), "{again:?}");
            changes.events.extend(again.events);
        }
        changes
    }

    fn events(&mut self, file: &str, text: &str) -> Vec<String> {
        words(&self.write(file, text).events)
    }
}

fn two(a: &str, b: &str) -> String {
    format!("{a}---\n{b}")
}

#[test]
fn only_what_changed_is_sent() {
    let mut files = Files::default();
    let (a, b) = (service("a", "10.96.0.1"), service("b", "10.96.0.2"));
    assert_eq!(files.events("f.yaml", &two(&a, &b)), ["+demo/a 10.96.0.1", "+demo/b 10.96.0.2"]);
    // The order of the objects in a file does not matter (A6).
    assert_eq!(files.events("f.yaml", &two(&b, &a)), [""; 0]);
    assert_eq!(files.events("f.yaml", &two(&a, &service("b", "10.96.0.3"))), ["+demo/b 10.96.0.3"]);
    assert_eq!(files.events("f.yaml", &a), ["-demo/b"]);
    assert_eq!(files.remove("f.yaml"), ["-demo/a"]);
    assert_eq!(files.remove("f.yaml"), [""; 0]);
}

#[test]
fn a_service_that_is_not_ours_comes_and_goes() {
    // The proxy does not handle a headless Service (A2).
    let mut files = Files::default();
    assert_eq!(files.events("f.yaml", &service("a", "None")), [""; 0]);
    assert_eq!(files.events("f.yaml", &service("a", "10.96.0.1")), ["+demo/a 10.96.0.1"]);
    assert_eq!(files.events("f.yaml", &service("a", "None")), ["-demo/a"]);
    assert_eq!(files.remove("f.yaml"), [""; 0]);
}

#[test]
fn a_broken_file_deletes_nothing_and_applies_what_is_good() {
    let mut files = Files::default();
    let (a, b) = (service("a", "10.96.0.1"), service("b", "10.96.0.2"));
    files.write("f.yaml", &two(&a, &b));
    assert_eq!(files.events("f.yaml", &two(&service("a", "10.96.0.9"), "x: [")), ["+demo/a 10.96.0.9"]);
    assert_eq!(files.events("f.yaml", "x: ["), [""; 0]);
    // The file can be read again, so objects that it lacks were deleted.
    assert_eq!(files.events("f.yaml", &service("c", "10.96.0.3")), ["-demo/a", "-demo/b", "+demo/c 10.96.0.3"]);
}

#[test]
fn the_smallest_path_counts() {
    let mut files = Files::default();
    assert_eq!(files.events("b.yaml", &service("a", "10.96.0.2")), ["+demo/a 10.96.0.2"]);
    let changes = files.write("a.yaml", &service("a", "10.96.0.1"));
    assert_eq!(words(&changes.events), ["+demo/a 10.96.0.1"]);
    assert_eq!(
        texts(&changes.duplicates),
        ["b.yaml, document 1: Service demo/a: also in a.yaml, document 1, which counts; ignored here"]
    );
    // A duplicate is reported only once.
    let changes = files.write("b.yaml", &service("a", "10.96.0.3"));
    assert!(changes.events.is_empty() && changes.duplicates.is_empty());
    assert_eq!(files.remove("a.yaml"), ["+demo/a 10.96.0.3"]);
    assert_eq!(files.remove("b.yaml"), ["-demo/a"]);
}

#[test]
fn the_first_document_of_a_file_counts() {
    let mut files = Files::default();
    let changes = files.write("f.yaml", &two(&service("a", "10.96.0.1"), &service("a", "10.96.0.2")));
    assert_eq!(words(&changes.events), ["+demo/a 10.96.0.1"]);
    assert_eq!(
        texts(&changes.duplicates),
        ["f.yaml, document 2: Service demo/a: also in f.yaml, document 1, which counts; ignored here"]
    );
    assert_eq!(files.events("f.yaml", &service("a", "10.96.0.2")), ["+demo/a 10.96.0.2"]);
}

#[test]
fn an_object_that_moves_to_another_file_stays() {
    let mut files = Files::default();
    files.write("a.yaml", &service("a", "10.96.0.1"));
    assert_eq!(files.events("b.yaml", &service("a", "10.96.0.1")), [""; 0]);
    assert_eq!(files.remove("a.yaml"), [""; 0]);
}
