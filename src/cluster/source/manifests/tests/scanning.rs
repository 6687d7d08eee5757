//! Tests of the first and later scans of a directory.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, Mode, RenameFlags, mkfifoat, renameat_with};
use tempfile::tempdir;

use super::super::directory::{Directory, End, MAX_FILE_BYTES};
use super::super::read_once;
use super::*;

fn rescan(directory: &mut Directory) -> (Vec<String>, Vec<String>) {
    let (end, events, problems) = scan(directory, &|| true);
    assert_eq!(end, End::Complete);
    (events, problems)
}

fn scan(directory: &mut Directory, go_on: &dyn Fn() -> bool) -> (End, Vec<String>, Vec<String>) {
    let mut news = Vec::new();
    let end = directory.rescan(&mut |_| {}, go_on, &mut |one| news.push(one));
    let (events, problems) = sorted_out(news);
    (end, events, problems)
}

#[test]
fn the_fixtures_are_read_and_the_end_of_the_list_comes_last() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/manifests/good");
    let (events, problems) = read_once(&[dir], ConvertOptions::default()).unwrap();
    assert_eq!(texts(&problems), [""; 0]);
    assert_eq!(
        words(&events),
        [
            "+ns1/svc1 172.30.1.1",
            "+slice ns1/svc1-1",
            "+demo/web 10.96.0.10",
            "+slice demo/web-1",
            "+node node-1",
            "+cidr kubernetes",
            "done"
        ]
    );
    assert!(matches!(&events[2], Event::ServiceApplied(service) if service.created == 1_767_225_600));
}

#[test]
fn an_unreadable_directory_is_an_error() {
    let dir = tempdir().unwrap();
    let missing = dir.path().join("missing");
    let error = read_once(std::slice::from_ref(&missing), ConvertOptions::default()).unwrap_err().to_string();
    assert_eq!(error, format!("cannot read {}", missing.display()));
}

#[test]
fn hidden_names_and_other_extensions_are_left_out() {
    let dir = tempdir().unwrap();
    for (index, name) in ["a.yaml", "b.yml", "c.txt", ".d.yaml", "e.yaml~", "f"].iter().enumerate() {
        fs::write(dir.path().join(name), service(&format!("s{index}"), "10.96.0.1")).unwrap();
    }
    fs::create_dir_all(dir.path().join(".git")).unwrap();
    fs::write(dir.path().join(".git/x.yaml"), service("x", "10.96.0.1")).unwrap();
    let mut directory = Directory::new(dir.path(), ConvertOptions::default());
    assert_eq!(rescan(&mut directory).0, ["+demo/s0 10.96.0.1", "+demo/s1 10.96.0.1"]);
}

#[test]
fn the_layout_of_a_config_map_is_read_once() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("..2026_01");
    fs::create_dir_all(data.join("sub")).unwrap();
    fs::write(data.join("a.yaml"), service("a", "10.96.0.1")).unwrap();
    fs::write(data.join("sub/b.yaml"), service("b", "10.96.0.2")).unwrap();
    symlink("..2026_01", dir.path().join("..data")).unwrap();
    symlink("..data/a.yaml", dir.path().join("a.yaml")).unwrap();
    symlink("..data/sub", dir.path().join("sub")).unwrap();
    symlink("..data/gone.yaml", dir.path().join("dangling.yaml")).unwrap();
    symlink(".", dir.path().join("loop")).unwrap();
    let mut directory = Directory::new(dir.path(), ConvertOptions::default());
    assert_eq!(rescan(&mut directory), (vec!["+demo/a 10.96.0.1".into(), "+demo/b 10.96.0.2".into()], vec![]));
}

#[test]
fn a_problem_is_reported_once_while_it_lasts() {
    let dir = tempdir().unwrap();
    let file = dir.path().join("a.yaml");
    fs::write(&file, "x: [").unwrap();
    let mut directory = Directory::new(dir.path(), ConvertOptions::default());
    assert_eq!(rescan(&mut directory).1.len(), 1);
    assert_eq!(rescan(&mut directory).1.len(), 0);
    fs::write(&file, service("a", "10.96.0.1")).unwrap();
    assert_eq!(rescan(&mut directory).1.len(), 0);
    fs::write(&file, "x: [").unwrap();
    assert_eq!(rescan(&mut directory).1.len(), 1);
}

#[test]
fn what_cannot_be_read_keeps_its_objects() {
    let dir = tempdir().unwrap();
    let file = dir.path().join("a.yaml");
    fs::write(&file, service("a", "10.96.0.1")).unwrap();
    fs::write(dir.path().join("b.yaml"), service("b", "10.96.0.2")).unwrap();
    let mut directory = Directory::new(dir.path(), ConvertOptions::default());
    assert_eq!(rescan(&mut directory).0.len(), 2);

    fs::File::options().write(true).open(&file).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
    let (events, problems) = rescan(&mut directory);
    assert_eq!(events, [""; 0]);
    assert_eq!(
        problems,
        [format!("{}: cannot be read: larger than 64 MiB; objects from there stay as they were", file.display())]
    );
    assert!(directory.is_unreadable(&file));
    assert_eq!(rescan(&mut directory), (vec![], vec![]));

    // If the directory cannot be read, its files may still exist, so their objects stay.
    let away = dir.path().with_extension("away");
    fs::rename(dir.path(), &away).unwrap();
    let (end, events, problems) = scan(&mut directory, &|| true);
    assert_eq!((end, events.len(), problems.len()), (End::Unreadable, 0, 1));
    let mut news = Vec::new();
    let end = directory.refresh([dir.path().join("b.yaml")].into(), &mut |one| news.push(one));
    assert_eq!((end, news.len()), (End::Unreadable, 0));
    fs::rename(&away, dir.path()).unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!(rescan(&mut directory).0, ["-demo/a"]);
}

#[test]
fn when_the_file_that_counts_is_gone_the_next_one_is_read_again() {
    let dir = tempdir().unwrap();
    let [first, second] = ["a.yaml", "b.yaml"].map(|name| dir.path().join(name));
    fs::write(&first, service("web", "10.96.0.1")).unwrap();
    fs::write(&second, service("web", "10.96.0.2")).unwrap();
    let mut directory = Directory::new(dir.path(), ConvertOptions::default());
    assert_eq!(rescan(&mut directory).0, ["+demo/web 10.96.0.1"]);
    fs::remove_file(&first).unwrap();
    assert_eq!(rescan(&mut directory).0, ["+demo/web 10.96.0.2"]);

    fs::write(&first, service("web", "10.96.0.3")).unwrap();
    assert_eq!(rescan(&mut directory).0, ["+demo/web 10.96.0.3"]);
    // While the second file cannot be read, the object stays unchanged. Once the file can be read, its definition counts.
    fs::File::options().write(true).open(&second).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
    fs::remove_file(&first).unwrap();
    let (events, problems) = rescan(&mut directory);
    assert_eq!((events.len(), problems.len()), (0, 1), "{problems:?}");
    fs::write(&second, service("web", "10.96.0.2")).unwrap();
    assert_eq!(rescan(&mut directory).0, ["+demo/web 10.96.0.2"]);
}

#[test]
fn a_removed_subdirectory_removes_its_objects() {
    let dir = tempdir().unwrap();
    let sub = dir.path().join("x/y");
    fs::create_dir_all(&sub).unwrap();
    fs::write(sub.join("a.yaml"), service("a", "10.96.0.1")).unwrap();
    let mut directory = Directory::new(dir.path(), ConvertOptions::default());
    assert_eq!(rescan(&mut directory).0, ["+demo/a 10.96.0.1"]);
    fs::remove_dir_all(dir.path().join("x")).unwrap();
    assert_eq!(rescan(&mut directory), (vec!["-demo/a".into()], vec![]));
}

#[test]
fn a_scan_that_is_interrupted_is_completed_by_the_next() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), service("a", "10.96.0.1")).unwrap();
    fs::write(dir.path().join("b.yaml"), service("b", "10.96.0.2")).unwrap();
    let mut directory = Directory::new(dir.path(), ConvertOptions::default());
    let left = std::cell::Cell::new(2);
    let (end, events, _) = scan(&mut directory, &|| left.replace(left.get() - 1) > 1);
    assert_eq!((end, events), (End::Interrupted, vec!["+demo/a 10.96.0.1".into()]));
    assert_eq!(rescan(&mut directory).0, ["+demo/b 10.96.0.2"]);
}

#[test]
fn several_directories_and_files_of_any_name_are_read() {
    let dir = tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("sub")).unwrap();
    fs::write(path("sub/a.yaml"), service("a", "10.96.0.1")).unwrap();
    fs::write(path("sub/a.txt"), service("x", "10.96.0.9")).unwrap();
    fs::write(path("chart.txt"), service("b", "10.96.0.2")).unwrap();
    let json = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "c", "namespace": "demo"},
        "spec": {"clusterIP": "10.96.0.3", "ports": [{"port": 80}]}} {"kind": 1}"#;
    fs::write(path("list"), format!("\n{json}")).unwrap();
    fs::write(path("empty.yaml"), " \n").unwrap();
    let read = |names: &[&str]| {
        let sources: Vec<_> = names.iter().map(|name| path(name)).collect();
        read_once(&sources, ConvertOptions::default())
    };
    let (events, problems) = read(&["sub", "list", "chart.txt", "sub", "chart.txt"]).unwrap();
    assert_eq!(words(&events), ["+demo/b 10.96.0.2", "+demo/c 10.96.0.3", "+demo/a 10.96.0.1", "done"]);
    // A file with another extension or none is read as JSON if it begins with `{`. Its second JSON value is document 2.
    assert_eq!(texts(&problems), [format!("{}, document 2: apiVersion: missing", path("list").display())]);
    let error = format!("{:#}", read(&["sub", "empty.yaml"]).unwrap_err());
    assert_eq!(error, format!("cannot read {}: it is empty", path("empty.yaml").display()));
    fs::File::create(path("large")).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
    let error = format!("{:#}", read(&["large"]).unwrap_err());
    assert!(error.ends_with("large: larger than 64 MiB"), "{error}");
}

#[test]
fn a_file_that_becomes_a_pipe_while_it_is_opened_stops_no_scan() {
    let (dir, outside) = (tempdir().unwrap(), tempdir().unwrap());
    let (file, pipe) = (dir.path().join("a.yaml"), outside.path().join("pipe"));
    fs::write(&file, service("s", "10.96.0.1")).unwrap();
    mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
    let (is_done, (sender, scanned)) = (AtomicBool::new(false), channel());
    let (mut directory, name) = (Directory::new(dir.path(), ConvertOptions::default()), file.clone());
    thread::spawn(move || {
        for _ in 0..20_000 {
            assert_eq!(directory.refresh(BTreeSet::from([name.clone()]), &mut |_| {}), End::Complete);
        }
        sender.send(()).unwrap();
    });
    let outcome = thread::scope(|scope| {
        let swaps = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                renameat_with(CWD, &file, CWD, &pipe, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let outcome = scanned.recv_timeout(Duration::from_secs(60));
        is_done.store(true, Ordering::Relaxed);
        swaps.join().unwrap();
        outcome
    });
    assert_eq!(outcome, Ok(()), "a scan waits for a writer of the pipe");
}
