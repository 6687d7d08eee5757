//! `kube-proxy stats` in a real browser, Debian's Chromium without a window: what a person sees on each page.
//!
//! `make stats-test` installs Chromium and runs these tests; they are ignored in `make test`, because Chromium and what it needs take more
//! than 400 MB. `STATS_SHOTS=DIR` keeps the pictures.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::run;
use super::stats::{Stats, node_with, rules};
use crate::support::mixed;
use crate::support::netns::Namespace;
use crate::support::nft;
use crate::support::proxy::{Proxy, config};
use crate::support::world::World;

/// A browser with a profile of its own, in a node's namespace.
struct Browser<'world> {
    node: &'world Namespace,
    profile: TempDir,
}

impl<'world> Browser<'world> {
    fn new(node: &'world Namespace) -> Self {
        Self { node, profile: TempDir::new().expect("a temporary directory can be made") }
    }

    /// Chromium with these arguments; its standard output, and what the page wrote to the console, which is on standard error.
    fn run(&self, arguments: &[&str]) -> (String, String) {
        let mut command: Command = self.node.command("timeout");
        command.args(["60", "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]);
        command.arg(format!("--user-data-dir={}", self.profile.path().display())).args(arguments);
        let output = command.output().expect("it can be run: `make stats-test` installs it");
        let [out, errors] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.success(), "{arguments:?}: {errors}");
        // The browser's own pages write to the console too.
        let is_of_page = |line: &&str| line.contains("CONSOLE") && !line.contains("source: chrome");
        let of_page = errors.lines().filter(is_of_page).collect::<Vec<_>>().join("\n");
        (out, of_page)
    }

    /// The page as the browser has it after its scripts ran.
    fn dom(&self, path: &str) -> String {
        let (dom, console) = self.run(&["--dump-dom", &format!("http://127.0.0.1:8080{path}")]);
        assert_eq!(console, "", "{path}: nothing is refused and no script fails");
        dom
    }

    /// The size of the page's picture, and its bytes.
    fn shot(&self, path: &str, width: u32, dark: bool) -> Vec<u8> {
        let file = self.profile.path().join("shot.png");
        let scheme = if dark { 0 } else { 1 };
        self.run(&[
            &format!("--blink-settings=preferredColorScheme={scheme}"),
            &format!("--window-size={width},900"),
            "--hide-scrollbars",
            &format!("--screenshot={}", file.display()),
            &format!("http://127.0.0.1:8080{path}"),
        ]);
        fs::read(file).expect("the picture is there")
    }
}

/// Keeps a picture in the folder that the environment names.
fn keep(name: &str, picture: &[u8]) {
    if let Some(folder) = std::env::var_os("STATS_SHOTS") {
        fs::write(PathBuf::from(folder).join(name), picture).expect("the folder is there");
    }
}

#[test]
#[ignore = "needs Chromium: make stats-test"]
fn each_page_is_shown_in_light_and_dark_wide_and_narrow() {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config(), &mixed::cluster());
    let _stats = Stats::start(&world.node, &[]);
    let browser = Browser::new(&world.node);
    for (name, path, text) in [
        ("services", "/", "shop/sticky"),
        ("service", "/service/shop/web", "10.244.1.10:8080"),
        ("history", "/history", "first sync of 6 Services"),
        ("explain", "/explain?from=203.0.113.7&to=192.0.2.2:30080", "decides"),
        ("not-found", "/service/shop/wbe", "did you mean"),
    ] {
        let dom = browser.dom(path);
        assert!(dom.contains(text) && dom.contains("<h1>"), "{path}: {dom}");
        // The button is hidden until the script runs, and only live pages have it.
        let is_live = matches!(name, "services" | "service" | "history");
        assert_eq!(dom.contains("<button id=\"pause\" type=\"button\">"), is_live, "{path}: {dom}");
        let mut pictures = Vec::new();
        for width in [1_280, 400] {
            for dark in [false, true] {
                let picture = browser.shot(path, width, dark);
                let scheme = if dark { "dark" } else { "light" };
                keep(&format!("{name}-{width}-{scheme}.png"), &picture);
                assert!(picture.len() > 5_000, "{path}: a picture of nothing");
                pictures.push(picture);
            }
        }
        pictures.sort();
        pictures.dedup();
        assert_eq!(pictures.len(), 4, "{path}: light and dark, wide and narrow are different");
    }
}

// A script in a name would change the title or the content of the page.
#[test]
#[ignore = "needs Chromium: make stats-test"]
fn a_script_in_a_name_does_nothing() {
    let node = node_with("ym/<script>document.title='taken'</script>");
    let _stats = Stats::start(&node, &[]);
    let browser = Browser::new(&node);
    for path in [
        "/",
        "/service/ym/%3Cscript%3Edocument.title%3D%27taken%27%3C%2Fscript%3E",
        "/?q=%22%3E%3Cscript%3Edocument.title=1",
    ] {
        let dom = browser.dom(path);
        assert!(dom.contains("&lt;script&gt;document.title="), "{path}: {dom}");
        assert!(!dom.contains("<title>taken") && !dom.contains("<title>1"), "{path}: {dom}");
        assert_eq!(dom.matches("<script").count(), 1, "{path}: {dom}");
    }
}

#[test]
#[ignore = "needs Chromium: make stats-test"]
fn the_drawing_of_the_command_is_an_image() {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config(), &mixed::cluster());
    let (_, svg, _) = run(&world.node, &["explain", "--from", "203.0.113.7", "--to", "192.0.2.2:30080", "-o", "svg"]);
    let browser = Browser::new(&world.node);
    let file = browser.profile.path().join("way.svg");
    fs::write(&file, svg).expect("a file can be written");
    let (dom, console) = browser.run(&["--dump-dom", &format!("file://{}", file.display())]);
    assert_eq!(console, "");
    // The browser shows a file that is not well-formed as an error.
    assert!(dom.contains(">TRANSLATED<") && !dom.contains("parsererror"), "{dom}");
}

/// A node with the rules of 20,000 Services with one endpoint each.
fn node_with_many() -> Namespace {
    let node = Namespace::new("many");
    let rules = rules().replace("\t\tsize 768\n", "\t\tsize 65536\n");
    let [mut services, mut endpoints] = [String::new(), String::new()];
    for number in 1..=20_000_u16 {
        let [high, low] = number.to_be_bytes();
        let frontend = format!("10.97.{high}.{low} . tcp . 80");
        services += &format!("{frontend} comment \"many/service-{number:05}\" : goto lb-1,\n");
        endpoints += &format!("{frontend} . 0 : 10.100.{high}.{low} . 8080,\n");
    }
    let add = |map: &str, elements: &str| format!("add element ip kube-proxy {map} {{ {elements} }}\n");
    nft::load(&node, &[rules, add("services", &services), add("endpoints", &endpoints)].concat());
    node
}

/// The shortest time of three: the machine may have other work.
fn shortest(mut work: impl FnMut()) -> Duration {
    let times = (0..3).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed()
    });
    times.min().unwrap_or_default()
}

// The first screen of 20,000 Services is there within a second, the reading of the tables included.
#[test]
#[ignore = "needs Chromium: make stats-test"]
fn the_first_screen_of_20000_services_is_there_within_a_second() {
    let space = node_with_many();
    // The start of the process is part of the time, so that nothing has been read before.
    let cold = shortest(|| {
        let answer = Stats::start(&space, &[]).get("/");
        assert!(answer.body.contains("1 to 100 of 20003"), "{}", answer.body);
    });
    let _stats = Stats::start(&space, &[]);
    let browser = Browser::new(&space);
    // The first page of a browser also makes its profile.
    browser.dom("/explain");
    let empty = shortest(|| drop(browser.dom("/explain")));
    let full = shortest(|| {
        let dom = browser.dom("/?sort=endpoints");
        assert_eq!(dom.matches("<td data-column=\"service\"").count(), 100);
    });
    let shown = full.saturating_sub(empty);
    println!("20,000 Services: first answer {cold:?}, and in the browser {shown:?} more than an empty page");
    assert!(cold < Duration::from_secs(1), "{cold:?} until the first answer");
    assert!(shown < Duration::from_secs(1), "{shown:?} in the browser");
}
