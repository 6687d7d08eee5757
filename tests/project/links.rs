//! The links of all pages: each leads to a file that is there, and to a heading that this file has.
//!
//! Takes the pages in Markdown of this repository. The functions on text know no files; the tests read them. A link to another site is only
//! looked at for its form, because a test asks no server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use regex::Regex;

use super::pages::{page, pages, project};

/// The folders whose pages are not below `deploy/`.
const FOLDERS: [&str; 8] = ["", ".github", "benches", "nft", "src", "src/decisions", "tests", "vm-tests"];
/// The pages that each page of `deploy/` links in its first lines.
const BESIDE: [&str; 7] =
    ["../README", "INSTALL", "TROUBLESHOOTING", "REFERENCE", "COMPATIBILITY", "METRICS", "SECURITY"];

/// The pages of the repository, by their paths.
fn all_pages() -> BTreeSet<String> {
    let mut all: BTreeSet<String> = pages().into_iter().collect();
    for folder in FOLDERS {
        let entries = fs::read_dir(project().join(folder)).expect("a folder can be read");
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let pages = names.filter(|name| name.ends_with(".md"));
        all.extend(pages.map(|name| if folder.is_empty() { name } else { format!("{folder}/{name}") }));
    }
    all
}

/// The text of a page without fenced blocks, indented code and comments, in which nothing is a link or a heading.
fn prose(page: &str) -> String {
    let comment = Regex::new("(?s)<!--.*?-->").expect("a pattern");
    let page = comment.replace_all(page, "");
    let mut is_fenced = false;
    let mut text = String::new();
    for line in page.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        let is_code = is_fenced || is_fence || line.starts_with("    ");
        text += if is_code { "" } else { line };
        text.push('\n');
    }
    text
}

/// The targets of the links and images in a text.
fn links(prose: &str) -> Vec<String> {
    let link = Regex::new(r"\]\(([^)]*)\)").expect("a pattern");
    link.captures_iter(prose).map(|found| found[1].to_owned()).collect()
}

/// The anchors of a page as GitHub makes them: headings in lower case, spaces as hyphens, nothing else but letters, digits, hyphens and
/// underscores, a number behind the second of the same name; and what an element gives with `id`.
fn anchors(page: &str) -> BTreeSet<String> {
    let link = Regex::new(r"\[([^\]]*)\]\([^)]*\)").expect("a pattern");
    let id = Regex::new(r#"<a id="([^"]+)">"#).expect("a pattern");
    let prose = prose(page);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors: BTreeSet<String> = id.captures_iter(&prose).map(|found| found[1].to_owned()).collect();
    for heading in prose.lines().filter(|line| line.starts_with('#')) {
        let text = link.replace_all(heading.trim_start_matches('#').trim(), "$1").to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || ['-', '_', ' '].contains(c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let nth = seen.entry(anchor.clone()).or_default();
        anchors.insert(if *nth == 0 { anchor } else { format!("{anchor}-{nth}") });
        *nth += 1;
    }
    anchors
}

/// The path of a target beside a page, from the root of the repository; `None` if it leads out of it.
fn resolved(page: &str, target: &str) -> Option<String> {
    let mut path = PathBuf::from(page).parent().map(Path::to_owned).unwrap_or_default();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => path = path.parent()?.to_owned(),
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path.to_string_lossy().into_owned())
}

/// What is wrong with a link of a page; `None` when it is right. `content` gives the text of a file, or nothing if there is no such file.
fn flaw(page: &str, link: &str, content: impl Fn(&str) -> Option<String>) -> Option<String> {
    if let Some(rest) = link.strip_prefix("https://").or_else(|| link.strip_prefix("http://")) {
        let host = rest.split('/').next().unwrap_or_default();
        let is_good = host.contains('.') && !rest.contains(char::is_whitespace);
        return (!is_good).then(|| "no address".to_owned());
    }
    let (target, anchor) = link.split_once('#').map_or((link, None), |(target, anchor)| (target, Some(anchor)));
    let path = if target.is_empty() { Some(page.to_owned()) } else { resolved(page, target) };
    let Some(path) = path.filter(|path| !path.is_empty()) else {
        return Some("leads out of the repository".to_owned());
    };
    let Some(text) = content(&path) else { return Some(format!("there is no {path}")) };
    let missing = anchor.filter(|anchor| !anchors(&text).contains(*anchor));
    missing.map(|anchor| format!("{path} has no heading #{anchor}"))
}

/// The content of a file or a folder of the repository; a folder has none.
fn content(path: &str) -> Option<String> {
    let path = project().join(path);
    let is_text = path.extension().is_some_and(|ending| ending == "md");
    path.exists().then(|| if is_text { fs::read_to_string(&path).expect("a page can be read") } else { String::new() })
}

#[test]
fn each_link_leads_to_a_file_and_a_heading_that_are_there() {
    let mut flaws = Vec::new();
    let mut followed = 0;
    for name in all_pages() {
        for link in links(&prose(&page(&name))) {
            followed += 1;
            flaws.extend(flaw(&name, &link, content).map(|flaw| format!("{name}: {link}: {flaw}")));
        }
    }
    assert!(flaws.is_empty(), "{}", flaws.join("\n"));
    assert!(followed > 300, "{followed} links");
}

#[test]
fn each_name_of_a_page_is_a_link() {
    let mut names = Vec::new();
    for name in all_pages() {
        let text = prose(&page(&name));
        let spans = text.split('`').skip(1).step_by(2).filter(|span| span.ends_with(".md") && !span.contains(' '));
        let is_page = |span: &&str| {
            let beside = resolved(&name, span);
            let built = |path: &String| path.starts_with("target/");
            let paths = [Some((*span).to_owned()), beside].into_iter().flatten().filter(|path| !built(path));
            paths.into_iter().any(|path| project().join(path).exists())
        };
        names.extend(spans.filter(is_page).map(|span| format!("{name}: {span}")));
    }
    assert!(names.is_empty(), "make a link of each:\n{}", names.join("\n"));
}

#[test]
fn the_pages_for_operators_link_each_other_in_their_first_lines_and_the_first_page_links_all() {
    let of_readme = links(&prose(&page("README.md")));
    for name in pages().into_iter().filter(|name| name.starts_with("deploy/") && name.matches('/').count() == 1) {
        let text = page(&name);
        let first: Vec<&str> = text.lines().take(4).collect();
        let linked = links(&first.join("\n"));
        for other in BESIDE {
            assert!(linked.contains(&format!("{other}.md")), "{name} does not link {other}.md in its first lines");
        }
        assert!(of_readme.iter().any(|link| link.split('#').next() == Some(&name)), "README.md does not link {name}");
    }
}

#[test]
fn the_first_page_is_short_and_its_first_lines_say_how_to_try_to_swap_and_to_go_back() {
    let text = page("README.md");
    assert!(text.lines().count() <= 150, "{} lines", text.lines().count());
    let first = text.lines().take(25).collect::<Vec<_>>().join("\n");
    for part in ["make demo", "faster", "kubectl -n kube-system set image", "deploy/INSTALL.md#back-to-upstream"] {
        assert!(first.contains(part), "the first 25 lines do not have {part}");
    }
}

#[test]
fn a_broken_link_is_found() {
    let text = "# A `b` page, 2nd\n\n## Same\n\n## Same\n\n```\n# no heading\n[no](link.md)\n```\n\n    [no](code.md)\n\n\
                <!-- [no](comment.md) -->\n\n<a id=\"x1\"></a>[one](b/c.md#h), ![two](d.svg)\n";
    assert_eq!(links(&prose(text)), ["b/c.md#h", "d.svg"]);
    assert_eq!(anchors(text), BTreeSet::from(["a-b-page-2nd", "same", "same-1", "x1"].map(str::to_owned)));
    let content = |path: &str| (path == "a/b.md" || path == "c.md").then(|| text.to_owned());
    for good in ["../c.md", "b.md#same-1", "#x1", "https://example.org/a"] {
        assert_eq!(flaw("a/b.md", good, content), None, "{good}");
    }
    for (bad, says) in [
        ("c.md", "there is no a/c.md"),
        ("../c.md#other", "no heading #other"),
        ("#same-2", "no heading"),
        ("../../c.md", "out of the repository"),
        ("/c.md", "out of the repository"),
        ("https://x y", "no address"),
    ] {
        let found = flaw("a/b.md", bad, content).unwrap_or_default();
        assert!(found.contains(says), "{bad}: {found}");
    }
}
