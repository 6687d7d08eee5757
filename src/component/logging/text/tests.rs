use serde_json::json;

use super::*;
use crate::logging::record::Place;
use crate::logging::testing;

const PID: u32 = 30_022;

fn text_of(severity: Severity, message: &str, fields: &[(&'static str, Value)]) -> String {
    record(&testing::record(severity, 0, message, fields), &TimeZone::UTC, PID)
}

/// Returns the text of a record's fields, without the newline.
fn fields(fields: &[(&'static str, Value)]) -> String {
    let text = text_of(Severity::Info, "m", fields);
    text.strip_prefix("I1122 11:42:34.588089   30022 sync.rs:228] \"m\"").unwrap().trim_end_matches('\n').to_owned()
}

fn quoted(value: &str) -> String {
    let mut text = String::new();
    quote(&mut text, value);
    text
}

#[test]
fn the_header_has_severity_time_process_and_place() {
    for (severity, letter) in [(Severity::Info, 'I'), (Severity::Warning, 'W'), (Severity::Error, 'E')] {
        let text = text_of(severity, "Synced", &[]);
        assert_eq!(text, format!("{letter}1122 11:42:34.588089   30022 sync.rs:228] \"Synced\"\n"));
    }
    let mut early = testing::record(Severity::Info, 0, "m", &[]);
    early.time = "2026-01-02T03:04:05.000006999Z".parse().unwrap();
    assert!(record(&early, &TimeZone::UTC, 1).starts_with("I0102 03:04:05.000006       1 sync.rs:228] "));
    assert!(record(&early, &TimeZone::UTC, 4_194_304).starts_with("I0102 03:04:05.000006 4194304 sync.rs:228] "));
}

#[test]
fn a_place_has_the_name_of_its_module() {
    for (file, module) in [
        ("src/proxy/sync/schedule.rs", "schedule"),
        ("src/proxy/sync/mod.rs", "sync"),
        ("src/cluster/lib.rs", "cluster"),
        ("/build/nft/src/lib.rs", "nft"),
        ("mod.rs", "mod"),
        ("???", "???"),
    ] {
        assert_eq!(Place { file, line: 1 }.module(), module, "{file}");
    }
}

#[test]
fn the_time_is_that_of_the_zone_also_in_summer() {
    let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
    let mut summer = testing::record(Severity::Info, 0, "m", &[]);
    assert!(record(&summer, &zone, 1).starts_with("I1122 12:42:34.588089 "));
    summer.time = "2026-06-30T23:30:00Z".parse().unwrap();
    assert!(record(&summer, &zone, 1).starts_with("I0701 01:30:00.000000 "));
}

#[test]
fn text_is_quoted_and_numbers_and_booleans_are_not() {
    let text = fields(&[("name", json!("kubedns")), ("update", json!(true)), ("n", json!(-3)), ("f", json!(1.5))]);
    assert_eq!(text, " name=\"kubedns\" update=true n=-3 f=1.5");
}

#[test]
fn names_with_a_namespace_are_quoted_as_one() {
    assert_eq!(fields(&[("service", json!("kube-system/kube-dns"))]), " service=\"kube-system/kube-dns\"");
}

#[test]
fn lists_are_json() {
    let list = json!(["10.0.0.1", "a \"quoted\" one", "<&>", "two\nlines"]);
    let expected = r#" list=["10.0.0.1","a \"quoted\" one","\u003c\u0026\u003e","two\nlines"]"#;
    assert_eq!(fields(&[("list", list)]), expected);
    assert_eq!(fields(&[("list", json!([]))]), " list=[]");
    assert_eq!(fields(&[("list", json!(["\u{7f}\u{202e}\u{1f600}"]))]), " list=[\"\\u007f\\u202e\u{1f600}\"]");
}

#[test]
fn the_text_of_an_error_is_first() {
    let both = [("port", json!(80)), ("err", json!("whoops"))];
    let text = text_of(Severity::Error, "test", &both);
    assert!(text.ends_with("] \"test\" err=\"whoops\" port=80\n"), "{text}");
    assert_eq!(fields(&both), " port=80 err=\"whoops\"");
}

#[test]
fn text_of_several_lines_is_indented_between_marks() {
    let value = "Hello world!\n\tStarts with tab.\n  Starts with spaces.\nNo whitespace.";
    assert_eq!(
        fields(&[("multi", json!(value)), ("pod", json!("kubedns"))]),
        " multi=<\n\tHello world!\n\t\tStarts with tab.\n\t  Starts with spaces.\n\tNo whitespace.\n > pod=\"kubedns\""
    );
    assert_eq!(fields(&[("k", json!("one\n"))]), " k=<\n\tone\n >", "a newline at the end shows in no way");
    assert_eq!(fields(&[("k", json!("\n\n"))]), " k=<\n\t\n\t\n >");
    assert_eq!(fields(&[("k", json!("a\nI1122 forged"))]), " k=<\n\ta\n\tI1122 forged\n >");
}

#[test]
fn control_characters_are_escaped_in_text_of_several_lines_too() {
    assert_eq!(fields(&[("k", json!("a\r\n\u{1b}[2J\u{202e}b\\"))]), " k=<\n\ta\\r\n\t\\x1b[2J\\u202eb\\\n >");
}

#[test]
fn a_message_is_quoted_whatever_it_contains() {
    let text = text_of(Severity::Info, "two\nlines \"quoted\"", &[]);
    assert!(text.ends_with("] \"two\\nlines \\\"quoted\\\"\"\n"), "{text}");
}

#[test]
fn quotes_are_those_of_go() {
    for (value, expected) in [
        ("", r#""""#),
        ("<&>", r#""<&>""#),
        ("a\"b\\c'd", r#""a\"b\\c'd""#),
        ("\x07\x08\x0c\n\r\t\x0b", r#""\a\b\f\n\r\t\v""#),
        ("\0\x1b\x1f\x7f", r#""\x00\x1b\x1f\x7f""#),
        ("\u{80}\u{85}\u{9b}", r#""\u0080\u0085\u009b""#),
        // These are escaped: all spaces except the ASCII space, marks for the direction of writing, private-use characters and unassigned
        // ones.
        ("\u{a0}\u{3000}\u{200b}\u{202e}\u{2028}\u{feff}\u{e000}", r#""\u00a0\u3000\u200b\u202e\u2028\ufeff\ue000""#),
        ("\u{f0000}\u{10ffff}", r#""\U000f0000\U0010ffff""#),
        ("ação नमस्ते ☺ 😀", "\"ação नमस्ते ☺ 😀\""),
        // A combining mark is printed.
        ("e\u{301}\u{301}", "\"e\u{301}\u{301}\""),
    ] {
        assert_eq!(quoted(value), expected, "{value:?}");
    }
}
