//! Tests of the thread that reads a directory, while the directory changes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use tempfile::{TempDir, tempdir};

use super::super::thread::{Detection, Handle, spawn, spawn_with};
use super::*;
use component::supervise;

/// The deadline of every wait: longer than any change takes to arrive, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a test waits to see that no event comes.
const QUIET: Duration = Duration::from_millis(150);

struct Live {
    dir: TempDir,
    events: Receiver<Event>,
    _handle: Handle,
}

/// Starts a source that reads a directory. Also returns its events.
fn read(dir: &Path, queue: usize) -> (Handle, Receiver<Event>) {
    let (sink, events) = sync_channel(queue);
    let (supervisor, _) = supervise::new();
    (spawn(dir.into(), ConvertOptions::default(), sink, Box::new(|_| {}), &supervisor).unwrap(), events)
}

impl Live {
    /// Starts a source for a directory that `prepare` fills, and waits for the end of the initial list.
    fn start(prepare: impl FnOnce(&Path)) -> (Self, Vec<String>) {
        let dir = tempdir().unwrap();
        prepare(dir.path());
        let (handle, events) = read(dir.path(), 4096);
        let live = Self { dir, events, _handle: handle };
        let initial = live.until("done");
        (live, initial)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Replaces a file as many tools do: writes a temporary file in the same directory, then renames it to the file's name.
    fn replace(&self, name: &str, text: &str) {
        let temporary = self.path(".new");
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, self.path(name)).unwrap();
    }

    fn next(&self) -> String {
        word(&self.events.recv_timeout(PATIENCE).expect("an event"))
    }

    fn until(&self, last: &str) -> Vec<String> {
        let mut found = Vec::new();
        loop {
            found.push(self.next());
            if found.last().is_some_and(|word| word == last) {
                return found;
            }
        }
    }

    fn assert_quiet(&self) {
        assert_eq!(self.events.recv_timeout(QUIET), Err(RecvTimeoutError::Timeout));
    }
}

#[test]
fn the_initial_list_ends_with_its_mark() {
    // All objects come before `InitialListDone` (G1).
    let (live, initial) = Live::start(|dir| {
        fs::write(dir.join("b.yaml"), service("b", "10.96.0.2")).unwrap();
        fs::write(dir.join("a.yaml"), service("a", "10.96.0.1")).unwrap();
        fs::write(dir.join("broken.yaml"), "x: [").unwrap();
    });
    assert_eq!(initial, ["+demo/a 10.96.0.1", "+demo/b 10.96.0.2", "done"]);
    live.assert_quiet();
}

#[test]
fn changes_arrive_as_they_happen() {
    let (live, _) = Live::start(|_| ());
    fs::write(live.path("a.yaml"), service("a", "10.96.0.1")).unwrap();
    assert_eq!(live.next(), "+demo/a 10.96.0.1");
    live.replace("a.yaml", &service("a", "10.96.0.2"));
    assert_eq!(live.next(), "+demo/a 10.96.0.2");
    fs::write(live.path("a.yaml"), "x: [").unwrap();
    live.assert_quiet();
    fs::hard_link(live.path("a.yaml"), live.path("a.bak")).unwrap();
    live.replace("a.bak", &service("b", "10.96.0.3"));
    fs::hard_link(live.path("a.bak"), live.path("b.yaml")).unwrap();
    assert_eq!(live.next(), "+demo/b 10.96.0.3");
    fs::remove_file(live.path("a.yaml")).unwrap();
    assert_eq!(live.next(), "-demo/a");
    fs::rename(live.path("b.yaml"), live.path("b.txt")).unwrap();
    assert_eq!(live.next(), "-demo/b");
    live.assert_quiet();
}

#[test]
fn a_file_is_not_read_while_it_is_written() {
    use std::io::Write;
    let (live, _) = Live::start(|dir| fs::write(dir.join("a.yaml"), service("a", "10.96.0.1")).unwrap());
    for (name, ip) in [("a", "10.96.0.2"), ("new", "10.96.0.3")] {
        let mut file = fs::File::create(live.path(&format!("{name}.yaml"))).unwrap();
        file.write_all(service(name, ip).as_bytes()).unwrap();
        live.assert_quiet();
        drop(file);
        assert_eq!(live.next(), format!("+demo/{name} {ip}"));
    }
}

#[test]
fn a_rename_shows_at_once() {
    let (live, _) = Live::start(|_| ());
    let mut times: Vec<_> = (1..=21)
        .map(|index| {
            fs::write(live.path(".new"), service("a", &format!("10.96.0.{index}"))).unwrap();
            let start = Instant::now();
            fs::rename(live.path(".new"), live.path("a.yaml")).unwrap();
            live.next();
            start.elapsed()
        })
        .collect();
    times.sort();
    assert!(times[10] < Duration::from_millis(20), "median {:?}", times[10]);
}

#[test]
fn new_directories_are_watched() {
    let (live, _) = Live::start(|_| ());
    fs::create_dir_all(live.path("x/y")).unwrap();
    fs::write(live.path("x/y/a.yaml"), service("a", "10.96.0.1")).unwrap();
    assert_eq!(live.next(), "+demo/a 10.96.0.1");
    live.replace("x/y/a.yaml", &service("a", "10.96.0.2"));
    assert_eq!(live.next(), "+demo/a 10.96.0.2");
    fs::remove_dir_all(live.path("x")).unwrap();
    assert_eq!(live.next(), "-demo/a");
}

#[test]
fn a_config_map_is_swapped_at_once() {
    let fill = |dir: &Path, version: &str, names: &[&str], ip: &str| {
        fs::create_dir(dir.join(version)).unwrap();
        for name in names {
            fs::write(dir.join(version).join(format!("{name}.yaml")), service(name, ip)).unwrap();
        }
        symlink(version, dir.join("..data_tmp")).unwrap();
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    };
    let (live, initial) = Live::start(|dir| {
        fill(dir, "..2026_01", &["a", "b"], "10.96.0.1");
        symlink("..data/a.yaml", dir.join("a.yaml")).unwrap();
        symlink("..data/b.yaml", dir.join("b.yaml")).unwrap();
    });
    assert_eq!(initial, ["+demo/a 10.96.0.1", "+demo/b 10.96.0.1", "done"]);
    for (version, ip) in [("..2026_02", "10.96.0.2"), ("..2026_03", "10.96.0.3")] {
        fill(live.dir.path(), version, &["a"], ip);
        assert!(live.until(&format!("+demo/a {ip}")).len() <= 2);
    }
    // Then the kubelet removes the symlink of `b` and the old versions of the data.
    let _ = fs::remove_file(live.path("b.yaml"));
    fs::remove_dir_all(live.path("..2026_01")).unwrap();
    fs::remove_dir_all(live.path("..2026_02")).unwrap();
    while live.events.recv_timeout(QUIET).is_ok_and(|event| word(&event) == "-demo/b") {}
    live.replace("c.yaml", &service("c", "10.96.0.9"));
    assert_eq!(live.next(), "+demo/c 10.96.0.9");
}

#[test]
fn the_target_of_a_symlink_is_watched() {
    let elsewhere = tempdir().unwrap();
    let target = elsewhere.path().join("real.yaml");
    fs::write(&target, service("a", "10.96.0.1")).unwrap();
    let (live, _) = Live::start(|dir| symlink(&target, dir.join("a.yaml")).unwrap());
    fs::write(&target, service("a", "10.96.0.2")).unwrap();
    assert_eq!(live.next(), "+demo/a 10.96.0.2");
}

/// Starts a source for the symlink `current`, which leads to `v1` in `base`, and asserts that its swap to `v2` is noticed.
fn assert_swaps(base: TempDir) -> Live {
    let (current, new) = (base.path().join("current"), base.path().join("new"));
    symlink("v1", &current).unwrap();
    let (handle, events) = read(&current, 16);
    let live = Live { _handle: handle, events, dir: base };
    live.until("done");
    symlink("v2", &new).unwrap();
    fs::rename(&new, &current).unwrap();
    assert_eq!(live.next(), "+demo/a 10.96.0.2");
    live
}

#[test]
fn the_target_of_a_symlink_within_the_directory_is_watched_under_any_name() {
    for target in ["data.txt", ".data", "b.yaml"] {
        let (live, initial) = Live::start(|dir| {
            fs::write(dir.join(target), service("a", "10.96.0.1")).unwrap();
            symlink(target, dir.join("a.yaml")).unwrap();
        });
        assert_eq!(initial, ["+demo/a 10.96.0.1", "done"], "{target}");
        fs::write(live.path(target), service("a", "10.96.0.2")).unwrap();
        assert_eq!(live.next(), "+demo/a 10.96.0.2", "{target}");
    }
}

#[test]
fn a_root_that_is_a_symlink_in_a_directory_with_targets_can_be_swapped() {
    let base = tempdir().unwrap();
    for (version, ip) in [("v1", "10.96.0.1"), ("v2", "10.96.0.2")] {
        fs::write(base.path().join(format!("{version}.yaml")), service("a", ip)).unwrap();
        fs::create_dir(base.path().join(version)).unwrap();
        symlink(format!("../{version}.yaml"), base.path().join(version).join("a.yaml")).unwrap();
    }
    let live = assert_swaps(base);
    fs::write(live.path("v2.yaml"), service("a", "10.96.0.3")).unwrap();
    assert_eq!(live.next(), "+demo/a 10.96.0.3");
}

#[test]
fn a_directory_that_vanishes_and_returns_loses_nothing() {
    let (live, _) = Live::start(|dir| {
        fs::create_dir(dir.join("m")).unwrap();
        fs::write(dir.join("m/a.yaml"), service("a", "10.96.0.1")).unwrap();
    });
    let (handle, events) = read(&live.path("m"), 16);
    let nested = Live { _handle: handle, events, dir: tempdir().unwrap() };
    nested.until("done");
    fs::rename(live.path("m"), live.path(".away")).unwrap();
    nested.assert_quiet();
    fs::write(live.path(".away/a.yaml"), service("a", "10.96.0.2")).unwrap();
    fs::rename(live.path(".away"), live.path("m")).unwrap();
    assert_eq!(nested.next(), "+demo/a 10.96.0.2");
}

#[test]
fn a_root_that_is_a_symlink_can_be_swapped() {
    let base = tempdir().unwrap();
    for (version, ip) in [("v1", "10.96.0.1"), ("v2", "10.96.0.2")] {
        fs::create_dir(base.path().join(version)).unwrap();
        fs::write(base.path().join(version).join("a.yaml"), service("a", ip)).unwrap();
    }
    assert_swaps(base);
}

#[test]
fn of_many_objects_only_the_changed_one_is_sent() {
    let (live, initial) = Live::start(|dir| {
        for index in 0..2000 {
            let text = service(&format!("s{index}"), &format!("10.97.{}.{}", index / 250, index % 250 + 1));
            fs::write(dir.join(format!("s{index}.yaml")), text).unwrap();
        }
    });
    assert_eq!(initial.len(), 2001);
    live.replace("s1234.yaml", &service("s1234", "10.96.0.1"));
    assert_eq!(live.next(), "+demo/s1234 10.96.0.1");
    live.assert_quiet();
    // A rescan sends no further event either.
    fs::create_dir(live.path("empty")).unwrap();
    live.assert_quiet();
}

#[test]
fn a_stop_is_prompt_even_while_the_queue_is_full() {
    let (live, _) = Live::start(|_| ());
    drop(live._handle);
    assert_eq!(live.events.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));

    let dir = tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), service("a", "10.96.0.1")).unwrap();
    // Make a queue that never has room for an event.
    let ((sink, _events), (supervisor, _)) = (sync_channel(0), supervise::new());
    // The source's thread owns a clone of this value until the thread ends.
    let alive = Arc::new(());
    let on_rejected = {
        let alive = Arc::clone(&alive);
        Box::new(move |_| drop(Arc::clone(&alive)))
    };
    let handle = spawn(dir.path().into(), ConvertOptions::default(), sink, on_rejected, &supervisor).unwrap();
    drop(handle);
    let end = Instant::now() + PATIENCE;
    while Arc::strong_count(&alive) > 1 {
        assert!(Instant::now() < end, "the thread waits for room in the queue");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_missing_directory_is_an_error_at_the_start() {
    let dir = tempdir().unwrap();
    let (sink, _events) = sync_channel(1);
    let (dir, options, (supervisor, _)) = (dir.path().join("missing"), ConvertOptions::default(), supervise::new());
    let error = spawn(dir, options, sink, Box::new(|_| {}), &supervisor).unwrap_err();
    assert!(error.to_string().starts_with("cannot read manifest directory "), "{error}");
}

#[test]
fn without_inotify_scans_find_the_changes() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), service("a", "10.96.0.1")).unwrap();
    let (sink, events) = sync_channel(16);
    let detection = Detection { inotify: false, interval: Duration::from_millis(20) };
    let (path, options, (supervisor, _)) = (dir.path().into(), ConvertOptions::default(), supervise::new());
    let handle = spawn_with(path, options, sink, Box::new(|_| {}), &supervisor, detection).unwrap();
    let live = Live { dir, events, _handle: handle };
    assert_eq!(live.until("done").len(), 2);
    fs::write(live.path("a.yaml"), service("a", "10.96.0.2")).unwrap();
    assert_eq!(live.until("+demo/a 10.96.0.2").last().unwrap(), "+demo/a 10.96.0.2");
    fs::remove_file(live.path("a.yaml")).unwrap();
    assert_eq!(live.next(), "-demo/a");
    live.assert_quiet();
}
